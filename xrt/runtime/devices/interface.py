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
"""A position in a stream, of the device's library."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The memory of a device, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A copy in progress."""

    array: Array
    """The target; on the host a NumPy array over pinned memory."""
    source: object = None
    """An object that must stay alive until the copy is done: pinned host memory, or the array that is copied."""


class GraphCapture(abc.ABC):
    """Work recorded from a stream, to be replayed as a whole."""

    @abc.abstractmethod
    def replay(self, stream: Stream) -> None:
        """Enqueue the recorded work."""


class Device(Accelerator):
    """An accelerator as the runtime uses it. Methods do not wait unless documented.

    Copies are enqueued on a stream of this device. The caller keeps the `PendingCopy` until the copy is done.
    """

    # ------------------------------------------------------------------ memory

    @abc.abstractmethod
    def memory(self) -> MemoryInfo:
        """Query the free and total memory."""

    @abc.abstractmethod
    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream) -> Array:
        """Allocate an uninitialized array for work on `stream`. `shortage` recognizes the error if memory runs out."""

    @abc.abstractmethod
    def shortage(self, error: BaseException) -> int | None:
        """The bytes requested if the error means that memory ran out, 0 if their number is unknown; None for other errors."""

    @abc.abstractmethod
    def owns(self, value: object) -> bool:
        """Whether the value is an `xp` array on this device."""

    @abc.abstractmethod
    def adopt(self, array: Any) -> Array:
        """Import another library's array on this device without a copy (DLPack).

        The calling thread's current stream waits for the other library's pending work. Raises DeviceError for an array in other
        memory, InputError for one that cannot be imported.
        """

    # ------------------------------------------------------------------ copies

    @abc.abstractmethod
    def copy_in(self, host: np.ndarray[Any, Any], stream: Stream) -> PendingCopy:
        """Copy a host array to this device; the host array may be changed as soon as this returns."""

    @abc.abstractmethod
    def copy_out(self, array: Array, stream: Stream) -> PendingCopy:
        """Copy an array to the host. Wait for an event recorded after the copy before reading the result."""

    @abc.abstractmethod
    def copy_across(self, array: Array, source: Device, stream: Stream) -> PendingCopy:
        """Copy from another device of the same kind."""

    @abc.abstractmethod
    def copy_within(self, target: Array, source: Array, stream: Stream) -> None:
        """Copy between arrays of this device of equal type and shape."""

    # ------------------------------------------------------------------ order

    @abc.abstractmethod
    def current_stream(self) -> Stream:
        """The calling thread's current stream, which holds the caller's work."""

    @abc.abstractmethod
    def get_stream(self, stream: Any) -> Stream:
        """Convert a stream of this or another library, or a number, to a stream of this device.

        Raises DeviceError for other values.
        """

    @abc.abstractmethod
    def event(self, stream: Stream) -> Event:
        """Record an event at the end of the stream."""

    @abc.abstractmethod
    def is_done(self, event: Event) -> bool:
        """Whether all work before the event is done."""

    @abc.abstractmethod
    def wait_for(self, event: Event) -> None:
        """Block the calling thread until all work before the event is done."""

    @abc.abstractmethod
    def after(self, stream: Stream, event: Event) -> None:
        """Make later work on the stream wait for an event, of this device or another of its kind."""

    @abc.abstractmethod
    def record(self, stream: Stream, work: Callable[[], None]) -> GraphCapture:
        """Capture the work that `work` enqueues, without executing it; its memory is reserved for the recording.

        Raises errors of `work`, and the device library's error if it cannot be captured.
        """


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Transfers over the calls of a program."""

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
        plural = "s" * (self.calls != 1)
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
    """Convert an error whose first cause is a lack of device memory; None for others. ``requester`` is named in the text."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    requested = device.shortage(cause)
    if requested is None:
        return None
    memory = device.memory()
    # The library's figure first: it may have requested more than the array, such as scratch memory.
    amount = _format(requested or nbytes) if requested or nbytes else "an unknown amount of memory"
    shortage = OutOfDeviceMemory(
        f"{device.name} is out of memory: {requester} requested {amount}; {_format(memory.free)} of {_format(memory.total)} are "
        f"free. The module can be called again: pass smaller inputs, free other arrays on the device, or place nodes on the CPU"
    )
    # Set here, because callers raise this error or the original one in one expression.
    shortage.__cause__ = cause
    return shortage


def _format(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"
