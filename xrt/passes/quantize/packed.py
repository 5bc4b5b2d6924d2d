"""Weight-only and dynamic quantization, and weights packed for ONNX Runtime's MatMulNBits.

The MatMulNBits kernels also quantize the activation per block, so that a few large channels affect their own block only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import NodeWriter, rewrite_nodes
from xrt.passes.quantize.candidates import CONVOLUTIONS, PRODUCTS, QuantizationOptions
from xrt.passes.quantize.weights import (
    Emission,
    find_channel_axis,
    find_inner_axis,
    quantize_blocks,
    quantize_channels,
    require_opset,
)

FLOAT = 1
"""ONNX's TensorProto code of float32."""


def quantize_dynamically(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Compute products with constant matrices in integers, with activation ranges measured in each call.

    Weights are int8 with one scale per column. Infer shapes first. Raises OptionError if conversion to opset 13 fails.
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
    return emission.finish(
        [rewrite(node, emission, options) if node.name in selected else node for node in emission.function.nodes]
    )


def why_not_matrix(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Explain why a node is not a float32 product of an activation with a constant matrix, or return None if it is."""
    if node.op not in PRODUCTS:
        return "it is no product"
    if not options.selects(node):
        return "no pattern selects it"
    matrix = function.constants.get(node.inputs[1])
    if matrix is None or matrix.dtype is not DType.FLOAT32 or len(matrix.shape) != 2 or 0 in matrix.shape:
        return "its weights are no constant matrix of float32"
    type_ = function.get_type(node.inputs[0])
    if node.inputs[0] in function.constants or not isinstance(type_, TensorType) or type_.dtype is not DType.FLOAT32:
        return "its first operand is no computed value of float32"
    if node.op == "Gemm" and (node.attr("transA", 0) or node.attr("alpha", 1.0) != 1.0 or node.attr("beta", 1.0) != 1.0):
        return "it transposes or scales its operands"
    return None


def _rewrite_product(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    """Emit a product in integers; return its last node, which replaces ``node`` under the same name and output."""
    name, is_transposed = node.inputs[1], find_inner_axis(node) == 1
    matrix = emission.function.constants[name].array
    weight = quantize_channels(
        matrix.T if is_transposed else matrix, 1, replace(options, weights="int8", symmetric_weights=True, per_channel=True)
    )
    integers, scale, zero = emission.quantize_in_call(node.inputs[0])
    stored, stored_scale, stored_zero = emission.store_matrix(name, weight.integers, weight.parameters, transposed=is_transposed)
    sums = emission.define(f"{node.name}_sums", "MatMulInteger", (integers, stored, zero, stored_zero), DType.INT32)
    floats = emission.define(f"{node.name}_floats", "Cast", (sums,), DType.FLOAT32, {"to": FLOAT})
    scales = emission.define(f"{node.name}_scales", "Mul", (scale, stored_scale), DType.FLOAT32)
    if not any(node.inputs[2:]):
        return Node("Mul", (floats, scales), node.outputs, name=node.name)
    product = emission.define(f"{node.name}_product", "Mul", (floats, scales), DType.FLOAT32)
    return Node("Add", (product, node.inputs[2]), node.outputs, name=node.name)


Array: TypeAlias = np.ndarray[Any, Any]
DOMAIN = "com.microsoft"
BIAS = 5
"""Index of the bias among the inputs of MatMulNBits."""
BLOCK = 32
"""Number of consecutive rows of a weight column that share a scale."""
IN_BYTES = 4
"""The accuracy_level of MatMulNBits at which activations are quantized to int8."""


def pack_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Replace products with constant matrices by MatMulNBits, for engines that support ``com.microsoft``.

    Weights are symmetric; `BLOCK` rows share a scale. Infer shapes first.
    """
    packed: dict[tuple[str, int], tuple[str, ...]] = {}
    result = _rewrite_selected(function, options, why_not_packed, partial(_pack_product, packed))
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
            return "its bias is no constant with a number for each column"
    return None


def _pack_product(
    packed: dict[tuple[str, int], tuple[str, ...]], node: Node, emission: Emission, options: QuantizationOptions
) -> Node:
    """Make the MatMulNBits of a product. ``packed`` caches constants, by name and contracted axis of the matrix."""
    name, axis = node.inputs[1], find_inner_axis(node)
    matrix = emission.function.constants[name].array
    if (name, axis) not in packed:
        parts = _pack(matrix.T if axis else matrix, options)
        packed[name, axis] = tuple(emission.add_constant(f"{name}_{part}", array) for part, array in parts.items())
    parameters = packed[name, axis]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    # Omitted optional inputs before the bias need empty names.
    missing = ("",) * (BIAS - 1 - len(parameters))
    inputs = (node.inputs[0], *parameters, *((*missing, bias) if bias else ()))
    inner, columns = matrix.shape[axis], matrix.shape[1 - axis]
    product = Node("MatMulNBits", inputs, node.outputs, domain=DOMAIN)
    configured = product.with_attributes(K=inner, N=columns, bits=8, block_size=BLOCK, accuracy_level=IN_BYTES)
    return replace(configured, name=node.name)


def _pack(matrix: Array, options: QuantizationOptions) -> Mapping[str, Array]:
    """Quantize weights and lay them out as MatMulNBits reads them: by column, then by block; return weights and scales."""
    quantized = quantize_blocks(matrix, 0, BLOCK, replace(options, weights="uint8", symmetric_weights=True))
    zeros = quantized.parameters.zero_point
    integers = np.repeat(zeros, BLOCK, axis=0)  # a short last block is filled with zero points
    integers[: matrix.shape[0]] = quantized.integers
    blocks = integers.T.reshape(matrix.shape[1], zeros.shape[0], BLOCK)
    return {"packed": np.ascontiguousarray(blocks), "scales": np.ascontiguousarray(quantized.parameters.scale.T)}


ZERO_POINTS, GROUPS = 3, 4
"""Indices of optional inputs of MatMulNBits: zero points per block, and the group index of each row."""


def unpack_weights(function: Function) -> Function:
    """Replace MatMulNBits of constant weights by a float32 MatMul, with Cast and Add as needed. Bodies are not searched."""
    return rewrite_nodes(function, _unpack)


def _unpack(w: NodeWriter) -> str | None:
    node, operands = w.node, [*w.node.inputs, *("",) * (BIAS + 1 - len(w.node.inputs))]
    if node.domain != DOMAIN or node.op_type != "MatMulNBits":
        return None
    # With both zero points and group indices (deprecated), ONNX Runtime deviates from its documentation.
    if all(operands[ZERO_POINTS : GROUPS + 1]):
        return None
    packed, scales, zeros, groups = (w.function.constants.get(name) for name in operands[1 : GROUPS + 1])
    is_constant = all(name in w.function.constants for name in operands[1 : GROUPS + 1] if name)
    if packed is None or scales is None or not is_constant:
        return None
    optional = (None if constant is None else constant.array for constant in (zeros, groups))
    weights = w.constant(_compute_weights(node, packed.array, scales.array, *optional))
    type_ = w.find_type(w.x)
    # The unpacked matrix is float32, so other types are cast there and back.
    if type_ is None or type_.dtype is DType.FLOAT32:
        product = w.op("MatMul", w.x, weights)
    else:
        product = w.cast(w.op("MatMul", w.cast(w.x, DType.FLOAT32), weights), type_.dtype)
    return w.op("Add", product, operands[BIAS]) if operands[BIAS] else product


def _compute_weights(node: Node, packed: Array, scales: Array, zeros: Array | None, groups: Array | None) -> Array:
    """Dequantize packed weights to a float32 matrix (K, N)."""
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size"))
    inner, columns = int(node.attr("K")), int(node.attr("N"))
    count = -(-inner // block)
    integers = _split_bytes(packed.reshape(columns, count, -1), bits)[..., :block].reshape(columns, count * block)[:, :inner]
    scale = scales.reshape(columns, count).astype(np.float32)
    if zeros is None:
        zero: Any = np.full((columns, count), 1 << (bits - 1), np.float32)  # the middle of the range
    elif zeros.dtype == np.uint8:
        zero = _split_bytes(zeros.reshape(columns, -1), bits)[:, :count].astype(np.float32)
    else:  # unpacked, in the type of the scales
        zero = zeros.reshape(columns, count).astype(np.float32)
    group_of_row = np.arange(inner) // block if groups is None else groups[:inner].astype(np.intp)
    return np.ascontiguousarray(((integers.astype(np.float32) - zero[:, group_of_row]) * scale[:, group_of_row]).T)


def _split_bytes(array: Array, bits: int) -> Array:
    """Unpack integers of ``bits`` bits from bytes, low bits first, along the last axis."""
    mask = (1 << bits) - 1
    parts = [(array.astype(np.uint8) >> shift) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)


def quantize_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Store constant weights as integers with one scale per channel, each followed by a DequantizeLinear.

    A shared weight is stored once. Infer shapes first. Raises OptionError if conversion to opset 13 fails.
    """
    return _rewrite_selected(function, options, why_not_stored, _store_weight)


def why_not_stored(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Explain why the weights of a node stay in floating point, or return None if they become integers."""
    if node.op not in CONVOLUTIONS | PRODUCTS:
        return "its operator has no quantized weights here"
    if not options.selects(node):
        return "no pattern selects it"
    constant = function.constants.get(node.inputs[1])
    if constant is None or constant.dtype is not DType.FLOAT32:
        return "its weights are no constant of float32"
    type_ = function.get_type(node.inputs[0])
    if isinstance(type_, TensorType) and type_.dtype is not DType.FLOAT32:
        return "its operands are not float32"
    if constant.array.size == 0 or constant.array.ndim < 2:
        return "its weights are no matrix"
    return None


def _store_weight(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    name = node.inputs[1]
    floats = emission.function.constants[name].array
    weight = quantize_channels(floats, find_channel_axis(node, floats), options)
    stored = emission.dequantize(name, weight, (name, weight.axis))
    return replace(node, inputs=(node.inputs[0], stored, *node.inputs[2:]))
