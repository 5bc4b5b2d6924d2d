"""Quantisation, and products of quantised tensors: exact in integers, or rounded once where the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.quantization import align_to_axis, broadcast_parameters, get_integer_limits
from xrt.engines.toolkit.array_ops.windows import make_window
from xrt.engines.toy.kernels.casting import conversion
from xrt.engines.toy.kernels.convolution import convolve
from xrt.engines.toy.products import multiply
from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import DType, Node

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext

__all__: list[str] = []


def _quantised(xp: Any, ratio: Array, zero: Array | None, to: DType, saturate: bool) -> Array:
    """Round to the nearest (ties to even), add the zero point, and limit to the type's range."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + zero.astype(ratio.dtype)
        return conversion(to, saturate)(shifted)
    wide = xp.rint(ratio).astype(np.float64) + (0 if zero is None else zero.astype(np.float64))
    return xp.clip(wide, *get_integer_limits(to)).astype(np.int64).astype(to.numpy)


@ops("QuantizeLinear")
def quantize_linear(node: Node, env: KernelContext) -> Run:
    xp, axis, block = env.xp, node.attr("axis", 1), node.attr("block_size", 0)
    saturate, asked, precision = bool(node.attr("saturate", 1)), node.attr("output_dtype", 0), node.attr("precision", 0)

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        to = DType.of(zero) if zero is not None else DType.from_onnx(asked or DType.UINT8.onnx)
        dtype = DType.from_onnx(precision).numpy if precision else scale.dtype
        ratio = x.astype(dtype) / broadcast_parameters(xp, scale, x, axis, block).astype(dtype)
        return _quantised(xp, ratio, None if zero is None else broadcast_parameters(xp, zero, x, axis, block), to, saturate)

    return run


@ops("DequantizeLinear")
def dequantize_linear(node: Node, env: KernelContext) -> Run:
    xp, axis, block, asked = env.xp, node.attr("axis", 1), node.attr("block_size", 0), node.attr("output_dtype", 0)

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = x.astype(np.float32)
        if zero is not None:
            wide = wide - broadcast_parameters(xp, zero, x, axis, block).astype(np.float32)
        to = DType.from_onnx(asked).numpy if asked else scale.dtype
        return (wide * broadcast_parameters(xp, scale, x, axis, block).astype(np.float32)).astype(to)

    return run


@ops("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node, env: KernelContext) -> Run:
    """Scale and zero point from the tensor's own range, stretched to hold zero."""
    xp = env.xp

    def run(x: Array) -> tuple[Array, Array, Array]:
        low, high = xp.minimum(x.min(), 0), xp.maximum(x.max(), 0)
        scale = xp.asarray((high - low if high != low else 1) / np.float32(255), dtype=np.float32)
        zero = xp.rint(xp.clip(-low / scale, 0, 255)).astype(np.uint8)
        return _quantised(xp, x / scale, zero, DType.UINT8, True), scale, zero

    return run


# ---------------------------------------------------------------------- products

# Products of 8-bit numbers, summed in double precision, are exact: no sum comes near 2**53. And BLAS has no integers.


def _centred(x: Array, zero: Array | None, axis: int | None) -> Array:
    """Return the tensor less its zero point, exact; a vector of zero points is along the axis."""
    wide = x.astype(np.float64)
    return wide if zero is None else wide - align_to_axis(zero, axis, x.ndim).astype(np.float64)


def _int32(exact: Array) -> Array:
    """Return whole numbers as int32, wrapped as its sums wrap."""
    return exact.astype(np.int64).astype(np.int32)


@ops("MatMulInteger")
def matmul_integer(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
        return _int32(multiply(xp, _centred(a, a_zero, -2), _centred(b, b_zero, -1)))

    return run


@ops("ConvInteger")
def conv_integer(node: Node, env: KernelContext) -> Run:
    xp, group = env.xp, node.attr("group", 1)

    def run(x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
        wide = _centred(x, x_zero, None), _centred(w, w_zero, 0)
        return _int32(convolve(xp, *wide, make_window(node, w.shape[2:]), group))

    return run


@ops("QLinearMatMul")
def qlinear_matmul(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(
        a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
    ) -> Array:
        exact = multiply(xp, _centred(a, a_zero, -2), _centred(b, b_zero, -1))
        factor = align_to_axis(a_scale, -2, a.ndim) * align_to_axis(b_scale, -1, b.ndim) / align_to_axis(y_scale, -2, a.ndim)
        zero = align_to_axis(y_zero, -2, a.ndim)
        return _quantised(xp, _int32(exact) * factor.astype(np.float64), zero, DType.of(y_zero), True)

    return run


@ops("QLinearConv")
def qlinear_conv(node: Node, env: KernelContext) -> Run:
    xp, group = env.xp, node.attr("group", 1)

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
        exact = convolve(xp, _centred(x, x_zero, None), _centred(w, w_zero, 0), make_window(node, w.shape[2:]), group)
        if bias is not None:
            exact += align_to_axis(bias, 1, x.ndim)
        factor = x_scale.reshape(()) * align_to_axis(w_scale, 1, x.ndim) / y_scale.reshape(())
        return _quantised(xp, exact * factor.astype(np.float64), y_zero.reshape(()), DType.of(y_zero), True)

    return run
