"""Convert nodes, attributes and tensors to the structures of ``kernel.h``."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int64, cast, create_string_buffer
from typing import Any

import numpy as np

from xrt.engines.native import abi
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType

Array = np.ndarray[Any, Any]
# Special values of the rank (``xrt_tensor.ndim``) and of an extent.
RANK_UNKNOWN = -2
RANK_ABSENT = -1
EXTENT_UNKNOWN = -1
ABSENT = abi.TensorC(device_type=1, ndim=RANK_ABSENT, dtype=abi.DTypeC(0, 0, 1))
"""The tensor of an input or output that is left out."""


def why_not_marshalled(node: Node, function: Function) -> str | None:
    """Explain why the node cannot be passed to a native kernel; None if it can."""
    for which, names in (("input", node.inputs), ("output", node.outputs)):
        for index, name in enumerate(names):
            type_ = function.get_type(name) if name else None
            if type_ is not None and not (isinstance(type_, TensorType) and abi.encode_dtype(type_.dtype)):
                return f"native kernels do not support {type_}, the type of {which} {index}"
    for attribute in node.attributes:
        if attribute.kind is AttrKind.TENSOR and abi.encode_dtype(attribute.value.dtype) is None:
            return f"native kernels do not support {attribute.value.type}, the type of attribute {attribute.name!r}"
    return None


def marshal_node(node: Node, function: Function, keep_alive: list[Any]) -> abi.NodeC:
    """Convert a node for which `why_not_marshalled` returns None.

    The memory that the structure points to is added to ``keep_alive``, which must exist as long as a kernel may read the node.
    """
    attributes = [_marshal_attribute(a, keep_alive) for a in node.attributes if a.kind in _KINDS]
    inputs = [_marshal_input(name, function, keep_alive) for name in node.inputs]
    return abi.NodeC(
        domain=node.domain.encode(),
        op_type=node.op_type.encode(),
        version=function.opset(node.domain),
        name=node.name.encode("utf-8", "replace"),
        n_attributes=len(attributes),
        attributes=make_array_c(abi.AttributeC, attributes, keep_alive),
        n_inputs=len(inputs),
        inputs=make_array_c(abi.TensorC, inputs, keep_alive),
        n_outputs=len(node.outputs),
    )


def make_tensor_c(dtype: DType | None, shape: Sequence[Any] | None, data: int | None, keep_alive: list[Any]) -> abi.TensorC:
    """Make the structure of a tensor in host memory. ``data`` is its address; None if the elements are not known.

    The memory of shape and strides is added to ``keep_alive``.
    """
    extents = [dim if isinstance(dim, int) else EXTENT_UNKNOWN for dim in shape or ()]
    # Row-major strides, in elements. An extent of 0 counts as 1, so that all strides are positive.
    strides = [1] * len(extents)
    for axis in range(len(extents) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(extents[axis + 1], 1)
    dtype_c = None if dtype is None else abi.encode_dtype(dtype)
    return abi.TensorC(
        data=data,
        device_type=1,
        ndim=RANK_UNKNOWN if shape is None else len(extents),
        dtype=dtype_c or abi.DTypeC(0, 0, 1),
        shape=make_array_c(c_int64, extents, keep_alive),
        strides=make_array_c(c_int64, strides, keep_alive),
    )


def _marshal_input(name: str, function: Function, keep_alive: list[Any]) -> abi.TensorC:
    if not name:
        return ABSENT
    type_ = function.get_type(name)
    constant = function.constants.get(name)
    if constant is not None:
        return _marshal_constant(constant, keep_alive)
    if not isinstance(type_, TensorType):
        return make_tensor_c(None, None, None, keep_alive)
    return make_tensor_c(type_.dtype, type_.shape, None, keep_alive)


def _marshal_constant(constant: Constant, keep_alive: list[Any]) -> abi.TensorC:
    array = make_aligned(constant.array)
    # It may be a copy.
    keep_alive.append(array)
    return make_tensor_c(constant.dtype, array.shape, array.ctypes.data, keep_alive)


def make_aligned(array: Array) -> Array:
    """Copy an array that is not C-contiguous and aligned; return other arrays unchanged."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def _marshal_attribute(attribute: Attribute, keep_alive: list[Any]) -> abi.AttributeC:
    value = attribute.value
    attribute_c = abi.AttributeC(name=attribute.name.encode(), kind=_KINDS[attribute.kind])
    match attribute.kind:
        case AttrKind.INT:
            attribute_c.i = value
        case AttrKind.FLOAT:
            attribute_c.f = value
        case AttrKind.STRING:
            attribute_c.s = raw = _encode(value)
            # The length is passed, because the bytes may contain zeros.
            attribute_c.count = len(raw)
        case AttrKind.TENSOR:
            attribute_c.tensor = make_array_c(abi.TensorC, [_marshal_constant(value, keep_alive)], keep_alive)
        case AttrKind.INTS:
            attribute_c.ints = make_array_c(c_int64, value, keep_alive)
            attribute_c.count = len(value)
        case AttrKind.FLOATS:
            attribute_c.floats = make_array_c(c_double, value, keep_alive)
            attribute_c.count = len(value)
        case AttrKind.STRINGS:
            buffers = [create_string_buffer(_encode(string)) for string in value]
            # A c_char_p does not keep its buffer alive.
            keep_alive.append(buffers)
            attribute_c.strings = make_array_c(c_char_p, [cast(b, c_char_p) for b in buffers], keep_alive)
            attribute_c.count = len(value)
    return attribute_c


_KIND_NAMES = ("INT", "FLOAT", "STRING", "TENSOR", "INTS", "FLOATS", "STRINGS")
_KINDS = {AttrKind[name]: k for k, name in enumerate(_KIND_NAMES, 1)}
"""The value of ``xrt_attribute.kind`` for each kind of attribute. Attributes of other kinds are not passed to kernels."""


def _encode(string: str | bytes) -> bytes:
    return string if isinstance(string, bytes) else string.encode()


def make_array_c(kind: Any, items: Sequence[Any], keep_alive: list[Any]) -> Any:
    """Copy items to a C array of the type ``kind``, and add it to ``keep_alive``. Returns a pointer to it; null for no items."""
    if not items:
        return POINTER(kind)()
    items_c = (kind * len(items))(*items)
    keep_alive.append(items_c)
    return cast(items_c, POINTER(kind))
