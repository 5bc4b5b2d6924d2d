"""Import host arrays of other libraries through DLPack, including types that NumPy's own importer lacks.

NumPy does not import bfloat16 and float8 arrays, for which ``ml_dtypes`` has NumPy types. They are read from the DLPack struct.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np

HOST_KINDS = (1, 3, 11)
"""DLPack codes of CPU, CUDA pinned and ROCm pinned memory, all readable by the host."""
_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}

_SMALL_FLOATS = {
    (4, 16): ml_dtypes.bfloat16,
    (7, 8): ml_dtypes.float8_e3m4,
    (8, 8): ml_dtypes.float8_e4m3,
    (9, 8): ml_dtypes.float8_e4m3b11fnuz,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}
"""Types by DLPack type code and bits."""


def on_host(array: Any) -> bool:
    """Whether another library's array is readable by the host; assumed if the array does not tell."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or int(device()[0]) in HOST_KINDS


def find_array_device(array: Any) -> str:
    """XRT's name for the device of another library's array."""
    kind, index = array.__dlpack_device__()
    return f"{_KINDS.get(int(kind), f'device type {int(kind)} of DLPack')}:{int(index)}"


def from_dlpack(source: Any) -> np.ndarray[Any, Any]:
    """Import an array without a copy; raises BufferError, TypeError, ValueError or RuntimeError on failure."""
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError) as error:
        array = _read(source)
        if array is None:
            raise error
        return array


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _read(source: Any) -> np.ndarray[Any, Any] | None:
    """Import a bfloat16 or float8 array over the other library's memory; None for other types.

    The array owns the unconsumed capsule, whose destructor releases the memory.
    """
    capsule = source.__dlpack__()
    if not _is_valid(capsule, b"dltensor"):
        return None
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    dtype = _SMALL_FLOATS.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is None or tensor.dtype.lanes != 1 or tensor.device.kind not in HOST_KINDS:
        return None
    return _array(capsule, tensor, np.dtype(dtype))


def _array(capsule: object, tensor: _Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A read-only array: DLPack does not tell whether the memory is writeable."""
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    else:
        strides = tuple(math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape)))
    back = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    ahead = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    memory = (ctypes.c_uint8 * (ahead - back + dtype.itemsize)).from_address(tensor.data + tensor.byte_offset + back)
    memory.capsule = capsule  # keeps the memory alive as long as the array
    array = np.ndarray(shape, dtype, memory, -back, strides)
    array.flags.writeable = False
    return array
