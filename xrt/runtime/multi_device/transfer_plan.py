"""The route of a plan's values: which place each has on each device, and where they cross; settled once for all calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.partition import Plan
    from xrt.runtime.memory_plan import Step, ValueTable

__all__ = ["HOST", "DeviceLaunch", "ScheduledTransfer", "TransferPlan", "plan_transfers"]

HOST = "cpu"


@dataclass(frozen=True, slots=True)
class ScheduledTransfer:
    """One copy of a value to another device, begun as soon as the value is there."""

    slot: int
    source: str
    target: str
    origin: int
    """The place that is read."""
    place: int
    """The place that is written."""
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceLaunch:
    """One launch over places."""

    number: int
    """Which launch of the plan it is."""
    step: Step
    device: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    """Places without later readers."""


@dataclass(frozen=True, slots=True)
class InputTransfer:
    """An input of the model, and the places that it is wanted at."""

    slot: int
    name: str
    places: tuple[tuple[str, int], ...]
    """(device, place) pairs: where the value is read, and, for one that is returned or updated, the plan's own device."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Places, and the way from the inputs to the outputs."""

    count: int
    """How many places there are."""
    entries: tuple[InputTransfer, ...]
    constants: tuple[tuple[int, int], ...]
    """(place, slot) of constants that are outputs: they lie on the host, and are brought to the plan's device per call."""
    actions: tuple[ScheduledTransfer | DeviceLaunch, ...]
    outputs: tuple[int, ...]
    """The place of each output, on the plan's device."""
    devices: tuple[str, ...]
    """The devices that work is put on, the host apart."""


@dataclass(slots=True)
class _Places:
    """Numbers (slot, device) pairs."""

    numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def at(self, slot: int, device: str) -> int:
        return self.numbers.setdefault((slot, device), len(self.numbers))


def plan_transfers(plan: Plan, slots: ValueTable) -> TransferPlan:
    """Return the route of a plan. A transfer directly follows its value's launch, to overlap with the launches after it."""
    places, home = _Places(), plan.device
    index = {name: i for i, name in enumerate(slots.names)}
    crossings: dict[int, list[ScheduledTransfer]] = {}
    for copy in plan.copies:
        slot = index[copy.value]
        origin, place = places.at(slot, copy.source), places.at(slot, copy.target)
        crossings.setdefault(slot, []).append(ScheduledTransfer(slot, copy.source, copy.target, origin, place, copy.nbytes))
    entries = tuple(_entry(slot, slots, plan, places) for slot in slots.inputs)
    actions = tuple(_actions(plan, slots, places, crossings))
    outputs = tuple(places.at(slot, home) for slot in slots.outputs)
    constants = tuple((places.at(slot, home), slot) for slot in slots.constants)
    used = {plan.get_device(launch) for launch in plan.launches} | {home}
    devices = tuple(sorted(used - {HOST}))
    return TransferPlan(len(places.numbers), entries, constants, _freeing(actions, outputs), outputs, devices)


def _entry(slot: int, slots: ValueTable, plan: Plan, places: _Places) -> InputTransfer:
    wanted = {plan.get_device(step.launch): None for step in slots.steps if slot in step.reads}
    if slot in slots.outputs:
        wanted[plan.device] = None
    return InputTransfer(slot, slots.names[slot], tuple((device, places.at(slot, device)) for device in wanted))


def _actions(
    plan: Plan, slots: ValueTable, places: _Places, crossings: dict[int, list[ScheduledTransfer]]
) -> Iterator[ScheduledTransfer | DeviceLaunch]:
    for number, step in enumerate(slots.steps):
        device = plan.get_device(step.launch)
        reads = tuple(places.at(slot, device) for slot in step.reads)
        writes = tuple(places.at(slot, device) for slot in step.writes)
        yield DeviceLaunch(number, step, device, reads, writes, ())
        for slot in step.writes:
            yield from crossings.get(slot, ())


def _freeing(
    actions: tuple[ScheduledTransfer | DeviceLaunch, ...], outputs: tuple[int, ...]
) -> tuple[ScheduledTransfer | DeviceLaunch, ...]:
    """Let each launch free what no later action reads."""
    kept, found = set(outputs), list(actions)
    for i in range(len(found) - 1, -1, -1):
        one = found[i]
        if isinstance(one, ScheduledTransfer):
            kept.add(one.origin)
            continue
        touched = dict.fromkeys((*one.reads, *one.writes))
        frees = tuple(place for place in touched if place not in kept)
        kept.update(touched)
        found[i] = DeviceLaunch(one.number, one.step, one.device, one.reads, one.writes, frees)
    return tuple(found)
