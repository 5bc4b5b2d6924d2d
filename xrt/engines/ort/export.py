"""Export a Function for ONNX Runtime: a small model, with large constants passed by reference, and rewrites for speed.

Each large constant is an external file of the model whose content is the constant's own memory. With direct use of such buffers
enabled, the library neither copies nor writes them, and it can read them while folding constants (``add_initializer`` does not
allow that). Weights are in memory once, except packed copies, and protobuf's 2 GB limit does not apply.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.ort.session import ExportedModel, get_tensor_bytes, newest_ir, newest_opset
from xrt.engines.toolkit.rewrites import write_convolutions_as_products
from xrt.formats.onnx import external_weights, externalize_weights, lowest_model
from xrt.graph import Constant, DType, Node
from xrt.operators import NodeWriter, compute_outputs, rewrite_nodes

if TYPE_CHECKING:
    from xrt.graph import Function


_OPSET_OF_CASTS = 13
"""The opset of the Casts that the library inserts for float16; it rejects them in a model below opset 6."""


def export_model(function: Function) -> ExportedModel:
    """Export a Function at the lowest opset and IR version with the same semantics.

    Raises ModelError if the library cannot read these versions, and the Function cannot be expressed in older ones.
    """
    function = externalize_weights(function)  # the library checks bodies separately and would look for a file
    arrays = external_weights(function)
    # A file per constant, because constants are separate in memory.
    files = {name: f"constant_{index}" for index, name in enumerate(arrays)}
    model = lowest_model(function, newest_opset(), newest_ir(), locations=files, least_opset=_OPSET_OF_CASTS)
    ceil_mode_outputs = {
        node.output[0] for node in model.graph.node if any(a.name == "ceil_mode" and a.i for a in node.attribute)
    }
    for value in model.graph.value_info:
        if value.type.HasField("tensor_type") and value.name not in ceil_mode_outputs:
            # The library infers shapes itself, except that its inference may count a window too many for pools with ceil_mode.
            # A given shape is compared with the result of every call, which takes 40 ns per node.
            value.type.tensor_type.ClearField("shape")
    contents = {files[name]: get_tensor_bytes(array) for name, array in arrays.items()}
    originals = [function.constants[name].array for name in arrays]
    copied = sum(c.nbytes for c, array in zip(contents.values(), originals, strict=True) if not np.may_share_memory(c, array))
    return ExportedModel(model.SerializeToString(), contents, copied)


# ---------------------------------------------------------------------- rewrites for speed


def rewrite_for_session(function: Function) -> Function:
    """Compute each output by a node, replace some convolutions and sums by products, and unshare int8 constants."""
    function = write_convolutions_as_products(compute_outputs(function))
    return unshare_int8_constants(rewrite_nodes(function, _write_sum_as_product))


MIN_ROWS, MAX_ROWS = 16, 1 << 16
"""A sum over fewer rows is not faster as a product; over more rows, the constant row of ones would be too large."""


def _write_sum_as_product(writer: NodeWriter) -> str | None:
    """Replace a ReduceSum over constant leading axes of static extents by a product with ones, which is faster; else None."""
    if writer.node.op != "ReduceSum" or len(writer.node.inputs) != 2:
        return None
    axes, type_ = writer.function.constants.get(writer.node.inputs[1]), writer.find_type(writer.x)
    if axes is None or type_ is None or type_.dtype not in (DType.FLOAT32, DType.FLOAT64) or not type_.is_static:
        return None
    shape, count, dtype = writer.extents(writer.x), axes.array.size, type_.dtype
    rows, columns = math.prod(shape[:count]), shape[count:]
    # A sum over all axes is not a product with a matrix, and an empty tensor has no rows.
    if not 0 < count < len(shape) or 0 in shape or not MIN_ROWS <= rows <= MAX_ROWS:
        return None
    if sorted(int(axis) % len(shape) for axis in axes.array.reshape(-1)) != list(range(count)):
        return None
    ones = f"xrt/sum/{dtype}/{rows}"  # shared by all sums over this many rows
    writer.constants[ones] = Constant(np.ones(rows, dtype.numpy))
    source = writer.x
    if len(shape) > 2:
        source = writer.op("Reshape", source, writer.integers([rows, -1]))
    result = (1,) * count + columns if writer.node.attr("keepdims", 1) else columns
    sums = writer.op("MatMul", ones, source)
    # MatMul of a vector and a matrix already has the final shape.
    return sums if len(result) == 1 else writer.op("Reshape", sums, writer.integers(result))


# ---------------------------------------------------------------------- int8 constants


def unshare_int8_constants(function: Function) -> Function:
    """Duplicate int8 constants, and dequantized constants, so that each has a single reader.

    With `session.x64quantprecision` ONNX Runtime 1.31 rewrites int8 weights and zero points node by node and cannot open a model
    in which two nodes share one. The copies share memory.
    """
    if not any(constant.dtype is DType.INT8 for constant in function.constants.values()):
        return function
    constants, nodes, used_names = dict(function.constants), list[Node](), set[str]()

    def rename_if_used(name: str) -> str:
        """Return the name that the next reader of a value uses: the value's for the first reader, a copy's for later ones."""
        constant, source = function.constants.get(name), function.producer(name) if name else None
        is_byte = constant is not None and constant.dtype is DType.INT8
        is_dequantized = source is not None and source.op == "DequantizeLinear" and source.inputs[0] in function.constants
        if name not in used_names or not (is_byte or is_dequantized):
            used_names.add(name)
            return name
        copy = f"{name}/xrt/{len(used_names)}"
        used_names.add(copy)
        if constant is not None:
            constants[copy] = constant
        elif source is not None:
            inputs = tuple(map(rename_if_used, source.inputs))
            nodes.append(replace(source, inputs=inputs, outputs=(copy,), name=copy, control=()))
        return copy

    for node in function.nodes:
        inputs = tuple(map(rename_if_used, node.inputs))
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return function.replace(nodes=tuple(nodes), constants=constants)
