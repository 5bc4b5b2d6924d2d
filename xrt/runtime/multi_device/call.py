"""One call of a multi-device program: its transfer plan, places, streams and pending copies."""

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
    """A copy to another device, started as soon as the value is computed."""

    slot: int
    source: str
    target: str
    origin: int
    """Place to read."""
    place: int
    """Place to write."""
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceLaunch:
    """A launch over places."""

    number: int
    """Position in the plan."""
    step: Step
    device: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    """Places without later readers."""


@dataclass(frozen=True, slots=True)
class InputTransfer:
    """An input of the model and the places that need it."""

    slot: int
    name: str
    places: tuple[tuple[str, int], ...]
    """Pairs of device and place: where the value is read and, if it is returned or updated, the plan's device."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The numbering of places and the sequence of launches and copies."""

    count: int
    """Number of places."""
    entries: tuple[InputTransfer, ...]
    constants: tuple[tuple[int, int], ...]
    """Pairs of place and slot for constants that are outputs; they are copied from the host in each call."""
    actions: tuple[ScheduledTransfer | DeviceLaunch, ...]
    outputs: tuple[int, ...]
    """Place of each output, on the plan's device."""
    devices: tuple[str, ...]
    """Devices with work, without the host."""


@dataclass(slots=True)
class _Places:
    """Numbers (slot, device) pairs."""

    numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def at(self, slot: int, device: str) -> int:
        return self.numbers.setdefault((slot, device), len(self.numbers))


def plan_transfers(plan: Plan, slots: ValueTable) -> TransferPlan:
    """Plan the transfers. Each one directly follows the launch of its value, to overlap with later launches."""
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
    """Add to each launch the places that no later action reads."""
    needed, scheduled = set(outputs), list(actions)
    for i in range(len(scheduled) - 1, -1, -1):
        action = scheduled[i]
        if isinstance(action, ScheduledTransfer):
            needed.add(action.origin)
            continue
        touched = dict.fromkeys((*action.reads, *action.writes))
        frees = tuple(place for place in touched if place not in needed)
        needed.update(touched)
        scheduled[i] = DeviceLaunch(action.number, action.step, action.device, action.reads, action.writes, frees)
    return tuple(scheduled)


class DeviceCall:
    """The state of one call. Methods only enqueue work, except `wait_for`, `settle`, and copies while profiling."""

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
        """Objects that must stay alive until the device's stream has finished the work of this call."""
        self._counter = counter
        self._recorder = recorder
        self._coming: dict[int, tuple[int, Device, Event]] = {}
        self._numbers = itertools.count()

    # ------------------------------------------------------------------ copies

    def bring(self, value: Any, source: str, target: str, place: int, name: str) -> None:
        """Start to copy a value (or list) between devices, into a place.

        While profiling, wait for the copy and record it under `name`.
        """
        began = perf_counter()
        self._begin(value, source, target, place)
        if self._recorder is not None:
            self.settle([source if target == HOST else target])
            self.record(name, source, target, value, began)

    def record(self, name: str, source: str, target: str, value: Any, began: float) -> None:
        """Record a finished copy while profiling."""
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

    def cross(self, transfer: ScheduledTransfer, name: str) -> None:
        """Start a scheduled transfer of the named value."""
        self.bring(self.places[transfer.origin], transfer.source, transfer.target, transfer.place, name)

    def _each(self, value: Any, copy: Callable[[Any], Any]) -> Any:
        if isinstance(value, list):
            return [self._each(item, copy) for item in value]
        return None if value is None else copy(value)

    def send(self, array: np.ndarray[Any, Any], target: str) -> Any:
        """Start to copy a host array to a device; return the device array."""
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
        except Exception as error:  # noqa: BLE001  # only out-of-memory errors are converted
            raise make_out_of_memory_error(self.devices[target], error, "a copy of a value of the model", nbytes) or error  # noqa: B904

    # ------------------------------------------------------------------ waiting

    def wait_for(self, places: Sequence[int]) -> None:
        """Wait until the copies to these host places are done: once per device, for the latest copy."""
        coming = sorted(filter(None, (self._coming.pop(place, None) for place in places)), key=lambda arrival: arrival[0])
        for device, event in {device.name: (device, event) for _, device, event in coming}.values():
            if not device.is_done(event):
                self._counter.add(waits=1)
                device.wait_for(event)

    def settle(self, names: Sequence[str]) -> None:
        """Wait for all work on the streams of these devices."""
        for name in names:
            self._counter.add(waits=1)
            self.devices[name].wait([self.streams[name]])


def make_out_of_memory_error(device: Device, error: BaseException, who: str, nbytes: int = 0) -> OutOfDeviceMemory | None:
    """The error for a lack of device memory, with the amount and the requester; None if the cause is another."""
    requested = device.shortage(error)
    if requested is None:
        return None
    memory = device.memory()
    amount = megabytes(requested or nbytes) if requested or nbytes else "an amount of memory that it does not tell"
    short = OutOfDeviceMemory(
        f"{who} asked {device.name} for {amount}; {megabytes(memory.free)} of {megabytes(memory.total)} are free. The module can "
        f"be called again: give it smaller inputs, let go of other arrays on the device, or place some nodes on the cpu"
    )
    short.__cause__ = error
    return short


def _count_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_bytes, value))
    return 0 if value is None else int(value.nbytes)


def find_root_cause(error: BaseException) -> BaseException:
    """The first error of a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def megabytes(nbytes: int) -> str:
    """Format a size for error messages."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"
