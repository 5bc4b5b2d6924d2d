"""The interface of a device: memory, copies, streams and events."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Accelerator
from xrt.errors import OutOfDeviceMemory
from xrt.forking import renew_after_fork

Array: TypeAlias = Any
"""A device array: CuPy's on CUDA."""
Stream: TypeAlias = Any
"""A work queue, of the device's library."""
Event: TypeAlias = Any
"""A position in a stream, as an object of the device's library."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The memory of a device, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A copy that was enqueued on a stream."""

    array: Array
    """The array that the copy writes; on the host, a NumPy array over pinned memory."""
    source: object = None
    """What the copy reads: pinned host memory or a device array. It must stay alive until the copy is done."""


class GraphCapture(abc.ABC):
    """Work recorded from a stream, to be replayed as a whole."""

    @abc.abstractmethod
    def replay(self, stream: Stream) -> None:
        """Enqueue the recorded work."""


class Device(Accelerator):
    """An accelerator, with the methods that the runtime needs. Methods do not wait, unless their docstrings say so.

    Copies are enqueued on a stream of this device. The caller must keep the `PendingCopy` until the copy is done.
    """

    @abc.abstractmethod
    def memory(self) -> MemoryInfo:
        """Query the free and total memory."""

    @abc.abstractmethod
    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream) -> Array:
        """Allocate an uninitialized array for work on ``stream``. If memory runs out, `find_shortage` recognizes the error."""

    @abc.abstractmethod
    def find_shortage(self, error: BaseException) -> int | None:
        """Return the number of bytes requested (0: unknown) if the error means that memory ran out; None for other errors."""

    @abc.abstractmethod
    def owns(self, value: object) -> bool:
        """Whether the value is an `xp` array on this device."""

    @abc.abstractmethod
    def adopt(self, array: Any) -> Array:
        """Import another library's array, which is on this device, without a copy (DLPack).

        The calling thread's current stream waits for the other library's pending work. Raises DeviceError for an array elsewhere,
        InputError if it cannot be imported.
        """

    @abc.abstractmethod
    def copy_in(self, host: np.ndarray[Any, Any], stream: Stream) -> PendingCopy:
        """Copy a host array to this device. The caller may change the host array as soon as this method returns."""

    @abc.abstractmethod
    def copy_out(self, array: Array, stream: Stream) -> PendingCopy:
        """Copy an array to the host. Wait for an event recorded after the copy before reading the result."""

    @abc.abstractmethod
    def copy_across(self, array: Array, source: Device, stream: Stream) -> PendingCopy:
        """Copy from another device of the same kind."""

    @abc.abstractmethod
    def copy_within(self, target: Array, source: Array, stream: Stream) -> None:
        """Copy between arrays of this device of equal type and shape."""

    @abc.abstractmethod
    def current_stream(self) -> Stream:
        """Return the calling thread's current stream, on which the caller enqueues work."""

    @abc.abstractmethod
    def get_stream(self, stream: Any) -> Stream:
        """Convert a stream of this or another library, or its address, to a stream of this device. May raise DeviceError."""

    @abc.abstractmethod
    def record_event(self, stream: Stream) -> Event:
        """Record an event at the end of the stream."""

    @abc.abstractmethod
    def is_done(self, event: Event) -> bool:
        """Whether all work before the event is done."""

    @abc.abstractmethod
    def wait_for(self, event: Event) -> None:
        """Block the calling thread until all work before the event is done."""

    @abc.abstractmethod
    def delay(self, stream: Stream, event: Event) -> None:
        """Make later work on the stream wait for an event of this device or of another device of its kind."""

    @abc.abstractmethod
    def record(self, stream: Stream, work: Callable[[], None]) -> GraphCapture:
        """Capture what ``work`` enqueues on the stream. Its memory stays reserved for the recording.

        Raises the errors of ``work``, and the device library's error if the work cannot be captured.
        """


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Number and bytes of the copies in all calls of a program: to a device, to the host, and between devices."""

    calls: int = 0
    copies_in: int = 0
    bytes_in: int = 0
    copies_out: int = 0
    bytes_out: int = 0
    copies_across: int = 0
    bytes_across: int = 0
    waits: int = 0
    """Number of times a call waited for a device."""

    def __str__(self) -> str:
        parts = [
            f"{count} {direction} ({nbytes:,} bytes)"
            for count, nbytes, direction in (
                (self.copies_in, self.bytes_in, "to a device"),
                (self.copies_out, self.bytes_out, "to the host"),
                (self.copies_across, self.bytes_across, "between devices"),
            )
            if count
        ]
        plural = "" if self.calls == 1 else "s"
        return f"copies in {self.calls} call{plural}: {', '.join(parts) or 'none'}; waits for a device: {self.waits}"


class TransferCounter:
    """Thread-safe counter of `TransferStats`."""

    def __init__(self) -> None:
        self._counts = asdict(TransferStats())
        self._lock = renew_after_fork(threading.Lock())

    def add(self, **more: int) -> None:
        """Increase the counts with these field names of `TransferStats`."""
        with self._lock:
            for name, n in more.items():
                self._counts[name] += n

    def read(self) -> TransferStats:
        with self._lock:
            return TransferStats(**self._counts)


def make_out_of_memory_error(device: Device, error: BaseException, requester: str, nbytes: int = 0) -> OutOfDeviceMemory | None:
    """Convert an error whose first cause is a lack of device memory; None for other errors.

    ``requester`` says in the text what needed the memory, ``nbytes`` is its size if the library does not report one.
    """
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    requested = device.find_shortage(cause)
    if requested is None:
        return None
    memory = device.memory()
    # The library's number has priority, because it may include scratch memory.
    nbytes = requested or nbytes
    amount = _format(nbytes) if nbytes else "an unknown amount of memory"
    shortage = OutOfDeviceMemory(
        f"{device.name} is out of memory: {requester} requested {amount}; {_format(memory.free)} of {_format(memory.total)} are "
        f"free. The module can be called again: pass smaller inputs, free other arrays on the device, or place nodes on the CPU"
    )
    # Set here, because callers write `raise make_out_of_memory_error(...) or error`.
    shortage.__cause__ = cause
    return shortage


def _format(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"
