"""Call frames: the value slots of one call and its prepared launches; errors of launches.

Each running call owns a frame, so a launch can be a closure over the slots. All buffers are chosen when the frame is made, and a
call is a plain sequence of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import EngineError, RunFailed, XRTError
from xrt.graph import DType, TensorType, Type
from xrt.partition import Launch, Plan

if TYPE_CHECKING:
    from xrt.runtime.memory_plan import MemoryPlan, Step, ValueTable

__all__ = [
    "Action",
    "CallFrame",
    "OutputInspector",
    "copy_inputs",
    "find_type_mismatch",
    "list_inplace_updates",
    "make_count_error",
    "make_frame",
    "to_run_failed",
]

Action: TypeAlias = Callable[[], None]
Array: TypeAlias = np.ndarray[Any, Any]
OPTIONS, UPDATES = -1, -2
"""Slots behind the values: the RunOptions of the call (None: defaults), and whether inputs may be updated in place."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The state of one running call; reused by later calls, never shared by concurrent ones."""

    slots: list[Any]
    actions: tuple[Action, ...]
    """One per launch."""
    entering: tuple[tuple[Array, int], ...]
    """Arena buffers and the input slots to copy into them at the start."""
    initial: tuple[Any, ...]
    """Contents of the slots between calls: constants and arena buffers."""

    def enter(self, inputs: Sequence[Any], options: RunOptions | None, *, updates: bool = False) -> None:
        """Load the inputs of a call; `updates` permits updating inputs in place."""
        slots = self.slots
        slots[: len(inputs)] = inputs
        slots[OPTIONS], slots[UPDATES] = options, updates
        for place, slot in self.entering:
            np.copyto(place, slots[slot])

    def leave(self) -> None:
        """Release the values of the call."""
        self.slots[:] = self.initial


def make_frame(slots: ValueTable, layout: MemoryPlan, caller_arrays: Mapping[int, Any] | None = None) -> CallFrame:
    """Make a frame with its own arena block; ``caller_arrays`` maps slots to the caller's arrays of a bound call."""
    views = layout.arena.views()
    initial: list[Any] = [None] * (len(slots.names) + 2)
    fixed = {slot: views[name] for slot, name in layout.places.items()} | dict(caller_arrays or {})
    for slot, array in {**slots.constants, **fixed}.items():
        initial[slot] = array
    table = list(initial)
    entering = tuple((views[name], slot) for slot, name in layout.entering)
    read = {**slots.constants, **fixed, **{slot: place for place, slot in entering}}
    frees = slots.last_uses()
    makers = {**dict.fromkeys(layout.aimed, _aimed), **dict.fromkeys(layout.bound, _bound)}
    # A bound call has its in-place updates in `caller_arrays` already.
    inplace = {} if caller_arrays else slots.inplace
    arrays = (LaunchArrays(table, read, fixed, free, inplace) for free in frees)
    actions = ((makers.get(n, _plain), step, arrays) for n, (step, arrays) in enumerate(zip(slots.steps, arrays, strict=True)))
    return CallFrame(table, tuple(_action(*action) for action in actions), entering, tuple(initial))


def _action(make: Callable[[Step, LaunchArrays], Action], step: Step, arrays: LaunchArrays) -> Action:

    try:
        return make(step, arrays)
    except Exception as error:  # noqa: BLE001  # a failing bind counts as a failed run
        raise to_run_failed(step.launch, error)  # noqa: B904


@dataclass(frozen=True, slots=True)
class LaunchArrays:
    """The arrays that a launch is prepared over."""

    slots: list[Any]
    read: Mapping[int, Any]
    """Arrays with a fixed address when read."""
    fixed: Mapping[int, Any]
    """Arrays with a fixed address when written."""
    frees: tuple[int, ...]
    """Slots without readers after this launch."""
    inplace: Mapping[int, int]
    """By output slot: the input slot whose array it is computed in."""

    @property
    def freed(self) -> tuple[int, ...]:
        return tuple(slot for slot in self.frees if slot not in self.fixed)


def _bound(step: Step, ground: LaunchArrays) -> Action:
    return step.executable.bind([ground.read[slot] for slot in step.reads], [ground.fixed[slot] for slot in step.writes])


def _aimed(step: Step, ground: LaunchArrays) -> Action:
    """A launch with inputs from the slots and outputs at fixed addresses."""
    call, reads = step.executable.bind_outputs([ground.fixed[slot] for slot in step.writes]), step.reads
    slots, freed = ground.slots, ground.freed

    def launch() -> None:
        call(*[slots[slot] for slot in reads])
        for slot in freed:
            slots[slot] = None

    return launch


def _plain(step: Step, arrays: LaunchArrays) -> Action:
    """A launch with inputs from the slots and outputs to the slots."""
    places = {slot: arrays.fixed[slot] for slot in step.writes if slot in arrays.fixed}
    slots, freed = arrays.slots, arrays.freed
    updates = tuple((index, arrays.inplace[slot]) for index, slot in enumerate(step.writes) if slot in arrays.inplace)
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
        arguments = [slots[slot] for slot in reads]
        # fast_call skips the options, which most calls do not need.
        if options is None or not _asks_for_more(options, filled):
            results = direct(*arguments)
        else:
            results = run(arguments, find_inplace_reuse(step, options, {}))
        if len(results) != count:
            raise make_count_error(step, len(results))
        for slot, result in zip(writes, results, strict=True):
            slots[slot] = result
        for slot in freed:
            slots[slot] = None

    return launch


def _filled_outputs(step: Step) -> list[tuple[int, int]]:
    """Program outputs that the engine can write to a given buffer, with the size from which that is worthwhile."""
    least = dict(enumerate(step.executable.output_buffer_threshold()))
    limits = ((place, least.get(index)) for index, place in step.returns)
    return [(place, nbytes) for place, nbytes in limits if nbytes is not None]


def _asks_for_more(options: RunOptions, filled: Sequence[tuple[int, int]]) -> bool:
    """Whether the engine should compute into one of the caller's buffers; XRT copies to the others at the end."""
    out = options.out
    return out is not None and any(out[place] is not None and out[place].nbytes >= least for place, least in filled)


def _placing(
    step: Step, slots: list[Any], places: Mapping[int, Array], freed: Sequence[int], updates: Sequence[tuple[int, int]]
) -> Action:
    """A launch with results at fixed places: the engine computes into them, or they are copied there.

    ``updates`` pairs an output of the launch with the input slot whose array it updates in this call.
    """
    least = {slot: n for slot, n in zip(step.writes, step.executable.output_buffer_threshold(), strict=False) if n is not None}
    buffers = {slot: place for slot, place in places.items() if slot in least and place.nbytes >= least[slot]}
    direct, run, usual = step.executable.fast_call(), step.executable.run, find_inplace_reuse(step, RunOptions(), buffers)

    def launch() -> None:
        options = slots[OPTIONS]
        arguments = [slots[slot] for slot in step.reads]
        # The inputs of this call do not overlap, so outputs may be written to their arrays.
        if updates and slots[UPDATES]:
            chosen = find_inplace_reuse(step, options or RunOptions(), buffers)
            targets = [(index, slots[target]) for index, target in updates]
            results = run(arguments, _with_updates(chosen, len(step.writes), targets))
        elif options is None:
            results = run(arguments, usual) if buffers else direct(*arguments)
        else:
            results = run(arguments, find_inplace_reuse(step, options, buffers))
        if len(results) != len(step.writes):
            raise make_count_error(step, len(results))
        for slot, result in zip(step.writes, results, strict=True):
            place = places.get(slot)
            if place is None:
                slots[slot] = result
            # The engine did not use the buffer.
            elif result is not place:
                fill(place, result)
        for slot in freed:
            slots[slot] = None

    return launch


def _with_updates(options: RunOptions, count: int, updates: Sequence[tuple[int, Array]]) -> RunOptions:
    """Options with these arrays as output buffers, taking precedence over the caller's."""
    out = list(options.out or [None] * count)
    for index, array in updates:
        out[index] = array
    return RunOptions(out, options.stream, options.block, options.profile)


def find_inplace_reuse(step: Step, options: RunOptions, places: Mapping[int, Array]) -> RunOptions:
    """Options of one launch: the caller's buffers for program outputs, fixed places for other values."""
    buffers = [places.get(slot) for slot in step.writes]
    if options.out is not None:
        for index, place in step.returns:
            buffers[index] = options.out[place]
    out = buffers if any(buffer is not None for buffer in buffers) else None
    return RunOptions(out, options.stream, options.block, options.profile)


def make_count_error(step: Step, count: int) -> RunFailed:
    """The error for an engine that returned a wrong number of outputs."""
    return RunFailed(
        f"engine {step.launch.engine!r} returned {count} outputs from {step.launch.name}, which has {len(step.writes)}"
    )


Find: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""Checks the outputs of a launch, given its inputs and outputs; returns a sentence that names the launch, or None."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """A check after each launch of a call."""

    find: Find
    needs_inputs: bool = False
    """Whether the check needs the inputs as before the launch, even if the launch may overwrite them."""


def copy_inputs(step: Step, arguments: Sequence[Any]) -> list[Any]:
    """The inputs of a launch, with copies of those that the engine may overwrite."""
    names = [value.name for value in step.launch.function.inputs]
    written = {names.index(before) for before, _ in step.launch.function.aliases}
    # The engine may reuse the memory of these inputs.
    written.update(source for source, _ in step.executable.inplace_pairs())
    return [x.copy() if i in written and hasattr(x, "dtype") else x for i, x in enumerate(arguments)]


def to_run_failed(launch: Launch, error: Exception) -> Exception:
    """Convert an error of a launch to RunFailed, with the launch's name and the cause.

    User errors, such as an InputError, are returned unchanged.
    """
    if isinstance(error, XRTError) and not isinstance(error, EngineError):
        error.updated = None  # the launch had begun
        return error
    message = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed) and (error.region or launch.name in message):
        error.region = error.region or launch.name
        return error
    failed = RunFailed(f"engine {launch.engine!r} failed to run {launch.name}: {message}", launch.name)
    failed.__cause__ = error
    return failed


def find_type_mismatch(launch: Launch, results: Sequence[Any]) -> str | None:
    """Describe the first result whose type contradicts the plan; None if all match."""
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
    """Model inputs that an engine may have overwritten by the time a region failed."""
    names = [launch.name for launch in plan.launches]
    begun = plan.launches[: names.index(region) + 1]
    input_names = {value.name for value in plan.function.inputs}
    return [before for launch in begun for before, _ in launch.function.aliases if before in input_names]
