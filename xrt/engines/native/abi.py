"""The structures of ``include/xrt/kernel.h`` for ctypes, and the element types of DLPack.

Each class is the structure of the same name: `TensorC` is ``xrt_tensor``. Change both files together: a test compares the size
and the offset of every field with those of the compiler.
"""

from __future__ import annotations

import ctypes as ct
from typing import Any

from xrt.graph import DType

ABI_VERSION = 1
"""``XRT_KERNEL_ABI``."""
STATUS_OK = 0
STATUS_REFUSED = 1
FLAG_TRAINING = 1
FLAG_MODEL_UPDATE = 2
FLAG_ELEMENTWISE = 4
MAX_RANK = 16
DEVICES = {1: "cpu", 2: "cuda"}
"""The kinds of device by DLPack's number."""


class DTypeC(ct.Structure):
    _fields_ = [("code", ct.c_uint8), ("bits", ct.c_uint8), ("lanes", ct.c_uint16)]


class TensorC(ct.Structure):
    _fields_ = [
        ("data", ct.c_void_p),
        ("device_type", ct.c_int32),
        ("device_id", ct.c_int32),
        ("ndim", ct.c_int32),
        ("dtype", DTypeC),
        ("shape", ct.POINTER(ct.c_int64)),
        ("strides", ct.POINTER(ct.c_int64)),
        ("byte_offset", ct.c_uint64),
    ]


class AttributeC(ct.Structure):
    _fields_ = [
        ("name", ct.c_char_p),
        ("kind", ct.c_int32),
        ("count", ct.c_int64),
        ("i", ct.c_int64),
        ("f", ct.c_double),
        ("s", ct.c_char_p),
        ("ints", ct.POINTER(ct.c_int64)),
        ("floats", ct.POINTER(ct.c_double)),
        ("strings", ct.POINTER(ct.c_char_p)),
        ("tensor", ct.POINTER(TensorC)),
    ]


class NodeC(ct.Structure):
    _fields_ = [
        ("domain", ct.c_char_p),
        ("op_type", ct.c_char_p),
        ("version", ct.c_int64),
        ("name", ct.c_char_p),
        ("n_attributes", ct.c_int32),
        ("attributes", ct.POINTER(AttributeC)),
        ("n_inputs", ct.c_int32),
        ("inputs", ct.POINTER(TensorC)),
        ("n_outputs", ct.c_int32),
    ]


class TextC(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("capacity", ct.c_size_t)]


class OutputC(ct.Structure):
    _fields_ = [("dtype", DTypeC), ("ndim", ct.c_int32), ("shape", ct.c_int64 * MAX_RANK)]


class PlanC(ct.Structure):
    _fields_ = [("state", ct.c_void_p), ("scratch", ct.c_uint64), ("outputs", ct.POINTER(OutputC))]


_Body = ct.CFUNCTYPE(None, ct.c_void_p, ct.c_int64, ct.c_int64)


class CallC(ct.Structure):
    """Its fields are set below, because one of them is a function that has a `CallC` as argument."""


_Parallel = ct.CFUNCTYPE(None, ct.POINTER(CallC), ct.c_int64, ct.c_int64, _Body, ct.c_void_p)
CallC._fields_ = [
    ("inputs", ct.POINTER(TensorC)),
    ("outputs", ct.POINTER(TensorC)),
    ("scratch", ct.c_void_p),
    ("threads", ct.c_int32),
    ("parallel", _Parallel),
    ("host", ct.c_void_p),
]


class KernelC(ct.Structure):
    _fields_ = [
        ("name", ct.c_char_p),
        ("domain", ct.c_char_p),
        ("op_type", ct.c_char_p),
        ("since", ct.c_int64),
        ("until", ct.c_int64),
        ("priority", ct.c_int32),
        ("device_type", ct.c_int32),
        ("flags", ct.c_uint32),
        ("in_place", ct.c_uint64),
        ("why_not", ct.CFUNCTYPE(ct.c_int32, ct.POINTER(NodeC), TextC)),
        ("prepare", ct.CFUNCTYPE(ct.c_int32, ct.POINTER(NodeC), ct.POINTER(PlanC), TextC)),
        ("run", ct.CFUNCTYPE(ct.c_int32, ct.c_void_p, ct.POINTER(CallC), TextC)),
        ("destroy", ct.CFUNCTYPE(None, ct.c_void_p)),
    ]


class LibraryC(ct.Structure):
    _fields_ = [
        ("abi", ct.c_uint32),
        ("name", ct.c_char_p),
        ("version", ct.c_char_p),
        ("n_kernels", ct.c_int32),
        ("kernels", ct.POINTER(ct.POINTER(KernelC))),
    ]


def _make_dlpack_codes() -> dict[DType, tuple[int, int]]:
    """Map element types to DLPack's (code, bits). Native kernels do not support other types."""
    codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
    pairs: dict[DType, tuple[int, int]] = {DType.BOOL: (6, 8)}
    for dtype in DType:
        code = codes.get(dtype.text.rstrip("0123456789"))  # ``float32`` is a ``float``, but ``float8e5m2`` is not
        stores_whole_bytes = dtype.bits >= 8 and dtype.numpy.itemsize * 8 == dtype.bits
        if code is not None and stores_whole_bytes:
            pairs[dtype] = (code, dtype.bits)
    return pairs


_CODES = _make_dlpack_codes()
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def encode_dtype(dtype: DType) -> DTypeC | None:
    """Convert an element type to DLPack's; None if native kernels do not support it."""
    code = _CODES.get(dtype)
    return None if code is None else DTypeC(*code, 1)


def decode_dtype(data_type: Any) -> DType | None:
    """Convert an ``xrt_dtype`` to an element type; None if XRT has no such type."""
    return _DTYPES.get((data_type.code, data_type.bits)) if data_type.lanes == 1 else None
