"""Casts, quantization, and products of quantized tensors, which are computed exactly before they are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.engines.kernels.arrays import align_to_axis, broadcast_parameters, get_integer_limits
from xrt.engines.kernels.table import Array, NodeContext, Run, eager, ops
from xrt.graph import DType, Node
from xrt.operators.windows import make_window

SATURABLE = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
"""Types to which the attribute ``saturate`` of Cast applies."""


@ops("Cast")
def cast(node: Node, ctx: NodeContext) -> Run:
    to = node.attr("to")  # a name before version 6
    dtype = DType.parse(_LEGACY_NAMES.get(to, to.lower())) if isinstance(to, str) else DType.from_onnx(to)
    saturate, round_mode = bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
    return lambda x: ctx.xp.convert(x, dtype, saturate, round_mode)


_LEGACY_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
"""Type names of Cast before version 6 that differ from those of `DType` in more than case."""


@ops("CastLike")
def cast_like(node: Node, ctx: NodeContext) -> Run:
    saturate, round_mode = bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
    return lambda x, like: ctx.xp.convert(x, DType.from_array(like), saturate, round_mode)


@eager("BitCast")
def bit_cast(node: Node, ctx: NodeContext) -> Run:
    dtype = DType.from_onnx(node.attr("to")).numpy
    return lambda x: ctx.xp.bit_cast(x, dtype)


def _quantize(xp: Any, ratio: Array, zero: Array | None, to: DType, saturate: bool) -> Array:
    """Round ``ratio`` (input / scale) to nearest, ties to even; add the zero point; clamp to the range of ``to``."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + xp.astype(zero, ratio.dtype)
        return xp.convert(shifted, to, saturate)
    wide = xp.astype(xp.rint(ratio), np.float64) + (0 if zero is None else xp.astype(zero, np.float64))
    # Conversions to int64 are slow, because most CPUs cannot vectorize them.
    integer_type = np.int32 if to.bits < 32 else np.int64
    return xp.astype(xp.astype(xp.clip(wide, *get_integer_limits(to)), integer_type), to.numpy)


@ops("QuantizeLinear")
def quantize_linear(node: Node, ctx: NodeContext) -> Run:
    xp, axis, block = ctx.xp, node.attr("axis", 1), node.attr("block_size", 0)
    saturate, precision = bool(node.attr("saturate", 1)), ctx.get_dtype_attribute("precision")
    output_dtype = ctx.get_dtype_attribute("output_dtype") or DType.UINT8
    zero_dtype = ctx.input_dtype(2)  # input 2 is the zero point

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        # A library may represent a narrow type by a wider one, so the declared type takes precedence over the array's.
        to = output_dtype if zero is None else zero_dtype or DType.from_array(zero)
        dtype = precision.numpy if precision else scale.dtype
        ratio = xp.astype(x, dtype) / xp.astype(broadcast_parameters(xp, scale, x, axis, block), dtype)
        return _quantize(xp, ratio, None if zero is None else broadcast_parameters(xp, zero, x, axis, block), to, saturate)

    return run


@ops("DequantizeLinear")
def dequantize_linear(node: Node, ctx: NodeContext) -> Run:
    xp, axis, block = ctx.xp, node.attr("axis", 1), node.attr("block_size", 0)
    output_dtype = ctx.get_dtype_attribute("output_dtype")

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = xp.astype(x, np.float32)
        if zero is not None:
            wide = wide - xp.astype(broadcast_parameters(xp, zero, x, axis, block), np.float32)
        to = output_dtype.numpy if output_dtype else scale.dtype
        return xp.astype(wide * xp.astype(broadcast_parameters(xp, scale, x, axis, block), np.float32), to)

    return run


@ops("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node, ctx: NodeContext) -> Run:
    """Quantize with a scale and zero point computed from the range of the tensor, which is extended to include zero."""
    xp = ctx.xp

    def run(x: Array) -> tuple[Array, Array, Array]:
        low, high = xp.minimum(xp.min(x), 0), xp.maximum(xp.max(x), 0)
        # The range of a tensor of zeros is empty. Every nonzero scale represents it, so use that of range 1.
        scale = xp.asarray(xp.where(high != low, high - low, 1) / 255, dtype=np.float32)
        zero = xp.astype(xp.rint(xp.clip(-low / scale, 0, 255)), np.uint8)
        return _quantize(xp, x / scale, zero, DType.UINT8, saturate=True), scale, zero

    return run


def _subtract_zero_point(xp: Any, x: Array, zero: Array | None, axis: int) -> Array:
    """Subtract the zero point, in a type in which products are exact. A vector of zero points is along ``axis``."""
    wide = xp.astype(x, xp.product_dtype)
    return wide if zero is None else wide - xp.astype(align_to_axis(zero, axis, x.ndim), xp.product_dtype)


def _wrap_to_int32(xp: Any, integers: Array) -> Array:
    """Convert integers of any dtype to int32. Those out of range wrap around, as sums of int32 do."""
    return xp.astype(xp.astype(integers, np.int64), np.int32)


@ops("MatMulInteger")
def matmul_integer(node: Node, ctx: NodeContext) -> Run:
    xp, matmul = ctx.xp, ctx.xp.matmul

    def run(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
        return _wrap_to_int32(xp, matmul(_subtract_zero_point(xp, a, a_zero, -2), _subtract_zero_point(xp, b, b_zero, -1)))

    return run


@ops("ConvInteger")
def conv_integer(node: Node, ctx: NodeContext) -> Run:
    xp, convolve, group = ctx.xp, ctx.xp.convolve, node.attr("group", 1)

    def run(x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
        wide_x = _subtract_zero_point(xp, x, x_zero, 1)
        wide_w = _subtract_zero_point(xp, w, w_zero, 0)
        return _wrap_to_int32(xp, convolve(wide_x, wide_w, make_window(node, w.shape[2:]), group))

    return run


@ops("QLinearMatMul")
def qlinear_matmul(node: Node, ctx: NodeContext) -> Run:
    xp, matmul, declared = ctx.xp, ctx.xp.matmul, ctx.input_dtype(7)  # input 7 is `y_zero`

    def run(
        a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
    ) -> Array:
        # The parameters of `a` and of the result have one element per row (axis -2), those of `b` one per column.
        exact = matmul(_subtract_zero_point(xp, a, a_zero, -2), _subtract_zero_point(xp, b, b_zero, -1))
        factor = align_to_axis(a_scale, -2, a.ndim) * align_to_axis(b_scale, -1, b.ndim) / align_to_axis(y_scale, -2, a.ndim)
        ratio = _wrap_to_int32(xp, exact) * xp.astype(factor, np.float64)
        return _quantize(xp, ratio, align_to_axis(y_zero, -2, a.ndim), declared or DType.from_array(y_zero), saturate=True)

    return run


@ops("QLinearConv")
def qlinear_conv(node: Node, ctx: NodeContext) -> Run:
    xp, convolve, group = ctx.xp, ctx.xp.convolve, node.attr("group", 1)
    declared = ctx.input_dtype(7)  # input 7 is `y_zero`

    def run(
        x: Array,
        x_scale: Array,
        x_zero: Array,
        w: Array,
        w_scale: Array,
        w_zero: Array,
        y_scale: Array,
        y_zero: Array,
        bias: Array | None = None,
    ) -> Array:
        wide_x = _subtract_zero_point(xp, x, x_zero, axis=1)
        wide_w = _subtract_zero_point(xp, w, w_zero, axis=0)
        exact = convolve(wide_x, wide_w, make_window(node, w.shape[2:]), group)
        if bias is not None:
            exact = exact + align_to_axis(bias, 1, x.ndim)
        factor = xp.astype(x_scale.reshape(()) * align_to_axis(w_scale, 1, x.ndim) / y_scale.reshape(()), np.float64)
        return _quantize(xp, exact * factor, y_zero.reshape(()), declared or DType.from_array(y_zero), saturate=True)

    return run
