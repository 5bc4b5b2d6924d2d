"""Operators that move elements (reshape, transpose, concatenate, slice, pad, gather, scatter) and that find indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import flatten_to_matrix, reshape_along_axis, split_axis, split_evenly
from xrt.engines.kernels.table import Array, NodeContext, Run, eager, ops

if TYPE_CHECKING:
    from xrt.graph import Function, Node


@ops("Shape")
def shape(node: Node, ctx: NodeContext) -> Run:
    start, end = node.attr("start", 0), node.attr("end")
    return lambda x: ctx.xp.make_sizes(x.shape[start:end])


@ops("Size")
def size(node: Node, ctx: NodeContext) -> Run:
    return lambda x: ctx.xp.make_sizes(prod(x.shape))


def _reshape(x: Array, target: Sequence[int], allow_zero: bool) -> Array:
    """Reshape as ONNX's Reshape does. Unless ``allow_zero`` is set, 0 copies the extent of the same axis of ``x``."""
    extents = list(target) if allow_zero else [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    if -1 in extents and not prod(x.shape):  # array libraries cannot infer the extent for -1 if the array is empty
        known_extents = prod(n for n in extents if n != -1)
        extents[extents.index(-1)] = 0 if known_extents else 1  # any number fits if another extent is 0
    return x.reshape(tuple(extents))


@ops("Reshape", host=(1,))
def reshape(node: Node, ctx: NodeContext) -> Run:
    fixed_shape, allow_zero = node.attr("shape", ()), bool(node.attr("allowzero", 0))
    return lambda x, target=None: _reshape(x, fixed_shape if target is None else target.tolist(), allow_zero)


@ops("Flatten")
def flatten(node: Node, ctx: NodeContext) -> Run:
    axis = node.attr("axis", 1)
    return lambda x: flatten_to_matrix(x, axis)


@ops("Squeeze", host=(1,))
def squeeze(node: Node, ctx: NodeContext) -> Run:
    fixed_axes = node.attr("axes")
    return lambda x, axes=None: ctx.xp.squeeze(x, axis=fixed_axes if axes is None else tuple(axes.tolist()))


@ops("Unsqueeze", host=(1,))
def unsqueeze(node: Node, ctx: NodeContext) -> Run:
    fixed_axes = node.attr("axes")
    return lambda x, axes=None: ctx.xp.expand_dims(x, fixed_axes if axes is None else tuple(axes.reshape(-1).tolist()))


@ops("Transpose")
def transpose(node: Node, ctx: NodeContext) -> Run:
    order = node.attr("perm")
    return lambda x: ctx.xp.transpose(x, order)


@ops("DepthToSpace")
def depth_to_space(node: Node, ctx: NodeContext) -> Run:
    """Rearrange channels to spatial blocks. Channels are (depth, row, column) with mode CRD, (row, column, depth) with DCR."""
    xp, block, is_crd = ctx.xp, node.attr("blocksize"), node.attr("mode", "DCR") == "CRD"

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        depth = c // block**2
        # Move the axes to (N, depth, H, row, W, column).
        if is_crd:
            blocks = xp.transpose(x.reshape(n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3))
        else:
            blocks = xp.transpose(x.reshape(n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2))
        return blocks.reshape(n, depth, h * block, w * block)

    return run


@ops("SpaceToDepth")
def space_to_depth(node: Node, ctx: NodeContext) -> Run:
    """Rearrange spatial blocks of ``x`` (N, C, H, W) into channels, in the order of `depth_to_space`."""
    xp, block = ctx.xp, node.attr("blocksize")
    # The axes of `blocks` are (N, depth, H, row, W, column).
    order = (0, 1, 3, 5, 2, 4) if node.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // block, block, w // block, block)
        return xp.transpose(blocks, order).reshape(n, c * block**2, h // block, w // block)

    return run


@ops("ReverseSequence")
def reverse_sequence(node: Node, ctx: NodeContext) -> Run:
    """Reverse the first ``sequence_lens[b]`` time steps of each batch entry b."""
    xp, batch, time = ctx.xp, node.attr("batch_axis", 1), node.attr("time_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        steps = xp.arange(x.shape[time])
        # The time step to read, (batch, time).
        sources = xp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
        # Batch and time are the first two axes, in either order. The indices broadcast over the other axes.
        sources = sources if batch < time else xp.transpose(sources)
        return xp.take_along_axis(x, sources.reshape(*sources.shape, *(1,) * (x.ndim - 2)), axis=time)

    return run


@ops("Concat")
def concat(node: Node, ctx: NodeContext) -> Run:
    axis = node.attr("axis", 1)  # only version 1 has a default
    return lambda *parts: ctx.xp.concatenate(parts, axis=axis)


@ops("Split", host=(1,))
def split(node: Node, ctx: NodeContext) -> Run:
    axis, fixed_sizes, count = node.attr("axis", 0), node.attr("split"), node.attr("num_outputs", ctx.n_outputs)

    def run(x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
        extents = fixed_sizes if sizes is None else sizes.tolist()
        return split_axis(x, split_evenly(x.shape[axis], count) if extents is None else extents, axis)

    return run


@ops("Slice", host=(1, 2, 3, 4))
def slice_(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp

    def read_list(value: Array | None, attribute: str) -> Sequence[int] | None:
        """List the elements of an input, which is an attribute before version 10. None if it is omitted."""
        elements: Sequence[int] | None = node.attr(attribute) if value is None else value.reshape(-1).tolist()
        return elements

    def run(
        x: Array, starts: Array | None = None, ends: Array | None = None, axes: Array | None = None, steps: Array | None = None
    ) -> Array:
        first, last = read_list(starts, "starts") or (), read_list(ends, "ends") or ()
        axis_indices = read_list(axes, "axes") or range(len(first))
        step_sizes = read_list(steps, "steps") or [1] * len(first)
        for start, end, axis, step in zip(first, last, axis_indices, step_sizes, strict=True):
            x = _slice_axis(xp, x, axis % x.ndim, start, end, step)
        return x

    return run


def _slice_axis(xp: Any, x: Array, axis: int, start: int, end: int, step: int) -> Array:
    lead, extent = (slice(None),) * axis, x.shape[axis]
    if step > 0:
        return x[(*lead, slice(start, end, step))]
    # PyTorch supports no negative steps, so slice forwards and flip. ONNX clamps the start to the axis, and the end to -1.
    first = min(max(start + extent if start < 0 else start, 0), extent - 1)
    last = max(end + extent if end < 0 else end, -1)
    flipped = xp.flip(x[(*lead, slice(last + 1, first + 1))], axis)  # from `first` down to `last + 1`
    return flipped[(*lead, slice(None, None, -step))]


@eager("Expand", host=(1,))
def expand(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    return lambda x, target: xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target.tolist())))


@eager("Tile", until=5, host=(1, 2))
def tile_one_axis(node: Node, ctx: NodeContext) -> Run:
    """Version 1 repeats along a single axis. The number of repeats and the axis are scalars."""

    def run(x: Array, tiles: Array, axis: Array) -> Array:
        repeats = [1] * x.ndim
        repeats[int(axis.reshape(()))] = int(tiles.reshape(()))
        return ctx.xp.tile(x, repeats)

    return run


@eager("Tile", since=6, host=(1,))
def tile(node: Node, ctx: NodeContext) -> Run:
    return lambda x, repeats: ctx.xp.tile(x, repeats.tolist())


@ops("Trilu")
def trilu(node: Node, ctx: NodeContext) -> Run:
    """Keep the elements (i, j) of the upper triangle, ``j - i >= k``, or of the lower one, ``j - i <= k``."""
    xp, upper = ctx.xp, node.attr("upper", 1)

    def run(x: Array, k: Array | None = None) -> Array:
        offset = 0 if k is None else k.reshape(())
        diagonals = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        is_kept = diagonals >= offset if upper else diagonals <= offset
        # A zero of the dtype of x, because a Python zero would turn booleans into integers.
        return xp.where(is_kept, x, xp.zeros((), dtype=x.dtype))

    return run


@eager("Pad", host=(1, 2, 3))
def pad(node: Node, ctx: NodeContext) -> Run:
    xp, mode = ctx.xp, node.attr("mode", "constant")
    fixed_pads, number = node.attr("pads", node.attr("paddings")), node.attr("value", 0)  # attributes before version 11

    def run(x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None) -> Array:
        default = "" if xp.dtype_kind(x) == "O" else number  # the kind of strings is O
        fill = default if value is None else value.reshape(()).item()
        amounts = fixed_pads if pads is None else pads.tolist()
        return xp.pad_axes(x, amounts, mode, fill, None if axes is None else axes.tolist())

    return run


@ops("GatherElements")
def gather_elements(node: Node, ctx: NodeContext) -> Run:
    axis = node.attr("axis", 0)
    # A constant may be a NumPy array, which traced arrays of JAX cannot index.
    return lambda x, indices: ctx.xp.asarray(x)[_make_element_indices(ctx.xp, indices, axis)]


def _make_element_indices(xp: Any, indices: Array, axis: int) -> tuple[Array, ...]:
    """Make the tuple that indexes a tensor by ``indices`` along ``axis``, and by the position in ``indices`` along other axes."""
    grid = _make_index_grid(xp, indices.shape)
    grid[axis] = indices
    return tuple(grid)


def _make_index_grid(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """List for each axis the indices 0, 1, ..., shaped to broadcast along the other axes."""
    return [reshape_along_axis(xp.arange(extent), axis, len(shape)) for axis, extent in enumerate(shape)]


@ops("GatherND")
def gather_nd(node: Node, ctx: NodeContext) -> Run:
    """The last axis of the indices has one index for each of the axes of ``x`` that follow the batch axes."""
    xp, batch = ctx.xp, node.attr("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        grid = _make_index_grid(xp, indices.shape[:batch])
        grid = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in grid]
        return xp.asarray(x)[(*grid, *xp.moveaxis(indices, -1, 0))]

    return run


@ops("Gather")
def gather(node: Node, ctx: NodeContext) -> Run:
    take, axis = ctx.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, ctx: NodeContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        columns = ctx.xp.take(x, indices.reshape(-1), axis=-1)
        return columns.reshape(1, -1) if x.ndim == 1 else columns

    return run


@eager("Compress")
def compress(node: Node, ctx: NodeContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: ctx.xp.compress(condition, x, axis=axis)


def _why_not_multiplying_scatter(node: Node, function: Function) -> str | None:
    """Explain that CuPy cannot multiply at indices: its ``ufunc.at`` supports only sums, minima and maxima."""
    is_on_device = node.device.partition(":")[0] not in ("", "cpu")
    return "CuPy cannot multiply at indices" if is_on_device and node.attr("reduction", "none") == "mul" else None


@ops("Scatter", "ScatterElements", why_not=_why_not_multiplying_scatter, mutable=(0,))
def scatter_elements(node: Node, ctx: NodeContext) -> Run:
    axis, reduction = node.attr("axis", 0), node.attr("reduction", "none")
    return _make_scatter(ctx.xp, reduction, lambda indices: _make_element_indices(ctx.xp, indices, axis))


@ops("ScatterND", why_not=_why_not_multiplying_scatter, mutable=(0,))
def scatter_nd(node: Node, ctx: NodeContext) -> Run:
    return _make_scatter(ctx.xp, node.attr("reduction", "none"), lambda indices: tuple(ctx.xp.moveaxis(indices, -1, 0)))


def _make_scatter(xp: Any, reduction: str, make_indices: Callable[[Array], tuple[Array, ...]]) -> Run:
    """Make a kernel that writes updates at ``make_indices(indices)`` to a copy of ``x``, or to ``out``, which may be ``x``."""
    return lambda x, indices, updates, **options: xp.scatter(x, make_indices(indices), updates, reduction, **options)


@ops("TensorScatter", mutable=(0,))
def tensor_scatter(node: Node, ctx: NodeContext) -> Run:
    """Write updates to each batch entry of a cache, from its start index on. In circular mode indices wrap around."""
    xp, axis, circular = ctx.xp, node.attr("axis", -2), node.attr("mode", "linear") == "circular"

    def run(cache: Array, update: Array, starts: Array | None = None, **options: Array) -> Array:
        sequence_axis = axis % cache.ndim
        batch = cache.shape[0]
        first = xp.zeros(batch, dtype=np.int64) if starts is None else starts
        indices = first[:, None] + xp.arange(update.shape[sequence_axis])
        indices = indices % cache.shape[sequence_axis] if circular else indices
        # Move the axis next to the batch, so that a pair of indices addresses a whole entry of the cache.
        entries, new_entries = xp.moveaxis(cache, sequence_axis, 1), xp.moveaxis(update, sequence_axis, 1)
        buffers = {name: xp.moveaxis(array, sequence_axis, 1) for name, array in options.items()}
        updated = xp.scatter(entries, (xp.arange(batch)[:, None], indices), new_entries, "none", **buffers)
        return xp.moveaxis(updated, 1, sequence_axis)

    return run


@eager("NonZero")
def non_zero(node: Node, ctx: NodeContext) -> Run:
    """Return the indices of nonzero elements, with one row per axis. For a 0-d tensor the result has no rows."""
    xp = ctx.xp
    return lambda x: xp.astype(xp.stack(xp.nonzero(xp.atleast_1d(x))), np.int64)[: x.ndim]


@eager("Unique")
def unique(node: Node, ctx: NodeContext) -> Run:
    """Return the distinct elements (or slices along an axis), their first indices, inverse indices and counts."""
    xp, axis, in_order = ctx.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)  # True: return first indices, inverse, counts
        # Versions of NumPy return it in different shapes.
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)  # of the first occurrences
            inverse_order = xp.argsort(order)  # the new index of each element that `unique` has sorted
            first, counts, inverse = first[order], counts[order], inverse_order[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(xp.astype(v, np.int64) for v in (first, inverse, counts))

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, ctx: NodeContext) -> Run:
    xp, axis = ctx.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        classes = reshape_along_axis(xp.arange(count), axis, indices.ndim + 1)
        # Negative indices count from the end. An index out of range equals no class.
        is_hot = xp.expand_dims(xp.where(indices < 0, indices + count, indices), axis) == classes
        return xp.where(is_hot, values[1], values[0])

    return run


@ops("TopK", host=(1,))
def top_k(node: Node, ctx: NodeContext) -> Run:
    """Select the k largest or smallest elements along an axis, sorted. Equal elements keep their order; NaN is largest."""
    xp, axis, largest, fixed_k = ctx.xp, node.attr("axis", -1), bool(node.attr("largest", 1)), node.attr("k")

    def run(x: Array, k: Array | None = None) -> tuple[Array, Array]:
        count = fixed_k if k is None else int(k.reshape(()))
        order = xp.take(xp.argsort_stable(x, axis % x.ndim, largest), xp.arange(count), axis=axis)
        return xp.take_along_axis(x, order, axis=axis), xp.astype(order, np.int64)

    return run
