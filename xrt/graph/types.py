"""Types of values: tensors, sequences, optionals and maps; and Value, a name with a type."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from xrt.errors import ModelError, did_you_mean


class DType(enum.Enum):
    """An ONNX element type (``TensorProto.DataType``), named as in XRT's text form.

    Types narrower than a byte (int4, uint4, int2, uint2, float4e2m1, float6e2m3, float6e3m2) use one byte per element in memory,
    as in ``ml_dtypes``; ONNX packs them only on disk. Strings are NumPy object arrays of ``str``.
    """

    FLOAT32 = ("float32", 1, 32, np.float32)
    UINT8 = ("uint8", 2, 8, np.uint8)
    INT8 = ("int8", 3, 8, np.int8)
    UINT16 = ("uint16", 4, 16, np.uint16)
    INT16 = ("int16", 5, 16, np.int16)
    INT32 = ("int32", 6, 32, np.int32)
    INT64 = ("int64", 7, 64, np.int64)
    STRING = ("string", 8, 0, np.object_)
    BOOL = ("bool", 9, 8, np.bool_)
    FLOAT16 = ("float16", 10, 16, np.float16)
    FLOAT64 = ("float64", 11, 64, np.float64)
    UINT32 = ("uint32", 12, 32, np.uint32)
    UINT64 = ("uint64", 13, 64, np.uint64)
    COMPLEX64 = ("complex64", 14, 64, np.complex64)
    COMPLEX128 = ("complex128", 15, 128, np.complex128)
    BFLOAT16 = ("bfloat16", 16, 16, ml_dtypes.bfloat16)
    FLOAT8E4M3FN = ("float8e4m3fn", 17, 8, ml_dtypes.float8_e4m3fn)
    FLOAT8E4M3FNUZ = ("float8e4m3fnuz", 18, 8, ml_dtypes.float8_e4m3fnuz)
    FLOAT8E5M2 = ("float8e5m2", 19, 8, ml_dtypes.float8_e5m2)
    FLOAT8E5M2FNUZ = ("float8e5m2fnuz", 20, 8, ml_dtypes.float8_e5m2fnuz)
    UINT4 = ("uint4", 21, 4, ml_dtypes.uint4)
    INT4 = ("int4", 22, 4, ml_dtypes.int4)
    FLOAT4E2M1 = ("float4e2m1", 23, 4, ml_dtypes.float4_e2m1fn)
    FLOAT8E8M0 = ("float8e8m0", 24, 8, ml_dtypes.float8_e8m0fnu)
    UINT2 = ("uint2", 25, 2, ml_dtypes.uint2)
    INT2 = ("int2", 26, 2, ml_dtypes.int2)
    FLOAT6E2M3 = ("float6e2m3", 27, 6, ml_dtypes.float6_e2m3fn)
    FLOAT6E3M2 = ("float6e3m2", 28, 6, ml_dtypes.float6_e3m2fn)

    __hash__ = object.__hash__  # Enum's default hashes the name, thousands of times per model

    def __init__(self, text: str, onnx: int, bits: int, scalar: Any) -> None:
        self.text = text
        self.onnx = onnx
        """The number in ``TensorProto.DataType``."""
        self.bits = bits
        """Width of an element in bits as ONNX stores it; 0 for strings."""
        self.numpy = np.dtype(scalar)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    @property
    def is_float(self) -> bool:
        return "float" in self.text

    @property
    def is_integer(self) -> bool:
        # "int" is part of the names of all integer types, signed or not, and of no other name.
        return "int" in self.text

    @classmethod
    def from_array(cls, array: np.ndarray[Any, Any]) -> DType:
        """The element type of a NumPy array.

        Raises ModelError for NumPy types without an ONNX equivalent (datetime64, structured types, float128).
        """
        dtype = _BY_NUMPY.get(array.dtype)
        if dtype is not None:
            return dtype
        if array.dtype.kind in "USO":
            return cls.STRING
        # Arrays of foreign byte order have the same element type; Constant converts them.
        native = _BY_NUMPY.get(array.dtype.newbyteorder("="))
        if native is not None:
            return native
        raise ModelError(f"arrays of NumPy type {array.dtype} have no ONNX element type; convert the array first")

    @classmethod
    def from_onnx(cls, number: int) -> DType:
        """Look up a ``TensorProto.DataType`` number; raises ModelError if it is unknown."""
        try:
            return _BY_ONNX[number]
        except KeyError:
            numbers = f"{min(_BY_ONNX)} to {max(_BY_ONNX)}"
            raise ModelError(f"element type {number} is unknown; XRT knows ONNX's types {numbers}") from None

    @classmethod
    def parse(cls, text: str) -> DType:
        """Parse a name in XRT's text form (``"float32"``); raises ModelError if it is unknown."""
        try:
            return _BY_TEXT[text]
        except KeyError:
            raise ModelError(f"unknown element type {text!r}.{did_you_mean(text, _BY_TEXT)}") from None


_BY_ONNX = {d.onnx: d for d in DType}
_BY_TEXT = {d.text: d for d in DType}
# Without STRING: NumPy arrays of objects may hold anything, so `DType.from_array` decides these by kind.
_BY_NUMPY = {d.numpy: d for d in DType if d is not DType.STRING}
LARGEST_EXTENT = 2**63 - 1  # ONNX stores extents as int64
Dim: TypeAlias = int | str | None
"""An extent of a shape: a number, a symbolic name if it is known only at run time, or None if nothing is known."""
Shape: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor. Prints as ``float32[N,3,?]``, or ``float32[...]`` if the rank is unknown."""

    dtype: DType
    shape: Shape | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is fixed."""
        return self.shape is not None and all(type(d) is int for d in self.shape)

    @property
    def nbytes(self) -> int | None:
        """Size in memory in bytes; None if the shape is not static, or for strings."""
        if self.shape is None or self.dtype is DType.STRING:
            return None
        count: int = self.dtype.numpy.itemsize
        for dim in self.shape:
            if not isinstance(dim, int):
                return None
            count *= dim
        return count

    def with_shape(self, shape: Shape | None) -> TensorType:
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence of values of one type; a Python list at run time."""

    element: Type

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or None."""

    element: Type

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary (ai.onnx.ml)."""

    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map({self.key},{self.value})"


Type: TypeAlias = TensorType | SequenceType | OptionalType | MapType


@dataclass(frozen=True, slots=True)
class Value:
    """A named value; the type is None if unknown."""

    name: str
    type: Type | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type if self.type is not None else '?'}"


def is_static(type_: Type | None) -> bool:
    """Whether the type is a tensor with only fixed extents."""
    return isinstance(type_, TensorType) and type_.is_static


def may_equal(a: Type, b: Type) -> bool:
    """Whether one value can have both types.

    Tensors need one element type, one rank, and no fixed extents that differ; an unknown shape or extent fits any other. Other
    types must be equal.
    """
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.dtype is not b.dtype or a.shape is None or b.shape is None:
        return a.dtype is b.dtype
    if len(a.shape) != len(b.shape):
        return False
    return all(x == y for x, y in zip(a.shape, b.shape, strict=True) if isinstance(x, int) and isinstance(y, int))


def infer_type(argument: Any) -> Type | None:
    """Infer the type of an array or a list; None for a dict, an absent optional, and a list with items of different types."""
    if isinstance(argument, np.ndarray):
        return TensorType(DType.from_array(argument), argument.shape)
    if hasattr(argument, "dtype") and hasattr(argument, "shape"):  # an array on a device
        return TensorType(DType.from_array(argument), tuple(argument.shape))
    if isinstance(argument, list):
        types = {infer_type(item) for item in argument}
        element = types.pop() if len(types) == 1 else None
        return None if element is None else SequenceType(element)
    return None
