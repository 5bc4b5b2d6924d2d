"""A simulated device behind the interface of the runtime's, and the world that has some of them in CUDA's place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from xrt.errors import DeviceError, InputError
from xrt.runtime.devices.interface import Device, GraphCapture, MemoryInfo, PendingCopy
from xrt.runtime.devices.registry import override_devices
from xrt.testing.simulated.array import SimulatedArray
from xrt.testing.simulated.machine import POISON, Event, Order, SimulatedMachine, SimulatedMemoryError, SimulatedStream, WorkItem
from xrt.testing.simulated.module import SimulatedModule

__all__ = ["DeviceWorld", "SimulatedDevice", "simulate_devices"]


class DeviceWorld:
    """The devices of a machine, and for each thread which of them, and which stream of it, is current."""

    def __init__(self, machine: SimulatedMachine, count: int) -> None:
        self.machine = machine
        self.count = count
        self.devices: dict[int, SimulatedDevice] = {}
        self._thread = threading.local()

    def device(self, index: int) -> SimulatedDevice:
        """Return the device of that number; raises DeviceError where there are fewer."""
        if index >= self.count:
            raise DeviceError(f"device 'cuda:{index}' was asked for, and there are {self.count} simulated ones")
        return self.devices.setdefault(index, SimulatedDevice(self, index))

    def current(self) -> SimulatedDevice:
        """Return the thread's current device."""
        stack = self._stack()
        return stack[-1][0] if stack else self.device(0)

    def stream(self, device: SimulatedDevice) -> SimulatedStream:
        """Return the thread's current stream of a device."""
        return next((stream for own, stream in reversed(self._stack()) if own is device), device.default)

    def _stack(self) -> list[tuple[SimulatedDevice, SimulatedStream]]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack  # type: ignore[no-any-return]

    @contextmanager
    def activate(self, device: SimulatedDevice, stream: SimulatedStream) -> Iterator[None]:
        """Make a device and a stream current."""
        self._stack().append((device, stream))
        try:
            yield
        finally:
            self._stack().pop()


class SimulatedDevice(Device):
    """A device whose memory is the host's, and whose work is done late."""

    has_addresses = False
    hardware = "simulated"

    def __init__(self, world: DeviceWorld, index: int) -> None:
        self.world = world
        self.machine = world.machine
        self.index = index
        self.name = f"cuda:{index}"
        self.default = self.machine.stream(self.name)
        self._module = SimulatedModule(self)

    @property
    def xp(self) -> SimulatedModule:
        return self._module

    # ------------------------------------------------------------------ arrays

    def upload(self, array: np.ndarray[Any, Any]) -> SimulatedArray:
        with self.activate(self.current_stream()):
            return self._in(array, self.current_stream(), np.array(array))

    def download(self, array: SimulatedArray) -> np.ndarray[Any, Any]:
        stream = self.current_stream()
        with self.activate(stream):
            sent = self.copy_out(array, stream)
        self.wait([stream])
        return np.array(sent.array)

    def address(self, value: Any) -> int:
        raise TypeError("a simulated device has no addresses that a library could be handed")

    def at(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        raise TypeError("a simulated device has no addresses that a library could be handed")

    def owns(self, value: object) -> bool:
        return isinstance(value, SimulatedArray) and value.device is self

    def adopt(self, given: Any) -> SimulatedArray:
        try:
            array = given.__dlpack__()
        except (AttributeError, BufferError) as error:
            raise InputError(f"an array of type {type(given).__name__} cannot be read through DLPack: {error}") from error
        if not self.owns(array):
            raise DeviceError(f"an array does not lie on {self.name}; copy it there")
        self.follow(self.current_stream(), array.block.state.stream)
        return array  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ memory

    def memory(self) -> MemoryInfo:
        return MemoryInfo(self.machine.limit - self.machine.used.get(self.name, 0), self.machine.limit)

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: SimulatedStream) -> SimulatedArray:
        with self.activate(stream):
            return SimulatedArray.empty(self, shape, dtype)

    def shortage(self, error: BaseException) -> int | None:
        return error.nbytes if isinstance(error, SimulatedMemoryError) else None

    # ------------------------------------------------------------------ copies

    def copy_in(self, host: np.ndarray[Any, Any], stream: SimulatedStream) -> PendingCopy:
        with self.activate(stream):
            pinned = Pinned(host)
            return PendingCopy(self._in(host, stream, pinned.content, pinned.check), pinned)

    def _in(self, host: Any, stream: SimulatedStream, content: Any, check: Callable[[], None] = lambda: None) -> SimulatedArray:
        made = SimulatedArray.empty(self, host.shape, host.dtype)
        target = made._view

        def work() -> None:
            check()
            target[...] = content

        self.machine.copies.append("in")
        self.machine.put(stream, WorkItem("a copy in", work, (), (made.block.state,)))
        return made

    def copy_out(self, array: SimulatedArray, stream: SimulatedStream) -> PendingCopy:
        source = array._view
        pinned = np.full(source.nbytes, POISON, np.uint8).view(source.dtype).reshape(source.shape)

        def work() -> None:
            pinned[...] = source

        self.machine.copies.append("out")
        self.machine.put(stream, WorkItem("a copy out", work, (array.block.state,), ()))
        return PendingCopy(pinned, array)

    def copy_across(self, array: SimulatedArray, source: Device, stream: SimulatedStream) -> PendingCopy:
        made = self.allocate(array.shape, array.dtype, stream)
        target, view = made._view, array._view

        def work() -> None:
            target[...] = view

        self.machine.copies.append("across")
        self.machine.put(stream, WorkItem("a copy across", work, (array.block.state,), (made.block.state,)))
        return PendingCopy(made, array)

    def copy_within(self, target: SimulatedArray, source: SimulatedArray, stream: SimulatedStream) -> None:
        with self.activate(stream):
            target[...] = source

    # ------------------------------------------------------------------ order

    def new_stream(self) -> SimulatedStream:
        return self.machine.stream(self.name)

    def current_stream(self) -> SimulatedStream:
        return self.world.stream(self)

    @contextmanager
    def activate(self, stream: SimulatedStream) -> Iterator[None]:
        with self.world.activate(self, stream):
            yield

    def get_stream(self, given: Any) -> SimulatedStream:
        if not isinstance(given, SimulatedStream) or given.device != self.name:
            raise DeviceError(f"stream= must be a stream of {self.name}; got {type(given).__name__}")
        return given

    def follow(self, later: SimulatedStream, earlier: SimulatedStream) -> None:
        if later is not earlier:
            self.after(later, self.event(earlier))

    def wait(self, streams: Sequence[SimulatedStream]) -> None:
        for stream in streams:
            self.machine.wait(self.machine.event(stream))

    def event(self, stream: SimulatedStream) -> Event:
        return self.machine.event(stream)

    def is_done(self, event: Event) -> bool:
        return self.machine.is_done(event)

    def wait_for(self, event: Event) -> None:
        self.machine.wait(event)

    def after(self, stream: SimulatedStream, event: Event) -> None:
        self.machine.after(stream, event)

    def record(self, stream: SimulatedStream, work: Callable[[], None]) -> GraphCapture:
        work()
        self.machine.wait(self.machine.event(stream))
        with self.machine.record_work(stream) as pieces:
            work()
        return _Recorded(self.machine, tuple(pieces))


class Pinned:
    """Memory of the host that a copy reads; given back too early, the copy finds something else there."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.content = content = np.array(host)
        self._alive = alive = [True]
        self.check = lambda: None if alive[0] else _spoil(content)

    def __del__(self) -> None:
        self._alive[0] = False


def _spoil(content: np.ndarray[Any, Any]) -> None:
    content.view(np.uint8 if content.ndim else content.dtype).fill(POISON)


class _Recorded(GraphCapture):
    def __init__(self, machine: SimulatedMachine, pieces: tuple[WorkItem, ...]) -> None:
        self._machine = machine
        self._pieces = pieces

    def replay(self, stream: SimulatedStream) -> None:
        self._machine.replay(stream, self._pieces)


def another() -> Callable[[int], SimulatedDevice]:
    """Return what opens devices of a machine of its own: those of a worker process."""
    return DeviceWorld(SimulatedMachine("eager"), 2).device


@contextmanager
def simulate_devices(devices: int = 2, order: Order = "late", seed: int = 0, limit: int = 1 << 30) -> Iterator[SimulatedMachine]:
    """Put simulated devices in the place of CUDA's, and yield the machine; raises AssertionError at the end if work raced.

    ``order`` is when work is done: ``eager`` as soon as it may be, ``late`` when it is waited for, ``random`` by the seed.
    ``limit`` is the memory of each device.
    """
    machine = SimulatedMachine(order, seed, limit)
    with override_devices("cuda", DeviceWorld(machine, devices).device, f"{__name__}:another"):
        yield machine
    if machine.races:
        raise AssertionError("\n".join(["work raced on a simulated device:", *dict.fromkeys(machine.races)]))
