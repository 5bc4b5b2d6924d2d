"""A frame: the slots of one call, and the launches prepared over them.

A call has a frame of its own while it runs, so launches may be closures over the frame's slots: what to read, what to
write and which buffers to hand down is settled when the frame is made, and a call is one action after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import EngineError, RunFailed, XRTError
from xrt.graph import DType, TensorType, Type
from xrt.partition import Launch, Plan

if TYPE_CHECKING:
    from xrt.engines import Executable
    from xrt.runtime.memory_plan import MemoryPlan, Step, ValueTable

__all__ = [
    "Action",
    "CallFrame",
    "CallMemory",
    "OutputInspector",
    "ValueCounter",
    "copy_inputs",
    "find_peak",
    "find_type_mismatch",
    "list_inplace_updates",
    "make_count_error",
    "make_frame",
    "to_run_failed",
]

Action: TypeAlias = Callable[[], None]
Array: TypeAlias = np.ndarray[Any, Any]
OPTIONS, UPDATES = -1, -2
"""The slots behind the values: the options of the call, None for the defaults, and whether inputs may be updated in place."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """One call at a time."""

    slots: list[Any]
    actions: tuple[Action, ...]
    """One per launch, in order."""
    entering: tuple[tuple[Array, int], ...]
    """Places with the inputs to copy there first."""
    initial: tuple[Any, ...]
    """What the slots hold between calls: constants, and the places of what lives in the arena."""

    def enter(self, inputs: Sequence[Any], options: RunOptions | None, *, updates: bool = False) -> None:
        """Take the values of a call, and whether its inputs may be updated in place."""
        slots = self.slots
        slots[: len(inputs)] = inputs
        slots[OPTIONS], slots[UPDATES] = options, updates
        for place, slot in self.entering:
            np.copyto(place, slots[slot])

    def leave(self) -> None:
        """Let go of the values of the call."""
        self.slots[:] = self.initial


def make_frame(slots: ValueTable, layout: MemoryPlan, own: Mapping[int, Any] | None = None) -> CallFrame:
    """Return a frame with a block of memory of its own; ``own`` slots hold the caller's arrays in every call."""
    views = layout.arena.views()
    initial: list[Any] = [None] * (len(slots.names) + 2)
    fixed = {slot: views[name] for slot, name in layout.places.items()} | dict(own or {})
    for slot, array in {**slots.constants, **fixed}.items():
        initial[slot] = array
    table = list(initial)
    entering = tuple((views[name], slot) for slot, name in layout.entering)
    read = {**slots.constants, **fixed, **{slot: place for place, slot in entering}}
    frees = slots.last_uses()
    ways = {**dict.fromkeys(layout.aimed, _aimed), **dict.fromkeys(layout.bound, _bound)}
    inplace = {} if own else slots.inplace
    arrays = (LaunchArrays(table, read, fixed, free, inplace) for free in frees)
    made = ((ways.get(n, _plain), step, arrays) for n, (step, arrays) in enumerate(zip(slots.steps, arrays, strict=True)))
    return CallFrame(table, tuple(_action(*one) for one in made), entering, tuple(initial))


def _action(way: Callable[[Step, LaunchArrays], Action], step: Step, ground: LaunchArrays) -> Action:

    try:
        return way(step, ground)
    except Exception as error:  # noqa: BLE001  # an engine that fails to fix its arrays fails to run
        raise to_run_failed(step.launch, error)  # noqa: B904


@dataclass(frozen=True, slots=True)
class LaunchArrays:
    """What a launch is prepared over."""

    slots: list[Any]
    read: Mapping[int, Any]
    """Arrays that are always in the same place when a launch reads them."""
    fixed: Mapping[int, Any]
    """Arrays that are always in the same place when a launch writes them."""
    frees: tuple[int, ...]
    """Slots without readers after the launch."""
    inplace: Mapping[int, int]
    """By slot that is computed in the array of an input, the slot of that input."""

    @property
    def freed(self) -> tuple[int, ...]:
        return tuple(slot for slot in self.frees if slot not in self.fixed)


def _bound(step: Step, ground: LaunchArrays) -> Action:
    return step.executable.bind([ground.read[slot] for slot in step.reads], [ground.fixed[slot] for slot in step.writes])


def _aimed(step: Step, ground: LaunchArrays) -> Action:
    """Return a launch that reads its arrays from the slots and leaves results where they always lie."""
    call, reads = step.executable.bind_outputs([ground.fixed[slot] for slot in step.writes]), step.reads
    slots, freed = ground.slots, ground.freed

    def launch() -> None:
        call(*[slots[slot] for slot in reads])
        for slot in freed:
            slots[slot] = None

    return launch


def _plain(step: Step, ground: LaunchArrays) -> Action:
    """Return a launch that reads its arrays from the slots and leaves results there."""
    places = {slot: ground.fixed[slot] for slot in step.writes if slot in ground.fixed}
    slots, freed = ground.slots, ground.freed
    updates = tuple((mine, ground.inplace[slot]) for mine, slot in enumerate(step.writes) if slot in ground.inplace)
    if places or updates:
        return _placing(step, slots, places, freed, updates)
    direct, run, reads, writes, count = (
        step.executable.fast_call(),
        step.executable.run,
        step.reads,
        step.writes,
        len(step.writes),
    )
    filled = _filled_outputs(step)

    def launch() -> None:
        options = slots[OPTIONS]
        given = [slots[slot] for slot in reads]
        if options is None or not _asks_for_more(options, filled):
            results = direct(*given)
        else:
            results = run(given, find_inplace_reuse(step, options, {}))
        if len(results) != count:
            raise make_count_error(step, len(results))
        for slot, result in zip(writes, results, strict=True):
            slots[slot] = result
        for slot in freed:
            slots[slot] = None

    return launch


def _filled_outputs(step: Step) -> list[tuple[int, int]]:
    """Return the program's outputs that the launch's engine computes into given buffers, and from how many bytes it pays."""
    least = dict(enumerate(step.executable.output_buffer_threshold()))
    found = ((place, least.get(mine)) for mine, place in step.returns)
    return [(place, nbytes) for place, nbytes in found if nbytes is not None]


def _asks_for_more(options: RunOptions, filled: Sequence[tuple[int, int]]) -> bool:
    """Whether a launch has to know the options: its engine better computes into one of the caller's buffers.

    What is left of the buffers, XRT copies to when the call ends.
    """
    out = options.out
    return out is not None and any(out[place] is not None and out[place].nbytes >= least for place, least in filled)


def _placing(
    step: Step, slots: list[Any], places: Mapping[int, Array], freed: Sequence[int], updates: Sequence[tuple[int, int]]
) -> Action:
    """Return a launch some of whose results have a place: the engine computes them there, or they are copied.

    ``updates`` are pairs of an output of the launch and the slot of the input whose array is its place in this call.
    """
    least = {slot: n for slot, n in zip(step.writes, step.executable.output_buffer_threshold(), strict=False) if n is not None}
    buffers = {slot: place for slot, place in places.items() if slot in least and place.nbytes >= least[slot]}
    direct, run, usual = step.executable.fast_call(), step.executable.run, find_inplace_reuse(step, RunOptions(), buffers)

    def launch() -> None:
        options = slots[OPTIONS]
        given = [slots[slot] for slot in step.reads]
        if updates and slots[UPDATES]:
            chosen = find_inplace_reuse(step, options or RunOptions(), buffers)
            results = run(given, _with_updates(chosen, len(step.writes), [(mine, slots[target]) for mine, target in updates]))
        elif options is None:
            results = run(given, usual) if buffers else direct(*given)
        else:
            results = run(given, find_inplace_reuse(step, options, buffers))
        if len(results) != len(step.writes):
            raise make_count_error(step, len(results))
        for slot, result in zip(step.writes, results, strict=True):
            place = places.get(slot)
            if place is None:
                slots[slot] = result
            elif result is not place:
                fill(place, result)
        for slot in freed:
            slots[slot] = None

    return launch


def _with_updates(options: RunOptions, count: int, updates: Sequence[tuple[int, Array]]) -> RunOptions:
    """Return the options with these arrays as buffers of the launch's outputs, before those of the caller."""
    out = list(options.out or [None] * count)
    for mine, array in updates:
        out[mine] = array
    return RunOptions(out, options.stream, options.block, options.profile)


def find_inplace_reuse(step: Step, options: RunOptions, places: Mapping[int, Array]) -> RunOptions:
    """Return the options for one launch: the caller's buffers for what it returns, and the fixed places of the rest."""
    buffers = [places.get(slot) for slot in step.writes]
    if options.out is not None:
        for mine, place in step.returns:
            buffers[mine] = options.out[place]
    out = buffers if any(buffer is not None for buffer in buffers) else None
    return RunOptions(out, options.stream, options.block, options.profile)


def make_count_error(step: Step, count: int) -> RunFailed:
    """Return the error of an engine that returned another number of outputs than its launch has."""
    return RunFailed(
        f"engine {step.launch.engine!r} returned {count} outputs from {step.launch.name}, which has {len(step.writes)}"
    )


Find: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""Takes a launch with its inputs and outputs, and returns what is wrong with the outputs, as a sentence that names the launch."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """What is looked at after each launch of a call."""

    find: Find
    needs_inputs: bool = False
    """Whether it must see inputs as they were before the launch, even those that the launch may have written to."""


def copy_inputs(step: Step, given: Sequence[Any]) -> list[Any]:
    """Return the inputs of a launch with copies of those that its engine may write to."""
    names = [value.name for value in step.launch.function.inputs]
    written = {names.index(before) for before, _ in step.launch.function.aliases}
    written.update(source for source, _ in step.executable.inplace_pairs())
    return [x.copy() if i in written and hasattr(x, "dtype") else x for i, x in enumerate(given)]


def to_run_failed(launch: Launch, error: Exception) -> Exception:
    """Return what to raise for an error that came out of a launch: RunFailed that names it, the cause chained.

    What is the caller's mistake, such as an InputError, is raised as it is.
    """
    if isinstance(error, XRTError) and not isinstance(error, EngineError):
        error.updated = None  # the launch had begun
        return error
    said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed) and (error.region or launch.name in said):
        error.region = error.region or launch.name
        return error
    failed = RunFailed(f"engine {launch.engine!r} failed to run {launch.name}: {said}", launch.name)
    failed.__cause__ = error
    return failed


def find_type_mismatch(launch: Launch, results: Sequence[Any]) -> str | None:
    """Return which result is not of the type that the plan has for it; None where all are, as far as types are known."""
    for value, result in zip(launch.function.outputs, results, strict=True):
        if not _is_of(result, value.type):
            is_array = isinstance(result, np.ndarray)
            got = f"{result.dtype}{list(result.shape)}" if is_array else type(result).__name__
            return f"engine {launch.engine!r} returned {got} for output {value.name!r} of {launch.name}, which is {value.type}"
    return None


def _is_of(result: Any, type_: Type | None) -> bool:
    from xrt.graph import MapType, SequenceType

    if isinstance(type_, SequenceType | MapType):
        return isinstance(result, list if isinstance(type_, SequenceType) else dict)
    if not isinstance(type_, TensorType):
        return True
    if not isinstance(result, np.ndarray) or result.dtype != (object if type_.dtype is DType.STRING else type_.dtype.numpy):
        return False
    dims = result.shape if type_.shape is None else type_.shape
    return len(dims) == result.ndim and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(dims, result.shape, strict=True)
    )


def list_inplace_updates(plan: Plan, region: str) -> list[str]:
    """Return the model's inputs that an engine may have updated in place by the time that the region has failed."""
    names = [launch.name for launch in plan.launches]
    begun = plan.launches[: names.index(region) + 1]
    given = {value.name for value in plan.function.inputs}
    return [before for launch in begun for before, _ in launch.function.aliases if before in given]


AT_END = ""
"""In place of a launch: the end of a call, when results that lie in the arena are copied out of it."""


@dataclass(frozen=True, slots=True)
class CallMemory:
    """The most bytes that the values of one profiled call took at once, and what the plan expected."""

    peak: int
    """``values + workspace`` of the launch at which this is most."""
    launch: str
    """That launch; empty for the end of the call."""
    values: int
    """Bytes of arrays that the call held then: values between regions and results, and the whole arena where there is one.
    Arrays of the caller (inputs, state, buffers for results) and constants are not counted, and memory that several values
    share is counted once."""
    workspace: int
    """Bytes that the engine reports for inner values of the region and to compute; 0 where it does not. They are added in full,
    although some engines free inner values before they make the last result."""
    expected: int | None
    """`Plan.estimate_peak`: the values alone, in the order of the nodes; None where a size is not known."""
    untold: tuple[str, ...] = ()
    """Launches whose engines do not say what they take inside."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values for JSON."""
        return {**asdict(self), "untold": list(self.untold)}

    def __str__(self) -> str:
        where = f"in {self.launch}" if self.launch else "at the end"
        parts = (
            f"{self.values:,} in arrays of the call, {self.workspace:,} inside of the region" if self.launch else "results too"
        )
        expected = "" if self.expected is None else f"; the plan expects {self.expected:,}"
        untold = f"; not known: what is inside of {', '.join(self.untold)}" if self.untold else ""
        return f"values take at most {self.peak:,} bytes at once, {where} ({parts}){expected}{untold}"


class ValueCounter:
    """The bytes of the arrays that one call holds, launch by launch. Constant time for each value."""

    def __init__(self, table: ValueTable, frame: CallFrame, inputs: Sequence[Any], out: Sequence[Any] | None, arena: int) -> None:
        self._slots = frame.slots
        self._steps = table.steps
        self._freed = table.last_uses()
        others = (*inputs, *table.constants.values(), *(out or ()), *frame.initial)
        self._others = {key for value in others for key, _ in _list_memory(value)}
        self._alive: dict[int, int] = {}
        """How many slots refer to a block of memory, by its key."""
        self._keys: dict[int, list[tuple[int, int]]] = {}
        """The blocks of a slot, with their bytes."""
        self.nbytes = arena
        self.held: list[int] = []
        """By launch the bytes at its end, before anything was freed."""

    def add(self, number: int) -> None:
        """Count what a step that has just run has written, and then what it was the last to read."""
        for slot in self._steps[number].writes:
            self._keys[slot] = [(key, size) for key, size in _list_memory(self._slots[slot]) if key not in self._others]
            for key, size in self._keys[slot]:
                self.nbytes += 0 if self._alive.get(key) else size
                self._alive[key] = self._alive.get(key, 0) + 1
        self.held.append(self.nbytes)
        for slot in self._freed[number]:
            for key, size in self._keys.pop(slot, ()):
                self._alive[key] -= 1
                self.nbytes -= 0 if self._alive[key] else size

    def count_results(self, results: Iterable[Any]) -> int:
        """Return the bytes at the end of the call, with the results that are copies."""
        found = {key: size for value in results for key, size in _list_memory(value)}
        return self.nbytes + sum(size for key, size in found.items() if key not in self._others and not self._alive.get(key))


def _list_memory(value: Any) -> Iterator[tuple[int, int]]:
    """Yield a key and the bytes of each block of memory that a value refers to: that of the array whose view it is."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield id(value if value.base is None else value.base), value.nbytes
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_memory(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_memory(item)


def find_peak(
    held: Sequence[int], at_end: int, launches: Sequence[Launch], executables: Sequence[Executable], expected: int | None
) -> CallMemory:
    """Return the peak over launches, from the bytes of arrays at each of them and what their engines take inside."""
    uses = [executable.memory() for executable in executables]
    inner = [[None] if own is None else [use.nbytes for use in own if use.per_call] for own in uses]
    untold = tuple(launch.name for launch, sizes in zip(launches, inner, strict=True) if None in sizes)
    rows = [(one.name, values, sum(n or 0 for n in sizes)) for one, values, sizes in zip(launches, held, inner, strict=True)]
    name, values, workspace = max([*rows, (AT_END, at_end, 0)], key=lambda row: row[1] + row[2])
    return CallMemory(values + workspace, name, values, workspace, expected, untold)
