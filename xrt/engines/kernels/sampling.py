"""Interpolation: Resize, GridSample, deformable convolution, pooling over regions of interest; and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import along
from xrt.engines.kernels.table import Array, Run, eager, ops
from xrt.engines.kernels.windows import cut_bins

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

# ---------------------------------------------------------------------- how elements are made


@dataclass(frozen=True, slots=True)
class Sampling:
    """The attributes of a Resize, or their equivalent for other operators."""

    mode: str = "nearest"
    nearest: str = "round_prefer_floor"
    coordinates: str = "half_pixel"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    @property
    def reach(self) -> int:
        """Number of source elements on each side of a position."""
        return 2 if self.mode == "cubic" else 1

    @property
    def crops(self) -> bool:
        """Whether positions outside the source use the extrapolation value."""
        return self.coordinates == "tf_crop_and_resize"


def read_sampling(node: Node) -> Sampling:
    """Read the attributes of a Resize since version 11."""
    return Sampling(
        node.attr("mode", "nearest"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        node.attr("extrapolation_value", 0.0),
    )


def read_rounding(node: Node) -> Sampling:
    """The sampling of Upsample and Resize 10: divide by the scale and round down."""
    return Sampling("linear" if "linear" in node.attr("mode", "nearest") else "nearest", "floor", "asymmetric")


def weight(xp: Any, distance: Array, sampling: Sampling) -> Array:
    """The weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = xp.abs(distance)
    if sampling.mode == "linear":
        return xp.maximum(1 - d, 0)
    a = sampling.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


# ---------------------------------------------------------------------- Resize, one axis after the other


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to resize."""

    index: int
    extent: int
    target: int
    """The new extent."""
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The sampled range as fractions of the axis; (0, 1) except for ``tf_crop_and_resize``."""

    @property
    def width(self) -> float:
        """The new extent before rounding."""
        return self.extent * self.scale

    @property
    def stays(self) -> bool:
        """Whether resizing leaves this axis unchanged."""
        return self.target == self.extent and self.scale == 1 and (self.start, self.end) == (0, 1)

    def places(self, xp: Any, coordinates: str) -> Array:
        """Source position of each new element, in float64."""
        i = xp.arange(self.target, dtype=np.float64)
        if coordinates == "asymmetric":
            return i / self.scale
        if coordinates == "align_corners":
            # A single new element is at the first one.
            return i * ((self.extent - 1) / (self.width - 1)) if self.width != 1 else 0 * i
        if coordinates == "tf_crop_and_resize":
            span, first = (self.end - self.start) * (self.extent - 1), self.start * (self.extent - 1)
            return first + (i * span / (self.width - 1) if self.width != 1 else 0 * i + span / 2)
        # half_pixel; the remaining modes modify it.
        centred = (i + 0.5) / self.scale - 0.5
        if coordinates == "pytorch_half_pixel" and self.width == 1:
            return 0 * i - 0.5
        if coordinates == "half_pixel_symmetric":
            # The new extent is rounded down; this keeps both ends at equal distances.
            return centred + self.extent / 2 * (1 - self.target / self.width)
        return centred

    def outside(self, xp: Any, coordinates: str) -> Array:
        """Mask of the new elements whose source position is outside."""
        places = self.places(xp, coordinates)
        return (places < 0) | (places > self.extent - 1)


def taps(xp: Any, axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Indices [new, taps] of the source elements of each new element, and their weights."""
    places = axis.places(xp, sampling.coordinates)
    if sampling.mode == "nearest":
        indices = _round_places(xp, places, sampling.nearest)[:, None]
        return xp.astype(xp.clip(indices, 0, axis.extent - 1), np.int64), xp.ones(indices.shape)
    shrink = min(axis.scale, 1.0) if sampling.antialias else 1.0
    # With antialias the filter widens by the inverse of the scale when shrinking.
    reach = ceil(sampling.reach / shrink)
    indices = xp.floor(places)[:, None] + xp.arange(1 - reach, reach + 1)
    weights = weight(xp, (indices - places[:, None]) * shrink, sampling)
    if sampling.exclude_outside:
        weights = weights * ((indices >= 0) & (indices < axis.extent))
    # Excluded taps and the widened filter change the sum of weights, which must be 1.
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / xp.sum(weights, axis=1, keepdims=True)
    return xp.astype(xp.clip(indices, 0, axis.extent - 1), np.int64), weights


def _round_places(xp: Any, places: Array, rounding: str) -> Array:
    if rounding.startswith("round"):
        # Halves are rounded down or up, where `rint` would round them to even.
        return xp.ceil(places - 0.5) if rounding == "round_prefer_floor" else xp.floor(places + 0.5)
    return xp.floor(places) if rounding == "floor" else xp.ceil(places)


# ---------------------------------------------------------------------- how large


def find_axes(
    node: Node, shape: Sequence[int], roi: Sequence[float], scales: Sequence[float], sizes: Sequence[int]
) -> list[Axis]:
    """The axes that a Resize or Upsample resizes, from the values of its inputs: lists, empty for an absent input.

    Sizes take precedence over scales, by which extents are rounded down; raises ValueError if both are absent.
    """
    fixed_axes = node.attr("axes")
    indices = range(len(shape)) if fixed_axes is None else [axis % len(shape) for axis in fixed_axes]
    extents, n = [shape[i] for i in indices], len(indices)
    starts, ends = (roi[:n], roi[n:]) if roi else ([0.0] * n, [1.0] * n)
    if sizes:
        scales = [size / extent for size, extent in zip(sizes, extents, strict=True)]
        if (policy := node.attr("keep_aspect_ratio_policy", "stretch")) != "stretch":
            # The same scale for all axes keeps the aspect ratio.
            common = min(scales) if policy == "not_larger" else max(scales)
            scales, sizes = [common] * n, [int(extent * common + 0.5) for extent in extents]
    elif scales:
        parts = zip(extents, scales, starts, ends, strict=True)
        sizes = [floor(extent * (end - start) * scale) for extent, scale, start, end in parts]
    else:
        raise ValueError("neither scales nor sizes are given")
    return [Axis(*fields) for fields in zip(indices, extents, sizes, scales, starts, ends, strict=True)]


# ---------------------------------------------------------------------- GridSample

LEGACY_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of the modes in version 16."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The attributes of a GridSample."""

    sampling: Sampling
    padding: str
    corners: bool
    """Whether -1 and 1 are the centers of the outer elements; otherwise their borders."""
    is_absolute: bool = False
    """Whether positions are indices of elements already."""

    def places(self, grid: Array, extent: int) -> Array:
        """Convert positions from [-1, 1] to element indices."""
        if self.is_absolute:
            return grid
        return (grid + 1) / 2 * (extent - 1) if self.corners else ((grid + 1) * extent - 1) / 2

    def within(self, xp: Any, places: Array, extent: int) -> Array:
        """Map positions beyond the ends by the padding mode: clamp, reflect, or leave them for zeros.

        NaN reads the first element except with zeros: ONNX does not define it, and PyTorch does this.
        """
        if self.padding == "zeros":
            return places
        moved = xp.clip(places, 0, extent - 1) if self.padding == "border" else self._reflect(xp, places, extent)
        return xp.where(xp.isnan(moved), 0.0, moved)

    def _reflect(self, xp: Any, places: Array, extent: int) -> Array:
        low, span = (0.0, extent - 1.0) if self.corners else (-0.5, float(extent))
        # Both ends are the centre of one element, which all positions read.
        if span == 0:
            return xp.zeros_like(places)
        distance = xp.mod(places - low, 2 * span)
        reflected = low + xp.minimum(distance, 2 * span - distance)
        return xp.where((places < low) | (places > low + span), reflected, places)

    def taps(self, xp: Any, grid: Array, extent: int) -> list[tuple[Array, Array]]:
        """Neighbors of each position along one axis, with their weights.

        A cubic position outside is not moved here; `_sample_at` pads each of its taps instead. Moving it first would give
        other weights.
        """
        places = xp.astype(self.places(grid, extent), np.float64)
        if self.sampling.mode == "nearest":
            nearest = self.within(xp, xp.rint(places), extent)
            return [(nearest, xp.ones_like(nearest))]
        if self.sampling.mode != "cubic":
            places = self.within(xp, places, extent)  # equivalent to moving the taps, and correct for infinities
        first, reach = xp.floor(places), self.sampling.reach
        part = places - first
        offsets = range(1 - reach, reach + 1)
        weights = [xp.where(xp.isnan(part), nan, weight(xp, offset - part, self.sampling)) for offset in offsets]
        return [(first + offset, factor) for offset, factor in zip(offsets, weights, strict=True)]


def read_grid_attributes(node: Node) -> Grid:
    """Read the attributes of a GridSample."""
    mode = node.attr("mode", "linear")
    return Grid(Sampling(LEGACY_MODES.get(mode, mode)), node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0)))


def _sample_at(xp: Any, x: Array, grid: Array, settings: Grid) -> Array:
    """Sample ``x`` (N, C, *spatial) at the positions of ``grid`` (N, *positions, axes); sums in float64."""
    extents, last = x.shape[2:], xp.moveaxis(x, 1, -1)
    total = xp.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=np.float64)
    for combination in product(*(settings.taps(xp, grid[..., -1 - axis], extent) for axis, extent in enumerate(extents))):
        index, share = [xp.arange(len(x)).reshape(-1, *(1,) * len(extents))], xp.ones(grid.shape[:-1], dtype=np.float64)
        for (tap, factor), extent in zip(combination, extents, strict=True):
            place = settings.within(xp, tap, extent)
            share = xp.where((place >= 0) & (place <= extent - 1) | xp.isnan(factor), share * factor, 0.0)
            # Positions outside have weight 0, but the index must be valid.
            index.append(xp.astype(xp.clip(xp.where(xp.isnan(place), 0.0, place), 0, extent - 1), np.int64))
        total += share[..., None] * last[tuple(index)]
    return xp.astype(xp.moveaxis(total, -1, 1), x.dtype)


@ops("GridSample")
def grid_sample(node: Node, env: NodeContext) -> Run:
    xp, settings = env.xp, read_grid_attributes(node)
    return lambda x, grid: _sample_at(xp, xp.asarray(x), xp.asarray(grid), settings)


@eager("DeformConv", devices=("cpu",))
def deform_conv(node: Node, env: NodeContext) -> Run:
    """Sample with linear interpolation, zero outside; sums are in double precision."""
    xp, group, offsets = env.xp, node.attr("group", 1), node.attr("offset_group", 1)
    settings = Grid(Sampling("linear"), "zeros", corners=False, is_absolute=True)

    def run(x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None) -> Array:
        n, channels, *extents = x.shape
        kernel, places, images = w.shape[2:], offset.shape[2:], n * offsets
        moves = offset.reshape(images, prod(kernel), len(extents), *places)
        coordinates = [starts + moves[:, :, axis] for axis, starts in enumerate(_list_window_positions(xp, node, kernel, places))]
        # The window elements join the first axis of the positions.
        grid = xp.stack(coordinates[::-1], axis=-1).reshape(images, prod(kernel) * places[0], *places[1:], len(extents))
        columns = _sample_at(xp, xp.astype(x, np.float64).reshape(images, channels // offsets, *extents), grid, settings)
        columns = columns if mask is None else columns * mask.reshape(images, 1, *grid.shape[1:-1])
        columns = columns.reshape(n, group, channels // group * prod(kernel), prod(places))
        out = xp.matmul(xp.astype(w, np.float64).reshape(group, len(w) // group, -1), columns).reshape(n, len(w), *places)
        out = out if bias is None else out + bias.reshape(-1, *(1,) * len(places))
        return xp.astype(out, x.dtype)

    return run


def _list_window_positions(xp: Any, node: Node, kernel: tuple[int, ...], places: tuple[int, ...]) -> list[Array]:
    """Per axis, the positions of the elements of each window before offsets are added: [elements, *positions]."""
    axes = len(kernel)
    strides, dilations = node.attr("strides", (1,) * axes), node.attr("dilations", (1,) * axes)
    pads = node.attr("pads", (0,) * (2 * axes))
    starts = []
    for axis in range(axes):
        elements = along(xp.arange(kernel[axis]), axis, axes)
        elements = xp.broadcast_to(elements, kernel).reshape(-1, *(1,) * axes) * dilations[axis]
        windows = along(xp.arange(places[axis]), axis, axes) * strides[axis] - pads[axis]
        starts.append(elements + windows)
    return starts


# ---------------------------------------------------------------------- Resize


def _resize_axis(xp: Any, x: Array, axis: Axis, sampling: Sampling) -> Array:
    indices, weights = taps(xp.constants, axis, sampling)
    along_axis = (-1, *(1,) * (x.ndim - 1 - axis.index))
    columns = (xp.take(x, xp.asarray(indices[:, i]), axis=axis.index) for i in range(indices.shape[1]))
    if sampling.mode == "nearest":
        y = next(columns)
    else:
        shares = (xp.astype(xp.asarray(weights[:, i]), x.dtype).reshape(along_axis) for i in range(weights.shape[1]))
        y = sum(column * share for column, share in zip(columns, shares, strict=True))
    if not sampling.crops:
        return y
    outside = xp.asarray(axis.outside(xp.constants, sampling.coordinates))
    return xp.astype(xp.where(outside.reshape(along_axis), sampling.extrapolation, y), x.dtype)


def _resize(xp: Any, x: Array, axes: Sequence[Axis], sampling: Sampling) -> Array:
    """Resize axis by axis. Integers are computed in float64, then rounded and saturated, except with nearest."""
    y, is_whole = x, xp.kind(x) in "iu"
    if sampling.mode != "nearest":
        y = xp.astype(x, np.float64 if is_whole or x.dtype == xp.float64 else xp.wide)
    for axis in axes:
        y = y if axis.stays else _resize_axis(xp, y, axis, sampling)
    if is_whole and y.dtype != x.dtype:
        y = xp.clip(xp.rint(y), xp.extreme(x.dtype, lowest=True), xp.extreme(x.dtype, lowest=False))
    return xp.astype(y, x.dtype)


@ops("Resize", since=11, host=(1, 2, 3))
def resize(node: Node, env: NodeContext) -> Run:
    xp, sampling = env.xp, read_sampling(node)

    def run(x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
        region = roi if sampling.crops else None
        lists = ([] if values is None else values.tolist() for values in (region, scales, sizes))
        return _resize(xp, x, find_axes(node, x.shape, *lists), sampling)

    return run


@ops("Upsample", host=(1,))
@ops("Resize", until=10, host=(1,))
def upsample(node: Node, env: NodeContext) -> Run:
    """The scales are two attributes in version 1, one attribute with a scale per axis in version 7, an input since 9."""
    xp, sampling = env.xp, read_rounding(node)
    fixed_scales = node.attr("scales") or (1.0, 1.0, node.attr("height_scale"), node.attr("width_scale"))

    def run(x: Array, scales: Array | None = None) -> Array:
        return _resize(xp, x, find_axes(node, x.shape, [], fixed_scales if scales is None else scales.tolist(), []), sampling)

    return run


# ---------------------------------------------------------------------- pools


def _place_samples(xp: Any, start: float, size: float, bins: int, each: int, extent: int) -> tuple[Array, Array, Array, Array]:
    """Samples of one axis (bins * each): indices of both neighbors, weight of the second, and a mask of samples that count."""
    places = start + (xp.arange(bins * each, dtype=np.float64) + 0.5) * (size / max(1, bins * each))
    counts = (places >= -1) & (places <= extent)
    places = xp.clip(places, 0, extent - 1)
    low = xp.astype(xp.floor(places), np.int64)
    return low, xp.minimum(low + 1, extent - 1), places - low, counts


def _pool_region(xp: Any, image: Array, box: Array, node: Node, shift: float) -> Array:
    """Pool one region of an image (C, H, W) into bins, from interpolated samples."""
    bins = node.attr("output_height", 1), node.attr("output_width", 1)
    x1, y1, x2, y2 = (box * node.attr("spatial_scale", 1.0) - shift).tolist()
    sizes = [max(end - start, 0.0 if shift else 1.0) for start, end in ((y1, y2), (x1, x2))]
    ratio = node.attr("sampling_ratio", 0)
    each = [ratio if ratio > 0 else ceil(size / n) for size, n in zip(sizes, bins, strict=True)]
    (top, bottom, y_share, y_mask), (left, right, x_share, x_mask) = (
        _place_samples(xp, start, size, n, e, extent)
        for start, size, n, e, extent in zip((y1, x1), sizes, bins, each, image.shape[1:], strict=True)
    )
    corners = [
        image[:, row[:, None], column] * (vertical[:, None] * horizontal)
        for row, vertical in ((top, (1 - y_share) * y_mask), (bottom, y_share * y_mask))
        for column, horizontal in ((left, (1 - x_share) * x_mask), (right, x_share * x_mask))
    ]
    shape = (len(image), bins[0], each[0], bins[1], each[1])
    if 0 in each:
        return xp.zeros((len(image), *bins), dtype=np.float64)
    if node.attr("mode", "avg") == "avg":
        return xp.mean(sum(corners).reshape(shape), axis=(2, 4))
    # The maximum of the four weighted neighbors, not of their sum: ONNX does not say, and other engines do this.
    return xp.max(xp.max(xp.stack(corners), axis=0).reshape(shape), axis=(2, 4))


@eager("RoiAlign", host=(1, 2))
def roi_align(node: Node, env: NodeContext) -> Run:
    """Version 10 has no half-pixel shift and no attribute for it."""
    xp, default = env.xp, "half_pixel" if env.version >= 16 else "output_half_pixel"
    shift = 0.5 if node.attr("coordinate_transformation_mode", default) == "half_pixel" else 0.0

    def run(x: Array, boxes: Array, images: Array) -> Array:
        pools = [_pool_region(xp, x[i], box, node, shift) for box, i in zip(boxes, images.tolist(), strict=True)]
        empty = (0, x.shape[1], node.attr("output_height", 1), node.attr("output_width", 1))
        return xp.astype(xp.stack(pools), x.dtype) if pools else xp.empty(empty, dtype=x.dtype)

    return run


@eager("MaxRoiPool", host=(1,))
def max_roi_pool(node: Node, env: NodeContext) -> Run:
    """Corners are rounded to elements and are inclusive; an empty bin gives zero."""
    xp, (height, width), scale = env.xp, node.attr("pooled_shape"), node.attr("spatial_scale", 1.0)

    def pool_box(image: Array, box: Array) -> Array:
        x1, y1, x2, y2 = (floor(v * scale + 0.5) for v in box.tolist())
        rows, columns = cut_bins(y1, y2, height, image.shape[1]), cut_bins(x1, x2, width, image.shape[2])
        out = xp.zeros((len(image), height, width), dtype=image.dtype)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = image[:, row, column]
                if 0 not in part.shape:
                    out[:, i, j] = xp.max(part, axis=(1, 2))
        return out

    def run(x: Array, boxes: Array) -> Array:
        pools = [pool_box(x[int(box[0])], box[1:]) for box in boxes]
        return xp.stack(pools) if pools else xp.empty((0, x.shape[1], height, width), dtype=x.dtype)

    return run


# ---------------------------------------------------------------------- boxes


def _read_corners(xp: Any, boxes: Array, centred: bool) -> tuple[Array, Array]:
    """Lower and upper corners of boxes given by any two opposite corners, or by center and size."""
    if centred:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return xp.minimum(boxes[:, :2], boxes[:, 2:]), xp.maximum(boxes[:, :2], boxes[:, 2:])


def _select_boxes(xp: Any, low: Array, high: Array, scores: Array, most: int, overlap: float, least: float | None) -> list[int]:
    """Select boxes in order of score, skipping those that overlap a selected box."""
    areas = xp.prod(high - low, axis=1)
    order = xp.order(-scores, 0, False)
    if least is not None:
        order = order[scores[order] > least]
    selected: list[int] = []
    while len(order) and len(selected) < most:
        best, order = order[0], order[1:]
        selected.append(int(best))
        sides = xp.minimum(high[best], high[order]) - xp.maximum(low[best], low[order])
        common = xp.prod(xp.maximum(sides, 0), axis=1)
        union = areas[best] + areas[order] - common
        order = order[~((common > 0) & (common / union > overlap))]
    return selected


@eager("NonMaxSuppression", devices=("cpu",))
def non_max_suppression(node: Node, env: NodeContext) -> Run:
    """(batch, class, box) indices of the selected boxes, by decreasing score within each batch and class."""
    xp, centred = env.xp, bool(node.attr("center_point_box", 0))

    def run(
        boxes: Array, scores: Array, max_boxes: Array | None = None, iou: Array | None = None, score: Array | None = None
    ) -> Array:
        most, overlap = (0 if v is None or 0 in v.shape else v.reshape(-1)[0].item() for v in (max_boxes, iou))
        least = None if score is None or 0 in score.shape else score.reshape(-1)[0].item()
        selected = [
            (image, label, box)
            for image, (of_image, by_class) in enumerate(zip(boxes, scores, strict=True))
            for label, of_class in enumerate(by_class)
            for box in _select_boxes(xp, *_read_corners(xp, of_image, centred), of_class, most, overlap, least)
        ]
        return xp.asarray(selected, dtype=np.int64).reshape(-1, 3)

    return run
