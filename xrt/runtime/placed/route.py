"""The route of a plan's values: which place each has on each device, and where they cross; settled once for all calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xrt.partition import Plan
from xrt.runtime.layout import Slots, Step

__all__ = ["HOST", "Crossing", "Launching", "Route", "route_of"]

HOST = "cpu"


@dataclass(frozen=True, slots=True)
class Crossing:
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
class Launching:
    """One launch over places."""

    number: int
    """Which launch of the plan it is."""
    step: Step
    device: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    """Places that nobody reads afterwards."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An input of the model, and the places that it is wanted at."""

    slot: int
    name: str
    places: tuple[tuple[str, int], ...]
    """(device, place) pairs: where the value is read, and, for one that is returned or updated, the plan's own device."""


@dataclass(frozen=True, slots=True)
class Route:
    """Places, and the way from the inputs to the outputs."""

    count: int
    """How many places there are."""
    entries: tuple[Entry, ...]
    constants: tuple[tuple[int, int], ...]
    """(place, slot) of constants that are outputs: they lie on the host, and are brought to the plan's device per call."""
    actions: tuple[Crossing | Launching, ...]
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


def route_of(plan: Plan, slots: Slots) -> Route:
    """Return the route of a plan. A crossing stands right behind what makes its value, so that it runs beside what follows."""
    places, home = _Places(), plan.device
    index = {name: i for i, name in enumerate(slots.names)}
    crossings: dict[int, list[Crossing]] = {}
    for copy in plan.copies:
        slot = index[copy.value]
        origin, place = places.at(slot, copy.source), places.at(slot, copy.target)
        crossings.setdefault(slot, []).append(Crossing(slot, copy.source, copy.target, origin, place, copy.nbytes))
    entries = tuple(_entry(slot, slots, plan, places) for slot in slots.inputs)
    actions = tuple(_actions(plan, slots, places, crossings))
    outputs = tuple(places.at(slot, home) for slot in slots.outputs)
    constants = tuple((places.at(slot, home), slot) for slot in slots.constants)
    used = {plan.device_of(launch) for launch in plan.launches} | {home}
    devices = tuple(sorted(used - {HOST}))
    return Route(len(places.numbers), entries, constants, _freeing(actions, outputs), outputs, devices)


def _entry(slot: int, slots: Slots, plan: Plan, places: _Places) -> Entry:
    wanted = {plan.device_of(step.launch): None for step in slots.steps if slot in step.reads}
    if slot in slots.outputs:
        wanted[plan.device] = None
    return Entry(slot, slots.names[slot], tuple((device, places.at(slot, device)) for device in wanted))


def _actions(plan: Plan, slots: Slots, places: _Places, crossings: dict[int, list[Crossing]]) -> Iterator[Crossing | Launching]:
    for number, step in enumerate(slots.steps):
        device = plan.device_of(step.launch)
        reads = tuple(places.at(slot, device) for slot in step.reads)
        writes = tuple(places.at(slot, device) for slot in step.writes)
        yield Launching(number, step, device, reads, writes, ())
        for slot in step.writes:
            yield from crossings.get(slot, ())


def _freeing(actions: tuple[Crossing | Launching, ...], outputs: tuple[int, ...]) -> tuple[Crossing | Launching, ...]:
    """Let each launch free what no later action reads."""
    kept, found = set(outputs), list(actions)
    for i in range(len(found) - 1, -1, -1):
        one = found[i]
        if isinstance(one, Crossing):
            kept.add(one.origin)
            continue
        touched = dict.fromkeys((*one.reads, *one.writes))
        frees = tuple(place for place in touched if place not in kept)
        kept.update(touched)
        found[i] = Launching(one.number, one.step, one.device, one.reads, one.writes, frees)
    return tuple(found)
