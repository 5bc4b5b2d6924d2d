"""One call of a program on devices: its places, its streams, and the copies that are under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import OutOfDeviceMemory
from xrt.runtime.profile import Recorder

if TYPE_CHECKING:
    from xrt.partition import Plan
    from xrt.runtime.devices.interface import Device, Event, PendingCopy, Stream, TransferCounter
    from xrt.runtime.memory_plan import Step, ValueTable

__all__ = [
    "HOST",
    "DeviceCall",
    "DeviceLaunch",
    "ScheduledTransfer",
    "TransferPlan",
    "find_root_cause",
    "make_out_of_memory_error",
    "megabytes",
    "plan_transfers",
]

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


class DeviceCall:
    """What one call holds. Its methods put work on streams; only `wait_for` and `settle` wait, and each copy that is recorded."""

    def __init__(
        self,
        count: int,
        devices: Mapping[str, Device],
        streams: Mapping[str, Stream],
        counter: TransferCounter,
        recorder: Recorder | None = None,
    ) -> None:
        self.places: list[Any] = [None] * count
        self.devices = devices
        self.streams = streams
        self.held: dict[str, list[object]] = {name: [] for name in devices}
        """What must live until all that is on the device's stream by the end of the call is done."""
        self._counter = counter
        self._recorder = recorder
        self._coming: dict[int, tuple[int, Device, Event]] = {}
        self._numbers = itertools.count()

    # ------------------------------------------------------------------ copies

    def bring(self, value: Any, source: str, target: str, place: int, name: str) -> None:
        """Begin to copy a value, or each of a list, from one device to another; it will be in that place.

        Where the call is recorded, the copy is over when this returns, and is recorded under the value's name.
        """
        began = perf_counter()
        self._begin(value, source, target, place)
        if self._recorder is not None:
            self.settle([source if target == HOST else target])
            self.record(name, source, target, value, began)

    def record(self, name: str, source: str, target: str, value: Any, began: float) -> None:
        """Record a copy that is over, where the call is recorded."""
        if self._recorder is not None:
            self._recorder.add_copy(name, source, target, _count_bytes(value), began, perf_counter())

    def _begin(self, value: Any, source: str, target: str, place: int) -> None:
        if target == HOST:
            self.places[place] = self._each(value, lambda array: self._out(array, source))
            device = self.devices[source]
            self._coming[place] = next(self._numbers), device, device.event(self.streams[source])
        elif source == HOST:
            self.places[place] = self._each(value, lambda array: self.send(array, target))
        else:
            self.devices[target].after(self.streams[target], self.devices[source].event(self.streams[source]))
            self.places[place] = self._each(value, lambda array: self._across(array, source, target))

    def cross(self, one: ScheduledTransfer, name: str) -> None:
        """Begin the crossing of the value of that name."""
        self.bring(self.places[one.origin], one.source, one.target, one.place, name)

    def _each(self, value: Any, copy: Callable[[Any], Any]) -> Any:
        if isinstance(value, list):
            return [self._each(item, copy) for item in value]
        return None if value is None else copy(value)

    def send(self, array: np.ndarray[Any, Any], target: str) -> Any:
        """Begin to copy an array of the host to a device, and return it there."""
        sent = self._allocating(target, array.nbytes, lambda: self.devices[target].copy_in(array, self.streams[target]))
        self._counter.add(copies_in=1, bytes_in=array.nbytes)
        return self._kept(sent, target)

    def _out(self, array: Any, source: str) -> Any:
        sent = self.devices[source].copy_out(array, self.streams[source])
        self._counter.add(copies_out=1, bytes_out=array.nbytes)
        return self._kept(sent, source)

    def _across(self, array: Any, source: str, target: str) -> Any:
        there = self.devices[target]
        copy = lambda: there.copy_across(array, self.devices[source], self.streams[target])  # noqa: E731  # one of three alike
        sent = self._allocating(target, array.nbytes, copy)
        self._counter.add(copies_across=1, bytes_across=array.nbytes)
        self.held[target].append(array)
        return self._kept(sent, target)

    def _kept(self, sent: PendingCopy, device: str) -> Any:
        self.held[device] += [sent.held, sent.array]
        return sent.array

    def _allocating(self, target: str, nbytes: int, copy: Callable[[], PendingCopy]) -> PendingCopy:
        try:
            return copy()
        except Exception as error:  # noqa: BLE001  # of which only a lack of memory has another name
            raise make_out_of_memory_error(self.devices[target], error, "a copy of a value of the model", nbytes) or error  # noqa: B904

    # ------------------------------------------------------------------ waiting

    def wait_for(self, places: Sequence[int]) -> None:
        """Wait until copies to the host in those places are there: at most once per device, for the last one."""
        coming = sorted(filter(None, (self._coming.pop(place, None) for place in places)), key=lambda one: one[0])
        for device, event in {device.name: (device, event) for _, device, event in coming}.values():
            if not device.is_done(event):
                self._counter.add(waits=1)
                device.wait_for(event)

    def settle(self, names: Sequence[str]) -> None:
        """Wait for all that is on the streams of those devices."""
        for name in names:
            self._counter.add(waits=1)
            self.devices[name].wait([self.streams[name]])


def make_out_of_memory_error(device: Device, error: BaseException, who: str, nbytes: int = 0) -> OutOfDeviceMemory | None:
    """Return the error that says how much memory was asked for and by whom; None where memory is not what is lacking."""
    asked = device.shortage(error)
    if asked is None:
        return None
    memory = device.memory()
    much = megabytes(asked or nbytes) if asked or nbytes else "an amount of memory that it does not tell"
    short = OutOfDeviceMemory(
        f"{who} asked {device.name} for {much}; {megabytes(memory.free)} of {megabytes(memory.total)} are free. The module can "
        f"be called again: give it smaller inputs, let go of other arrays on the device, or place some nodes on the cpu"
    )
    short.__cause__ = error
    return short


def _count_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_bytes, value))
    return 0 if value is None else int(value.nbytes)


def find_root_cause(error: BaseException) -> BaseException:
    """Return what an error was raised from, first of all."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def megabytes(nbytes: int) -> str:
    """Return a size as errors show it."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"
