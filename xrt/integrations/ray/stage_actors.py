"""A model in parts: one actor of Ray for each stage of its plan, in a row.

`stage_process` has what runs in each process, `stage_channels` how values go from one to the next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from xrt.errors import InputError, OptionError, StageLost
from xrt.graph import TensorType, Value
from xrt.integrations.batch.model import open_model
from xrt.integrations.ray.grant import import_ray
from xrt.integrations.ray.stage_channels import (
    ActorCalls,
    ChannelKind,
    CompiledGraph,
    StageChannel,
    choose_channel,
    inline_results,
)
from xrt.integrations.ray.stage_process import (
    StageFailure,
    StageProcess,
    StageSource,
    describe_process,
    end_stages,
    find_lost_stages,
    load_stages,
    name_stages,
    start_stages,
)
from xrt.module.stages import defer_weight_checks
from xrt.runtime import inputs as given_inputs

if TYPE_CHECKING:
    from xrt.partition import CostTable, Stage

__all__ = ["StagePipeline", "pipeline"]

ANSWER = 5.0
"""Seconds in which a process that computes nothing answers; one that does not is taken for busy."""
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
    channel: ChannelKind = "auto",
    timeout: float = 600.0,
    actor_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> StagePipeline:
    """Return a model in ``stages`` actors of ``num_cpus`` processors each, which work on several micro-batches at a time.

    ``model`` is a bundle, or an ONNX file on ``engine``, at a path that every machine of the cluster has. ``memory``,
    ``costs`` and ``sizes`` are those of `Plan.stages`. A call splits its rows into parts of ``micro_batch``. ``sizes`` has
    the largest extents of symbolic dims, which give the size of the messages; a dim of rows that is not in it is ``micro_batch``.
    ``memory`` is also what Ray reserves for each actor on its node. ``actor_options`` are those of Ray for all actors, or one
    for each.

    ``channel`` is how values go from stage to stage: ``"calls"`` of actors, a compiled ``"graph"``, whose processes poll, or
    ``"auto"``, a graph where there are cores for that. ``timeout`` is how many seconds the processes may take to start, the
    stages to load, and the pipeline to give the next result.

    Close the pipeline, or use it in ``with``. Raises PlanError where the plan has no such stages, StageLost where a stage
    cannot be started or loaded, and what a stage raises.
    """
    import_ray()
    if not timeout > 0:
        raise OptionError(f"timeout must be a number of seconds above 0; got {timeout!r}")
    path = os.fspath(Path(model).absolute())
    with open_model(path, engine=engine) as module:
        defer_weight_checks(module)
        inputs, outputs = module.inputs, module.outputs
        extents = {**_find_row_dims(inputs, micro_batch or 1), **(sizes or {})}
        cut = module.plan.stages(stages, memory=memory, costs=costs, sizes=extents)
    common = actor_options or {}
    each = [dict(common)] * stages if isinstance(common, Mapping) else [dict(one) for one in common]
    if len(each) != stages:
        raise OptionError(f"actor_options has {len(each)} entries for {stages} stages; give one for each, or one for all")
    reserved = {"num_cpus": num_cpus} if memory is None else {"num_cpus": num_cpus, "memory": memory}
    options = [inline_results({**reserved, **one}, is_last=place == stages - 1) for place, one in enumerate(each)]
    source = StageSource(path, engine, tuple(stage.stop for stage in cut), extents)
    return StagePipeline(source, cut, inputs, outputs, micro_batch=micro_batch, options=options, channel=channel, timeout=timeout)


def _find_row_dims(inputs: Sequence[Value], rows: int) -> dict[str, int]:
    """Return the symbolic first extents of the inputs, with a number of rows."""
    shapes = [value.type.shape for value in inputs if isinstance(value.type, TensorType) and value.type.shape]
    return {shape[0]: rows for shape in shapes if isinstance(shape[0], str)}


class StagePipeline:
    """A model whose stages run in actors. Made by `pipeline`; one thread at a time may call it.

    Where a stage is lost, a call raises StageLost; `rebuild` starts what has ended, and the next call runs.
    """

    def __init__(
        self,
        source: StageSource,
        stages: Sequence[Stage],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        *,
        micro_batch: int | None,
        options: Sequence[Mapping[str, Any]],
        channel: ChannelKind,
        timeout: float,
    ) -> None:
        self.stages = tuple(stages)
        """The parts of the plan."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._source, self._options, self._micro_batch = source, list(options), micro_batch
        self._asked, self._timeout = channel, timeout
        self._limit = AHEAD * len(stages)
        self._actors: dict[int, Any] = {}
        self._late: set[int] = set()  # stages for which a call has waited as long as it may
        self._start(range(len(stages)), {})

    def _start(self, places: Iterable[int], kept: Mapping[int, StageProcess]) -> None:
        """Start and load those stages, and connect all; where that fails, end all."""
        count = len(self.stages)
        try:
            started = start_stages(self._source, {place: self._options[place] for place in places}, self._timeout)
            self._actors |= started
            loaded = {**kept, **load_stages(started, count, self._timeout)}
            self.processes = tuple(loaded[place] for place in range(count))
            """Where each stage runs."""
            self._channel = self._connect([self._actors[place] for place in range(count)])
        except BaseException:
            self._end()
            raise

    def _connect(self, actors: Sequence[Any]) -> StageChannel:
        kind = choose_channel(self._asked, describe_process(1), self.processes)
        if kind == "calls":
            return ActorCalls(actors, self._timeout)
        first = sum(_count_bytes(value) for value in self.inputs)
        largest = max(first, *(stage.sent_bytes for stage in self.stages))
        return CompiledGraph(actors, self._timeout, largest, self._limit)

    @property
    def channel(self) -> str:
        """How values go from stage to stage: ``"calls"`` or ``"graph"``."""
        return self._channel.kind

    def rebuild(self) -> tuple[int, ...]:
        """Start again the stages whose process has ended or does not answer, all those of a graph; return their numbers from 0.

        The others keep their weights. Raises what `pipeline` raises; then the pipeline is closed.
        """
        self._check_open()
        self._channel.close()
        lost = set(self._actors) if not self._channel.keeps_actors else self._late
        for found in find_lost_stages({p: actor for p, actor in self._actors.items() if p not in lost}, self._timeout):
            lost = lost | {*found}
        self._late = set()
        end_stages(self._actors[place] for place in lost)
        self._start(lost, {place: process for place, process in enumerate(self.processes) if place not in lost})
        return tuple(sorted(lost))

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
        for results in self._run(checked):
            yield _unpack(results)

    def close(self) -> None:
        """End the actors."""
        if self._actors:
            self._channel.close()
            self._end()

    def _end(self) -> None:
        end_stages(self._actors.values())
        self._actors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ values

    def _check_open(self) -> None:
        if not self._actors:
            raise OptionError("the pipeline is closed; make another one: xrt.ray.pipeline(...)")

    def _check(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        self._check_open()
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
        """Yield the outputs of each part in their order; as many are on their way as keep all stages busy."""
        waiting: deque[Any] = deque()
        try:
            for part in parts:
                if len(waiting) == self._limit:
                    yield self._take(waiting.popleft())
                waiting.append(self._send(part))
            while waiting:
                yield self._take(waiting.popleft())
        finally:
            if self._actors:
                self._channel.drop(waiting)

    def _send(self, part: list[Any]) -> Any:
        ray = import_ray()
        try:
            return self._channel.send(part)
        except ray.exceptions.RayError as error:
            self._explain(error)

    def _take(self, reference: Any) -> list[Any]:
        """Return results as arrays of this process: those that arrive are in memory of Ray, read-only, and may be used again."""
        ray = import_ray()
        try:
            results = self._channel.receive(reference)
        except ray.exceptions.RayError as error:
            self._explain(error)
        if isinstance(results, StageFailure):
            raise results.error
        return [np.array(result) if isinstance(result, np.ndarray) else result for result in results]

    def _explain(self, error: Exception) -> NoReturn:
        """Raise StageLost with the stages that have ended, or that have not answered in time."""
        lost, silent = find_lost_stages(self._actors, ANSWER, any_lost=True)
        count = len(self.stages)
        if lost:
            shown = ", ".join(f"{self.processes[place].pid} on {self.processes[place].machine}" for place in lost)
            text = f"{name_stages(lost, count)} has ended (process {shown}), and what was on its way is lost"
        elif isinstance(error, TimeoutError):
            named = f"{name_stages(silent, count)} still computes" if silent else "no stage computes"
            self._late = {*silent}
            text = f"the pipeline gave no result in {self._timeout:g} s, and {named}; wait longer (timeout)"
        else:
            text = f"Ray lost a value between stages ({type(error).__name__}: {str(error).splitlines()[0]})"
        raise StageLost(f"{text}; start again what has ended: p.rebuild()", tuple(lost or silent)) from error


def _unpack(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _count_bytes(value: Value) -> int:
    return (value.type.nbytes or 0) if isinstance(value.type, TensorType) else 0
