"""Export a Function for ONNX Runtime: a small model, with large constants passed by reference, and rewrites for speed.

Each large constant is an external file of the model whose content is the constant's own memory. With direct use of such buffers
enabled, the library neither copies nor writes them, and it can read them while folding constants (``add_initializer`` does not
allow that). Weights are in memory once, except packed copies, and protobuf's 2 GB limit does not apply.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.ort.session import ExportedModel, get_tensor_bytes, newest_ir, newest_opset
from xrt.formats.onnx import external_weights, externalize_weights, lowest_model
from xrt.graph import Constant, DType, Function, Node, TensorType
from xrt.operators import NodeWriter, rewrite_nodes

if TYPE_CHECKING:
    from xrt.graph import Function


_OPSET_OF_CASTS = 13
"""The opset of the Casts that the library inserts for float16; it rejects them in a model below opset 6."""


def export_model(function: Function) -> ExportedModel:
    """Export at the lowest opset and IR version with the same semantics.

    Raises ModelError if that is newer than the library and cannot be downgraded.
    """
    function = externalize_weights(function)  # the library checks bodies separately and would look for a file
    model = lowest_model(function, newest_opset(), newest_ir(), weights="external", least_opset=_OPSET_OF_CASTS)
    rounded = {node.output[0] for node in model.graph.node if any(a.name == "ceil_mode" and a.i for a in node.attribute)}
    for value in model.graph.value_info:
        if value.type.HasField("tensor_type") and value.name not in rounded:
            # The library infers shapes itself, except that its inference may count a window too many for pools with ceil_mode.
            # A given shape is compared with the result of every call, which takes 40 ns per node.
            value.type.tensor_type.ClearField("shape")
    arrays = external_weights(function)
    files = {name: f"constant_{index}" for index, name in enumerate(arrays)}
    for tensor in model.graph.initializer:
        if tensor.name in files:
            _name_file(tensor, files[tensor.name])
    contents = {files[name]: get_tensor_bytes(array) for name, array in arrays.items()}
    originals = [function.constants[name].array for name in arrays]
    copied = sum(c.nbytes for c, array in zip(contents.values(), originals, strict=True) if not np.may_share_memory(c, array))
    return ExportedModel(model.SerializeToString(), contents, copied)


def _name_file(tensor: Any, file: str) -> None:
    """Set the file of an external tensor: one per constant, because constants are separate in memory."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file


# ---------------------------------------------------------------------- forms that are exported instead

LEAST, MOST = 16, 1 << 16
"""Minimum number of rows for which the product is faster, and maximum for which a constant row of ones is added."""


def write_sums_as_products(function: Function) -> Function:
    """Rewrite each ReduceSum over constant leading axes of static extents as a product; same Function if none."""
    return rewrite_nodes(function, _write_sum)


def _write_sum(writer: NodeWriter) -> str | None:
    sizes = _find_sizes(writer.node, writer.function)
    return None if sizes is None else _write_product(writer, *sizes)


def _find_sizes(node: Node, function: Function) -> tuple[tuple[int, ...], int] | None:
    """Shape of the input and number of leading axes summed; None for other nodes."""
    axes = function.constants.get(node.inputs[1]) if node.op == "ReduceSum" and len(node.inputs) == 2 else None
    type_ = None if axes is None else function.get_type(node.inputs[0])
    if axes is None or not isinstance(type_, TensorType) or type_.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None
    shape = tuple(size for size in type_.shape or () if isinstance(size, int))
    count = axes.array.size
    if len(shape) != type_.rank or not 0 < count < len(shape) or 0 in shape or not LEAST <= math.prod(shape[:count]) <= MOST:
        return None
    positions = sorted(int(axis) % len(shape) for axis in axes.array.reshape(-1))
    return (shape, count) if positions == list(range(count)) else None


def _write_product(writer: NodeWriter, shape: tuple[int, ...], count: int) -> str:
    rows, rest = math.prod(shape[:count]), shape[count:]
    dtype = writer.dtype(writer.x)
    ones = f"xrt/sum/{dtype}/{rows}"  # shared by all sums over this many rows
    writer.constants[ones] = Constant(np.ones(rows, dtype.numpy))
    source = writer.x
    if len(shape) > 2:
        source = writer.op("Reshape", source, writer.integers([rows, -1]))
    result = (1,) * count + rest if writer.node.attr("keepdims", 1) else rest
    total = writer.op("MatMul", ones, source)
    # MatMul of a vector and a matrix already has the final shape.
    return total if len(result) == 1 else writer.op("Reshape", total, writer.integers(result))


# ---------------------------------------------------------------------- constants of bytes


def give_bytes_one_reader(function: Function) -> Function:
    """Duplicate shared int8 constants and DequantizeLinear nodes, so that each has one reader.

    With `session.x64quantprecision` ONNX Runtime 1.31 rewrites int8 weights and zero points node by node and cannot open a model
    in which two nodes share one. The copies share memory.
    """
    if not any(constant.dtype is DType.INT8 for constant in function.constants.values()):
        return function
    constants, nodes, claimed = dict(function.constants), list[Node](), set[str]()

    def claim(node: Node) -> Node:
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            if name in function.constants and function.constants[name].dtype is DType.INT8:
                if name in claimed:
                    inputs[place] = f"{name}/xrt/{len(claimed)}"
                    constants[inputs[place]] = function.constants[name]
                claimed.add(inputs[place])
        return node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs))

    for node in function.nodes:
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            source = function.producer(name) if name else None
            if source is None or source.op != "DequantizeLinear" or source.inputs[0] not in function.constants:
                continue
            if name in claimed:
                inputs[place] = f"{name}/xrt/{len(nodes)}"
                nodes.append(claim(replace(source, outputs=(inputs[place],), name=f"{source.name}/xrt/{len(nodes)}", control=())))
            claimed.add(name)
        nodes.append(claim(node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs))))
    return function.replace(nodes=tuple(nodes), constants=constants)
