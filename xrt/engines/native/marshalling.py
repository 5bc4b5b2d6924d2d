"""Marshal nodes to the structures of the C interface, with the memory behind them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int64, cast, create_string_buffer
from typing import Any

import numpy as np

from xrt.engines.native import abi
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType

Array = np.ndarray[Any, Any]
UNKNOWN_RANK, LEFT_OUT, UNKNOWN = -2, -1, -1


def why_not_marshalled(node: Node, function: Function) -> str | None:
    """Explain why the node cannot be passed to a native kernel; None if it can."""
    for which, names in (("input", node.inputs), ("output", node.outputs)):
        for index, name in enumerate(names):
            type_ = function.get_type(name) if name else None
            if type_ is not None and not (isinstance(type_, TensorType) and abi.encode_dtype(type_.dtype)):
                return f"native kernels take no {type_}, which {which} {index} is"
    for attribute in node.attributes:
        if attribute.kind is AttrKind.TENSOR and abi.encode_dtype(attribute.value.dtype) is None:
            return f"native kernels take no {attribute.value.type}, which attribute {attribute.name!r} is"
    return None


def marshal_node(node: Node, function: Function, keep_alive: list[Any]) -> abi.NodeC:
    """Marshal a node for which `why_not_marshalled` returns None. Linear in inputs and attributes.

    ``keep_alive`` receives the memory that the structure points to; keep it while a kernel may read the node.
    """
    attributes = [_marshal_attribute(a, keep_alive) for a in node.attributes if a.kind in _KINDS]
    inputs = [_marshal_input(name, function, keep_alive) for name in node.inputs]
    return abi.NodeC(
        domain=node.domain.encode(),
        op_type=node.op_type.encode(),
        version=function.opset(node.domain),
        name=node.name.encode("utf-8", "replace"),
        n_attributes=len(attributes),
        attributes=_make_array(abi.AttributeC, attributes, keep_alive),
        n_inputs=len(inputs),
        inputs=_make_array(abi.TensorC, inputs, keep_alive),
        n_outputs=len(node.outputs),
    )


def tensor_c(dtype: DType | None, shape: Sequence[Any] | None, data: int | None, keep_alive: list[Any]) -> abi.TensorC:
    """Describe a tensor in host memory; unknown extents are -1, an unknown shape has rank -2."""
    extents = [dim if isinstance(dim, int) else UNKNOWN for dim in shape or ()]
    steps = [1] * len(extents)
    # Row-major, in elements; an extent of 0 counts as 1, so that no stride is 0.
    for axis in range(len(extents) - 2, -1, -1):
        steps[axis] = steps[axis + 1] * max(extents[axis + 1], 1)
    return abi.TensorC(
        data=data,
        device_type=1,
        ndim=UNKNOWN_RANK if shape is None else len(extents),
        dtype=(abi.encode_dtype(dtype) if dtype else None) or abi.DTypeC(0, 0, 1),
        shape=_make_array(c_int64, extents, keep_alive),
        strides=_make_array(c_int64, steps, keep_alive),
    )


def _marshal_input(name: str, function: Function, keep_alive: list[Any]) -> abi.TensorC:
    if not name:
        return abi.TensorC(device_type=1, ndim=LEFT_OUT, dtype=abi.DTypeC(0, 0, 1))
    type_ = function.get_type(name)
    constant = function.constants.get(name)
    if constant is not None:
        return _marshal_constant(constant, keep_alive)
    if not isinstance(type_, TensorType):
        return tensor_c(None, None, None, keep_alive)
    return tensor_c(type_.dtype, type_.shape, None, keep_alive)


def _marshal_constant(constant: Constant, keep_alive: list[Any]) -> abi.TensorC:
    array = align(constant.array)
    # The copy, if one was necessary, has no other owner.
    keep_alive.append(array)
    return tensor_c(constant.dtype, array.shape, array.ctypes.data, keep_alive)


def align(array: Array) -> Array:
    """Make the array C-contiguous and aligned; copies only if necessary."""
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
            # With its length, because the bytes may contain zeros.
            attribute_c.count = len(raw)
        case AttrKind.TENSOR:
            attribute_c.tensor = _make_array(abi.TensorC, [_marshal_constant(value, keep_alive)], keep_alive)
        case AttrKind.INTS:
            attribute_c.ints, attribute_c.count = _make_array(c_int64, value, keep_alive), len(value)
        case AttrKind.FLOATS:
            attribute_c.floats, attribute_c.count = _make_array(c_double, value, keep_alive), len(value)
        case AttrKind.STRINGS:
            buffers = [create_string_buffer(_encode(text)) for text in value]
            # c_char_p refers to the bytes and does not own them.
            keep_alive.append(buffers)
            attribute_c.strings = _make_array(c_char_p, [cast(b, c_char_p) for b in buffers], keep_alive)
            attribute_c.count = len(value)
    return attribute_c


_LISTED = ("INT", "FLOAT", "STRING", "TENSOR", "INTS", "FLOATS", "STRINGS")
_KINDS = {AttrKind[name]: number for number, name in enumerate(_LISTED, 1)}
"""The number in ``xrt_attribute.kind`` of each kind of attribute; kinds that are missing here are not passed."""


def _encode(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _make_array(kind: Any, items: Sequence[Any], keep_alive: list[Any]) -> Any:
    """A pointer to the items, which `keep_alive` keeps alive; null if there are none."""
    if not items:
        return POINTER(kind)()
    items_c = (kind * len(items))(*items)
    keep_alive.append(items_c)
    return cast(items_c, POINTER(kind))
