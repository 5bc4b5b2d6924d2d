"""Quantisation, and products of quantised tensors: exact in integers, or rounded once where the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.elements import align_to_axis, broadcast_parameters, get_integer_limits
from xrt.engines.toolkit.array_ops.windows import make_window
from xrt.graph import DType, Node

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext

__all__: list[str] = []


def _quantised(env: NodeContext, ratio: Array, zero: Array | None, to: DType, saturate: bool) -> Array:
    """Round to the nearest (ties to even), add the zero point, and limit to the type's range."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + zero.astype(ratio.dtype)
        return env.primitives.convert(shifted, to, saturate)
    wide = env.xp.rint(ratio).astype(np.float64) + (0 if zero is None else zero.astype(np.float64))
    whole = np.int32 if to.bits < 32 else np.int64  # no processor converts many numbers to int64 at a time
    return env.xp.clip(wide, *get_integer_limits(to)).astype(whole).astype(to.numpy)


@ops("QuantizeLinear")
def quantize_linear(node: Node, env: NodeContext) -> Run:
    xp, axis, block = env.xp, node.attr("axis", 1), node.attr("block_size", 0)
    saturate, asked, precision = bool(node.attr("saturate", 1)), node.attr("output_dtype", 0), node.attr("precision", 0)

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        to = DType.of(zero) if zero is not None else DType.from_onnx(asked or DType.UINT8.onnx)
        dtype = DType.from_onnx(precision).numpy if precision else scale.dtype
        ratio = x.astype(dtype) / broadcast_parameters(xp, scale, x, axis, block).astype(dtype)
        return _quantised(env, ratio, None if zero is None else broadcast_parameters(xp, zero, x, axis, block), to, saturate)

    return run


@ops("DequantizeLinear")
def dequantize_linear(node: Node, env: NodeContext) -> Run:
    xp, axis, block, asked = env.xp, node.attr("axis", 1), node.attr("block_size", 0), node.attr("output_dtype", 0)

    def run(x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = x.astype(np.float32)
        if zero is not None:
            wide = wide - broadcast_parameters(xp, zero, x, axis, block).astype(np.float32)
        to = DType.from_onnx(asked).numpy if asked else scale.dtype
        return (wide * broadcast_parameters(xp, scale, x, axis, block).astype(np.float32)).astype(to)

    return run


@ops("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node, env: NodeContext) -> Run:
    """Scale and zero point from the tensor's own range, stretched to hold zero."""
    xp = env.xp

    def run(x: Array) -> tuple[Array, Array, Array]:
        low, high = xp.minimum(x.min(), 0), xp.maximum(x.max(), 0)
        scale = xp.asarray(xp.where(high != low, high - low, np.float32(1)) / np.float32(255), dtype=np.float32)
        zero = xp.rint(xp.clip(-low / scale, 0, 255)).astype(np.uint8)
        return _quantised(env, x / scale, zero, DType.UINT8, True), scale, zero

    return run


# ---------------------------------------------------------------------- products


def _center(env: NodeContext, x: Array, zero: Array | None, axis: int | None) -> Array:
    """Return the tensor less its zero point, in a type in which products are exact; a vector of zero points is along the axis."""
    exact = env.primitives.exact
    wide = x.astype(exact)
    return wide if zero is None else wide - align_to_axis(zero, axis, x.ndim).astype(exact)


def _int32(exact: Array) -> Array:
    """Return whole numbers as int32, wrapped as its sums wrap."""
    return exact.astype(np.int64).astype(np.int32)


@ops("MatMulInteger")
def matmul_integer(node: Node, env: NodeContext) -> Run:
    matmul = env.primitives.matmul

    def run(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
        return _int32(matmul(_center(env, a, a_zero, -2), _center(env, b, b_zero, -1)))

    return run


@ops("ConvInteger")
def conv_integer(node: Node, env: NodeContext) -> Run:
    convolve, group = env.primitives.convolve, node.attr("group", 1)

    def run(x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
        wide = _center(env, x, x_zero, None), _center(env, w, w_zero, 0)
        return _int32(convolve(*wide, make_window(node, w.shape[2:]), group))

    return run


@ops("QLinearMatMul")
def qlinear_matmul(node: Node, env: NodeContext) -> Run:
    matmul = env.primitives.matmul

    def run(
        a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
    ) -> Array:
        exact = matmul(_center(env, a, a_zero, -2), _center(env, b, b_zero, -1))
        factor = align_to_axis(a_scale, -2, a.ndim) * align_to_axis(b_scale, -1, b.ndim) / align_to_axis(y_scale, -2, a.ndim)
        zero = align_to_axis(y_zero, -2, a.ndim)
        return _quantised(env, _int32(exact) * factor.astype(np.float64), zero, DType.of(y_zero), True)

    return run


@ops("QLinearConv")
def qlinear_conv(node: Node, env: NodeContext) -> Run:
    convolve, group = env.primitives.convolve, node.attr("group", 1)

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
        exact = convolve(
            _center(env, x, x_zero, None),
            _center(env, w, w_zero, 0),
            make_window(node, w.shape[2:]),
            group,
        )
        if bias is not None:
            exact += align_to_axis(bias, 1, x.ndim)
        factor = x_scale.reshape(()) * align_to_axis(w_scale, 1, x.ndim) / y_scale.reshape(())
        return _quantised(env, exact * factor.astype(np.float64), y_zero.reshape(()), DType.of(y_zero), True)

    return run
