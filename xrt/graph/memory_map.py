"""Constants in files: memory that the system reads from the file when it is touched, and can drop again.

Code that opens files maps them as a `Mapping`, which identifies every array over it.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileIdentity", "Mapping", "Stamp", "find_file_offset", "is_borrowed", "is_mapped", "make_stamp", "release"]

Stamp = tuple[int, ...]
"""A file as it is: device, inode, size and the times at which its content and its inode changed, in nanoseconds."""


def make_stamp(status: os.stat_result) -> Stamp:
    """Return what tells a file from another, and from itself after a change, unless that is within the clock's grain."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class FileIdentity(NamedTuple):
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

    stamp: FileIdentity | None = None
    """The file at the time when it was mapped; None where it had changed too recently for its times to tell a change."""
    path: Path | None = None
    """The file, where who mapped it said so."""
    inode: tuple[int, int] | None = None
    """Device and number of the file."""

    def is_at_path(self) -> bool:
        """Whether the mapped file is the one that is at its path now, so that another library may open it there."""
        try:
            status = None if self.path is None else self.path.stat()
        except OSError:
            return False
        return status is not None and (status.st_dev, status.st_ino) == self.inode


def find_file_offset(array: np.ndarray[Any, Any]) -> tuple[Mapping, int] | None:
    """Return the mapping of a C-contiguous array and its byte offset there; None for an array in other memory."""
    mapping = _origin(array)
    if not isinstance(mapping, Mapping) or not array.flags.c_contiguous:
        return None
    return mapping, array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array is in a file, mapped by XRT or by the caller (``np.memmap``), rather than in memory of its own."""
    return isinstance(_origin(array), mmap.mmap)


def is_borrowed(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array is in memory of an object of another library, which may write to it: a tensor, a capsule of DLPack."""
    return not isinstance(_origin(array), bytes | mmap.mmap | None)


def release(array: np.ndarray[Any, Any]) -> None:
    """Let the system drop the array's pages if it is in a `Mapping`; the next reader gets them from the file.

    Nothing changes but how much memory the process is seen to use. An array in other memory stays as it is.
    """
    place = find_file_offset(array)
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
