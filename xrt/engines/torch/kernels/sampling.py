"""Reading between elements: Resize, GridSample, and pools over regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, floor, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.engines.toolkit.array_ops.resampling import (
    Axis,
    Grid,
    Sampling,
    read_resize_axes,
    read_rounding,
    read_sampling,
    sample_grid,
    scale_coordinates,
    taps,
)
from xrt.engines.toolkit.array_ops.windows import cut_bins
from xrt.engines.torch.kernel_context import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

Taps = list[tuple[Tensor, Tensor]]
"""Neighbours of each place along one axis, with their weights."""


def _within(places: Tensor, extent: int, how: Grid) -> Tensor:
    """Return places beyond the ends as the padding mode reads them; what is no place, NaN, is read as the first element."""
    if how.padding == "zeros":
        return places
    moved = places.clamp(0, extent - 1) if how.padding == "border" else _reflect(places, extent, how)
    return torch.where(torch.isnan(moved), 0.0, moved)


def _reflect(places: Tensor, extent: int, how: Grid) -> Tensor:
    low, span = (0.0, extent - 1.0) if how.corners else (-0.5, float(extent))
    if span == 0:
        return torch.zeros_like(places)
    distance = torch.remainder(places - low, 2 * span)
    reflected = low + torch.minimum(distance, 2 * span - distance)
    return torch.where((places < low) | (places > low + span), reflected, places)


def _weight(distance: Tensor, how: Grid) -> Tensor:
    """Return the weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = distance.abs()
    if how.sampling.mode == "linear":
        return (1 - d).clamp(min=0)
    a = how.sampling.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))


def _taps(grid: Tensor, extent: int, how: Grid) -> Taps:
    """Return the neighbours of each place; a cubic place stays where it is beyond the ends, and each of its taps is moved."""
    places = how.places(grid, extent).double()
    if how.sampling.mode == "nearest":
        nearest = _within(torch.round(places), extent, how)
        return [(nearest, torch.ones_like(nearest))]
    if how.sampling.mode != "cubic":
        places = _within(places, extent, how)
    first, reach = torch.floor(places), how.sampling.reach
    part = places - first
    return [(first + k, torch.where(torch.isnan(part), torch.nan, _weight(k - part, how))) for k in range(1 - reach, reach + 1)]


@ops("GridSample")
def grid_sample(at: TorchKernelContext) -> Run:
    """Return (N, C, *spatial) read at the grid's places (N, *places, axes), summed in double precision."""
    how = sample_grid(at.node)

    def run(x: Tensor, grid: Tensor) -> Tensor:
        extents, last = x.shape[2:], x.movedim(1, -1)
        total: Any = torch.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=torch.float64)
        image = torch.arange(len(x)).reshape(-1, *(1,) * len(extents))
        for combination in product(*(_taps(grid[..., -1 - axis], n, how) for axis, n in enumerate(extents))):
            index, share = [image], torch.ones(grid.shape[:-1], dtype=torch.float64)
            for (tap, factor), extent in zip(combination, extents, strict=True):
                place = _within(tap, extent, how)
                share = torch.where((place >= 0) & (place <= extent - 1) | torch.isnan(factor), share * factor, 0.0)
                index.append(torch.where(torch.isnan(place), 0.0, place).clamp(0, extent - 1).long())
            total = total + share[..., None] * last[tuple(index)]
        return total.movedim(-1, 1).to(x.dtype)

    return run


@ops("DeformConv")
def deform_conv(at: TorchKernelContext) -> Run:
    """Read linearly between elements, and zero outside of them; sums are in double precision."""
    group, offsets = at.attr("group", 1), at.attr("offset_group", 1)

    def run(x: Tensor, w: Tensor, offset: Tensor, bias: Tensor = None, mask: Tensor = None) -> Tensor:
        n, channels, *extents = x.shape
        kernel, places = w.shape[2:], offset.shape[2:]
        moves = offset.reshape(n, offsets, prod(kernel), len(extents), *places)
        spots = [starts + moves[:, :, :, axis] for axis, starts in enumerate(_starts(at, kernel, places))]
        parts = x.reshape(n, offsets, channels // offsets, *extents).movedim(2, -1).double()
        columns = _read(parts, spots, extents)
        if mask is not None:
            columns = columns * mask.reshape(spots[0].shape)[..., None]
        columns = columns.movedim(-1, 2).reshape(n, group, channels // group * prod(kernel), prod(places))
        out = (w.double().reshape(group, len(w) // group, -1) @ columns).reshape(n, len(w), *places)
        out = out if bias is None else out + bias.reshape(-1, *(1,) * len(places))
        return out.to(x.dtype)

    return run


def _starts(at: TorchKernelContext, kernel: Sequence[int], places: Sequence[int]) -> list[Tensor]:
    """Return for each axis where the elements of each window lie before they are moved: [elements, *places]."""
    axes = len(kernel)
    strides, dilations = at.attr("strides", (1,) * axes), at.attr("dilations", (1,) * axes)
    pads = at.attr("pads", (0,) * (2 * axes))
    found = []
    for axis in range(axes):
        along = [-1 if i == axis else 1 for i in range(axes)]
        elements = torch.arange(kernel[axis]).reshape(along).expand(*kernel).reshape(-1, *(1,) * axes) * dilations[axis]
        found.append(elements + torch.arange(places[axis]).reshape(along) * strides[axis] - pads[axis])
    return found


def _read(x: Tensor, spots: list[Tensor], extents: Sequence[int]) -> Tensor:
    """Return images (n, groups, *extents, channels) read at places (n, groups, ...) along each axis."""
    lows = [torch.floor(places) for places in spots]
    image = torch.arange(x.shape[0]).reshape(-1, *(1,) * (spots[0].ndim - 1))
    part = torch.arange(x.shape[1]).reshape(1, -1, *(1,) * (spots[0].ndim - 2))
    total = torch.zeros((*spots[0].shape, x.shape[-1]), dtype=torch.float64)
    for corner in product((0, 1), repeat=len(spots)):
        share, index = torch.ones(spots[0].shape, dtype=torch.float64), [image, part]
        for step, low, places, extent in zip(corner, lows, spots, extents, strict=True):
            tap = low + step
            share = share * (1 - (places - tap).abs()) * ((tap >= 0) & (tap < extent))
            index.append(tap.clamp(0, extent - 1).long())
        total = total + share[..., None] * x[tuple(index)]
    return total


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


# ---------------------------------------------------------------------- pools


def _samples(start: float, size: float, bins: int, each: int, extent: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for evenly spread samples of one axis (bins * each), both neighbours, the second's weight, and which count."""
    places = start + (torch.arange(bins * each, dtype=torch.float64) + 0.5) * (size / max(1, bins * each))
    counts = (places >= -1) & (places <= extent)
    places = places.clamp(0, extent - 1)
    low = torch.floor(places).long()
    return low, (low + 1).clamp(max=extent - 1), places - low, counts


def _align(image: Tensor, box: Tensor, at: TorchKernelContext, shift: float) -> Tensor:
    """Pool one region of an image (C, H, W) into bins, from samples interpolated between elements."""
    bins = at.attr("output_height", 1), at.attr("output_width", 1)
    x1, y1, x2, y2 = (box * at.attr("spatial_scale", 1.0) - shift).tolist()
    sizes = [max(end - start, 0.0 if shift else 1.0) for start, end in ((y1, y2), (x1, x2))]
    ratio = at.attr("sampling_ratio", 0)
    each = [ratio if ratio > 0 else ceil(size / n) for size, n in zip(sizes, bins, strict=True)]
    if 0 in each:
        return torch.zeros((len(image), *bins), dtype=torch.float64)
    rows, columns = (
        _samples(start, size, n, e, extent)
        for start, size, n, e, extent in zip((y1, x1), sizes, bins, each, image.shape[1:], strict=True)
    )
    corners = torch.stack(
        [
            image[:, row[:, None], column] * (vertical[:, None] * horizontal)
            for row, vertical in ((rows[0], (1 - rows[2]) * rows[3]), (rows[1], rows[2] * rows[3]))
            for column, horizontal in ((columns[0], (1 - columns[2]) * columns[3]), (columns[1], columns[2] * columns[3]))
        ]
    )
    shape = (len(image), bins[0], each[0], bins[1], each[1])
    if at.attr("mode", "avg") == "avg":
        return corners.sum(0).reshape(shape).mean((2, 4))
    # The greatest of the four weighted neighbours, not of their sum: so it is defined by what engines do.
    return corners.amax(0).reshape(shape).amax((2, 4))


@ops("RoiAlign")
def roi_align(at: TorchKernelContext) -> Run:
    """Version 10 had no shift by half an element, and no attribute to ask for it."""
    default = "half_pixel" if at.version >= 16 else "output_half_pixel"
    shift = 0.5 if at.attr("coordinate_transformation_mode", default) == "half_pixel" else 0.0

    def run(x: Tensor, boxes: Tensor, images: Tensor) -> Tensor:
        pools = [_align(x[i], box, at, shift) for box, i in zip(boxes, images.tolist(), strict=True)]
        empty = (0, x.shape[1], at.attr("output_height", 1), at.attr("output_width", 1))
        return torch.stack(pools).to(x.dtype) if pools else x.new_empty(empty)

    return run


@ops("MaxRoiPool")
def max_roi_pool(at: TorchKernelContext) -> Run:
    """Corners are rounded to elements and belong to the region; an empty bin gives zero."""
    (height, width), scale = at.attr("pooled_shape"), at.attr("spatial_scale", 1.0)

    def pool(image: Tensor, box: Tensor) -> Tensor:
        x1, y1, x2, y2 = (floor(v * scale + 0.5) for v in box.tolist())
        out = image.new_zeros((len(image), height, width))
        for i, row in enumerate(cut_bins(y1, y2, height, image.shape[1])):
            for j, column in enumerate(cut_bins(x1, x2, width, image.shape[2])):
                part = image[:, row, column]
                if part.numel():
                    out[:, i, j] = part.amax((1, 2))
        return out

    def run(x: Tensor, boxes: Tensor) -> Tensor:
        pools = [pool(x[int(box[0])], box[1:]) for box in boxes]
        return torch.stack(pools) if pools else x.new_empty((0, x.shape[1], height, width))

    return run


# ---------------------------------------------------------------------- boxes


def _corners(boxes: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper corners of boxes given by any two opposite corners, or by centre and size."""
    if centred:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])


def _choose(low: Tensor, high: Tensor, scores: Tensor, most: int, overlap: float, least: float | None) -> list[int]:
    """Take boxes by falling score, dropping those that overlap with one already taken."""
    areas = (high - low).prod(1)
    order = torch.argsort(-scores, stable=True)
    if least is not None:
        order = order[scores[order] > least]
    taken: list[int] = []
    while len(order) and len(taken) < most:
        best, order = order[0], order[1:]
        taken.append(int(best))
        sides = torch.minimum(high[best], high[order]) - torch.maximum(low[best], low[order])
        common = sides.clamp(min=0).prod(1)
        union = areas[best] + areas[order] - common
        order = order[~((common > 0) & (common / union > overlap))]
    return taken


@ops("NonMaxSuppression")
def non_max_suppression(at: TorchKernelContext) -> Run:
    """Return (image, class, box) of each box that is kept, best first within its image and class."""
    centred, reads = bool(at.attr("center_point_box", 0)), [at.read_numbers(i) for i in (2, 3, 4)]

    def run(boxes: Tensor, scores: Tensor, *limits: Tensor) -> Tensor:
        given: list[Any] = [read(limit) for read, limit in zip(reads, limits, strict=False)]
        most, overlap = (given[i][0] if len(given) > i and given[i] else 0 for i in (0, 1))
        least = given[2][0] if len(given) > 2 and given[2] else None
        kept = [
            (image, label, box)
            for image, (of_image, by_class) in enumerate(zip(boxes, scores, strict=True))
            for label, of_class in enumerate(by_class)
            for box in _choose(*_corners(of_image, centred), of_class, most, overlap, least)
        ]
        return torch.tensor(kept, dtype=torch.int64).reshape(-1, 3)

    return run
