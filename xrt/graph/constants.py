"""Constant tensors: read-only arrays with a cached digest, memory-mapped files, and aligned allocation."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import ModelError
from xrt.graph.types import DType, TensorType

if TYPE_CHECKING:
    from pathlib import Path


Stamp = tuple[int, ...]
"""Identifies the content of a file without reading it: device, inode, size, and times of modification and status change in ns."""


def make_stamp(status: os.stat_result) -> Stamp:
    """Make the Stamp of a file. Two writes within one tick of the file system's clock may have equal stamps."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class FileMapping(mmap.mmap):
    """A whole file mapped read-only by XRT.

    The pages are never written to, so `release_pages` can drop them: they are read again from the file when needed.
    """

    stamp: Stamp | None = None
    """The file's stamp when it was mapped; None if the last write was so recent that another one might not change the times."""
    path: Path | None = None
    inode: tuple[int, int] | None = None
    """Device and inode number of the mapped file, if known."""

    def is_at_path(self) -> bool:
        """Whether `path` still refers to the mapped file, so that another library may open it by path."""
        try:
            status = None if self.path is None else self.path.stat()
        except OSError:
            return False
        return status is not None and (status.st_dev, status.st_ino) == self.inode


def find_file_offset(array: np.ndarray[Any, Any]) -> tuple[FileMapping, int] | None:
    """Find the `FileMapping` that contains an array and its byte offset there; None for strided arrays and for other memory."""
    mapping = _find_owner(array)
    if not isinstance(mapping, FileMapping) or not array.flags.c_contiguous:
        return None
    return mapping, array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array is backed by a memory-mapped file, mapped by XRT or by the caller (``np.memmap``)."""
    return isinstance(_find_owner(array), mmap.mmap)


def is_borrowed(array: np.ndarray[Any, Any]) -> bool:
    """Whether another library owns the memory and may write to it, for example a tensor or a DLPack capsule."""
    return not isinstance(_find_owner(array), bytes | mmap.mmap | None)


def release_pages(array: np.ndarray[Any, Any]) -> None:
    """Drop the resident pages of an array in a `FileMapping`; they are read from the file again on the next access.

    This lowers the resident size of the process and has no other effect. Arrays in other memory are not changed.
    """
    location = find_file_offset(array)
    if location is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapping, offset = location
    # Round inwards to whole pages, so that pages shared with a neighboring array stay resident.
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, start, length)


def _find_owner(array: np.ndarray[Any, Any]) -> object:
    """Follow the views to the object that owns the memory; None if an array owns it."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


class Constant:
    """A read-only tensor, shared by reference between Functions.

    ``array`` may be memory-mapped. Ownership passes to the Constant: do not write to the array through another view.
    Two constants are equal if type, shape and bytes are equal, so ``-0.0 != 0.0`` and NaN equals itself.
    """

    __slots__ = ("_digest", "array", "dtype")

    array: np.ndarray[Any, Any]
    dtype: DType

    def __init__(self, array: np.ndarray[Any, Any] | np.generic) -> None:
        view = np.asarray(array)
        dtype = DType.from_array(view)
        if dtype is DType.STRING:
            view = _make_strings(view)
        elif view.dtype != dtype.numpy:
            view = view.astype(dtype.numpy)
        view = _clear_unused_bits(view, dtype) if 0 < dtype.bits < 8 else view.view()
        view.flags.writeable = False
        self.array = view
        self.dtype = dtype
        self._digest: bytes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.array.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes; for strings, the total size of their UTF-8 encodings."""
        if self.dtype is DType.STRING:
            return sum(len(s.encode("utf-8", "surrogateescape")) for s in self.array.flat)
        return self.array.nbytes

    @property
    def digest(self) -> bytes:
        """SHA-256 over type, shape and content. Computed once, in linear time.

        The pages of a constant in a mapped file are released after hashing; otherwise, all weights would become resident.
        """
        if self._digest is None:
            self._digest = _compute_digest(self)
            release_pages(self.array)
        return self._digest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        if self is other or self.array is other.array:
            return True
        # Compare type and shape first, because computing a digest reads all bytes, possibly from disk.
        return self.dtype is other.dtype and self.shape == other.shape and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Constant({self.type})"

    def __reduce__(self) -> tuple[Any, ...]:
        # As a plain array: a mapping cannot be pickled, and the digest is computed again when needed.
        return (Constant, (np.asarray(self.array),))


def _make_strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert to an object array of ``str``; bytes are decoded as UTF-8."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        item = array[index]
        if isinstance(item, bytes):
            item = item.decode("utf-8", "surrogateescape")
        if not isinstance(item, str):
            raise ModelError(f"a string tensor contains {type(item).__name__} {item!r} at {index}; every element must be str")
        out[index] = str(item)
    return out


def _clear_unused_bits(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Clear the unused high bits of elements narrower than a byte; copies only if any are set."""
    raw = array.view(np.uint8)
    mask = 2**dtype.bits - 1
    if raw.size and raw.max() > mask:
        raw = raw & mask
    return np.asarray(raw).view(dtype.numpy)


def _compute_digest(constant: Constant) -> bytes:
    hasher = hashlib.sha256(f"{constant.dtype}{constant.shape}".encode())
    if constant.dtype is DType.STRING:
        for text in constant.array.flat:
            raw = text.encode("utf-8", "surrogateescape")
            # The length prefix keeps ["ab", "c"] and ["a", "bc"] distinct.
            hasher.update(len(raw).to_bytes(8, "little") + raw)
    else:
        contiguous = np.ascontiguousarray(constant.array)
        hasher.update(contiguous.reshape(-1).view(np.uint8).data)
    return hasher.digest()


# In bytes: a cache line, and the widest vector register. TVM and XLA copy buffers with a smaller alignment.
ALIGNMENT = 64


def make_aligned_block(nbytes: int) -> np.ndarray[Any, Any]:
    """Allocate ``nbytes`` uninitialized bytes aligned to `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)  # some address among the first ALIGNMENT bytes is aligned
    padding = -block.ctypes.data % ALIGNMENT
    return block[padding : padding + nbytes]


def make_aligned_array(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Allocate an uninitialized array aligned to `ALIGNMENT`; object arrays are not aligned."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return make_aligned_block(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
