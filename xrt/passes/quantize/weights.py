"""Weights as integers: which axis has the channels, and the constants that take a weight's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Node
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.parameters import Parameters, fit_weight, round_to_integers

__all__ = ["QuantizedWeight", "find_channel_axis", "find_inner_axis", "quantize_blocks", "quantize_channels"]

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight as integers."""

    integers: Array
    parameters: Parameters
    """In the shape that DequantizeLinear takes."""
    axis: int | None
    """Of the scales; None for one scale."""
    block: int = 0
    """How many numbers along the axis share a scale; 0 for one."""


def find_channel_axis(node: Node, weight: Array) -> int | None:
    """Return the axis of a weight along which each output channel has its numbers; None where there is none."""
    if node.op == "ConvTranspose":
        return 1 if node.attr("group", 1) == 1 else None  # the channels of all groups share the axis
    if node.op == "MatMul":
        return 1 if weight.ndim == 2 else None
    return 0 if node.op == "Conv" or node.attr("transB", 0) else 1


def find_inner_axis(node: Node) -> int:
    """Return the axis of a product's matrix along which it is summed."""
    return 1 if node.op == "Gemm" and node.attr("transB", 0) else 0


def quantize_channels(
    weight: Array, axis: int | None, options: QuantizationOptions, floor: Array | float = 0.0
) -> QuantizedWeight:
    """Return the weight with a scale for each index of an axis, or with one; ``floor`` is the least that each scale may be."""
    dtype = options.weight_dtype
    axis = axis if options.per_channel else None
    others = tuple(other for other in range(weight.ndim) if other != axis) if axis is not None else None
    low, high = np.asarray(weight.min(axis=others)), np.asarray(weight.max(axis=others))
    found = fit_weight(low, high, dtype, symmetric=options.symmetric_weights, reduce_range=options.reduce_range, floor=floor)
    shape = [1] * weight.ndim
    if axis is not None:
        shape[axis] = -1
    spread = Parameters(found.scale.reshape(shape), found.zero_point.reshape(shape)) if axis is not None else found
    return QuantizedWeight(round_to_integers(weight, spread, dtype), found, axis)


def quantize_blocks(weight: Array, axis: int, options: QuantizationOptions) -> QuantizedWeight:
    """Return a matrix with a scale for each block along an axis; the last block may be shorter."""
    dtype, block = options.weight_dtype, options.block_size
    count = -(-weight.shape[axis] // block)
    edges = np.arange(count) * block
    low, high = np.minimum.reduceat(weight, edges, axis=axis), np.maximum.reduceat(weight, edges, axis=axis)
    found = fit_weight(low, high, dtype, symmetric=options.symmetric_weights)
    rows = np.arange(weight.shape[axis]) // block
    spread = Parameters(found.scale.take(rows, axis=axis), found.zero_point.take(rows, axis=axis))
    return QuantizedWeight(round_to_integers(weight, spread, dtype), found, axis, block)
