"""The structures of ``include/xrt/kernel.h`` for ctypes, and the element types of DLPack.

Change both files together. A test compares every size and offset with the compiler's.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from xrt.graph import DType

ABI_VERSION = 1
"""``XRT_KERNEL_ABI``."""
STATUS_OK = 0
STATUS_REFUSED = 1
STATUS_FAILED = 2
FLAG_TRAINING = 1
FLAG_MODEL_UPDATE = 2
FLAG_ELEMENTWISE = 4
MAX_RANK = 16
DEVICES = {1: "cpu", 2: "cuda"}
"""XRT's names of DLPack's device types."""


class DTypeC(Structure):
    """``xrt_dtype``."""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class TensorC(Structure):
    """``xrt_tensor``, which is DLPack's DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", DTypeC),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class AttributeC(Structure):
    """``xrt_attribute``."""

    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int32),
        ("count", c_int64),
        ("i", c_int64),
        ("f", c_double),
        ("s", c_char_p),
        ("ints", POINTER(c_int64)),
        ("floats", POINTER(c_double)),
        ("strings", POINTER(c_char_p)),
        ("tensor", POINTER(TensorC)),
    ]


class NodeC(Structure):
    """``xrt_node``."""

    _fields_ = [
        ("domain", c_char_p),
        ("op_type", c_char_p),
        ("version", c_int64),
        ("name", c_char_p),
        ("n_attributes", c_int32),
        ("attributes", POINTER(AttributeC)),
        ("n_inputs", c_int32),
        ("inputs", POINTER(TensorC)),
        ("n_outputs", c_int32),
    ]


class TextC(Structure):
    """``xrt_text``."""

    _fields_ = [("data", c_void_p), ("capacity", c_size_t)]


class OutputC(Structure):
    """``xrt_output``."""

    _fields_ = [("dtype", DTypeC), ("ndim", c_int32), ("shape", c_int64 * MAX_RANK)]


class PlanC(Structure):
    """``xrt_plan``."""

    _fields_ = [("state", c_void_p), ("scratch", c_uint64), ("outputs", POINTER(OutputC))]


_Body = CFUNCTYPE(None, c_void_p, c_int64, c_int64)
"""``xrt_body``."""


class CallC(Structure):
    """``xrt_call``."""


_Parallel = CFUNCTYPE(None, POINTER(CallC), c_int64, c_int64, _Body, c_void_p)
CallC._fields_ = [
    ("inputs", POINTER(TensorC)),
    ("outputs", POINTER(TensorC)),
    ("scratch", c_void_p),
    ("threads", c_int32),
    ("parallel", _Parallel),
    ("host", c_void_p),
]


class KernelC(Structure):
    """``xrt_kernel``."""

    _fields_ = [
        ("name", c_char_p),
        ("domain", c_char_p),
        ("op_type", c_char_p),
        ("since", c_int64),
        ("until", c_int64),
        ("priority", c_int32),
        ("device_type", c_int32),
        ("flags", c_uint32),
        ("in_place", c_uint64),
        ("why_not", CFUNCTYPE(c_int32, POINTER(NodeC), TextC)),
        ("prepare", CFUNCTYPE(c_int32, POINTER(NodeC), POINTER(PlanC), TextC)),
        ("run", CFUNCTYPE(c_int32, c_void_p, POINTER(CallC), TextC)),
        ("destroy", CFUNCTYPE(None, c_void_p)),
    ]


class LibraryC(Structure):
    """``xrt_library``."""

    _fields_ = [
        ("abi", c_uint32),
        ("name", c_char_p),
        ("version", c_char_p),
        ("n_kernels", c_int32),
        ("kernels", POINTER(POINTER(KernelC))),
    ]


def _make_dlpack_codes() -> dict[DType, tuple[int, int]]:
    """Map element types to DLPack's (code, bits). Types that are missing are not passed to native kernels."""
    codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
    plain = [d for d in DType if d.numpy.itemsize * 8 == d.bits and d.bits >= 8 and not d.text.startswith("float8")]
    exceptions: dict[DType, tuple[int, int]] = {DType.BOOL: (6, 8)}
    return exceptions | {d: (codes[d.text.rstrip("0123456789")], d.bits) for d in plain if d not in exceptions}


_CODES = _make_dlpack_codes()
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def encode_dtype(dtype: DType) -> DTypeC | None:
    """Convert an element type to DLPack's; None if DLPack lacks the type, or stores several elements per byte.

    >>> (encode_dtype(DType.BFLOAT16).code, encode_dtype(DType.BFLOAT16).bits), encode_dtype(DType.INT4)
    ((4, 16), None)
    """
    code = _CODES.get(dtype)
    return None if code is None else DTypeC(*code, 1)


def decode_dtype(data_type: Any) -> DType | None:
    """Convert an ``xrt_dtype`` to an element type; None if XRT has no such type."""
    return _DTYPES.get((data_type.code, data_type.bits)) if data_type.lanes == 1 else None
