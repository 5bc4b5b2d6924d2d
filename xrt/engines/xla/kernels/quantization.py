"""Quantisation, and products of quantised tensors: exact in integers, or rounded once where the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.quantization import align_to_axis, broadcast_parameters, get_integer_limits
from xrt.engines.toolkit.array_ops.windows import make_window
from xrt.engines.xla.kernels.casting import convert
from xrt.engines.xla.kernels.convolution import convolve
from xrt.engines.xla.table import Operand, ops
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


def _quantised(ratio: Operand, zero: Operand, to: DType, saturate: bool = True) -> Operand:
    """Round to the nearest (ties to even), add the zero point, and limit to the type's range."""
    if not to.is_integer:
        return convert(jnp, ratio if zero is None else ratio + zero.astype(ratio.dtype), to, saturate)
    wide = jnp.rint(ratio).astype(jnp.float64) + (0 if zero is None else zero.astype(jnp.float64))
    return jnp.clip(wide, *get_integer_limits(to)).astype(jnp.int32).astype(to.numpy)


@ops("QuantizeLinear")
def quantize_linear(at: LoweringContext, x: Operand, scale: Operand, zero: Operand = None) -> Operand:
    axis, block = at.attr("axis", 1), at.attr("block_size", 0)
    to = DType.from_onnx(at.attr("output_dtype", 0) or DType.UINT8.onnx) if zero is None else DType.of(zero)
    dtype = at.dtype("precision", scale.dtype)
    ratio = x.astype(dtype) / broadcast_parameters(jnp, scale, x, axis, block).astype(dtype)
    shift = None if zero is None else broadcast_parameters(jnp, zero, x, axis, block)
    return _quantised(ratio, shift, to, bool(at.attr("saturate", 1)))


@ops("DequantizeLinear")
def dequantize_linear(at: LoweringContext, x: Operand, scale: Operand, zero: Operand = None) -> Operand:
    axis, block = at.attr("axis", 1), at.attr("block_size", 0)
    wide = x.astype(jnp.float32)
    if zero is not None:
        wide = wide - broadcast_parameters(jnp, zero, x, axis, block).astype(jnp.float32)
    return (wide * broadcast_parameters(jnp, scale, x, axis, block).astype(jnp.float32)).astype(
        at.dtype("output_dtype", scale.dtype)
    )


@ops("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: LoweringContext, x: Operand) -> tuple[Operand, Operand, Operand]:
    """Scale and zero point from the tensor's own range, stretched to hold zero."""
    low, high = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = jnp.where(high != low, high - low, 1).astype(jnp.float32) / jnp.float32(255)
    zero = jnp.rint(jnp.clip(-low / scale, 0, 255)).astype(jnp.uint8)
    return _quantised(x / scale, zero, DType.UINT8), scale, zero


# ---------------------------------------------------------------------- products


def _centred(x: Operand, zero: Operand, axis: int | None) -> Operand:
    """Return the tensor less its zero point in int32; a vector of zero points is along the axis."""
    wide = x.astype(jnp.int32)
    return wide if zero is None else wide - align_to_axis(zero, axis, x.ndim).astype(jnp.int32)


@ops("MatMulInteger")
def matmul_integer(at: LoweringContext, a: Operand, b: Operand, a_zero: Operand = None, b_zero: Operand = None) -> Operand:
    return jnp.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


@ops("ConvInteger")
def conv_integer(at: LoweringContext, x: Operand, w: Operand, x_zero: Operand = None, w_zero: Operand = None) -> Operand:
    window = make_window(at.node, w.shape[2:])
    return convolve(_centred(x, x_zero, None), _centred(w, w_zero, 0), window, at.attr("group", 1))


@ops("QLinearMatMul")
def qlinear_matmul(
    at: LoweringContext,
    a: Operand,
    a_scale: Operand,
    a_zero: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
) -> Operand:
    exact = jnp.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    factor = align_to_axis(a_scale, -2, a.ndim) * align_to_axis(b_scale, -1, b.ndim) / align_to_axis(y_scale, -2, a.ndim)
    return _quantised(exact * factor.astype(jnp.float64), align_to_axis(y_zero, -2, a.ndim), DType.of(y_zero))


@ops("QLinearConv")
def qlinear_conv(
    at: LoweringContext,
    x: Operand,
    x_scale: Operand,
    x_zero: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
    bias: Operand = None,
) -> Operand:
    window = make_window(at.node, w.shape[2:])
    exact = convolve(_centred(x, x_zero, None), _centred(w, w_zero, 0), window, at.attr("group", 1))
    if bias is not None:
        exact += align_to_axis(bias, 1, x.ndim)
    factor = x_scale.reshape(()) * align_to_axis(w_scale, 1, x.ndim) / y_scale.reshape(())
    return _quantised(exact * factor.astype(jnp.float64), y_zero.reshape(()), DType.of(y_zero))
