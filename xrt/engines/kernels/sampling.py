"""Operators that interpolate (Resize, GridSample, deformable convolution, RoiAlign), MaxRoiPool and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import reshape_along_axis
from xrt.engines.kernels.table import Array, NodeContext, Run, eager, ops
from xrt.engines.kernels.windows import add_bias, split_into_bins

if TYPE_CHECKING:
    from xrt.graph import Node


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to interpolate: the attributes of a Resize, or their equivalents for other operators."""

    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"
    coordinate_mode: str = "half_pixel"
    cubic_coefficient: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation_value: float = 0.0

    @property
    def radius(self) -> int:
        """Number of source elements that are read on each side of a position."""
        return 2 if self.mode == "cubic" else 1

    @property
    def extrapolates(self) -> bool:
        """Whether new elements whose position is outside the source have the value ``extrapolation_value``."""
        return self.coordinate_mode == "tf_crop_and_resize"


def compute_filter_weights(xp: Any, distance: Array, sampling: Sampling) -> Array:
    """Compute the weights of elements at a distance: a triangle for linear, the cubic convolution of Keys (1981) for cubic."""
    d = xp.abs(distance)
    if sampling.mode == "linear":
        return xp.maximum(1 - d, 0)
    a = sampling.cubic_coefficient
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that a Resize resizes."""

    index: int
    extent: int
    target: int
    """The extent of the result."""
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The range that is sampled, as fractions of the axis: (0, 1) except for ``tf_crop_and_resize``."""

    @property
    def width(self) -> float:
        """The extent of the result before it is rounded."""
        return self.extent * self.scale

    @property
    def is_unchanged(self) -> bool:
        return self.target == self.extent and self.scale == 1 and (self.start, self.end) == (0, 1)

    def compute_positions(self, xp: Any, coordinates: str) -> Array:
        """Compute the position in the source of each new element, in float64. The source elements are at 0, 1, ..."""
        i = xp.arange(self.target, dtype=np.float64)
        if coordinates == "asymmetric":
            return i / self.scale
        if coordinates == "align_corners":
            # A single new element is at the first source element: `0 * i` is an array of zeros.
            return i * ((self.extent - 1) / (self.width - 1)) if self.width != 1 else 0 * i
        if coordinates == "tf_crop_and_resize":
            first = self.start * (self.extent - 1)
            span = (self.end - self.start) * (self.extent - 1)
            return first + (i * span / (self.width - 1) if self.width != 1 else 0 * i + span / 2)
        # half_pixel. The other modes are variants of it.
        centred = (i + 0.5) / self.scale - 0.5
        if coordinates == "pytorch_half_pixel" and self.width == 1:
            return 0 * i - 0.5
        if coordinates == "half_pixel_symmetric":
            # The new extent is rounded down. Shift the elements, so that both ends have equal margins.
            return centred + self.extent / 2 * (1 - self.target / self.width)
        return centred


def find_source_elements(xp: Any, axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Find the indices and weights, both [new elements, terms], of the source elements whose weighted sum is a new element."""
    positions = axis.compute_positions(xp, sampling.coordinate_mode)
    if sampling.mode == "nearest":
        indices = _round_positions(xp, positions, sampling.nearest_mode)[:, None]
        return xp.astype(xp.clip(indices, 0, axis.extent - 1), np.int64), xp.ones(indices.shape)
    # With antialias, the filter of an axis that shrinks is wider by the inverse of the scale.
    filter_scale = min(axis.scale, 1.0) if sampling.antialias else 1.0
    radius = ceil(sampling.radius / filter_scale)
    indices = xp.floor(positions)[:, None] + xp.arange(1 - radius, radius + 1)
    weights = compute_filter_weights(xp, (indices - positions[:, None]) * filter_scale, sampling)
    if sampling.exclude_outside:
        weights = weights * ((indices >= 0) & (indices < axis.extent))
    # The sum of the weights must be 1. Excluded elements and a wider filter have changed it.
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / xp.sum(weights, axis=1, keepdims=True)
    return xp.astype(xp.clip(indices, 0, axis.extent - 1), np.int64), weights


def _round_positions(xp: Any, positions: Array, rounding: str) -> Array:
    if rounding.startswith("round"):
        # Halves are rounded down or up. `rint` would round them to even.
        return xp.ceil(positions - 0.5) if rounding == "round_prefer_floor" else xp.floor(positions + 0.5)
    return xp.floor(positions) if rounding == "floor" else xp.ceil(positions)


def make_axes(
    node: Node, shape: Sequence[int], roi: Sequence[float], scales: Sequence[float], sizes: Sequence[int]
) -> list[Axis]:
    """List the axes that a Resize or Upsample resizes. ``roi``, ``scales`` and ``sizes`` are its inputs, empty if absent.

    ``shape`` is that of the source. Sizes have priority over scales, and sizes computed from scales are rounded down.
    """
    fixed_axes = node.attr("axes")
    indices = range(len(shape)) if fixed_axes is None else [axis % len(shape) for axis in fixed_axes]
    extents = [shape[i] for i in indices]
    n = len(indices)
    # The input `roi` has the starts of all axes, then the ends.
    starts, ends = (roi[:n], roi[n:]) if roi else ([0.0] * n, [1.0] * n)
    if sizes:
        scales = [size / extent for size, extent in zip(sizes, extents, strict=True)]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            # The same scale for all axes keeps the aspect ratio.
            common = min(scales) if policy == "not_larger" else max(scales)
            scales, sizes = [common] * n, [int(extent * common + 0.5) for extent in extents]  # to nearest
    elif scales:
        parts = zip(extents, scales, starts, ends, strict=True)
        sizes = [floor(extent * (end - start) * scale) for extent, scale, start, end in parts]
    else:
        raise ValueError("it has neither scales nor sizes; set one of these inputs")
    return [Axis(*fields) for fields in zip(indices, extents, sizes, scales, starts, ends, strict=True)]


def _resize_one_axis(xp: Any, x: Array, axis: Axis, sampling: Sampling) -> Array:
    """Resize a tensor along one axis. The computation is in the dtype of the tensor."""
    indices, weights = find_source_elements(xp.constants, axis, sampling)
    along_axis = (-1, *(1,) * (x.ndim - 1 - axis.index))  # the shape in which a vector broadcasts along the axis
    # Each new element is a weighted sum. Term i has the i-th source element of every new element.
    terms = (xp.take(x, xp.asarray(indices[:, i]), axis=axis.index) for i in range(indices.shape[1]))
    if sampling.mode == "nearest":
        y = next(terms)
    else:
        factors = (xp.astype(xp.asarray(weights[:, i]), x.dtype).reshape(along_axis) for i in range(weights.shape[1]))
        y = sum(term * factor for term, factor in zip(terms, factors, strict=True))
    if not sampling.extrapolates:
        return y
    positions = axis.compute_positions(xp.constants, sampling.coordinate_mode)
    is_outside = xp.asarray((positions < 0) | (positions > axis.extent - 1))
    return xp.astype(xp.where(is_outside.reshape(along_axis), sampling.extrapolation_value, y), x.dtype)


def _resize(xp: Any, x: Array, axes: Sequence[Axis], sampling: Sampling) -> Array:
    """Resize axis by axis. Integers are interpolated in float64, then rounded and clamped to the range of their dtype."""
    y = x
    is_integer = xp.dtype_kind(x) in "iu"
    if sampling.mode != "nearest":
        y = xp.astype(x, np.float64 if is_integer or x.dtype == xp.float64 else xp.resize_dtype)
    for axis in axes:
        y = y if axis.is_unchanged else _resize_one_axis(xp, y, axis, sampling)
    if is_integer and y.dtype != x.dtype:
        y = xp.clip(xp.rint(y), xp.get_extreme_value(x.dtype, lowest=True), xp.get_extreme_value(x.dtype, lowest=False))
    return xp.astype(y, x.dtype)


@ops("Resize", since=11, host=(1, 2, 3))
def resize(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    sampling = Sampling(
        mode=node.attr("mode", "nearest"),
        nearest_mode=node.attr("nearest_mode", "round_prefer_floor"),
        coordinate_mode=node.attr("coordinate_transformation_mode", "half_pixel"),
        cubic_coefficient=node.attr("cubic_coeff_a", -0.75),
        antialias=bool(node.attr("antialias", 0)),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        extrapolation_value=node.attr("extrapolation_value", 0.0),
    )

    def run(x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
        region = roi if sampling.extrapolates else None  # the other coordinate modes ignore `roi`
        lists = ([] if values is None else values.tolist() for values in (region, scales, sizes))
        return _resize(xp, x, make_axes(node, x.shape, *lists), sampling)

    return run


@ops("Upsample", host=(1,))
@ops("Resize", until=10, host=(1,))
def upsample(node: Node, ctx: NodeContext) -> Run:
    """The scales are two attributes in version 1, one attribute with a scale per axis in version 7, and an input since 9."""
    # The name may be "bilinear" too.
    mode = "linear" if "linear" in node.attr("mode", "nearest") else "nearest"
    # These versions divide indices by the scale and round down.
    sampling = Sampling(mode, "floor", "asymmetric")
    fixed_scales = node.attr("scales") or (1.0, 1.0, node.attr("height_scale"), node.attr("width_scale"))

    def run(x: Array, scales: Array | None = None) -> Array:
        factors = fixed_scales if scales is None else scales.tolist()
        return _resize(ctx.xp, x, make_axes(node, x.shape, [], factors, []), sampling)

    return run


@dataclass(frozen=True, slots=True)
class Grid:
    """How to sample at positions of a grid: the attributes of a GridSample."""

    sampling: Sampling
    padding: str
    aligns_corners: bool
    """Whether the positions -1 and 1 are the centers of the outermost elements. Otherwise they are the outer borders of these."""
    is_absolute: bool = False
    """Whether positions of the grid are element indices instead of numbers from -1 to 1."""

    def map_into_range(self, xp: Any, positions: Array, extent: int) -> Array:
        """Clamp or reflect positions outside the tensor, as the padding mode requires.

        With mode zeros they are unchanged, because `_sample_at` multiplies them by 0. With the other modes NaN becomes 0: ONNX
        does not define the result, and PyTorch reads the first element.
        """
        if self.padding == "zeros":
            return positions
        moved = xp.clip(positions, 0, extent - 1) if self.padding == "border" else self._reflect(xp, positions, extent)
        return xp.where(xp.isnan(moved), 0.0, moved)

    def _reflect(self, xp: Any, positions: Array, extent: int) -> Array:
        """Reflect positions at the ends of the tensor, repeatedly if necessary."""
        low, span = (0.0, extent - 1.0) if self.aligns_corners else (-0.5, float(extent))
        # With a single element both ends are its centre.
        if span == 0:
            return xp.zeros_like(positions)
        distance = xp.mod(positions - low, 2 * span)
        reflected = low + xp.minimum(distance, 2 * span - distance)
        return xp.where((positions < low) | (positions > low + span), reflected, positions)

    def find_source_elements(self, xp: Any, grid: Array, extent: int) -> list[tuple[Array, Array]]:
        """List (indices, weights) of the elements along one axis whose weighted sum is the value at a position.

        The indices are floats and may be outside the tensor. With mode cubic, positions are not mapped into the tensor, because
        that would change the weights: `_sample_at` maps each index instead.
        """
        positions = grid
        if not self.is_absolute:
            positions = (grid + 1) / 2 * (extent - 1) if self.aligns_corners else ((grid + 1) * extent - 1) / 2
        positions = xp.astype(positions, np.float64)
        if self.sampling.mode == "nearest":
            nearest = self.map_into_range(xp, xp.rint(positions), extent)
            return [(nearest, xp.ones_like(nearest))]
        if self.sampling.mode != "cubic":
            # The result is the same as if each index were mapped, but correct for infinities too.
            positions = self.map_into_range(xp, positions, extent)
        first, radius = xp.floor(positions), self.sampling.radius
        fraction = positions - first
        elements = []
        for offset in range(1 - radius, radius + 1):
            weight = compute_filter_weights(xp, offset - fraction, self.sampling)
            elements.append((first + offset, xp.where(xp.isnan(fraction), nan, weight)))
        return elements


def _sample_at(xp: Any, x: Array, grid: Array, settings: Grid) -> Array:
    """Sample ``x`` (N, C, *spatial) at the positions of ``grid`` (N, *positions, axes). Sums are computed in float64.

    The last axis of the grid has the coordinates in reverse order of the spatial axes.
    """
    extents = x.shape[2:]
    channels_last = xp.moveaxis(x, 1, -1)
    total = xp.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=np.float64)
    axes = [settings.find_source_elements(xp, grid[..., -1 - axis], extent) for axis, extent in enumerate(extents)]
    # One term of the sum for each combination of elements along the axes.
    for combination in product(*axes):
        index = [xp.arange(len(x)).reshape(-1, *(1,) * len(extents))]
        product_of_weights = xp.ones(grid.shape[:-1], dtype=np.float64)
        for (element, weight), extent in zip(combination, extents, strict=True):
            position = settings.map_into_range(xp, element, extent)
            is_inside = (position >= 0) & (position <= extent - 1)
            product_of_weights = xp.where(is_inside | xp.isnan(weight), product_of_weights * weight, 0.0)
            # Elements outside the tensor have weight 0, but their indices must be valid.
            index.append(xp.astype(xp.clip(xp.where(xp.isnan(position), 0.0, position), 0, extent - 1), np.int64))
        total += product_of_weights[..., None] * channels_last[tuple(index)]
    return xp.astype(xp.moveaxis(total, -1, 1), x.dtype)


@ops("GridSample")
def grid_sample(node: Node, ctx: NodeContext) -> Run:
    xp, mode = ctx.xp, node.attr("mode", "linear")
    sampling = Sampling({"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))  # the names before version 20
    settings = Grid(sampling, node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0)))
    return lambda x, grid: _sample_at(xp, xp.asarray(x), xp.asarray(grid), settings)


@eager("DeformConv", devices=("cpu",))
def deform_conv(node: Node, ctx: NodeContext) -> Run:
    """Convolve elements that are sampled at the window's positions plus offsets, with linear interpolation and zeros outside."""
    xp, group, offset_group = ctx.xp, node.attr("group", 1), node.attr("offset_group", 1)
    settings = Grid(Sampling("linear"), "zeros", aligns_corners=False, is_absolute=True)

    def run(x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None) -> Array:
        n, channels, *extents = x.shape
        kernel, positions = w.shape[2:], offset.shape[2:]
        images = n * offset_group  # each group of channels has other offsets, so sample it as a separate image
        # For each axis the coordinates of the elements of all windows, (images, window elements, *positions).
        offsets = offset.reshape(images, prod(kernel), len(extents), *positions)
        window_coordinates = enumerate(_list_window_coordinates(xp, node, kernel, positions))
        coordinates = [elements + offsets[:, :, axis] for axis, elements in window_coordinates]
        # `_sample_at` needs the last coordinate first, and as many position axes as the image has. Therefore the elements of the
        # windows and the first axis of their positions are a single axis of the grid.
        grid = xp.stack(coordinates[::-1], axis=-1).reshape(images, prod(kernel) * positions[0], *positions[1:], len(extents))
        columns = _sample_at(xp, xp.astype(x, np.float64).reshape(images, channels // offset_group, *extents), grid, settings)
        columns = columns if mask is None else columns * mask.reshape(images, 1, *grid.shape[1:-1])
        columns = columns.reshape(n, group, channels // group * prod(kernel), prod(positions))  # matrices as in im2col
        weights = xp.astype(w, np.float64).reshape(group, len(w) // group, -1)
        out = xp.matmul(weights, columns).reshape(n, len(w), *positions)
        return xp.astype(add_bias(out, bias), x.dtype)

    return run


def _list_window_coordinates(xp: Any, node: Node, kernel: tuple[int, ...], positions: tuple[int, ...]) -> list[Array]:
    """List for each axis the coordinates [elements, *positions] of the elements of each window, without offsets."""
    axes = len(kernel)
    strides, dilations = node.attr("strides", (1,) * axes), node.attr("dilations", (1,) * axes)
    pads = node.attr("pads", (0,) * (2 * axes))
    coordinates = []
    for axis in range(axes):
        elements = reshape_along_axis(xp.arange(kernel[axis]), axis, axes)
        elements = xp.broadcast_to(elements, kernel).reshape(-1, *(1,) * axes) * dilations[axis]
        windows = reshape_along_axis(xp.arange(positions[axis]), axis, axes) * strides[axis] - pads[axis]
        coordinates.append(elements + windows)
    return coordinates


def _sample_bins(xp: Any, start: float, size: float, bins: int, per_bin: int, extent: int) -> tuple[Array, Array, Array, Array]:
    """Place ``per_bin`` samples in each bin of a region that begins at ``start``, along one axis.

    Return four numbers per sample: the indices of the elements before and after it, the weight of the element after it, and
    whether the sample is inside the image. Samples outside do not count.
    """
    positions = start + (xp.arange(bins * per_bin, dtype=np.float64) + 0.5) * (size / max(1, bins * per_bin))
    is_inside = (positions >= -1) & (positions <= extent)
    positions = xp.clip(positions, 0, extent - 1)
    low = xp.astype(xp.floor(positions), np.int64)
    return low, xp.minimum(low + 1, extent - 1), positions - low, is_inside


def _align_region(xp: Any, image: Array, box: Array, node: Node, shift: float) -> Array:
    """Pool one region of an image (C, H, W) to (C, *bins). Each bin is the mean or maximum of interpolated samples.

    ``box`` has the corners (x1, y1, x2, y2). ``shift`` is subtracted from them: 0.5 with half pixels, else 0.
    """
    height, width = node.attr("output_height", 1), node.attr("output_width", 1)
    x1, y1, x2, y2 = (box * node.attr("spatial_scale", 1.0) - shift).tolist()
    min_size = 0.0 if shift else 1.0  # without half pixels a region has at least the size of an element
    box_height, box_width = max(y2 - y1, min_size), max(x2 - x1, min_size)
    ratio = node.attr("sampling_ratio", 0)
    # The number of samples in each bin. By default there is about one per element.
    n_rows, n_columns = (ratio, ratio) if ratio > 0 else (ceil(box_height / height), ceil(box_width / width))
    if 0 in (n_rows, n_columns):
        return xp.zeros((len(image), height, width), dtype=np.float64)
    top, bottom, y_weight, y_mask = _sample_bins(xp, y1, box_height, height, n_rows, image.shape[1])
    left, right, x_weight, x_mask = _sample_bins(xp, x1, box_width, width, n_columns, image.shape[2])
    # The four elements around each sample, multiplied by their weights.
    rows = ((top, (1 - y_weight) * y_mask), (bottom, y_weight * y_mask))
    columns = ((left, (1 - x_weight) * x_mask), (right, x_weight * x_mask))
    neighbors = []
    for (row, row_weight), (column, column_weight) in product(rows, columns):
        neighbors.append(image[:, row[:, None], column] * (row_weight[:, None] * column_weight))
    shape = (len(image), height, n_rows, width, n_columns)
    if node.attr("mode", "avg") == "avg":
        return xp.mean(sum(neighbors).reshape(shape), axis=(2, 4))
    # The maximum of the weighted neighbors, not of their sums: ONNX does not specify it, and other engines do this.
    return xp.max(xp.max(xp.stack(neighbors), axis=0).reshape(shape), axis=(2, 4))


@eager("RoiAlign", host=(1, 2))
def roi_align(node: Node, ctx: NodeContext) -> Run:
    """Versions before 16 have no half-pixel shift, and no attribute for it."""
    xp = ctx.xp
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    shift = 0.5 if node.attr("coordinate_transformation_mode", default) == "half_pixel" else 0.0

    def run(x: Array, boxes: Array, images: Array) -> Array:
        pools = [_align_region(xp, x[i], box, node, shift) for box, i in zip(boxes, images.tolist(), strict=True)]
        empty = (0, x.shape[1], node.attr("output_height", 1), node.attr("output_width", 1))
        return xp.astype(xp.stack(pools), x.dtype) if pools else xp.empty(empty, dtype=x.dtype)

    return run


@eager("MaxRoiPool", host=(1,))
def max_roi_pool(node: Node, ctx: NodeContext) -> Run:
    """The corners of a box (image, x1, y1, x2, y2) are rounded to elements and belong to it. Empty bins have maximum zero."""
    xp, (height, width), scale = ctx.xp, node.attr("pooled_shape"), node.attr("spatial_scale", 1.0)

    def pool_box(image: Array, box: Array) -> Array:
        x1, y1, x2, y2 = (floor(v * scale + 0.5) for v in box.tolist())
        rows, columns = split_into_bins(y1, y2, height, image.shape[1]), split_into_bins(x1, x2, width, image.shape[2])
        out = xp.zeros((len(image), height, width), dtype=image.dtype)
        for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
            elements = image[:, row, column]
            if 0 not in elements.shape:
                out[:, i, j] = xp.max(elements, axis=(1, 2))
        return out

    def run(x: Array, boxes: Array) -> Array:
        pools = [pool_box(x[int(box[0])], box[1:]) for box in boxes]
        return xp.stack(pools) if pools else xp.empty((0, x.shape[1], height, width), dtype=x.dtype)

    return run


def _read_corners(xp: Any, boxes: Array, centred: bool) -> tuple[Array, Array]:
    """Compute the lower and the upper corners of boxes, which have two opposite corners, or, if ``centred``, center and size."""
    if centred:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return xp.minimum(boxes[:, :2], boxes[:, 2:]), xp.maximum(boxes[:, :2], boxes[:, 2:])


def _select_boxes(
    xp: Any, low: Array, high: Array, scores: Array, max_count: int, max_iou: float, min_score: float | None
) -> list[int]:
    """Select at most ``max_count`` boxes in order of score, and return their indices.

    Boxes are skipped whose intersection over union with a selected one exceeds ``max_iou``, or whose score is not above
    ``min_score``.
    """
    areas = xp.prod(high - low, axis=1)
    order = xp.argsort_stable(-scores, 0, False)
    if min_score is not None:
        order = order[scores[order] > min_score]
    selected: list[int] = []
    while len(order) and len(selected) < max_count:
        best, order = order[0], order[1:]
        selected.append(int(best))
        sides = xp.minimum(high[best], high[order]) - xp.maximum(low[best], low[order])
        intersection = xp.prod(xp.maximum(sides, 0), axis=1)
        union = areas[best] + areas[order] - intersection
        order = order[~((intersection > 0) & (intersection / union > max_iou))]
    return selected


def _read_number(value: Array | None, default: Any) -> Any:
    return default if value is None or 0 in value.shape else value.reshape(-1)[0].item()


@eager("NonMaxSuppression", devices=("cpu",))
def non_max_suppression(node: Node, ctx: NodeContext) -> Run:
    """List the (image, class, box) indices of the selected boxes, by decreasing score for each image and class."""
    xp, centred = ctx.xp, bool(node.attr("center_point_box", 0))

    def run(
        boxes: Array, scores: Array, max_boxes: Array | None = None, iou: Array | None = None, score: Array | None = None
    ) -> Array:
        max_count, max_iou = _read_number(max_boxes, 0), _read_number(iou, 0)
        min_score = _read_number(score, None)
        selected = []
        for image, (image_boxes, image_scores) in enumerate(zip(boxes, scores, strict=True)):
            low, high = _read_corners(xp, image_boxes, centred)
            for label, class_scores in enumerate(image_scores):
                chosen = _select_boxes(xp, low, high, class_scores, max_count, max_iou, min_score)
                selected += [(image, label, box) for box in chosen]
        return xp.asarray(selected, dtype=np.int64).reshape(-1, 3)

    return run
