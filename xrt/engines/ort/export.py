"""Export a Function for ONNX Runtime: a model whose large constants are passed by reference, and rewrites for speed.

For the library, each large constant is an external file in memory: the memory of the constant itself. The library does not copy
it, and can read it to fold constants, which it cannot with ``add_initializer``. So weights are in memory only once, except for
packed copies, and protobuf's limit of 2 GB does not apply.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.ort.session import NEWEST_OPSET, ExportedModel, get_tensor_bytes
from xrt.engines.toolkit.rewrites import write_convolutions_as_products
from xrt.formats.onnx import collect_external_weights, externalize_weights, to_lowest_model
from xrt.graph import Constant, DType, Node
from xrt.operators import NodeWriter, ensure_computed_outputs, rewrite_nodes

if TYPE_CHECKING:
    from xrt.graph import Function

_OPSET_OF_CASTS = 13
"""Minimum opset, or the Function's if lower: for float16, ONNX Runtime inserts Casts of opset 13, but rejects them below 6."""


def export_model(function: Function) -> ExportedModel:
    """Export a Function at the lowest opset and IR version with the same semantics.

    Raises ModelError if the library cannot read a version that the Function requires.
    """
    # Move large constants of bodies to the Function: the library checks bodies separately, and would look for files on disk.
    function = externalize_weights(function)
    arrays = collect_external_weights(function)
    # One file per constant, because each has separate memory.
    files = {name: f"constant_{index}" for index, name in enumerate(arrays)}
    model = to_lowest_model(function, NEWEST_OPSET, locations=files, min_opset=_OPSET_OF_CASTS)
    ceil_mode_outputs = {
        node.output[0] for node in model.graph.node if any(a.name == "ceil_mode" and a.i for a in node.attribute)
    }
    for value in model.graph.value_info:
        if value.type.HasField("tensor_type") and value.name not in ceil_mode_outputs:
            # The library compares a declared shape with each result, which takes 40 ns per node, and infers shapes itself. But
            # for pools with ceil_mode, its inference may count a window too many.
            value.type.tensor_type.ClearField("shape")
    contents = {files[name]: get_tensor_bytes(array) for name, array in arrays.items()}
    originals = [function.constants[name].array for name in arrays]
    copied = sum(c.nbytes for c, array in zip(contents.values(), originals, strict=True) if not np.may_share_memory(c, array))
    return ExportedModel(model.SerializeToString(), contents, copied)


def rewrite_for_session(function: Function) -> Function:
    """Make the Function faster for a session: replace some convolutions and sums by products, and copy shared int8 constants.

    Also makes each output the result of a node.
    """
    function = write_convolutions_as_products(ensure_computed_outputs(function))
    return unshare_int8_constants(rewrite_nodes(function, _write_sum_as_product))


MIN_ROWS, MAX_ROWS = 16, 1 << 16
"""With fewer rows, a product is not faster than a sum. With more, the constant vector of ones would be too large."""


def _write_sum_as_product(writer: NodeWriter) -> str | None:
    """Replace a ReduceSum over the leading axes by a faster product with a vector of ones; None if the node is not such a sum."""
    if writer.node.op != "ReduceSum" or len(writer.node.inputs) != 2:
        return None
    axes = writer.function.constants.get(writer.node.inputs[1])
    type_ = writer.find_type(writer.x)
    if axes is None or type_ is None or type_.dtype not in (DType.FLOAT32, DType.FLOAT64) or not type_.is_static:
        return None
    dtype = type_.dtype
    shape = writer.extents(writer.x)
    num_axes = axes.array.size
    # The input as a matrix: the summed axes are its rows, all other axes its columns. A sum over all axes has no columns.
    rows, columns = math.prod(shape[:num_axes]), shape[num_axes:]
    if not 0 < num_axes < len(shape) or 0 in shape or not MIN_ROWS <= rows <= MAX_ROWS:
        return None
    are_leading = sorted(int(axis) % len(shape) for axis in axes.array.reshape(-1)) == list(range(num_axes))
    if not are_leading:
        return None
    ones = f"xrt/sum/{dtype}/{rows}"  # all sums of this type over this number of rows share the constant
    writer.constants[ones] = Constant(np.ones(rows, dtype.numpy))
    source = writer.x
    if len(shape) > 2:
        source = writer.op("Reshape", source, writer.integers([rows, -1]))
    result_shape = (*[1] * num_axes, *columns) if writer.node.attr("keepdims", 1) else columns
    sums = writer.op("MatMul", ones, source)  # (rows,) times (rows, columns) is (columns,)
    return sums if len(result_shape) == 1 else writer.op("Reshape", sums, writer.integers(result_shape))


def unshare_int8_constants(function: Function) -> Function:
    """Duplicate int8 constants, and the nodes that dequantize constants, so that each has only one reader.

    With `session.x64quantprecision`, ONNX Runtime 1.31 rewrites the int8 weights and zero points of each node, and cannot open a
    model in which two nodes share one. The duplicates share memory.
    """
    if not any(constant.dtype is DType.INT8 for constant in function.constants.values()):
        return function
    constants = dict(function.constants)
    nodes: list[Node] = []
    used_names: set[str] = set()

    def assign_reader(name: str) -> str:
        """Return the value for its next reader: the value itself for the first reader, a new duplicate for each later one."""
        constant = function.constants.get(name)
        producer = function.producer(name) if name else None
        is_int8 = constant is not None and constant.dtype is DType.INT8
        is_dequantized = producer is not None and producer.op == "DequantizeLinear" and producer.inputs[0] in function.constants
        if name not in used_names or not (is_int8 or is_dequantized):
            used_names.add(name)
            return name
        duplicate = f"{name}/xrt/{len(used_names)}"  # the number makes it unique
        used_names.add(duplicate)
        if constant is not None:
            constants[duplicate] = constant
        elif producer is not None:
            inputs = tuple(map(assign_reader, producer.inputs))  # the copy of the node is another reader of its inputs
            nodes.append(replace(producer, inputs=inputs, outputs=(duplicate,), name=duplicate, control=()))
        return duplicate

    for node in function.nodes:
        inputs = tuple(map(assign_reader, node.inputs))
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return function.replace(nodes=tuple(nodes), constants=constants)
