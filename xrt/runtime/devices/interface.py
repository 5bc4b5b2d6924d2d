"""A device: where arrays lie, how they get there, and in which order work is done."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Accelerator
from xrt.forking import renew_after_fork

__all__ = ["Array", "Device", "Event", "GraphCapture", "MemoryInfo", "PendingCopy", "Stream", "TransferCounter", "TransferStats"]

Array: TypeAlias = Any
"""An array of the device: CuPy's on CUDA."""
Stream: TypeAlias = Any
"""A queue of work, of the device's own kind."""
Event: TypeAlias = Any
"""A place in a stream, of the device's own kind."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The memory of a device, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A copy under way."""

    array: Array
    """What it is copied to; on the host a NumPy array over pinned memory."""
    held: object = None
    """What must live until the copy is done: the pinned memory on the host side, or the array it is read from."""


class GraphCapture(abc.ABC):
    """Work that was recorded on a stream instead of being done, to be done as a whole and as often as wished."""

    @abc.abstractmethod
    def replay(self, stream: Stream) -> None:
        """Put the whole on a stream."""


class Device(Accelerator):
    """An accelerator as the runtime sees it. Nothing here waits unless it says so.

    Copies are put on a stream of this device. Who calls keeps what is `PendingCopy` alive until the copy is done.
    """

    # ------------------------------------------------------------------ memory

    @abc.abstractmethod
    def memory(self) -> MemoryInfo:
        """Return what there is and what is free."""

    @abc.abstractmethod
    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream) -> Array:
        """Return an array of any content, for work on the stream; what it raises for lack of memory, `shortage` knows."""

    @abc.abstractmethod
    def shortage(self, error: BaseException) -> int | None:
        """Return how many bytes were asked for, if the error says that memory ran out; 0 where it does not tell; else None."""

    @abc.abstractmethod
    def owns(self, value: object) -> bool:
        """Whether the value is an array of this very device, as `xp` has them."""

    @abc.abstractmethod
    def adopt(self, given: Any) -> Array:
        """Return another library's array in this device's memory as an array of `xp`, without a copy (DLPack).

        Work on the calling thread's current stream waits for the other library's pending work. Raises DeviceError for an array in
        other memory, InputError for one that cannot be read.
        """

    # ------------------------------------------------------------------ copies

    @abc.abstractmethod
    def copy_in(self, host: np.ndarray[Any, Any], stream: Stream) -> PendingCopy:
        """Copy an array of the host here; the host's may change once this returns."""

    @abc.abstractmethod
    def copy_out(self, array: Array, stream: Stream) -> PendingCopy:
        """Copy an array to the host; it may be read once an event behind the copy has come."""

    @abc.abstractmethod
    def copy_across(self, array: Array, source: Device, stream: Stream) -> PendingCopy:
        """Copy an array of another device of this kind here."""

    @abc.abstractmethod
    def copy_within(self, target: Array, source: Array, stream: Stream) -> None:
        """Copy an array of this device into another of the same type and shape."""

    # ------------------------------------------------------------------ order

    @abc.abstractmethod
    def current_stream(self) -> Stream:
        """Return the calling thread's current stream: the caller's work is there."""

    @abc.abstractmethod
    def get_stream(self, given: Any) -> Stream:
        """Return the stream that a caller means: of this device's library, another library's, or a number.

        Raises DeviceError for what is no stream of this device.
        """

    @abc.abstractmethod
    def event(self, stream: Stream) -> Event:
        """Return the place that the stream has come to."""

    @abc.abstractmethod
    def is_done(self, event: Event) -> bool:
        """Whether all before it is done."""

    @abc.abstractmethod
    def wait_for(self, event: Event) -> None:
        """Let the calling thread wait for an event."""

    @abc.abstractmethod
    def after(self, stream: Stream, event: Event) -> None:
        """Let what comes on the stream wait for an event, of this device or another of its kind."""

    @abc.abstractmethod
    def record(self, stream: Stream, work: Callable[[], None]) -> GraphCapture:
        """Return what the work puts on the stream, without doing it; memory that it takes stays taken for the recording.

        Raises whatever the work raises, and the device's own error where the work cannot be recorded.
        """


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Counts over the calls of a program."""

    calls: int = 0
    copies_in: int = 0
    """Arrays copied from the host to a device."""
    bytes_in: int = 0
    copies_out: int = 0
    """Arrays copied from a device to the host."""
    bytes_out: int = 0
    copies_across: int = 0
    """Arrays copied from one device to another of its kind."""
    bytes_across: int = 0
    waits: int = 0
    """How often a call has waited for a device."""

    def __str__(self) -> str:
        parts = [
            f"{count} {what} ({nbytes:,} bytes)"
            for count, nbytes, what in (
                (self.copies_in, self.bytes_in, "to a device"),
                (self.copies_out, self.bytes_out, "to the host"),
                (self.copies_across, self.bytes_across, "between devices"),
            )
            if count
        ]
        plural = "s" * (self.calls != 1)
        return f"copies in {self.calls} call{plural}: {', '.join(parts) or 'none'}; waits for a device: {self.waits}"


class TransferCounter:
    """Adds up; safe to use from several threads."""

    def __init__(self) -> None:
        self._counts = asdict(TransferStats())
        self._lock = renew_after_fork(threading.Lock())

    def add(self, **more: int) -> None:
        """Add to the counts of those names."""
        with self._lock:
            for name, n in more.items():
                self._counts[name] += n

    def read(self) -> TransferStats:
        """Return the counts."""
        with self._lock:
            return TransferStats(**self._counts)
