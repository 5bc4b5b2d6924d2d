"""Constants that lie in files: memory that the system reads from the file when it is touched, and can drop again.

Whoever opens files maps them as a `Mapping`; by that an array over one is recognised wherever it has got to.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Mapping", "Stamp", "is_mapped", "place_of", "release"]


class Stamp(NamedTuple):
    """What tells a file from another, and from itself after a change."""

    device: int
    inode: int
    size: int
    changed: int
    """The later one of the times at which its content and its inode changed, in nanoseconds."""


class Mapping(mmap.mmap):
    """The content of a whole file, mapped read-only by XRT itself.

    So its pages are never written to, and dropping them loses nothing.
    """

    stamp: Stamp | None = None
    """The file at the time when it was mapped; None where it had changed too recently for its times to tell a change."""


def place_of(array: np.ndarray[Any, Any]) -> tuple[Mapping, int] | None:
    """Return the mapping that a C-contiguous array lies in, and at which byte; None for an array that lies elsewhere."""
    mapping = _origin(array)
    if not isinstance(mapping, Mapping) or not array.flags.c_contiguous:
        return None
    return mapping, array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array lies in a file, mapped by XRT or by the caller (``np.memmap``), rather than in memory of its own."""
    return isinstance(_origin(array), mmap.mmap)


def release(array: np.ndarray[Any, Any]) -> None:
    """Let the system drop the array's pages where it lies in a `Mapping`; whoever reads it next gets them from the file.

    Nothing changes but how much memory the process is seen to use. An array that lies elsewhere stays as it is.
    """
    place = place_of(array)
    if place is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapping, offset = place
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE  # pages that lie wholly inside, so that a neighbour keeps its own
    length = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, start, length)


def _origin(array: np.ndarray[Any, Any]) -> object:
    """Return what the array is a view of, in the end."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base
