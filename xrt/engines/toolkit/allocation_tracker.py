"""What a library holds of its own after it has compiled: read off the C library's allocator, for libraries that do not tell.

The growth of the process over a compile is exact to the byte as long as no other thread allocates meanwhile, where the C
library is one that counts (glibc). What is compiled at the same time shares what all have grown by together, by the size of
the constants.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from xrt.forking import renew_after_fork

__all__ = ["AllocationTracker"]


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _counter() -> Callable[[], _Counts] | None:
    try:
        counter = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None
    counter.restype = _Counts
    return counter


_count = _counter()


def _allocated() -> int:
    """Return the bytes that the process has in use of the C library's allocator."""
    counts = _count() if _count else _Counts()
    return int(counts.uordblks + counts.hblkhd)


class _Openings:
    """Sessions that open at the same time: only their common growth can be measured."""

    def __init__(self) -> None:
        self.before = _allocated()
        self.under_way = 0
        self.weight = 0
        self.grown: int | None = None
        """None until the last one is open, and if the C library does not count."""

    def end(self) -> None:
        self.grown = max(0, _allocated() - self.before) if _count else None


class AllocationTracker:
    """What a session grows the process by while it is opened inside of a ``with``.

    ``weight`` is by how much it shares in what sessions opened at the same time grow by.
    """

    _lock = renew_after_fork(threading.Lock())
    _now: ClassVar[_Openings | None] = None

    def __init__(self, weight: int) -> None:
        self.weight = max(1, weight)
        self._openings: _Openings | None = None

    @property
    def nbytes(self) -> int | None:
        """The bytes; None if the C library does not count, a session of the same time is not open yet, or none could open."""
        opened = self._openings
        if opened is None or opened.grown is None or not opened.weight:
            return None
        return opened.grown * self.weight // opened.weight

    def __enter__(self) -> Self:
        with AllocationTracker._lock:
            self._openings = AllocationTracker._now = AllocationTracker._now or _Openings()
            self._openings.under_way += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with AllocationTracker._lock:
            opened = self._openings
            if opened is None:
                return
            opened.under_way -= 1
            if error is None:
                opened.weight += self.weight
            if not opened.under_way:
                opened.end()
                AllocationTracker._now = None
