"""What has crossed between devices, and how often the host has waited."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from xrt.forking import renew_after_fork

__all__ = ["TransferCounter", "TransferStats"]


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
