"""Which dequantized constants the library computes with as integers, so that they are to reach it as they are."""

from __future__ import annotations

import platform
from functools import lru_cache

import numpy as np

from xrt.engines.toolkit.quantized_operands import has_quantized_readers, list_readers
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["is_fused"]

QUANTIZING = frozenset({"Add", "Conv", "Mul"})
"""Operators that the library computes in integers only if their results are quantized: QLinearAdd, QLinearConv, QLinearMul."""
NIBBLES = frozenset({DType.INT4, DType.UINT4})
SMALLEST_BLOCK = 16
"""Of the blocks of the library's product with weights of 4 bits; a larger one is a power of two."""


def is_fused(node: Node, function: Function) -> bool:
    """Whether the library fuses a DequantizeLinear of constants with each operator that reads it.

    It does so with weights of bytes, and with biases, where the other operand is quantized too, and with weights of 4 bits
    in blocks, in a product. An operand of Add or Mul is one where the result is quantized again.
    """
    if not node.attr("block_size", 0):
        return sums_bytes_exactly() and has_quantized_readers(node, function, quantizing=QUANTIZING)
    weights, readers = node.outputs[0], list_readers(node, function)
    are_products = all(one.op == "MatMul" and one.inputs[1] == weights != one.inputs[0] for one in readers)
    return bool(readers) and are_products and _has_blocks(node, function)


def _has_blocks(node: Node, function: Function) -> bool:
    """Whether it dequantizes a matrix of 4 bits whose columns have blocks of a size that the library takes."""
    type_, block = function.get_type(node.inputs[0]), node.attr("block_size", 0)
    if not isinstance(type_, TensorType) or type_.dtype not in NIBBLES or type_.shape is None:
        return False
    is_power = block >= SMALLEST_BLOCK and block & (block - 1) == 0
    return is_power and len(type_.shape) == 2 and node.attr("axis", 1) in (0, -2)


@lru_cache(maxsize=1)
def sums_bytes_exactly() -> bool:
    """Whether the processor sums products of bytes in 32 bits.

    On x86 without VNNI the library's products of uint8 by int8 pass through sums of 16 bits, which stop at their ends: such
    weights are better folded to floats. https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    if platform.machine().lower() not in {"x86_64", "amd64", "i686", "x86"}:
        return True
    found = np.show_config(mode="dicts")["SIMD Extensions"]
    return bool({"AVX512_ICL", "AVX512_CLX", "AVX512_SPR"} & {*found.get("found", ()), *found.get("baseline", ())})
