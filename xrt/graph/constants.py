"""A constant tensor: a read-only array, hashed at most once."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xrt.errors import ModelError
from xrt.forking import renew_after_fork
from xrt.graph.types import DType, TensorType

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ALIGNMENT",
    "Constant",
    "FileIdentity",
    "Mapping",
    "Stamp",
    "find_file_offset",
    "is_borrowed",
    "is_mapped",
    "make_aligned_array",
    "make_aligned_block",
    "make_stamp",
    "release",
]

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


REMEMBERED = 1 << 16
"""Digests of constants in files that the process keeps, for the next time that the same file is loaded."""
_digests: OrderedDict[object, bytes] = OrderedDict()
_lock = renew_after_fork(Lock())


class Constant:
    """A read-only tensor, shared by reference between every Function that holds it.

    ``array`` may be memory-mapped. The caller hands it over: it must not be written to afterwards through another
    view. Equality is of type, shape and bytes, so ``-0.0 != 0.0`` and a NaN equals itself.
    """

    __slots__ = ("_digest", "array", "dtype")

    array: np.ndarray[Any, Any]
    dtype: DType

    def __init__(self, array: np.ndarray[Any, Any] | np.generic) -> None:
        view = np.asarray(array)
        dtype = DType.of(view)
        if dtype is DType.STRING:
            view = _strings(view)
        elif view.dtype != dtype.numpy:
            view = view.astype(dtype.numpy)
        view = _masked(view, dtype) if 0 < dtype.bits < 8 else view.view()
        view.flags.writeable = False
        self.array = view
        self.dtype = dtype
        self._digest: bytes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.array.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory; strings count their UTF-8 text."""
        if self.dtype is DType.STRING:
            return sum(len(s.encode("utf-8", "surrogateescape")) for s in self.array.flat)
        return self.array.nbytes

    @property
    def digest(self) -> bytes:
        """SHA-256 over type, shape and content; linear in the size, computed once.

        Of a constant in a mapped file it is computed once per process, as long as the file stays as it is; the file's
        pages that come into memory for it are let go.
        """
        if self._digest is None:
            self._digest = _remembered(self)
        return self._digest

    @property
    def is_hashed(self) -> bool:
        """Whether the digest costs nothing."""
        return self._digest is not None

    def know_digest(self, digest: bytes) -> None:
        """Set the digest to one computed elsewhere for the same type, shape and content, instead of computing it."""
        self._digest = digest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        if self is other or self.array is other.array:
            return True
        return self.dtype is other.dtype and self.shape == other.shape and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Constant({self.type})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Constant, (np.asarray(self.array),))


def _strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array as objects that are all ``str``; bytes are decoded as UTF-8."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        item = array[index]
        if isinstance(item, bytes):
            item = item.decode("utf-8", "surrogateescape")
        if not isinstance(item, str):
            raise ModelError(f"a string tensor holds {type(item).__name__} {item!r} at {index}; every element must be str")
        out[index] = str(item)
    return out


def _masked(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Return a view of elements narrower than a byte, a copy where the other bits of a byte, which mean nothing, are set."""
    raw, mask = array.view(np.uint8), 2**dtype.bits - 1
    return np.asarray(raw & mask if raw.size and raw.max() > mask else raw).view(dtype.numpy)


def _remembered(constant: Constant) -> bytes:
    """Return the digest, which may be known from the constant's place in a file."""
    place = find_file_offset(constant.array)
    if place is None:
        return _hashed(constant)
    mapping, offset = place
    key = mapping.stamp, offset, constant.dtype, constant.shape
    with _lock:
        known = _digests.get(key)
    if known is None:
        known = _hashed(constant)
        release(constant.array)
        if mapping.stamp is not None:
            _remember(key, known)
    return known


def _remember(key: object, digest: bytes) -> None:
    with _lock:
        _digests[key] = digest
        if len(_digests) > REMEMBERED:
            _digests.popitem(last=False)


def _hashed(constant: Constant) -> bytes:
    hasher = hashlib.sha256(f"{constant.dtype}{constant.shape}".encode())
    if constant.dtype is DType.STRING:
        for text in constant.array.flat:
            raw = text.encode("utf-8", "surrogateescape")
            hasher.update(len(raw).to_bytes(8, "little") + raw)
    else:
        contiguous = np.ascontiguousarray(constant.array)
        hasher.update(contiguous.reshape(-1).view(np.uint8).data)
    return hasher.digest()


ALIGNMENT = 64
"""Bytes of a line of the cache, and of the widest vector; TVM and XLA take memory without a copy only at such addresses."""


def make_aligned_block(nbytes: int) -> np.ndarray[Any, Any]:
    """Return so many bytes of any content that begin at a multiple of `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + nbytes]


def make_aligned_array(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of any content that begins at a multiple of `ALIGNMENT`; one of objects as NumPy makes it."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return make_aligned_block(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
