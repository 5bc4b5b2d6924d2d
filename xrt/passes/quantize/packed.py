"""Weights of 8 or 4 bits in blocks, and products that compute with them: ONNX Runtime's operator MatMulNBits.

Its kernels also round the other operand to bytes, with a scale for each block: a few large channels spoil their own block alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Function, Node
from xrt.passes.quantize.dynamic import why_not_matrix
from xrt.passes.quantize.emission import Emission, require_opset
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.weights import find_inner_axis, quantize_blocks

__all__ = ["DOMAIN", "pack_weights"]

Array: TypeAlias = np.ndarray[Any, Any]

DOMAIN = "com.microsoft"
BIAS = 5
"""The input of MatMulNBits that is added to the product."""
IN_BYTES = 4
"""The accuracy level of MatMulNBits at which the other operand is rounded to bytes."""


def pack_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Return the Function with products by constant matrices as MatMulNBits, which engines for ``com.microsoft`` alone take.

    Weights of 8 bits are symmetric, those of 4 bits have zero points; ``block_size`` rows share a scale. Types must be known:
    infer shapes first.
    """
    options = options or QuantizationOptions()
    selected = {node.name for node in function.nodes if why_not_packed(node, function, options) is None}
    if not selected:
        return function
    emission = Emission(require_opset(function))
    packed: dict[tuple[str, int], tuple[str, ...]] = {}
    made = [_rewrite(one, emission, packed, options) if one.name in selected else one for one in emission.function.nodes]
    done = emission.finish(made)
    return done.replace(opsets={**done.opsets, DOMAIN: 1})


def why_not_packed(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Return why a node's weights are not packed; None where they are."""
    if reason := why_not_matrix(node, function, options):
        return reason
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        columns = function.constants[node.inputs[1]].shape[1 - find_inner_axis(node)]
        known = function.constants.get(bias)
        if known is None or known.shape != (columns,):
            return "its bias is no constant with a number for each column"
    return None


def _rewrite(
    node: Node, emission: Emission, packed: dict[tuple[str, int], tuple[str, ...]], options: QuantizationOptions
) -> Node:
    name, axis = node.inputs[1], find_inner_axis(node)
    matrix = emission.function.constants[name].array
    if (name, axis) not in packed:
        parts = _pack(matrix.T if axis else matrix, options)
        packed[name, axis] = tuple(emission.add_constant(f"{name}_{part}", array) for part, array in parts.items())
    terms = packed[name, axis]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    missing = ("",) * (BIAS - 1 - len(terms))
    inputs = (node.inputs[0], *terms, *((*missing, bias) if bias else ()))
    bits = 8 if options.weight_dtype.bits == 8 else 4
    inner, columns = matrix.shape[axis], matrix.shape[1 - axis]
    product = Node("MatMulNBits", inputs, node.outputs, domain=DOMAIN)
    block = options.block_size
    done = product.with_attributes(K=inner, N=columns, bits=bits, block_size=block, accuracy_level=IN_BYTES)
    return replace(done, name=node.name)


def _pack(matrix: Array, options: QuantizationOptions) -> Mapping[str, Array]:
    """Return weights, scales and zero points as MatMulNBits reads them: column by column, block by block."""
    is_narrow, block = options.weight_dtype.bits < 8, options.block_size
    found = quantize_blocks(
        matrix, 0, replace(options, weights="uint4" if is_narrow else "uint8", symmetric_weights=not is_narrow)
    )
    zeros = found.parameters.zero_point.astype(np.uint8)
    count = zeros.shape[0]
    integers = np.repeat(zeros, block, axis=0)  # what a last block lacks counts as zero
    integers[: matrix.shape[0]] = found.integers.astype(np.uint8)
    blocks = integers.T.reshape(matrix.shape[1], count, block)
    scales = np.ascontiguousarray(found.parameters.scale.T)
    if not is_narrow:
        return {"packed": np.ascontiguousarray(blocks), "scales": scales}
    return {"packed": _join_pairs(blocks), "scales": scales, "zero_points": _join_pairs(zeros.T)}


def _join_pairs(nibbles: Array) -> Array:
    """Return numbers of 4 bits, two in a byte, the first in the lower half."""
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate([nibbles, np.zeros((*nibbles.shape[:-1], 1), np.uint8)], axis=-1)
    return np.ascontiguousarray(nibbles[..., 0::2] | (nibbles[..., 1::2] << 4))
