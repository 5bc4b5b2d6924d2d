"""Resize and Upsample: along one axis after the other, each new element is a weighted sum of a few old ones.

Which ones, and with what weights, is computed by NumPy from the extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.engines.toolkit.array_ops.resampling import (
    Axis,
    Sampling,
    read_resize_axes,
    read_rounding,
    read_sampling,
    scale_coordinates,
    taps,
)
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


def _resize_axis(x: Tensor, axis: Axis, sampling: Sampling) -> Tensor:
    indices, weights = taps(np, axis, sampling)
    indices = np.clip(indices, 0, x.shape[axis.index] - 1)
    along_axis = (-1, *(1,) * (x.ndim - 1 - axis.index))
    columns = (x.index_select(axis.index, torch.from_numpy(np.ascontiguousarray(column)).long()) for column in indices.T)
    if sampling.mode == "nearest":
        y = next(columns)
    else:
        shares = (torch.from_numpy(np.ascontiguousarray(column)).to(x.dtype).reshape(along_axis) for column in weights.T)
        y = sum(column * share for column, share in zip(columns, shares, strict=True))
    if not sampling.crops:
        return y
    outside = torch.from_numpy(np.asarray(axis.outside(np, sampling.coordinates)))
    return torch.where(outside.reshape(along_axis), sampling.extrapolation, y).to(x.dtype)


def _resize(x: Tensor, axes: Sequence[Axis], sampling: Sampling) -> Tensor:
    """Resize axis by axis: integers in double precision, rounded and saturated, unless elements are only picked."""
    is_float, y = x.dtype.is_floating_point, x
    if sampling.mode != "nearest":
        y = x.to(torch.float64 if not is_float or x.dtype == torch.float64 else torch.float32)
    for axis in axes:
        y = y if axis.stays else _resize_axis(y, axis, sampling)
    if not is_float and y.dtype != x.dtype:
        info = torch.iinfo(x.dtype)
        y = torch.round(y).clamp(info.min, info.max)
    return y.to(x.dtype)


@ops("Resize", since=11)
def resize(at: TorchKernelContext) -> Run:
    sampling, reads = read_sampling(at.node), [at.read_numbers(i) for i in (1, 2, 3)]

    def run(x: Tensor, *given: Tensor) -> Tensor:
        lists: list[list[Any]] = [read(tensor) for read, tensor in zip(reads, given, strict=False)]
        region, scales, sizes = lists + [[]] * (3 - len(lists))
        axes = read_resize_axes(at.node, x.shape, region if sampling.crops else [], [] if sizes else scales, sizes)
        return _resize(x, axes, sampling)

    return run


@ops("Upsample", since=9)
@ops("Resize", since=10, until=10)
def upsample(at: TorchKernelContext) -> Run:
    sampling, scales_of = read_rounding(at.node), at.read_numbers(1)
    return lambda x, scales: _resize(x, scale_coordinates(x.shape, scales_of(scales)), sampling)


@ops("Upsample", since=7, until=8)
def upsample_by_attribute(at: TorchKernelContext) -> Run:
    sampling, scales = read_rounding(at.node), at.attr("scales")
    return lambda x: _resize(x, scale_coordinates(x.shape, scales), sampling)
