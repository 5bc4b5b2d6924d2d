"""Element types: ONNX's, each with its NumPy counterpart."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np

from xrt.errors import ModelError, did_you_mean

__all__ = ["DType"]


class DType(enum.Enum):
    """An element type of ONNX (``TensorProto.DataType``), named as XRT's text form spells it.

    Types narrower than a byte (int4, uint4, int2, uint2, float4e2m1, float6e2m3, float6e3m2) hold one element per byte
    in memory, as ``ml_dtypes`` does; ONNX packs them only on disk. Strings are NumPy object arrays of ``str``.
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

    __hash__ = object.__hash__  # the enum's own looks up a name and hashes that, thousands of times for a model

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
        return "int" in self.text

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> DType:
        """Return the element type of a NumPy array.

        Raises ModelError for a NumPy type that ONNX has no word for (datetime64, structured types, float128).
        """
        found = _BY_NUMPY.get(array.dtype)
        if found is not None:
            return found
        if array.dtype.kind in "USO":
            return cls.STRING
        native = _BY_NUMPY.get(array.dtype.newbyteorder("="))
        if native is not None:
            return native
        raise ModelError(f"arrays of NumPy type {array.dtype} have no ONNX element type; convert the array first")

    @classmethod
    def from_onnx(cls, number: int) -> DType:
        """Return the type with that number in ``TensorProto.DataType``; raises ModelError for an unknown one."""
        try:
            return _BY_ONNX[number]
        except KeyError:
            known = f"{min(_BY_ONNX)} to {max(_BY_ONNX)}"
            raise ModelError(f"element type {number} is not one of ONNX's that XRT knows ({known})") from None

    @classmethod
    def parse(cls, text: str) -> DType:
        """Return the type that XRT's text form spells so (``"float32"``); raises ModelError for an unknown word."""
        try:
            return _BY_TEXT[text]
        except KeyError:
            raise ModelError(f"unknown element type {text!r}.{did_you_mean(text, _BY_TEXT)}") from None


_BY_ONNX = {d.onnx: d for d in DType}
_BY_TEXT = {d.text: d for d in DType}
_BY_NUMPY = {d.numpy: d for d in DType if d is not DType.STRING}
