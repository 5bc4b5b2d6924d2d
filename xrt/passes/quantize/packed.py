"""Dynamic quantization, weights stored as integers, and weights packed for ONNX Runtime's MatMulNBits.

MatMulNBits has scales per block of the weights, and its kernels quantize the activation per block too, so that a few large
channels only affect the precision of their own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.graph import DType, Function, Node
from xrt.operators import NodeWriter, rewrite_nodes
from xrt.passes.quantize.candidates import PRODUCTS, QuantizationOptions, why_not_quantized
from xrt.passes.quantize.weights import (
    Array,
    Emission,
    find_channel_axis,
    find_inner_axis,
    quantize_blocks,
    quantize_channels,
    require_opset,
)


def quantize_dynamically(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Compute products with constant matrices in integers, with the range of the activation computed in each call.

    Weights become int8 with one scale per column. Infer shapes first. Raises OptionError if conversion to opset 13 fails.
    """
    return _rewrite_selected(function, options, why_not_matrix, _rewrite_product)


def _rewrite_selected(
    function: Function,
    options: QuantizationOptions | None,
    why_not: Callable[[Node, Function, QuantizationOptions], str | None],
    rewrite: Callable[[Node, Emission, QuantizationOptions], Node],
) -> Function:
    """Rewrite the nodes for which ``why_not`` returns None; without such nodes, return the Function unchanged."""
    options = options or QuantizationOptions()
    selected = {node.name for node in function.nodes if why_not(node, function, options) is None}
    if not selected:
        return function
    emission = Emission(require_opset(function))
    nodes = emission.function.nodes
    return emission.finish([rewrite(node, emission, options) if node.name in selected else node for node in nodes])


def why_not_matrix(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Explain why a node is not a float32 product of an activation with a constant matrix, or return None if it is."""
    if reason := why_not_quantized(node, function, options):
        return reason
    if node.op not in PRODUCTS:
        return "it is not a matrix product"
    matrix = function.constants.get(node.inputs[1])
    if matrix is None or len(matrix.shape) != 2:
        return "its weights are not a constant matrix"
    if node.op == "Gemm" and (node.attr("transA", 0) or node.attr("alpha", 1.0) != 1.0 or node.attr("beta", 1.0) != 1.0):
        return "it transposes or scales its operands"
    return None


def _rewrite_product(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    """Emit a product in integers; return its last node, which replaces ``node`` with the same name and output."""

    def quantize_matrix(matrix: Array) -> dict[str, Array]:
        weight = quantize_channels(matrix, 1, replace(options, per_channel=True))
        scale, zero_point = weight.parameters.scale, weight.parameters.zero_point
        return {"integers": weight.integers, "integer_scale": scale, "integer_zero_point": zero_point}

    matrix, matrix_scale, matrix_zero = emission.store_matrix(node, quantize_matrix)
    integers, scale, zero = emission.quantize_in_call(node.inputs[0])
    sums = emission.define(f"{node.name}_sums", "MatMulInteger", (integers, matrix, zero, matrix_zero), DType.INT32)
    floats = emission.define(f"{node.name}_floats", "Cast", (sums,), DType.FLOAT32, {"to": DType.FLOAT32.onnx})
    scales = emission.define(f"{node.name}_scales", "Mul", (scale, matrix_scale), DType.FLOAT32)
    if not any(node.inputs[2:]):
        return Node("Mul", (floats, scales), node.outputs, name=node.name)
    product = emission.define(f"{node.name}_product", "Mul", (floats, scales), DType.FLOAT32)
    return Node("Add", (product, node.inputs[2]), node.outputs, name=node.name)


DOMAIN = "com.microsoft"
BLOCK_ROWS = 32
"""In each column of a matrix, this many consecutive rows share a scale."""
INT8_ACCURACY_LEVEL = 4
"""The accuracy_level of MatMulNBits at which activations are quantized to int8."""
ZERO_POINTS_INDEX, GROUPS_INDEX, BIAS_INDEX = 3, 4, 5
"""Indices of the optional inputs of MatMulNBits: zero points per block, the block of each row, and the bias."""


def pack_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Replace products with constant matrices by MatMulNBits, for engines that support ``com.microsoft``. Infer shapes first.

    Weights become uint8 with a zero point of 128, and a scale per block of `BLOCK_ROWS` rows of a column.
    """
    result = _rewrite_selected(function, options, why_not_packed, _pack_product)
    return result if result is function else result.replace(opsets={**result.opsets, DOMAIN: 1})


def why_not_packed(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Explain why the weights of a node are not packed, or return None if they are."""
    if reason := why_not_matrix(node, function, options):
        return reason
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        columns = function.constants[node.inputs[1]].shape[1 - find_inner_axis(node)]
        constant = function.constants.get(bias)
        if constant is None or constant.shape != (columns,):
            return "its bias is not a constant with one number per column"
    return None


def _pack_product(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    parameters = emission.store_matrix(node, _pack)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    inputs = (node.inputs[0], *parameters)
    if bias:
        # Omitted optional inputs before the bias need empty names.
        inputs = (*inputs, *[""] * (BIAS_INDEX - len(inputs)), bias)
    axis, shape = find_inner_axis(node), emission.function.constants[node.inputs[1]].shape
    return Node("MatMulNBits", inputs, node.outputs, domain=DOMAIN, name=node.name).with_attributes(
        K=shape[axis], N=shape[1 - axis], bits=8, block_size=BLOCK_ROWS, accuracy_level=INT8_ACCURACY_LEVEL
    )


def _pack(matrix: Array) -> Mapping[str, Array]:
    """Quantize a matrix of shape (K, N). Return weights of shape (N, blocks, BLOCK_ROWS) and scales of shape (N, blocks)."""
    quantized = quantize_blocks(matrix, 0, BLOCK_ROWS)
    zero_points = quantized.parameters.zero_point
    integers = np.repeat(zero_points, BLOCK_ROWS, axis=0)  # a short last block is filled with zero points
    integers[: matrix.shape[0]] = quantized.integers
    blocks = integers.T.reshape(matrix.shape[1], zero_points.shape[0], BLOCK_ROWS)
    return {"packed": np.ascontiguousarray(blocks), "scales": np.ascontiguousarray(quantized.parameters.scale.T)}


def unpack_weights(function: Function) -> Function:
    """Replace MatMulNBits with constant weights by a float32 MatMul, with Cast and Add as needed. Bodies are not searched."""
    return rewrite_nodes(function, _unpack)


def _unpack(w: NodeWriter) -> str | None:
    node = w.node
    operands = [*node.inputs, *[""] * (BIAS_INDEX + 1 - len(node.inputs))]
    if node.domain != DOMAIN or node.op_type != "MatMulNBits":
        return None
    # With both zero points and group indices (deprecated), ONNX Runtime deviates from its documentation.
    if all(operands[ZERO_POINTS_INDEX : GROUPS_INDEX + 1]):
        return None
    parameter_names = operands[1 : GROUPS_INDEX + 1]
    if not all(name in w.function.constants for name in parameter_names if name):
        return None
    packed, scales, zeros, groups = map(w.function.constants.get, parameter_names)
    if packed is None or scales is None:
        return None
    zero_array = None if zeros is None else zeros.array
    group_array = None if groups is None else groups.array
    weights = w.constant(_compute_weights(node, packed.array, scales.array, zero_array, group_array))
    type_ = w.find_type(w.x)
    # The unpacked matrix is float32, so other types are cast there and back.
    if type_ is None or type_.dtype is DType.FLOAT32:
        product = w.op("MatMul", w.x, weights)
    else:
        product = w.cast(w.op("MatMul", w.cast(w.x, DType.FLOAT32), weights), type_.dtype)
    return w.op("Add", product, operands[BIAS_INDEX]) if operands[BIAS_INDEX] else product


def _compute_weights(node: Node, packed: Array, scales: Array, zeros: Array | None, groups: Array | None) -> Array:
    """Dequantize packed weights to a float32 matrix (K, N). ``groups`` has the index of the block of each row."""
    bits, block_rows = int(node.attr("bits", 4)), int(node.attr("block_size"))
    rows, columns = int(node.attr("K")), int(node.attr("N"))
    blocks = -(-rows // block_rows)
    integers = _split_bytes(packed.reshape(columns, blocks, -1), bits)[..., :block_rows]
    integers = integers.reshape(columns, blocks * block_rows)[:, :rows]
    scale = scales.reshape(columns, blocks).astype(np.float32)
    if zeros is None:
        zero: Any = np.full((columns, blocks), 1 << (bits - 1), np.float32)  # the middle of the range
    elif zeros.dtype == np.uint8:
        zero = _split_bytes(zeros.reshape(columns, -1), bits)[:, :blocks].astype(np.float32)
    else:  # not packed, in the type of the scales
        zero = zeros.reshape(columns, blocks).astype(np.float32)
    block_of_row = np.arange(rows) // block_rows if groups is None else groups[:rows].astype(np.intp)
    matrix = (integers.astype(np.float32) - zero[:, block_of_row]) * scale[:, block_of_row]
    return np.ascontiguousarray(matrix.T)


def _split_bytes(array: Array, bits: int) -> Array:
    """Unpack integers of ``bits`` bits from bytes, low bits first, along the last axis."""
    mask = (1 << bits) - 1
    parts = [(array.astype(np.uint8) >> shift) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)


def quantize_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Store constant weights as integers with one scale per channel, each followed by a DequantizeLinear.

    A shared weight is stored once. Infer shapes first. Raises OptionError if conversion to opset 13 fails.
    """
    return _rewrite_selected(function, options, why_not_quantized, _store_weight)


def _store_weight(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    name = node.inputs[1]
    if name not in emission.function.constants:  # a product of two activations
        return node
    floats = emission.function.constants[name].array
    weight = quantize_channels(floats, find_channel_axis(node, floats), options)
    stored = emission.dequantize(name, weight, (name, weight.axis))
    return replace(node, inputs=(node.inputs[0], stored, *node.inputs[2:]))
