"""Models for `ray.data.Dataset.map_batches`: as an actor, which loads once, and as a task, which a lost node cannot block."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.graph.constants import Stamp
from xrt.integrations.batch.model import OnError, RowModel, choose_batch, open_model, stamp_model

__all__ = ["Predictor", "count_granted_threads", "import_ray", "predict"]


def import_ray() -> Any:
    """Return the package of Ray; raises OptionError, with the line for pip, where it is missing."""
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"xrt.ray needs Ray, which cannot be imported ({error}): pip install 'xrt-engine[ray]'") from error
    return ray


def count_granted_threads() -> int | None:
    """Return the processors of this actor or task as a thread budget, at least 1; None in another process.

    Ray sets no affinity. Of the engines' thread pools it limits those that read ``OMP_NUM_THREADS``.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():  # an actor's process has imported it
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 0)))


Columns: TypeAlias = "dict[str, np.ndarray[Any, Any]]"


class Predictor:
    """A class for `map_batches`: it loads a bundle or an ONNX file once, and returns batches with the model's outputs.

    ``model`` is a path that every machine of the cluster has. The thread budget is what Ray grants by ``num_cpus``, unless
    ``threads`` says otherwise. ``columns`` maps inputs to columns where the names differ, ``outputs`` names or maps the outputs,
    ``keep`` lists the columns that are passed on (all that are no input), and ``batch`` limits the rows of a call. Rows may have
    different sizes where the model leaves them open. ``on_error="column"`` gives a row that cannot be run a reason in the column
    ``error``. ``engine`` and ``options`` are those of `xrt.load` or XRTModule.

    Raises OptionError for an impossible option; a call raises InputError and EngineError, with the row.
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
        """Return a batch of Ray Data's format "numpy" with the outputs as columns."""
        if not isinstance(batch, dict):
            raise OptionError(
                f"Predictor takes batches of batch_format='numpy', which is the default; got {type(batch).__name__}"
            )
        return self._rows(batch)

    @staticmethod
    def batch(model: str | os.PathLike[str], *, engine: Any = ()) -> int:
        """Return the rows of a call that a model was tuned for, or declares, or a usual number: for ``batch_size``.

        Loads the model, and compiles nothing.
        """
        with open_model(model, engine=engine) as module:
            return choose_batch(module)


def predict(batch: Columns, *, model: str, **options: Any) -> Columns:
    """Return a batch with the model's outputs, in a task of `map_batches`; ``options`` are those of `Predictor`.

    The model is loaded once in each process of Ray, and stays there for further tasks until its file changes. No task waits for
    the machine of another, so a lost machine blocks nothing, even where the job has all processors; the actors of `Predictor`
    need a processor to spare.
    """
    return _find_predictor(model, stamp_model(model), _freeze(options), count_granted_threads())(batch)


@lru_cache(maxsize=2)
def _find_predictor(model: str, stamp: Stamp, options: Any, threads: int | None) -> Predictor:
    return Predictor(model, **{"threads": threads, **_thaw(options)})


def _freeze(options: Any) -> Any:
    if isinstance(options, Mapping):
        return ("map", *((name, _freeze(value)) for name, value in options.items()))
    return ("list", *map(_freeze, options)) if isinstance(options, list | tuple) else options


def _thaw(options: Any) -> Any:
    if not isinstance(options, tuple):
        return options
    kind, *items = options
    return {name: _thaw(value) for name, value in items} if kind == "map" else [_thaw(item) for item in items]
