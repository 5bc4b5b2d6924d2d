"""Conversion between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.dtypes import MASKS, OWN, decode_table, from_numpy, get_torch_dtype, to_numpy
from xrt.engines.torch.table import Run, Tensor, ops
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
