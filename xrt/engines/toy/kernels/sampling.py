"""Reading between elements: Resize, Upsample, and pools over regions of interest."""

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
from xrt.engines.toolkit.array_ops.windows import cut_bins
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node


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


# ---------------------------------------------------------------------- pools


def _samples(xp: Any, start: float, size: float, bins: int, each: int, extent: int) -> tuple[Array, Array, Array, Array]:
    """Return, for evenly spread samples of one axis (bins * each), both neighbours, the second's weight, and which count."""
    places = start + (xp.arange(bins * each) + 0.5) * (size / (bins * each))
    counts = (places >= -1) & (places <= extent)
    places = xp.clip(places, 0, extent - 1)
    low = xp.floor(places).astype(np.int64)
    return low, xp.minimum(low + 1, extent - 1), places - low, counts


def _aligned(xp: Any, image: Array, box: Array, node: Node, shift: float) -> Array:
    """Pool one region of an image (C, H, W) into bins, from samples interpolated between elements."""
    bins = node.attr("output_height", 1), node.attr("output_width", 1)
    x1, y1, x2, y2 = (box * node.attr("spatial_scale", 1.0) - shift).tolist()
    sizes = [max(end - start, 0.0 if shift else 1.0) for start, end in ((y1, y2), (x1, x2))]
    ratio = node.attr("sampling_ratio", 0)
    each = [ratio if ratio > 0 else int(np.ceil(size / n)) for size, n in zip(sizes, bins, strict=True)]
    rows, columns = (
        _samples(xp, start, size, n, e, extent)
        for start, size, n, e, extent in zip((y1, x1), sizes, bins, each, image.shape[1:], strict=True)
    )
    corners = [
        image[:, row[:, None], column] * (vertical[:, None] * horizontal)
        for row, vertical in ((rows[0], (1 - rows[2]) * rows[3]), (rows[1], rows[2] * rows[3]))
        for column, horizontal in ((columns[0], (1 - columns[2]) * columns[3]), (columns[1], columns[2] * columns[3]))
    ]
    shape = (len(image), bins[0], each[0], bins[1], each[1])
    if 0 in each:
        return xp.zeros((len(image), *bins))
    if node.attr("mode", "avg") == "avg":
        return sum(corners).reshape(shape).mean(axis=(2, 4))
    # The greatest of the four weighted neighbours, not of their sum: so it is defined by what engines do.
    return xp.stack(corners).max(axis=0).reshape(shape).max(axis=(2, 4))


@ops("RoiAlign", host=(1, 2))
def roi_align(node: Node, env: KernelContext) -> Run:
    """Version 10 had no shift by half an element, and no attribute to ask for it."""
    default = "half_pixel" if env.version >= 16 else "output_half_pixel"
    shift = 0.5 if node.attr("coordinate_transformation_mode", default) == "half_pixel" else 0.0

    def run(x: Array, boxes: Array, images: Array) -> Array:
        pools = [_aligned(env.xp, x[i], box, node, shift) for box, i in zip(boxes, images.tolist(), strict=True)]
        empty = (0, x.shape[1], node.attr("output_height", 1), node.attr("output_width", 1))
        return env.xp.stack(pools).astype(x.dtype) if pools else env.xp.empty(empty, dtype=x.dtype)

    return run


@ops("MaxRoiPool", host=(1,))
def max_roi_pool(node: Node, env: KernelContext) -> Run:
    """Corners are rounded to elements and belong to the region; an empty bin gives zero."""
    xp, (height, width), scale = env.xp, node.attr("pooled_shape"), node.attr("spatial_scale", 1.0)

    def pooled(image: Array, box: Array) -> Array:
        x1, y1, x2, y2 = (int(np.floor(v * scale + 0.5)) for v in box.tolist())
        rows, columns = cut_bins(y1, y2, height, image.shape[1]), cut_bins(x1, x2, width, image.shape[2])
        out = xp.zeros((len(image), height, width), dtype=image.dtype)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = image[:, row, column]
                if part.size:
                    out[:, i, j] = part.max(axis=(1, 2))
        return out

    def run(x: Array, boxes: Array) -> Array:
        pools = [pooled(x[int(box[0])], box[1:]) for box in boxes]
        return xp.stack(pools) if pools else xp.empty((0, x.shape[1], height, width), dtype=x.dtype)

    return run


# ---------------------------------------------------------------------- boxes


def _corners(boxes: Array, centred: bool) -> tuple[Array, Array]:
    """Return the lower and the upper corners of boxes given by any two opposite corners, or by centre and size."""
    if centred:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _chosen(low: Array, high: Array, scores: Array, most: int, overlap: float, least: float | None) -> list[int]:
    """Take boxes by falling score, dropping those that overlap with one already taken."""
    areas = np.prod(high - low, axis=1)
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    taken: list[int] = []
    while len(order) and len(taken) < most:
        best, order = order[0], order[1:]
        taken.append(int(best))
        sides = np.minimum(high[best], high[order]) - np.maximum(low[best], low[order])
        common = np.prod(np.maximum(sides, 0), axis=1)
        union = areas[best] + areas[order] - common
        order = order[~((common > 0) & (common / union > overlap))]
    return taken


@ops("NonMaxSuppression", devices=CPU)
def non_max_suppression(node: Node, env: KernelContext) -> Run:
    """Return (image, class, box) of each box that is kept, best first within its image and class."""
    centred = bool(node.attr("center_point_box", 0))

    def run(
        boxes: Array, scores: Array, most: Array | None = None, overlap: Array | None = None, least: Array | None = None
    ) -> Array:
        count, limit = (0 if v is None or not v.size else v.reshape(-1)[0].item() for v in (most, overlap))
        bound = None if least is None or not least.size else least.reshape(-1)[0].item()
        kept = [
            (image, label, box)
            for image, (of_image, by_class) in enumerate(zip(boxes, scores, strict=True))
            for label, of_class in enumerate(by_class)
            for box in _chosen(*_corners(of_image, centred), of_class, count, limit, bound)
        ]
        return np.array(kept, dtype=np.int64).reshape(-1, 3)

    return run
