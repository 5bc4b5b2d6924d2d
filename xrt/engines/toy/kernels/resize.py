"""Resize and Upsample: along one axis after the other, each new element is a weighted sum of a few old ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.resampling import (
    Axis,
    Sampling,
    read_resize_axes,
    read_rounding,
    read_sampling,
    scale_coordinates,
    taps,
)
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


def _resized(xp: Any, x: Array, axis: Axis, sampling: Sampling) -> Array:
    indices, weights = taps(xp, axis, sampling)
    along_axis = (-1, *(1,) * (x.ndim - 1 - axis.index))
    if sampling.mode == "nearest":
        y = xp.take(x, indices[:, 0], axis=axis.index)
    else:
        columns = zip(indices.T, weights.T, strict=True)
        y = sum(xp.take(x, column, axis=axis.index) * weight.reshape(along_axis) for column, weight in columns)
    if not sampling.crops:
        return y
    outside = axis.outside(xp, sampling.coordinates)
    return xp.where(outside.reshape(along_axis), sampling.extrapolation, y).astype(x.dtype)


def _resize(xp: Any, x: Array, axes: Sequence[Axis], sampling: Sampling) -> Array:
    """Resize axis by axis: in double precision unless elements are only picked; integers are rounded and saturated."""
    y = x if sampling.mode == "nearest" else x.astype(np.float64)
    for axis in axes:
        y = y if axis.stays else _resized(xp, y, axis, sampling)
    if x.dtype.kind in "iu" and y.dtype != x.dtype:
        info = np.iinfo(x.dtype)
        y = xp.clip(xp.rint(y), info.min, info.max)
    return y.astype(x.dtype, copy=False)


@ops("Resize", since=11, host=(1, 2, 3))
def resize(node: Node, env: KernelContext) -> Run:
    xp, sampling = env.xp, read_sampling(node)

    def run(x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
        region = roi if sampling.crops else None
        given = ([] if v is None else v.tolist() for v in (region, scales, sizes))
        return _resize(xp, x, read_resize_axes(node, x.shape, *given), sampling)

    return run


@ops("Upsample", since=9, host=(1,))
@ops("Resize", until=10, host=(1,))
def upsample(node: Node, env: KernelContext) -> Run:
    xp, sampling = env.xp, read_rounding(node)
    return lambda x, scales: _resize(xp, x, scale_coordinates(x.shape, scales.tolist()), sampling)


@ops("Upsample", until=8)
def upsample_by_attributes(node: Node, env: KernelContext) -> Run:
    """Version 1 names the two scales of an image; version 7 lists one per axis."""
    xp, sampling = env.xp, read_rounding(node)
    scales = node.attr("scales") or (1.0, 1.0, node.attr("height_scale"), node.attr("width_scale"))
    return lambda x: _resize(xp, x, scale_coordinates(x.shape, scales), sampling)
