"""Operators with sliding windows: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import round_once
from xrt.engines.kernels.table import Array, NodeContext, Run, eager, ops
from xrt.operators.windows import Placement, Window, compute_padding_trims, make_window

if TYPE_CHECKING:
    from xrt.graph import Node


def split_into_bins(start: int, end: int, count: int, extent: int) -> list[slice]:
    """Split the elements from ``start`` to ``end`` (inclusive) into ``count`` bins, cropped to ``extent``. Bins may overlap."""
    size = max(end - start + 1, 1) / count
    limits = [(start + floor(i * size), start + ceil((i + 1) * size)) for i in range(count)]
    return [slice(min(max(first, 0), extent), min(max(last, 0), extent)) for first, last in limits]


def add_bias(y: Array, bias: Array | None) -> Array:
    """Add a bias per channel to ``y`` (N, C, *spatial), in place. None adds nothing."""
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


@ops("Conv")
def conv(node: Node, ctx: NodeContext) -> Run:
    xp, group = ctx.xp, node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        return add_bias(xp.convolve(x, w, make_window(node, w.shape[2:]), group), bias)

    return round_once(xp, run)


@ops("Col2Im", host=(1, 2))
def col2im(node: Node, ctx: NodeContext) -> Run:
    """Reassemble images from columns, each the elements of one window. Elements that windows share are summed."""

    def run(x: Array, extents: Array, kernel: Array) -> Array:
        window, sizes = make_window(node, kernel.tolist()), extents.tolist()
        placement = window.place(sizes)
        columns = x.reshape(len(x), x.shape[1] // window.size, *window.kernel, *placement.positions)  # (N, C, ...)
        padded_sizes = [begin + size + end for size, (begin, end) in zip(sizes, placement.pads, strict=True)]
        padded = ctx.xp.fold(columns, placement, padded_sizes)
        return padded[(..., *(slice(begin, begin + size) for begin, size in zip(placement.begins, sizes, strict=True)))]

    return run


@ops("AveragePool")
def average_pool(node: Node, ctx: NodeContext) -> Run:
    xp, window = ctx.xp, make_window(node, node.attr("kernel_shape"))
    with_padding = bool(node.attr("count_include_pad", 0))

    def run(x: Array) -> Array:
        placement = window.place(x.shape[2:])
        return xp.sum_windows(x, placement) / xp.astype(placement.count_elements(xp, with_padding), x.dtype)

    return round_once(xp, run)


@ops("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    reduce = xp.mean if node.op_type == "GlobalAveragePool" else xp.max
    return round_once(xp, lambda x: reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def pad_windows(xp: Any, placement: Placement, x: Array, fill: Any) -> Array:
    """Pad the spatial axes of a tensor (..., *spatial) with ``fill``, so that it contains every window of the placement."""
    pads = (*placement.begins, *placement.ends)
    return xp.pad_axes(x, pads, "constant", fill, range(x.ndim - len(placement.extents), x.ndim)) if any(pads) else x


def fold(xp: Any, columns: Array, placement: Placement, extents: Sequence[int]) -> Array:
    """Sum windows (N, C, *kernel, *positions) into a tensor (N, C, *extents), each at its position."""
    out = xp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, region in placement.iterate_offsets():
        out[region] += columns[(slice(None), slice(None), *offset)]
    return out


def sum_windows(xp: Any, x: Array, placement: Placement) -> Array:
    """Sum the elements of each window. Padding counts as zero."""
    x = pad_windows(xp, placement, x, 0)
    offsets = placement.iterate_offsets()
    _, first_region = next(offsets)
    total = xp.copy(x[first_region])
    for _, region in offsets:
        total += x[region]
    return total


MAX_COLUMN_BYTES = 1 << 23
"""A convolution gathers columns of about this size at once, so that they stay in the cache and need little memory."""


def convolve(xp: Any, x: Array, w: Array, window: Window, group: int) -> Array:
    """Convolve ``x`` (N, C, *spatial) with ``w`` (M, C/group, *kernel). Sums are accumulated in the dtype of the tensors."""
    placement = window.place(x.shape[2:])
    x = pad_windows(xp, placement, x, 0)
    # As matrix products, a depthwise convolution would be many small ones.
    if group == x.shape[1] and w.shape[1] == 1:
        return _convolve_depthwise(xp, x, w, placement)
    weights = w.reshape(group, w.shape[0] // group, -1)  # (group, M/group, C/group * kernel elements)
    y = xp.empty((len(x), *weights.shape[:2], *placement.positions), dtype=x.dtype)
    for image, out in zip(x, y, strict=True):
        parts = image.reshape(group, -1, *image.shape[1:])
        for rows in _iter_row_blocks(placement, image.shape[0] * x.itemsize):
            columns = _gather_columns(xp, parts, placement, rows)
            target = out if rows is None else out[:, :, rows]
            target[...] = xp.matmul(weights, columns).reshape(target.shape)
    return y.reshape(len(x), len(w), *placement.positions)


def _convolve_depthwise(xp: Any, x: Array, w: Array, placement: Placement) -> Array:
    """Compute a depthwise convolution as a sum over the kernel elements."""
    channels = x.shape[1]
    weights = w.reshape(channels, -1, *w.shape[2:])
    ones = (1,) * len(placement.positions)
    y = xp.zeros((len(x), channels, weights.shape[1], *placement.positions), dtype=x.dtype)
    for offset, region in placement.iterate_offsets():
        factor = weights[(slice(None), slice(None), *offset)]
        y += x[region][:, :, None] * factor.reshape(1, *factor.shape, *ones)
    return y.reshape(len(x), len(w), *placement.positions)


def _iter_row_blocks(placement: Placement, bytes_per_kernel_element: int) -> Iterator[slice | None]:
    """Yield slices of the first spatial axis of the result, whose columns have about `MAX_COLUMN_BYTES`.

    ``bytes_per_kernel_element`` is the size of one position of the image, all channels. Without spatial axes yield a single None.
    """
    if not placement.positions:
        yield None
        return
    row = max(1, prod(placement.positions[1:]) * placement.window.size * bytes_per_kernel_element)
    step = max(1, MAX_COLUMN_BYTES // row)
    for start in range(0, placement.positions[0], step):
        yield slice(start, min(start + step, placement.positions[0]))


def _gather_columns(xp: Any, parts: Array, placement: Placement, rows: slice | None) -> Array:
    """Gather the elements of the windows at some positions into the columns of a matrix (im2col).

    ``parts`` (group, C/group, *padded) is one image, and ``rows`` selects positions along the first spatial axis; None if there
    are no spatial axes. Returns (group, C/group * window, positions).
    """
    if rows is None:
        return parts.reshape(*parts.shape[:2], 1)
    window = placement.window
    positions = (rows.stop - rows.start, *placement.positions[1:])
    stride = window.strides[0]
    image = parts[:, :, rows.start * stride : (rows.stop - 1) * stride + window.spans[0]]
    # With a window of one element the image itself is the matrix.
    if window.size == 1 and set(window.strides) == {1}:
        return image.reshape(*parts.shape[:2], -1)
    columns = xp.empty((*parts.shape[:2], *window.kernel, *positions), dtype=parts.dtype)
    for offset, region in replace(placement, positions=positions).iterate_offsets():
        columns[(slice(None), slice(None), *offset)] = image[region]
    return columns.reshape(len(parts), -1, prod(positions))


@eager("ConvTranspose")
def conv_transpose(node: Node, ctx: NodeContext) -> Run:
    """Add for each element of x the kernel, multiplied by the element, to a window of the output."""
    xp, group = ctx.xp, node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        window = make_window(node, w.shape[2:])
        # (group, M/group * kernel elements, C/group) times (N, group, C/group, positions), where w is (C, M/group, *kernel).
        weights = xp.transpose(w.reshape(group, w.shape[0] // group, -1), (0, 2, 1))
        columns = xp.matmul(weights, x.reshape(len(x), group, x.shape[1] // group, prod(x.shape[2:])))
        columns = columns.reshape(len(x), group * w.shape[1], *window.kernel, *x.shape[2:])
        extents = [s * (n - 1) + span for s, n, span in zip(window.strides, x.shape[2:], window.spans, strict=True)]
        zeros = (0,) * len(extents)
        padded = xp.fold(columns, Placement(window, tuple(extents), zeros, zeros, zeros, x.shape[2:]), extents)
        # The pads of a transposed convolution crop its result, so they are negative pads of it.
        pads = compute_padding_trims(node, window, extents, x.shape[2:])
        return add_bias(xp.pad_axes(padded, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(xp, run)


def max_windows(xp: Any, x: Array, placement: Placement) -> Array:
    """Compute the maximum of each window. Padding is ignored."""
    x = pad_windows(xp, placement, x, xp.get_extreme_value(x.dtype, lowest=True))
    offsets = placement.iterate_offsets()
    _, first_region = next(offsets)
    top = xp.copy(x[first_region])
    for _, region in offsets:
        xp.maximum(top, x[region], out=top)
    return top


@ops("MaxPool")
def max_pool(node: Node, ctx: NodeContext) -> Run:
    xp, window = ctx.xp, make_window(node, node.attr("kernel_shape"))
    if ctx.wants(1):  # output 1 has the indices
        column_major = bool(node.attr("storage_order", 0))
        return lambda x: _max_with_indices(xp, x, window.place(x.shape[2:]), column_major)
    return lambda x: xp.max_windows(x, window.place(x.shape[2:]))


def _max_with_indices(xp: Any, x: Array, placement: Placement, column_major: bool) -> tuple[Array, Array]:
    """Compute the maximum of each window, and its index in the flattened tensor.

    With ``column_major`` the indices count the elements of each channel with the first spatial axis fastest.
    """
    rank = len(placement.extents)
    indices = xp.arange(prod(placement.extents), dtype=np.int64)
    if column_major:
        indices = xp.transpose(indices.reshape(placement.extents[::-1]), tuple(reversed(range(rank))))
    else:
        indices = indices.reshape(placement.extents)
    lowest = xp.get_extreme_value(x.dtype, lowest=True)
    padded = pad_windows(xp, placement, x, lowest)
    padded_indices = pad_windows(xp, placement, indices, -1)
    shape = (*x.shape[:2], *placement.positions)
    top = xp.full(shape, lowest, dtype=x.dtype)
    top_index = xp.full(shape, -1, dtype=np.int64)
    for _, region in placement.iterate_offsets():
        values, index = padded[region], padded_indices[region]
        # Padding (index -1) is never selected, so even a window of lowest numbers has the index of an element.
        is_better = (index >= 0) & ((top_index < 0) | (values > top))
        top, top_index = xp.where(is_better, values, top), xp.where(is_better, index, top_index)
    channel_starts = xp.arange(prod(x.shape[:2]), dtype=np.int64) * prod(placement.extents)
    return top, top_index + channel_starts.reshape(*x.shape[:2], *(1,) * rank)


@ops("LpPool")
def lp_pool(node: Node, ctx: NodeContext) -> Run:
    xp, window, p = ctx.xp, make_window(node, node.attr("kernel_shape")), node.attr("p", 2)
    return round_once(xp, lambda x: xp.sum_windows(xp.abs(x) ** p, window.place(x.shape[2:])) ** (1 / p))


@ops("GlobalLpPool")
def global_lp_pool(node: Node, ctx: NodeContext) -> Run:
    xp, p = ctx.xp, node.attr("p", 2)
    return round_once(xp, lambda x: xp.sum(xp.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p))


@ops("MaxUnpool", host=(2,))
def max_unpool(node: Node, ctx: NodeContext) -> Run:
    """Write each element to its index in the result, which is zero elsewhere."""
    xp, window = ctx.xp, make_window(node, node.attr("kernel_shape"))

    def run(x: Array, indices: Array, shape: Array | None = None) -> Array:
        default_shape = (*x.shape[:2], *window.compute_unpooled_extents(x.shape[2:]))
        flat = xp.zeros(prod(default_shape), dtype=x.dtype)
        unpooled = xp.scatter(flat, (indices.reshape(-1),), x.reshape(-1), "none").reshape(default_shape)
        if shape is None:
            return unpooled
        begins = [0] * len(default_shape)
        ends = [n - extent for n, extent in zip(shape.tolist(), default_shape, strict=True)]
        return xp.pad_axes(unpooled, begins + ends, "constant", 0)  # appends zeros, or crops if negative

    return run
