"""What a session holds of its own: read off the C library's allocator, because ONNX Runtime does not tell.

The growth over the opening of a session is exact to the byte as long as no other thread allocates meanwhile. So it is taken
only where no other session was being opened, and where the C library is one that counts (glibc).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from xrt.engines.memory import MemoryUse

__all__ = ["Growth", "uses_of"]


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


class Growth:
    """The bytes by which the process has grown inside of a ``with``; None where somebody else's may be among them."""

    _lock = threading.Lock()
    _open = 0
    _begun = 0

    def __init__(self) -> None:
        self.nbytes: int | None = None
        self._alone = False
        self._number = self._before = 0

    def __enter__(self) -> Self:
        with Growth._lock:
            Growth._open += 1
            Growth._begun += 1
            self._alone = Growth._open == 1
            self._number = Growth._begun
            self._before = _allocated()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with Growth._lock:
            Growth._open -= 1
            if _count and self._alone and self._number == Growth._begun:
                self.nbytes = max(0, _allocated() - self._before)


@dataclass(frozen=True, slots=True)
class _Use:
    name: str
    why: str


_COPIED = _Use("copied weights", "constants of types narrower than a byte are packed, and such as do not lie in order are put so")
_SESSION = _Use("session", "weights packed for its products and convolutions, constants that it has folded, kernels and plans")
_WORKSPACE = _Use("workspace", "inner values and scratch, in an arena that grows to the largest calls; the library does not tell")


def uses_of(copied: int, session: int | None) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes; ``session`` is by how much the process grew with it, None if not measured."""
    held = [(_COPIED, copied)] if copied else []
    return (
        *(MemoryUse(use.name, nbytes, use.why) for use, nbytes in [*held, (_SESSION, session)]),
        MemoryUse(_WORKSPACE.name, None, _WORKSPACE.why, per_call=True),
    )
