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
from xrt.graph import DType, FrozenDict, MapType, SequenceType, TensorType, Type
from xrt.partition import Launch, Plan

if TYPE_CHECKING:
    from xrt.runtime.memory_plan import MemoryPlan, Step, ValueTable

Action: TypeAlias = Callable[[], None]
Array: TypeAlias = np.ndarray[Any, Any]
NO_OPTIONS = RunOptions()
OPTIONS, UPDATES = -1, -2
"""Slots behind the values: the RunOptions of the call (None: defaults), and whether inputs may be updated in place."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The state of one running call; reused by later calls, never shared by concurrent ones."""

    slots: list[Any]
    actions: tuple[Action, ...]
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
    makers = {**dict.fromkeys(layout.aimed, _prepare_aimed), **dict.fromkeys(layout.bound, _prepare_bound)}
    # A bound call has its in-place updates in `caller_arrays` already.
    inplace = {} if caller_arrays else slots.inplace
    actions = []
    for number, (step, frees) in enumerate(zip(slots.steps, slots.last_uses(), strict=True)):
        try:
            actions.append(makers.get(number, _prepare_plain)(step, LaunchArrays(table, read, fixed, frees, inplace)))
        except Exception as error:  # noqa: BLE001  # a failing bind counts as a failed run
            raise to_run_failed(step.launch, error)  # noqa: B904
    return CallFrame(table, tuple(actions), entering, tuple(initial))


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
    def to_clear(self) -> tuple[int, ...]:
        return tuple(slot for slot in self.frees if slot not in self.fixed)


def _prepare_bound(step: Step, arrays: LaunchArrays) -> Action:
    return step.executable.bind([arrays.read[slot] for slot in step.reads], [arrays.fixed[slot] for slot in step.writes])


def _prepare_aimed(step: Step, arrays: LaunchArrays) -> Action:
    """A launch with inputs from the slots and outputs at fixed addresses."""
    call, reads = step.executable.bind_outputs([arrays.fixed[slot] for slot in step.writes]), step.reads
    slots, to_clear = arrays.slots, arrays.to_clear

    def launch() -> None:
        call(*[slots[slot] for slot in reads])
        for slot in to_clear:
            slots[slot] = None

    return launch


def _prepare_plain(step: Step, arrays: LaunchArrays) -> Action:
    """A launch with inputs from the slots. Results at fixed places are computed there, or copied."""
    executable, slots, to_clear, reads, writes = step.executable, arrays.slots, arrays.to_clear, step.reads, step.writes
    places = {slot: arrays.fixed[slot] for slot in writes if slot in arrays.fixed}
    updates = tuple((index, arrays.inplace[slot]) for index, slot in enumerate(writes) if slot in arrays.inplace)
    least = {index: nbytes for index, nbytes in enumerate(executable.output_buffer_threshold()) if nbytes is not None}
    # The buffers that the engine computes into: fixed places, and in a call with options those of the caller.
    buffers = {
        i: places[slot] for i, slot in enumerate(writes) if slot in places and i in least and places[slot].nbytes >= least[i]
    }
    filled = [(place, least[index]) for index, place in step.returns if index in least]
    default_options = _make_options(step, NO_OPTIONS, buffers)

    def takes_buffer(out: Sequence[Any] | None) -> bool:
        """Whether the engine computes into one of the caller's buffers; XRT copies to the others at the end."""
        return out is not None and any(out[place] is not None and out[place].nbytes >= least for place, least in filled)

    direct, run = executable.fast_call(), executable.run

    def launch() -> None:
        options = slots[OPTIONS]
        arguments = [slots[slot] for slot in reads]
        if updates and slots[UPDATES]:
            # The inputs of this call do not overlap, so outputs may be written to their arrays.
            targets = {index: slots[target] for index, target in updates}
            results = run(arguments, _make_options(step, options or NO_OPTIONS, buffers, targets))
        elif options is not None and (buffers or takes_buffer(options.out)):
            results = run(arguments, _make_options(step, options, buffers))
        else:
            results = run(arguments, default_options) if buffers else direct(*arguments)
        if len(results) != len(writes):
            raise make_count_error(step, len(results))
        for slot, result in zip(writes, results, strict=True):
            place = places.get(slot)
            if place is None:
                slots[slot] = result
            # The engine did not use the buffer.
            elif result is not place:
                fill(place, result)
        for slot in to_clear:
            slots[slot] = None

    return launch


def _make_options(
    step: Step, options: RunOptions, buffers: Mapping[int, Array], updates: Mapping[int, Array] = FrozenDict()
) -> RunOptions:
    """Options of one launch: buffers by output, those of the caller in front of them, and updated inputs in front of both."""
    out: list[Any] = [buffers.get(index) for index in range(len(step.writes))]
    if options.out is not None:
        for index, place in step.returns:
            out[index] = options.out[place]
    for index, array in updates.items():
        out[index] = array
    return RunOptions(out if any(buffer is not None for buffer in out) else None, options.stream, options.block, options.profile)


def make_count_error(step: Step, count: int) -> RunFailed:
    """The error for an engine that returned a wrong number of outputs."""
    return RunFailed(
        f"engine {step.launch.engine!r} returned {count} outputs from {step.launch.name}, which has {len(step.writes)}"
    )


OutputCheck: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""Checks the outputs of a launch, given its inputs and outputs; returns a sentence that names the launch, or None."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """A check after each launch of a call."""

    find: OutputCheck
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
        if not _has_type(result, value.type):
            got = f"{result.dtype}{list(result.shape)}" if _is_array(result) else type(result).__name__
            return f"engine {launch.engine!r} returned {got} for output {value.name!r} of {launch.name}, which is {value.type}"
    return None


def _has_type(result: Any, type_: Type | None) -> bool:
    if isinstance(type_, SequenceType | MapType):
        return isinstance(result, list if isinstance(type_, SequenceType) else dict)
    if not isinstance(type_, TensorType):
        return True
    if not _is_array(result) or result.dtype != (object if type_.dtype is DType.STRING else type_.dtype.numpy):
        return False
    dims = result.shape if type_.shape is None else type_.shape
    return len(dims) == result.ndim and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(dims, result.shape, strict=True)
    )


def _is_array(result: Any) -> bool:
    """Whether it is an array, of the host or a device."""
    return isinstance(result, np.ndarray) or (hasattr(result, "dtype") and not isinstance(result, np.generic))


def list_inplace_updates(plan: Plan, region: str) -> list[str]:
    """Model inputs that an engine may have overwritten by the time a region failed."""
    names = [launch.name for launch in plan.launches]
    begun = plan.launches[: names.index(region) + 1]
    input_names = {value.name for value in plan.function.inputs}
    return [before for launch in begun for before, _ in launch.function.aliases if before in input_names]
