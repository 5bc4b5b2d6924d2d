"""A constant tensor: a read-only array, hashed at most once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from xrt.errors import ModelError
from xrt.forking import renew_after_fork
from xrt.graph.dtypes import DType
from xrt.graph.memory_map import find_file_offset, release
from xrt.graph.types import TensorType

__all__ = ["Constant"]

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
