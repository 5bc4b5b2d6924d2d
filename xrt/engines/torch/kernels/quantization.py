"""Quantisation, and products of quantised tensors: exact in integers, or rounded once where the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xrt.engines.toolkit.array_ops.quantization import get_integer_limits
from xrt.engines.toolkit.array_ops.windows import make_window
from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.engines.torch.kernels.casting import convert, decode
from xrt.engines.torch.kernels.convolution import convolve, why_not_rank
from xrt.engines.torch.table import Run, Tensor, ops
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


def _spread(v: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return a scale or zero point so that it broadcasts over the tensor: one for all, one per index of an axis, or per block."""
    if v.numel() == 1:
        return v.reshape(())
    if block:
        return v.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return v.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _quantize(ratio: Tensor, zero: Tensor, to: DType, saturate: bool = True) -> Tensor:
    """Round to the nearest (ties to even), add the zero point, and limit to the type's range."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + decode(zero, to).to(ratio.dtype)
        return convert(shifted, None, to, saturate)
    wide = torch.round(ratio).double() + (0 if zero is None else zero.double())
    return wide.clamp(*get_integer_limits(to)).to(torch.int32).to(get_torch_dtype(to))


@ops("QuantizeLinear")
def quantize_linear(at: TorchKernelContext) -> Run:
    axis, block, saturate = at.attr("axis", 1), at.attr("block_size", 0), bool(at.attr("saturate", 1))
    to = at.input_dtype(2) or at.attribute_dtype("output_dtype") or DType.UINT8
    precision, scaled = at.attribute_torch_dtype("precision"), at.input_dtype(1)

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        scale = decode(scale, scaled)
        dtype = precision or scale.dtype
        ratio = x.to(dtype) / _spread(scale, x, axis, block).to(dtype)
        return _quantize(ratio, None if zero is None else _spread(zero, x, axis, block), to, saturate)

    return run


@ops("DequantizeLinear")
def dequantize_linear(at: TorchKernelContext) -> Run:
    axis, block = at.attr("axis", 1), at.attr("block_size", 0)
    source, scaled, declared = at.input_dtype(0), at.input_dtype(1), at.attribute_torch_dtype("output_dtype")

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        wide, scale = decode(x, source).float(), decode(scale, scaled)
        if zero is not None:
            wide = wide - _spread(decode(zero, source).float(), x, axis, block)
        return (wide * _spread(scale, x, axis, block).float()).to(declared or scale.dtype)

    return run


@ops("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: TorchKernelContext) -> Run:
    """Scale and zero point from the tensor's own range, stretched to hold zero."""

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        scale = torch.where(high != low, high - low, 1).float() / torch.tensor(255, dtype=torch.float32)
        zero = torch.round((-low / scale).clamp(0, 255)).to(torch.uint8)
        return _quantize(x / scale, zero, DType.UINT8), scale, zero

    return run


# ---------------------------------------------------------------------- products


def _align(v: Tensor, axis: int | None, rank: int) -> Tensor:
    """Return a scalar, or a vector along an axis (of a product: one per row, -2, or per column, -1), shaped to broadcast."""
    if v.numel() == 1:
        return v.reshape(())
    if v.ndim != 1 or axis is None:
        return v
    return v.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _centre(x: Tensor, zero: Tensor, axis: int | None) -> Tensor:
    """Return the tensor less its zero point in int32; a vector of zero points is along the axis."""
    wide = x.to(torch.int32)
    return wide if zero is None else wide - _align(zero, axis, x.ndim).to(torch.int32)


@ops("MatMulInteger")
def matmul_integer(at: TorchKernelContext) -> Run:
    return lambda a, b, a_zero=None, b_zero=None: torch.matmul(_centre(a, a_zero, -2), _centre(b, b_zero, -1))


@ops("ConvInteger", why_not=why_not_rank(0))
def conv_integer(at: TorchKernelContext) -> Run:
    group = at.attr("group", 1)

    def run(x: Tensor, w: Tensor, x_zero: Tensor = None, w_zero: Tensor = None) -> Tensor:
        return convolve(_centre(x, x_zero, None), _centre(w, w_zero, 0), make_window(at.node, w.shape[2:]), group)

    return run


@ops("QLinearMatMul")
def qlinear_matmul(at: TorchKernelContext) -> Run:
    to = at.input_dtype(7) or DType.UINT8

    def run(a: Tensor, a_s: Tensor, a_z: Tensor, b: Tensor, b_s: Tensor, b_z: Tensor, y_s: Tensor, y_z: Tensor) -> Tensor:
        exact = torch.matmul(_centre(a, a_z, -2), _centre(b, b_z, -1))
        factor = _align(a_s, -2, a.ndim) * _align(b_s, -1, b.ndim) / _align(y_s, -2, a.ndim)
        return _quantize(exact * factor.double(), _align(y_z, -2, a.ndim), to)

    return run


@ops("QLinearConv", why_not=why_not_rank(0))
def qlinear_conv(at: TorchKernelContext) -> Run:
    group, to = at.attr("group", 1), at.input_dtype(7) or DType.UINT8

    def run(
        x: Tensor, x_s: Tensor, x_z: Tensor, w: Tensor, w_s: Tensor, w_z: Tensor, y_s: Tensor, y_z: Tensor, bias: Tensor = None
    ) -> Tensor:
        exact = convolve(_centre(x, x_z, None), _centre(w, w_z, 0), make_window(at.node, w.shape[2:]), group)
        if bias is not None:
            exact = exact + _align(bias, 1, x.ndim)
        factor = x_s.reshape(()) * _align(w_s, 1, x.ndim) / y_s.reshape(())
        return _quantize(exact * factor.double(), y_z.reshape(()), to)

    return run
