"""Values across the border: NumPy arrays as OpenVINO's tensors over the same memory, and back.

The library takes no array that is read-only, and shares none of a type that NumPy lacks by itself. It never writes to what
is set as an input, so an alias that says it may be written to is safe; types that NumPy lacks go by their bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from xrt.engines.openvino.library import LIBRARY, openvino
from xrt.engines.toolkit.array_ops.writable_alias import make_writable_alias
from xrt.graph import DType, TensorType, Type

__all__ = ["Array", "copy_out", "empty", "in_order", "to_array", "to_tensor", "type_from", "why_not_carried"]

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = {
    DType.BOOL: openvino.Type.boolean,
    DType.BFLOAT16: openvino.Type.bf16,
    DType.FLOAT16: openvino.Type.f16,
    DType.FLOAT32: openvino.Type.f32,
    DType.FLOAT64: openvino.Type.f64,
    DType.INT8: openvino.Type.i8,
    DType.INT16: openvino.Type.i16,
    DType.INT32: openvino.Type.i32,
    DType.INT64: openvino.Type.i64,
    DType.UINT8: openvino.Type.u8,
    DType.UINT16: openvino.Type.u16,
    DType.UINT32: openvino.Type.u32,
    DType.UINT64: openvino.Type.u64,
}
_NAMES = {type_.get_type_name(): dtype for dtype, type_ in _TYPES.items()}
_BITS = {DType.BFLOAT16: np.uint16}


def why_not_carried(name: str, type_: Type | None) -> str | None:
    """Return why a value of the type cannot enter or leave OpenVINO; None when it can, or nothing is known of it."""
    if type_ is None or (isinstance(type_, TensorType) and type_.dtype in _TYPES):
        return None
    return f"{name!r} is {type_}, and {LIBRARY} is handed tensors of numbers only"


def type_from(element: Any, shape: Any) -> TensorType | None:
    """Return a type as the library spells it; extents that it leaves open are None, and so is an element type unknown here."""
    dtype = _NAMES.get(element.get_type_name())
    if dtype is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(dtype)
    return TensorType(dtype, tuple(None if extent.is_dynamic else extent.get_length() for extent in shape))


def to_tensor(array: Array, dtype: DType) -> Any:
    """Return a tensor over the memory of a C-contiguous array, which must outlive all use of the tensor: it keeps nothing."""
    if not array.flags.writeable:
        array = make_writable_alias(array)
    bits = _BITS.get(dtype)
    if bits is None:
        # NumPy has two types of 64-bit integers that compare equal, and the library knows one of them.
        same = array if array.dtype.num == dtype.numpy.num else array.view(dtype.numpy)
        return openvino.Tensor(same, shared_memory=True)
    return openvino.Tensor(array.view(bits), list(array.shape), _TYPES[dtype])


def in_order(array: Array) -> Array:
    """Return the array, or a copy where it does not lie in order or is not aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def empty(type_: TensorType) -> Array:
    """Return an array of a static type; what it holds is what the memory held."""
    return np.empty([extent for extent in type_.shape or () if isinstance(extent, int)], type_.dtype.numpy)


def to_array(tensor: Any, dtype: DType) -> Array:
    """Return the tensor's memory as an array, which lives as long as the tensor and what holds it."""
    data: Array = tensor.data
    return data if dtype not in _BITS else data.view(dtype.numpy)


def copy_out(tensor: Any, dtype: DType) -> Array:
    """Return a fresh array of what the tensor holds."""
    return np.array(to_array(tensor, dtype), dtype.numpy, order="C")
