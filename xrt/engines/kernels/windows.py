"""Sliding windows: geometry, convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, floor, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import round_once
from xrt.engines.kernels.table import Array, Run, eager, ops
from xrt.operators.windows import (
    Placement,
    Window,
    compute_padding_trims,
    make_window,
)

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node


def cut_bins(start: int, end: int, count: int, extent: int) -> list[slice]:
    """Split the elements from ``start`` to ``end`` (inclusive) of an axis into overlapping bins, for pooling over regions."""
    size = max(end - start + 1, 1) / count
    limits = [(floor(i * size), ceil((i + 1) * size)) for i in range(count)]
    return [slice(min(max(a + start, 0), extent), min(max(b + start, 0), extent)) for a, b in limits]


# ---------------------------------------------------------------------- convolutions and pools


def with_bias(y: Array, bias: Array | None) -> Array:
    """Add a bias per channel."""
    if bias is not None:
        # In place: the products have no other reader.
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


@ops("Conv")
def conv(node: Node, env: NodeContext) -> Run:
    xp, group = env.xp, node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        return with_bias(xp.convolve(x, w, make_window(node, w.shape[2:]), group), bias)

    return round_once(xp, run)


@ops("Col2Im", host=(1, 2))
def col2im(node: Node, env: NodeContext) -> Run:
    """Reassemble images from columns of windows; overlapping elements are summed."""

    def run(x: Array, extents: Array, kernel: Array) -> Array:
        window, sizes = make_window(node, kernel.tolist()), extents.tolist()
        place = window.over(sizes)
        columns = x.reshape(len(x), x.shape[1] // window.size, *window.kernel, *place.positions)
        padded = env.xp.fold(columns, place, [b + n + e for b, n, e in zip(place.begins, sizes, place.ends, strict=True)])
        return padded[(..., *(slice(b, b + n) for b, n in zip(place.begins, sizes, strict=True)))]

    return run


@ops("AveragePool")
def average_pool(node: Node, env: NodeContext) -> Run:
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))
    with_padding = bool(node.attr("count_include_pad", 0))

    def run(x: Array) -> Array:
        place = window.over(x.shape[2:])
        return xp.sum_windows(x, place) / xp.astype(place.counts(xp, with_padding), x.dtype)

    return round_once(xp, run)


@ops("GlobalAveragePool")
def global_average_pool(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    return round_once(xp, lambda x: xp.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True))


@ops("GlobalMaxPool")
def global_max_pool(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    return lambda x: xp.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def around(xp: Any, place: Placement, x: Array, fill: Any) -> Array:
    """Pad the spatial axes of a tensor (..., *spatial) with ``fill``."""
    if not any(place.begins) and not any(place.ends):
        return x
    lead = x.shape[: x.ndim - len(place.extents)]
    sizes = zip(place.begins, place.extents, place.ends, strict=True)
    out = xp.full((*lead, *(b + n + e for b, n, e in sizes)), fill, dtype=x.dtype)
    out[(..., *(slice(b, b + n) for b, n in zip(place.begins, place.extents, strict=True)))] = x
    return out


def fold(xp: Any, columns: Array, placement: Placement, extents: Sequence[int]) -> Array:
    """Sum windows at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""
    out = xp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, region in placement.offsets():
        out[region] += columns[(slice(None), slice(None), *offset)]
    return out


def sum_windows(xp: Any, x: Array, place: Placement) -> Array:
    """Sum the elements of each window, with zero padding."""
    x = around(xp, place, x, 0)
    picks = place.offsets()
    total = xp.copy(x[next(picks)[1]])
    for _, region in picks:
        total += x[region]
    return total


BLOCK = 1 << 23
"""Bytes of a block of columns: small enough to stay in the cache and to bound memory."""


def convolve(xp: Any, x: Array, w: Array, window: Window, group: int) -> Array:
    """Convolve (N, C, *spatial) with (M, C/group, *kernel), accumulating in the tensors' dtype."""
    place = window.over(x.shape[2:])
    x = around(xp, place, x, 0)
    # Depthwise: each matrix product would have few rows and the length of one window.
    if group == x.shape[1] and w.shape[1] == 1:
        return _per_channel(xp, x, w, place)
    # Few positions of a large window: columns would be a copy of the window for each.
    if group == 1 and 0 < prod(place.positions) < window.size:
        return _per_position(xp, x, w, place)
    weights = w.reshape(group, w.shape[0] // group, -1)
    y = xp.empty((len(x), *weights.shape[:2], *place.positions), dtype=x.dtype)
    for image, out in zip(x, y, strict=True):
        parts = image.reshape(group, -1, *image.shape[1:])
        for rows in _split_blocks(place, image.shape[0] * x.itemsize):
            columns = _gather_columns(xp, parts, place, rows)
            target = out if rows is None else out[:, :, rows]
            target[...] = xp.matmul(weights, columns).reshape(target.shape)
    return y.reshape(len(x), len(w), *place.positions)


def _per_channel(xp: Any, x: Array, w: Array, place: Placement) -> Array:
    """Depthwise convolution, one kernel element after the other."""
    channels = x.shape[1]
    weights = w.reshape(channels, -1, *w.shape[2:])
    each = (1,) * len(place.positions)
    y = xp.zeros((len(x), channels, weights.shape[1], *place.positions), dtype=x.dtype)
    for offset, region in place.offsets():
        factor = weights[(slice(None), slice(None), *offset)]
        y += x[region][:, :, None] * factor.reshape(1, *factor.shape, *each)
    return y.reshape(len(x), len(w), *place.positions)


def _per_position(xp: Any, x: Array, w: Array, place: Placement) -> Array:
    """Multiply the elements of the window at one position with the weights, one position after the other.

    Used for weight gradients, where the window is as large as an image and there are few positions.
    """
    window, weights = place.window, xp.transpose(w.reshape(len(w), -1))
    y = xp.empty((len(x), len(w), *place.positions), dtype=x.dtype)
    for position in product(*map(range, place.positions)):
        starts = (p * s for p, s in zip(position, window.strides, strict=True))
        region = (slice(a, a + span, d) for a, span, d in zip(starts, window.spans, window.dilations, strict=True))
        y[(..., *position)] = xp.matmul(x[(..., *region)].reshape(len(x), len(weights)), weights)
    return y


def _split_blocks(place: Placement, bytes_each: int) -> Iterator[slice | None]:
    """Yield slices of the first spatial axis whose columns fit a block; a single None if there is no spatial axis."""
    if not place.positions:
        yield None
        return
    row = max(1, prod(place.positions[1:]) * place.window.size * bytes_each)
    step = max(1, BLOCK // row)
    for start in range(0, place.positions[0], step):
        yield slice(start, min(start + step, place.positions[0]))


def _gather_columns(xp: Any, parts: Array, place: Placement, rows: slice | None) -> Array:
    """im2col: (group, C/group, *padded) to (group, C/group * window, positions), for a range of rows."""
    if rows is None:
        return parts.reshape(*parts.shape[:2], 1)
    window = place.window
    positions = (rows.stop - rows.start, *place.positions[1:])
    stride = window.strides[0]
    image = parts[:, :, rows.start * stride : (rows.stop - 1) * stride + window.spans[0]]
    # The image of a window of one element is its own matrix of columns.
    if window.size == 1 and set(window.strides) == {1}:
        return image.reshape(*parts.shape[:2], -1)
    columns = xp.empty((*parts.shape[:2], *window.kernel, *positions), dtype=parts.dtype)
    for offset, region in replace(place, positions=positions).offsets():
        columns[(slice(None), slice(None), *offset)] = image[region]
    return columns.reshape(len(parts), -1, prod(positions))


@eager("ConvTranspose")
def conv_transpose(node: Node, env: NodeContext) -> Run:
    """The gradient of a convolution: each element of x adds a scaled window to the output."""
    xp, group = env.xp, node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        window = make_window(node, w.shape[2:])
        weights = xp.transpose(w.reshape(group, w.shape[0] // group, -1), (0, 2, 1))
        columns = xp.matmul(weights, x.reshape(len(x), group, x.shape[1] // group, prod(x.shape[2:])))
        columns = columns.reshape(len(x), group * w.shape[1], *window.kernel, *x.shape[2:])
        extents = [s * (n - 1) + span for s, n, span in zip(window.strides, x.shape[2:], window.spans, strict=True)]
        nowhere = (0,) * len(extents)
        padded = xp.fold(columns, Placement(window, tuple(extents), nowhere, nowhere, nowhere, x.shape[2:]), extents)
        # The pads of a transposed convolution crop its result.
        pads = compute_padding_trims(node, window, extents, x.shape[2:])
        return with_bias(xp.pad_axes(padded, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(xp, run)


def max_windows(xp: Any, x: Array, place: Placement) -> Array:
    """The maximum of each window."""
    x = around(xp, place, x, xp.extreme(x.dtype, lowest=True))
    picks = place.offsets()
    top = xp.copy(x[next(picks)[1]])
    for _, region in picks:
        xp.maximum(top, x[region], out=top)
    return top


@ops("MaxPool")
def max_pool(node: Node, env: NodeContext) -> Run:
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))
    if env.wants(1):
        column_major = bool(node.attr("storage_order", 0))
        return lambda x: _max_and_places(xp, x, window.over(x.shape[2:]), column_major)
    return lambda x: xp.max_windows(x, window.over(x.shape[2:]))


def _max_and_places(xp: Any, x: Array, place: Placement, column_major: bool) -> tuple[Array, Array]:
    """Maximum of each window and its index in the flattened tensor (column-major within each plane if requested)."""
    lowest, rank = xp.extreme(x.dtype, lowest=True), len(place.extents)
    indices = xp.arange(prod(place.extents), dtype=np.int64)
    by_columns = xp.transpose(indices.reshape(place.extents[::-1]), tuple(range(rank))[::-1])
    padded = xp.around(place, x, lowest)
    places = xp.around(place, by_columns if column_major else indices.reshape(place.extents), -1)
    shape = (*x.shape[:2], *place.positions)
    top, where = xp.full(shape, lowest, dtype=x.dtype), xp.full(shape, -1, dtype=np.int64)
    for _, region in place.offsets():
        values, index = padded[region], places[region]
        # Padding is never chosen, so that a window of lowest numbers has an index inside of the tensor.
        better = (index >= 0) & ((where < 0) | (values > top))
        top, where = xp.where(better, values, top), xp.where(better, index, where)
    planes = xp.arange(prod(x.shape[:2]), dtype=np.int64) * prod(place.extents)
    return top, where + planes.reshape(*x.shape[:2], *(1,) * rank)


@ops("LpPool")
def lp_pool(node: Node, env: NodeContext) -> Run:
    xp, window, p = env.xp, make_window(node, node.attr("kernel_shape")), node.attr("p", 2)
    return round_once(xp, lambda x: xp.sum_windows(xp.abs(x) ** p, window.over(x.shape[2:])) ** (1 / p))


@ops("GlobalLpPool")
def global_lp_pool(node: Node, env: NodeContext) -> Run:
    xp, p = env.xp, node.attr("p", 2)
    return round_once(xp, lambda x: xp.sum(xp.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p))


@ops("MaxUnpool", host=(2,))
def max_unpool(node: Node, env: NodeContext) -> Run:
    """Write each element to the position it came from; others are zero."""
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))

    def run(x: Array, places: Array, shape: Array | None = None) -> Array:
        natural = (*x.shape[:2], *window.spread(x.shape[2:]))
        flat = xp.zeros(prod(natural), dtype=x.dtype)
        unpooled = xp.scatter(flat, (places.reshape(-1),), x.reshape(-1), "none").reshape(natural)
        if shape is None:
            return unpooled
        missing = [n - extent for n, extent in zip(shape.tolist(), natural, strict=True)]
        return xp.pad_axes(unpooled, [*(0 for _ in natural), *missing], "constant", 0)

    return run
