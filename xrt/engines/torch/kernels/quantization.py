"""Quantisation, and products of quantised tensors: exact in integers, or rounded once where the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xrt.engines.toolkit.array_ops.elements import get_integer_limits
from xrt.engines.toolkit.array_ops.windows import make_window
from xrt.engines.torch.dtypes import MASKS, OWN, decode_table, from_numpy, get_torch_dtype, to_numpy
from xrt.engines.torch.kernel_context import Run, Tensor, ops
from xrt.engines.torch.kernels.windows import convolve, why_not_rank
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["convert", "decode"]

_SATURABLE = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
"""Types for which ONNX says whether what is too large becomes the largest number."""
_TWO_TO_64 = 2.0**64


def decode(x: Tensor, dtype: DType | None) -> Tensor:
    """Return the numbers that a tensor holds: those of small floats in float32, of uint64 in float64."""
    if dtype is DType.UINT64:
        wide = x.to(torch.float64)
        return torch.where(x < 0, wide + _TWO_TO_64, wide)
    return decode_table(dtype)[x.int()] if dtype is not None and _is_coded(dtype) else x


def _is_coded(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_float and dtype.bits <= 8


def convert(x: Tensor, source: DType | None, to: DType, saturate: bool = True) -> Tensor:
    """Return the tensor in that type, as ONNX's Cast converts it."""
    if source is to:
        return x
    if to is DType.UINT64 and not x.dtype.is_floating_point and not _is_coded(source):
        return x.to(torch.int64)
    if source is DType.UINT64 and to.is_integer:
        return _narrow(x, to)
    x = decode(x, source)
    if to is DType.BOOL:
        return x != 0
    if _is_coded(to):
        return _encode(x, to, saturate)
    if to is DType.UINT64:
        high = x >= 2.0**63
        return torch.where(high, (x - 2.0**63).to(torch.int64) ^ torch.iinfo(torch.int64).min, x.to(torch.int64))
    if to.is_integer and (to.bits < 8 or to in MASKS):
        return _narrow(x.to(torch.int64), to)
    if x.dtype.is_floating_point and to.is_integer and to.bits < 32:
        x = x.to(torch.int32)  # what is too large wraps around, whatever the vector instructions would do
    return x.to(get_torch_dtype(to))


def _narrow(x: Tensor, to: DType) -> Tensor:
    """Return whole numbers with the lowest bits that the type has."""
    if to in MASKS:
        return (x & MASKS[to]).to(get_torch_dtype(to))
    if to.bits >= 8:
        return x.to(get_torch_dtype(to))
    low = x & ((1 << to.bits) - 1)
    if to.text.startswith("int"):
        half = 1 << (to.bits - 1)
        low = (low ^ half) - half
    return low.to(get_torch_dtype(to))


def _encode(x: Tensor, to: DType, saturate: bool) -> Tensor:
    """Return the codes of small floats; their rounding is that of ``ml_dtypes``."""
    if to in _SATURABLE and saturate:
        most = float(decode_table(to).nan_to_num(posinf=0).max())
        x = torch.clamp(x.float() if x.dtype.itemsize < 4 else x, -most, most)
    source = x.float() if x.dtype in (torch.bfloat16, torch.bool) else x
    return from_numpy(to)(source.numpy().astype(to.numpy))


@ops("Cast", since=6)
def cast(at: TorchKernelContext) -> Run:
    source, to, saturate = at.input_dtype(0), DType.from_onnx(at.attr("to")), bool(at.attr("saturate", 1))
    return lambda x: convert(x, source, to, saturate)


@ops("CastLike")
def cast_like(at: TorchKernelContext) -> Run:
    source, to, saturate = at.input_dtype(0), at.input_dtype(1), bool(at.attr("saturate", 1))
    if to is None:
        raise at.refuse("is like a tensor of unknown type")
    return lambda x, like: convert(x, source, to, saturate)


@ops("BitCast")
def bit_cast(at: TorchKernelContext) -> Run:
    source, to = at.input_dtype(0), at.attribute_dtype("to")
    if source is None or to is None:
        raise at.refuse("is between types that are not known")
    if source in OWN and to in OWN:
        dtype = OWN[to]
        return lambda x: x.contiguous().view(dtype)
    write, read = to_numpy(source), from_numpy(to)
    return lambda x: read(write(x.contiguous()).view(to.numpy))


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
