"""A model in parts: one actor of Ray for each stage of its plan, in a row, with values passed by a compiled graph.

Each actor reads the model from a path that its machine has, and touches the weights of its stage alone: they are mapped.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xrt.errors import EngineError, InputError, OptionError, XRTError
from xrt.graph import TensorType, Value
from xrt.integrations.batch.model import open_model
from xrt.integrations.ray.grant import count_granted_threads, import_ray
from xrt.module.stages import compile_stage
from xrt.partition.stages import cut_plan
from xrt.runtime import inputs as given_inputs

if TYPE_CHECKING:
    from xrt.partition import CostTable, Stage

__all__ = ["StagePipeline", "pipeline"]

FRAME = 1 << 20
"""Bytes of a message between stages beyond its values."""
WAIT = 86_400.0
"""Seconds that a message may take: a stage may be slow, and Ray ends the wait where an actor dies. Ray 2.60 takes -1, which it
documents as no limit, for no time at all."""
AHEAD = 2
"""Micro-batches for each stage that are on their way at the same time."""


def pipeline(
    model: str | os.PathLike[str],
    stages: int,
    *,
    engine: Any = (),
    memory: int | None = None,
    micro_batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    costs: CostTable | None = None,
    num_cpus: float = 1,
    actor_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> StagePipeline:
    """Return a model in ``stages`` actors of ``num_cpus`` processors each, which work on several micro-batches at a time.

    ``model`` is a bundle, or an ONNX file on ``engine``, at a path that every machine of the cluster has. ``memory``,
    ``costs`` and ``sizes`` are those of `Plan.stages`. A call splits its rows into parts of ``micro_batch``. ``sizes`` has
    the largest extents of symbolic dims, which give the size of the messages; a dim of rows that is not in it is ``micro_batch``.
    ``actor_options`` are those of Ray for all actors, or one for each.

    Close the pipeline, or use it in ``with``. Raises PlanError where the plan has no such stages.
    """
    ray = import_ray()
    path = os.fspath(Path(model).absolute())
    with open_model(path, engine=engine) as module:
        inputs, outputs = module.inputs, module.outputs
        extents = {**_find_row_dims(inputs, micro_batch or 1), **(sizes or {})}
        cut = module.plan.stages(stages, memory=memory, costs=costs, sizes=extents)
    common = actor_options or {}
    each = [dict(common)] * stages if isinstance(common, Mapping) else [dict(one) for one in common]
    if len(each) != stages:
        raise OptionError(f"actor_options has {len(each)} entries for {stages} stages; give one for each, or one for all")
    kind = ray.remote(_StageActor)
    ends = tuple(stage.stop for stage in cut)
    options = [{"num_cpus": num_cpus, **one} for one in each]
    actors = [kind.options(**one).remote(path, engine, ends, place, extents) for place, one in enumerate(options)]
    try:
        processes = ray.get([actor.describe.remote() for actor in actors])
        return StagePipeline(actors, cut, inputs, outputs, micro_batch, processes)
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise


def _find_row_dims(inputs: Sequence[Value], rows: int) -> dict[str, int]:
    """Return the symbolic first extents of the inputs, with a number of rows."""
    shapes = [value.type.shape for value in inputs if isinstance(value.type, TensorType) and value.type.shape]
    return {shape[0]: rows for shape in shapes if isinstance(shape[0], str)}


@dataclass(frozen=True, slots=True)
class StageProcess:
    """Where a stage runs."""

    threads: int
    pid: int
    """The number of the process on its machine."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """What a stage sends in place of values."""

    error: Exception


def _make_portable(error: Exception) -> Exception:
    """Return an error of the same class, where that is XRT's and takes a text alone, or one with its text."""
    try:
        return type(error)(str(error)) if isinstance(error, XRTError) else RuntimeError(f"{type(error).__name__}: {error}")
    except TypeError:  # its class needs more
        return EngineError(str(error))


class _StageActor:
    """One stage in a process of its own."""

    def __init__(self, path: str, engine: Any, ends: Sequence[int], place: int, sizes: Mapping[str, int]) -> None:
        self._module = open_model(path, engine=engine, threads=count_granted_threads())
        self._program = compile_stage(self._module, cut_plan(self._module.plan, ends, sizes)[place])

    def describe(self) -> StageProcess:
        return StageProcess(self._module.threads, os.getpid())

    def run(self, values: Sequence[Any] | StageFailure) -> list[Any] | StageFailure:
        """Return what the stage sends; a failure of this stage or an earlier one is a value like others.

        Between machines an exception does not arrive through a compiled graph of Ray 2.60, and its reader waits for ever.
        """
        if isinstance(values, StageFailure):
            return values
        try:
            return self._program(values)
        except Exception as error:  # noqa: BLE001  # the caller of the pipeline raises it
            return StageFailure(_make_portable(error))


class StagePipeline:
    """A model whose stages run in actors. Made by `pipeline`; one thread at a time may call it."""

    def __init__(
        self,
        actors: Sequence[Any],
        stages: Sequence[Stage],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        micro_batch: int | None,
        processes: Sequence[StageProcess],
    ) -> None:
        from ray.dag import InputNode

        self.stages, self.processes = tuple(stages), tuple(processes)
        """The parts of the plan, and the process of each."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._micro_batch = micro_batch
        self._actors = list(actors)
        self._limit = AHEAD * len(stages)
        first = sum(_count_bytes(value) for value in inputs)
        largest = max(first, *(stage.sent_bytes for stage in stages))
        with InputNode() as values:
            for actor in actors:
                values = actor.run.bind(values)  # noqa: PLW2901  # a chain
        self._graph = values.experimental_compile(
            _submit_timeout=WAIT,
            _buffer_size_bytes=FRAME + 2 * largest,
            _max_inflight_executions=self._limit,
            _max_buffered_results=self._limit,
        )

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the outputs for inputs given as to a module; rows run in micro-batches, and come out in their order."""
        values = self._check(args, named)
        parts = list(self._split(values))
        results = list(self._run(parts))
        if len(parts) == 1:
            return _unpack(results[0])
        return _unpack([np.concatenate(column, axis=0) for column in zip(*results, strict=True)])

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs for each item, an array or a tuple of the inputs, in their order, as the pipeline delivers them."""
        checked = (self._check(item if isinstance(item, tuple) else (item,), {}) for item in items)
        return map(_unpack, self._run(checked))

    def close(self) -> None:
        """End the actors."""
        if not self._actors:
            return
        ray = import_ray()
        self._graph.teardown(kill_actors=True)
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._graph = [], None  # the graph keeps the processors of its actors as long as it exists

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ values

    def _check(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        if not self._actors:
            raise OptionError("the pipeline is closed; make another one: xrt.ray.pipeline(...)")
        values = [
            given_inputs.normalize(value, given, "cpu")
            for value, given in zip(self.inputs, given_inputs.bind(self.inputs, args, dict(named)), strict=True)
        ]
        given_inputs.check(self.inputs, values, None)
        return values

    def _split(self, values: list[Any]) -> Iterator[list[Any]]:
        """Yield the inputs in parts of so many rows; as they are where the inputs and outputs do not have one dim of rows."""
        size = self._micro_batch
        if size is None:
            yield values
            return
        dims = {
            v.type.shape[0] if isinstance(v.type, TensorType) and v.type.shape else None for v in (*self.inputs, *self.outputs)
        }
        if len(dims) != 1 or not isinstance(next(iter(dims)), str):
            shown = ", ".join(map(str, (*self.inputs, *self.outputs)))
            raise InputError(f"micro_batch splits rows, and these have no dim of rows in common: {shown}; use map() for parts")
        rows = len(values[0])
        for start in range(0, max(rows, 1), size):
            yield [value[start : start + size] for value in values]

    def _run(self, parts: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """Yield the outputs of each part; as many are on their way as keep all stages busy."""
        waiting: deque[Any] = deque()
        try:
            for part in parts:
                if len(waiting) == self._limit:
                    yield _take(waiting.popleft())
                waiting.append(self._graph.execute(part))
            while waiting:
                yield _take(waiting.popleft())
        finally:
            for left in waiting:  # so that the next call finds the graph empty
                with suppress(Exception):
                    left.get(timeout=WAIT)


def _take(reference: Any) -> list[Any]:
    """Return results as arrays of this process; those of a compiled graph are in memory that the next message reuses."""
    results = reference.get(timeout=WAIT)
    if isinstance(results, StageFailure):
        raise results.error
    return [np.array(result) if isinstance(result, np.ndarray) else result for result in results]


def _unpack(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _count_bytes(value: Value) -> int:
    return (value.type.nbytes or 0) if isinstance(value.type, TensorType) else 0
