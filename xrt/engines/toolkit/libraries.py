"""Helpers for an engine's library: hide an optional import, shorten error messages, measure its allocations."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import ClassVar, Self

from xrt.forking import renew_after_fork


def remove_noise(text: str, patterns: Iterable[str]) -> str:
    """Join the text to one line and remove all matches of the regular expressions, in order."""
    text = f"{' '.join(text.split())} "  # the trailing space lets a pattern that ends with one match at the end
    for pattern in patterns:
        text = re.sub(pattern, "", text)
    return text.strip(" .")


def shorten(text: str, limit: int) -> str:
    """Truncate the text to ``limit`` characters, ellipsis included.

    >>> shorten("no rule for Frobnicate", 12)
    'no rule f...'
    """
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _HidingFinder:
    """An import finder that hides one module from the thread that created the finder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hide_module(name: str, *, even_imported: bool = False) -> Iterator[None]:
    """Make an optional module appear not installed to imports in this thread; it can be imported afterwards.

    A module that is already imported stays visible, unless ``even_imported``: other threads may then import it once more.
    """
    finder = _HidingFinder(name)
    # First in the list, before the finders that would find the module.
    sys.meta_path.insert(0, finder)
    # Python does not query finders for an imported module, so it must leave `sys.modules`.
    module = sys.modules.pop(name, None) if even_imported else None
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if module is not None:
            sys.modules[name] = module


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _find_counter() -> Callable[[], _Counts] | None:
    try:
        counter = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # not glibc, or not Linux
        return None
    counter.restype = _Counts
    return counter


_read_counts = _find_counter()


def _count_allocated() -> int:
    """Bytes in use by the C library's allocator."""
    counts = _read_counts() if _read_counts else _Counts()
    return int(counts.uordblks + counts.hblkhd)


class AllocationTracker:
    """Measures how much memory the process allocates while a session is opened inside the ``with`` block.

    If several sessions open at the same time, only their total growth is measured, and divided in proportion to ``weight``.
    """

    _lock = renew_after_fork(threading.Lock())
    _opening: ClassVar[int] = 0
    """The number of sessions that are opening now."""
    _bytes_before: ClassVar[int] = 0
    _opened: ClassVar[list[AllocationTracker]] = []
    """The sessions that were opened since `_bytes_before` was read."""

    def __init__(self, weight: int) -> None:
        self.weight = max(1, weight)
        self.nbytes: int | None = None
        """The growth in bytes. None if unknown: the C library does not report it, sessions are still opening, or it failed."""

    def __enter__(self) -> Self:
        tracker = AllocationTracker
        with tracker._lock:
            if not tracker._opening:
                tracker._bytes_before, tracker._opened = _count_allocated(), []
            tracker._opening += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tracker = AllocationTracker
        with tracker._lock:
            tracker._opening -= 1
            # A session that failed to open has no share of the growth.
            if error is None:
                tracker._opened.append(self)
            if not tracker._opening and _read_counts:
                growth = max(0, _count_allocated() - tracker._bytes_before)
                total = sum(session.weight for session in tracker._opened)
                for session in tracker._opened:
                    session.nbytes = growth * session.weight // total
                tracker._opened = []
