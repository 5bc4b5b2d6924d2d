"""A frame: the slots of one call, and the launches prepared over them.

A call has a frame of its own while it runs, so launches may be closures over the frame's slots: what to read, what to
write and which buffers to hand down is settled when the frame is made, and a call is one action after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import RunFailed

if TYPE_CHECKING:
    from xrt.runtime.memory_plan import MemoryPlan, Step, ValueTable

__all__ = ["Action", "CallFrame", "make_count_error", "make_frame"]

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
    from xrt.runtime.failures import to_run_failed

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
