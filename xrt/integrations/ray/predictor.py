"""Models for `ray.data.Dataset.map_batches`: `Predictor` as an actor that loads once, `predict` as a task that survives lost
nodes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.integrations.batch.model import OnError, RowModel, choose_batch, open_model, stamp_model


def import_ray() -> Any:
    """Import Ray; raises OptionError with the pip command if it is missing."""
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"xrt.ray needs Ray, which cannot be imported ({error}): pip install 'xrt-engine[ray]'") from error
    return ray


def count_granted_threads() -> int | None:
    """The CPUs that Ray assigned to this actor or task as a thread budget, at least 1; None in other processes.

    Ray does not set CPU affinity; it limits only thread pools that read ``OMP_NUM_THREADS``.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():  # Ray's own processes have imported it
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 0)))


Columns: TypeAlias = "dict[str, np.ndarray[Any, Any]]"


class Predictor:
    """A callable class for `map_batches`: loads a bundle or an ONNX file once and adds the model's outputs to batches.

    ``model`` is a path that exists on every machine of the cluster. The thread budget is Ray's ``num_cpus`` unless ``threads`` is
    set. ``columns`` maps inputs to columns if names differ, ``outputs`` names or maps the outputs, ``keep`` lists the columns to
    pass on (default: all that are no input), and ``batch`` limits the rows per call. Rows may differ in size along dynamic axes.
    With ``on_error="column"`` rows that fail get a reason in the column ``error``. ``engine`` and ``options`` are as in
    `xrt.load` or XRTModule.

    Raises OptionError for an invalid option; a call raises InputError or EngineError with the row.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        engine: Any = (),
        threads: int | None = None,
        columns: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        granted = count_granted_threads() if threads is None else threads
        self.module = open_model(model, engine=engine, threads=granted, **options)
        self._rows = RowModel(self.module, columns=columns, outputs=outputs, keep=keep, batch=batch, on_error=on_error)

    def __call__(self, batch: Columns) -> Columns:
        """Add the outputs as columns to a batch in Ray Data's format "numpy"."""
        if not isinstance(batch, dict):
            raise OptionError(
                f"Predictor takes batches of batch_format='numpy', which is the default; got {type(batch).__name__}"
            )
        return self._rows(batch)

    @staticmethod
    def batch(model: str | os.PathLike[str], *, engine: Any = ()) -> int:
        """The batch size that the model declares or was tuned for, or a default; for ``batch_size``.

        Loads the model without compiling it.
        """
        with open_model(model, engine=engine) as module:
            return choose_batch(module)


def predict(batch: Columns, *, model: str, **options: Any) -> Columns:
    """Add the model's outputs to a batch, in a task of `map_batches`; ``options`` are those of `Predictor`.

    The model is loaded once per process and reused by later tasks until its file changes. Tasks do not depend on a particular
    machine, so a lost machine blocks nothing even if the job uses all CPUs; actors of `Predictor` need a spare CPU to restart.
    """
    threads = count_granted_threads()
    key = f"{model!r} {stamp_model(model)} {options!r} {threads}"
    return load_once(key, lambda: Predictor(model, **{"threads": threads, **options}))(batch)  # type: ignore[no-any-return]


_LOADED: dict[str, Any] = {}
"""The models of this process, by what they depend on; the last one loaded is the last item."""


def load_once(key: str, load: Callable[[], Any]) -> Any:
    """Load a model, or return the one that was loaded with this key; a process keeps two."""
    model = _LOADED.get(key)
    if model is None:
        for old in list(_LOADED)[:-1]:
            _LOADED.pop(old, None)  # another thread may have removed it
        model = _LOADED[key] = load()
    return model
