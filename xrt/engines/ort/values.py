"""Values across the border: NumPy arrays into ONNX Runtime's own values, and back.

The library takes and gives NumPy's own types, strings, lists, dictionaries and None by itself. Element types that NumPy
lacks go by their bits: those of a byte or two as they lie, those under a byte packed as ONNX packs them, low bits first.
"""

from __future__ import annotations

import ctypes
import enum
import math
from typing import Any, TypeAlias

import numpy as np
from onnxruntime import OrtValue

from xrt.engines.ort.errors import LIBRARY
from xrt.graph import DType, MapType, TensorType, Type

__all__ = ["ValueTransport", "by_reference", "choose_transport", "from_ort", "to_ort", "why_not_carried"]

Array: TypeAlias = np.ndarray[Any, Any]


class ValueTransport(enum.Enum):
    """How a value of some type crosses the border."""

    DIRECT = "the library takes and gives the Python object itself"
    BITS = "as one of the library's values over the same bytes"
    PACKED = "as one of the library's values, several elements to a byte"
    NONE = "not at all"


_BITS = {
    DType.BFLOAT16: np.uint16,
    DType.FLOAT8E4M3FN: np.uint8,
    DType.FLOAT8E4M3FNUZ: np.uint8,
    DType.FLOAT8E5M2: np.uint8,
    DType.FLOAT8E5M2FNUZ: np.uint8,
    DType.FLOAT8E8M0: np.uint8,
}
_PACKED = frozenset({DType.UINT4, DType.INT4, DType.FLOAT4E2M1, DType.UINT2, DType.INT2})
_NONE = frozenset({DType.COMPLEX64, DType.COMPLEX128, DType.FLOAT6E2M3, DType.FLOAT6E3M2})
_WAYS = (
    dict.fromkeys(_BITS, ValueTransport.BITS)
    | dict.fromkeys(_PACKED, ValueTransport.PACKED)
    | dict.fromkeys(_NONE, ValueTransport.NONE)
)


def choose_transport(type_: Type | None) -> ValueTransport:
    """Return how values of the type cross; a type that is not known is taken to cross directly."""
    if isinstance(type_, TensorType):
        return _WAYS.get(type_.dtype, ValueTransport.DIRECT)
    if type_ is None:
        return ValueTransport.DIRECT
    if isinstance(type_, MapType):  # the library makes floats of the values of any dictionary it is given, and takes no texts
        return ValueTransport.DIRECT if getattr(type_.value, "dtype", None) is DType.FLOAT32 else ValueTransport.NONE
    return ValueTransport.DIRECT if choose_transport(type_.element) is ValueTransport.DIRECT else ValueTransport.NONE


def why_not_carried(name: str, type_: Type | None) -> str | None:
    """Return why a value of the type cannot enter or leave ONNX Runtime; None when it can."""
    if choose_transport(type_) is not ValueTransport.NONE:
        return None
    return f"{LIBRARY} cannot pass {name!r} in or out: its Python interface has no values of type {type_}"


def to_ort(array: Array, dtype: DType) -> OrtValue:
    """Return the array as one of the library's values: over the same memory where it can be, else over a copy.

    Raises TypeError for an array of another type, whose bits the library would otherwise take for that type's.
    """
    if array.dtype != dtype.numpy:
        raise TypeError(f"an array of {array.dtype} was given for {dtype}")
    if dtype in _PACKED:
        return _packed(array, dtype)
    return by_reference(array, dtype)


def by_reference(array: Array, dtype: DType) -> OrtValue:
    """Return a value over the array's own memory, which it keeps alive; an array that does not lie in order is copied."""
    array = np.require(array, requirements=["C", "A"])
    bits = _BITS.get(dtype)
    if bits is None:
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(bits), dtype.onnx)


def from_ort(value: OrtValue, dtype: DType) -> Array:
    """Return a tensor of the library's as a fresh array."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    raw: Array = np.empty(size, np.uint8)
    ctypes.memmove(raw.ctypes.data, value.data_ptr(), size)
    return _unpacked(raw, dtype, shape) if dtype in _PACKED else raw.view(dtype.numpy).reshape(shape)


def _packed(array: Array, dtype: DType) -> OrtValue:
    value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype.onnx)
    padded = np.zeros((value.tensor_size_in_bytes(), 8 // dtype.bits), np.uint8)
    padded.reshape(-1)[: array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & _mask(dtype)
    raw = np.bitwise_or.reduce(padded << _shifts(dtype), axis=1, dtype=np.uint8)
    ctypes.memmove(value.data_ptr(), raw.ctypes.data, raw.size)
    return value


def _unpacked(raw: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    elements: Array = ((raw[:, None] >> _shifts(dtype)) & _mask(dtype)).reshape(-1)
    array: Array = elements[: math.prod(shape)].view(dtype.numpy)
    return array.reshape(shape)


def _shifts(dtype: DType) -> Array:
    return np.arange(0, 8, dtype.bits, dtype=np.uint8)


def _mask(dtype: DType) -> np.uint8:
    return np.uint8(2**dtype.bits - 1)
