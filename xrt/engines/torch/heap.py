"""What the C library does with memory that PyTorch frees: between calls the process keeps as much as a call takes."""

from __future__ import annotations

import ctypes
import os
import threading

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt; malloc.h of glibc."""
LARGEST_IN_HEAP = 32 << 20
"""Larger blocks are mapped one by one, as glibc does by itself once it has seen such a block freed; no more is allowed."""
LEAST = 8 << 20
"""Bytes of a call below which nothing is set: glibc keeps about as much anyway."""
MOST = 1 << 30
"""Bytes that are kept at most."""

_guard = [threading.Lock()]
_kept: list[int] = []
"""What was set last, of the process as the heap is."""


def keep_freed_memory(size: int) -> bool:
    """Have the C library keep that many bytes of freed memory at the end of its heap, `MOST` at most, and no fewer later.

    Returns whether it does. By default glibc gives memory back to the system when a call frees it, and the system clears each
    page again for the next one. What an environment variable says of this holds. Other C libraries are left as they are.
    """
    if size < LEAST or _is_decided():
        return False
    size = min(size, MOST)
    with _guard[0]:
        if _kept and size <= _kept[0]:
            return True
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError, TypeError):  # another C library, or another system
            return False
        if not (mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP) and mallopt(TRIM_THRESHOLD, size)):
            return False
        _kept[:] = [size]
        return True


def _is_decided() -> bool:
    """Whether the environment sets one of the two."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_THRESHOLD_" in os.environ or f"glibc.malloc.{name}_threshold" in tunables
        for name in ("trim", "mmap")
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _guard.__setitem__(0, threading.Lock()))  # its holder is not in the child
