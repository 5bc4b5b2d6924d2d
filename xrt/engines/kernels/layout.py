"""Operators that move elements: reshape, transpose, joins, slices, padding; reads and writes at positions, and searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import along, even, split_axis
from xrt.engines.kernels.table import Array, Run, eager, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Function, Node


# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(node: Node, env: NodeContext) -> Run:
    start, end = node.attr("start", 0), node.attr("end")
    return lambda x: env.xp.sizes(x.shape[start:end])


@ops("Size")
def size(node: Node, env: NodeContext) -> Run:
    return lambda x: env.xp.sizes(prod(x.shape))


def _reshape(x: Array, target: Sequence[int], allow_zero: bool) -> Array:
    """Reshape as ONNX does: 0 copies the extent at that position, unless ``allow_zero``."""
    extents = list(target) if allow_zero else [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    if -1 in extents and not prod(x.shape):  # libraries cannot infer an extent next to one that is zero
        rest = prod(n for n in extents if n != -1)
        extents[extents.index(-1)] = 0 if rest else 1
    return x.reshape(tuple(extents))


@ops("Reshape", host=(1,))
def reshape(node: Node, env: NodeContext) -> Run:
    fixed_shape, allow_zero = node.attr("shape", ()), bool(node.attr("allowzero", 0))
    return lambda x, target=None: _reshape(x, fixed_shape if target is None else target.tolist(), allow_zero)


@ops("Flatten")
def flatten(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 1)

    def run(x: Array) -> Array:
        # Not a remainder: an axis equal to the rank is valid, and the result then has one column.
        start = axis + x.ndim if axis < 0 else axis
        return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))

    return run


@ops("Squeeze", host=(1,))
def squeeze(node: Node, env: NodeContext) -> Run:
    fixed_axes = node.attr("axes")
    return lambda x, axes=None: env.xp.squeeze(x, axis=fixed_axes if axes is None else tuple(axes.tolist()))


@ops("Unsqueeze", host=(1,))
def unsqueeze(node: Node, env: NodeContext) -> Run:
    fixed_axes = node.attr("axes")
    return lambda x, axes=None: env.xp.expand_dims(x, fixed_axes if axes is None else tuple(axes.reshape(-1).tolist()))


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
def transpose(node: Node, env: NodeContext) -> Run:
    order = node.attr("perm")
    return lambda x: env.xp.transpose(x, order)


@ops("DepthToSpace")
def depth_to_space(node: Node, env: NodeContext) -> Run:
    """Rearrange channels (N, C, H, W) into spatial blocks."""
    xp, block, column_first = env.xp, node.attr("blocksize"), node.attr("mode", "DCR") == "CRD"

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        if column_first:
            blocks = xp.transpose(x.reshape(n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3))
        else:
            blocks = xp.transpose(x.reshape(n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2))
        return blocks.reshape(n, c // block**2, h * block, w * block)

    return run


@ops("SpaceToDepth")
def space_to_depth(node: Node, env: NodeContext) -> Run:
    """Rearrange spatial blocks (N, C, H, W) into channels."""
    xp, block, column_first = env.xp, node.attr("blocksize"), node.attr("mode", "DCR") == "CRD"

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // block, block, w // block, block)
        blocks = xp.transpose(blocks, (0, 1, 3, 5, 2, 4) if column_first else (0, 3, 5, 1, 2, 4))
        return blocks.reshape(n, c * block**2, h // block, w // block)

    return run


@ops("ReverseSequence")
def reverse_sequence(node: Node, env: NodeContext) -> Run:
    """Reverse the first ``sequence_lens[b]`` time steps of each batch entry b."""
    xp, batch, time = env.xp, node.attr("batch_axis", 1), node.attr("time_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        steps = xp.arange(x.shape[time])
        sources = xp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)  # (batch, time)
        # Batch and time are the first two axes, in either order; the others broadcast.
        sources = sources if batch < time else xp.transpose(sources)
        return xp.take_along_axis(x, sources.reshape(*sources.shape, *(1,) * (x.ndim - 2)), axis=time)

    return run


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
def concat(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 1)  # the default is version 1's; later ones require it
    return lambda *parts: env.xp.concatenate(parts, axis=axis)


@ops("Split", host=(1,))
def split(node: Node, env: NodeContext) -> Run:
    axis, fixed_sizes, count = node.attr("axis", 0), node.attr("split"), node.attr("num_outputs", env.n_outputs)

    def run(x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
        extents = fixed_sizes if sizes is None else sizes.tolist()
        return split_axis(x, even(x.shape[axis], count) if extents is None else extents, axis)

    return run


# ---------------------------------------------------------------------- ranges


def _slice(
    xp: Any, x: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Array:
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step, extent = 1 if steps is None else steps[i], x.shape[axis]
        lead = (slice(None),) * axis
        if step > 0:
            x = x[(*lead, slice(start, end, step))]
            continue
        # PyTorch has no negative steps: flip the slice. ONNX clamps the start to the axis, and the end to -1.
        first = min(max(start + extent if start < 0 else start, 0), extent - 1)
        last = max(end + extent if end < 0 else end, -1)
        x = xp.flip(x[(*lead, slice(last + 1, first + 1))], axis)[(*lead, slice(None, None, -step))]
    return x


@ops("Slice", host=(1, 2, 3, 4))
def slice_(node: Node, env: NodeContext) -> Run:
    fixed_bounds = [node.attr("starts"), node.attr("ends"), node.attr("axes") or None, None]

    def run(x: Array, *bounds: Array | None) -> Array:
        inputs = [None if bound is None else bound.reshape(-1).tolist() for bound in bounds]
        return _slice(env.xp, x, *[*inputs, None, None][:4] if inputs else fixed_bounds)

    return run


# ---------------------------------------------------------------------- repetition and padding


@eager("Expand", host=(1,))
def expand(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    return lambda x, target: xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target.tolist())))


@eager("Tile", until=5, host=(1, 2))
def tile_one_axis(node: Node, env: NodeContext) -> Run:
    """Version 1 repeats along one axis, both given as scalars."""

    def run(x: Array, tiles: Array, axis: Array) -> Array:
        repeats = [1] * x.ndim
        repeats[int(axis.reshape(()))] = int(tiles.reshape(()))
        return env.xp.tile(x, repeats)

    return run


@eager("Tile", since=6, host=(1,))
def tile(node: Node, env: NodeContext) -> Run:
    return lambda x, repeats: env.xp.tile(x, repeats.tolist())


@ops("Trilu")
def trilu(node: Node, env: NodeContext) -> Run:
    """Element (i, j) is in the upper triangle if ``j - i >= k``, in the lower one if ``j - i <= k``."""
    xp, upper = env.xp, node.attr("upper", 1)

    def run(x: Array, k: Array | None = None) -> Array:
        offset = 0 if k is None else k.reshape(())
        ahead = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        # A typed zero: a Python zero would turn booleans into integers.
        return xp.where(ahead >= offset if upper else ahead <= offset, x, xp.zeros((), dtype=x.dtype))

    return run


@eager("Pad", host=(1, 2, 3))
def pad(node: Node, env: NodeContext) -> Run:
    xp, mode = env.xp, node.attr("mode", "constant")
    fixed_pads, number = node.attr("pads", node.attr("paddings")), node.attr("value", 0)

    def run(x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None) -> Array:
        fill = ("" if xp.kind(x) == "O" else number) if value is None else value.reshape(()).item()
        amounts = fixed_pads if pads is None else pads.tolist()
        return xp.pad_axes(x, amounts, mode, fill, None if axes is None else axes.tolist())

    return run


# ---------------------------------------------------------------------- reading at indices


@ops("GatherElements")
def gather_elements(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 0)
    # A constant may be a NumPy array, which cannot be indexed by the indices of a traced program.
    return lambda x, indices: env.xp.asarray(x)[_element_places(env.xp, indices, axis)]


def _element_places(xp: Any, indices: Array, axis: int) -> tuple[Array, ...]:
    """Coordinates of all elements of ``indices``, where the coordinate along ``axis`` is replaced by the index."""
    places = _index_grid(xp, indices.shape)
    places[axis] = indices
    return tuple(places)


def _index_grid(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """Coordinates along each axis, shaped to broadcast over the others."""
    return [along(xp.arange(extent), axis, len(shape)) for axis, extent in enumerate(shape)]


@ops("GatherND")
def gather_nd(node: Node, env: NodeContext) -> Run:
    """Each row of the last axis of indices is a position in the axes after the batch axes."""
    xp, batch = env.xp, node.attr("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        positions = _index_grid(xp, indices.shape[:batch])
        positions = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in positions]
        return xp.asarray(x)[(*positions, *xp.moveaxis(indices, -1, 0))]

    return run


@ops("Gather")
def gather(node: Node, env: NodeContext) -> Run:
    take, axis = env.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, env: NodeContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        columns = env.xp.take(x, indices.reshape(-1), axis=-1)
        return columns.reshape(1, -1) if x.ndim == 1 else columns

    return run


@eager("Compress")
def compress(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: env.xp.compress(condition, x, axis=axis)


# ---------------------------------------------------------------------- writing at indices


def _why_not_multiplied(node: Node, function: Function) -> str | None:
    """CuPy's `at` supports sums, minima and maxima only."""
    on_device = node.device.partition(":")[0] not in ("", "cpu")
    return "CuPy cannot multiply at places" if on_device and node.attr("reduction", "none") == "mul" else None


@ops("Scatter", "ScatterElements", why_not=_why_not_multiplied, mutable=(0,))
def scatter_elements(node: Node, env: NodeContext) -> Run:
    axis, reduction = node.attr("axis", 0), node.attr("reduction", "none")
    return _make_scatter(env.xp, reduction, lambda indices: _element_places(env.xp, indices, axis))


@ops("ScatterND", why_not=_why_not_multiplied, mutable=(0,))
def scatter_nd(node: Node, env: NodeContext) -> Run:
    return _make_scatter(env.xp, node.attr("reduction", "none"), lambda indices: tuple(env.xp.moveaxis(indices, -1, 0)))


def _make_scatter(xp: Any, reduction: str, find_places: Callable[[Array], tuple[Array, ...]]) -> Run:
    """Make a kernel that writes updates at positions; ``out`` is written in place and may be the first argument."""

    def run(x: Array, indices: Array, updates: Array, **options: Array) -> Array:
        return xp.scatter(x, find_places(indices), updates, reduction, **options)

    return run


@ops("TensorScatter", mutable=(0,))
def tensor_scatter(node: Node, env: NodeContext) -> Run:
    """Write to each batch entry of a cache from its write index on; wraps around in circular mode."""
    xp, axis, circular = env.xp, node.attr("axis", -2), node.attr("mode", "linear") == "circular"

    def run(cache: Array, update: Array, starts: Array | None = None, **options: Array) -> Array:
        along, batch = axis % cache.ndim, cache.shape[0]
        first = xp.zeros(batch, dtype=np.int64) if starts is None else starts
        places = first[:, None] + xp.arange(update.shape[along])
        places = places % cache.shape[along] if circular else places
        # With the axis next to the batch, a pair of indices addresses a whole entry of the cache.
        rows, new = xp.moveaxis(cache, along, 1), xp.moveaxis(update, along, 1)
        buffers = {name: xp.moveaxis(array, along, 1) for name, array in options.items()}
        return xp.moveaxis(xp.scatter(rows, (xp.arange(batch)[:, None], places), new, "none", **buffers), 1, along)

    return run


# ---------------------------------------------------------------------- looking for places


@eager("NonZero")
def non_zero(node: Node, env: NodeContext) -> Run:
    """The coordinates of nonzero elements, one row per axis; a 0-d tensor has no axes, so the result has no rows."""
    xp = env.xp

    def run(x: Array) -> Array:
        return xp.astype(xp.stack(xp.nonzero(xp.atleast_1d(x))), np.int64)[: x.ndim]

    return run


@eager("Unique")
def unique(node: Node, env: NodeContext) -> Run:
    """Distinct elements (or slices along an axis), first positions, inverse indices, and counts."""
    xp, axis, in_order = env.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)
        # Its shape differs between versions of NumPy.
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)
            first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(xp.astype(v, np.int64) for v in (first, inverse, counts))

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, env: NodeContext) -> Run:
    xp, axis = env.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        classes = along(xp.arange(count), axis, indices.ndim + 1)
        # Negative indices count from the end; those out of range match no class.
        hits = xp.expand_dims(xp.where(indices < 0, indices + count, indices), axis) == classes
        return xp.where(hits, values[1], values[0])

    return run


def _find_top(xp: Any, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis, sorted, and their indices; ties by index, NaN counts as largest."""
    order = xp.take(xp.order(x, axis % x.ndim, largest), xp.arange(k), axis=axis)
    return xp.take_along_axis(x, order, axis=axis), xp.astype(order, np.int64)


@ops("TopK", host=(1,))
def top_k(node: Node, env: NodeContext) -> Run:
    axis, largest, fixed_k = node.attr("axis", -1), bool(node.attr("largest", 1)), node.attr("k")
    return lambda x, k=None: _find_top(env.xp, x, fixed_k if k is None else int(k.reshape(())), axis, largest)
