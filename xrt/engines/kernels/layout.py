"""Operators that move elements without computing: shapes, transposes, joins, splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.elements import apply_reshape, center, depth_to_space, even, space_to_depth, split_axis
from xrt.engines.toolkit.array_ops.resampling import read, sample_grid

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Function, Node

# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(node: Node, env: NodeContext) -> Run:
    start, end = node.attr("start", 0), node.attr("end")
    return lambda x: np.array(x.shape[start:end], dtype=np.int64)


@ops("Size")
def size(node: Node, env: NodeContext) -> Run:
    return lambda x: np.array(x.size, dtype=np.int64)


@ops("Reshape", until=4)
def reshape_by_attribute(node: Node, env: NodeContext) -> Run:
    target = node.attr("shape", ())
    return lambda x: apply_reshape(x, target, False)


@ops("Reshape", since=5, host=(1,))
def reshape(node: Node, env: NodeContext) -> Run:
    allow_zero = bool(node.attr("allowzero", 0))
    return lambda x, target: apply_reshape(x, target.tolist(), allow_zero)


@ops("Flatten")
def flatten(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 1)

    def run(x: Array) -> Array:
        start = axis + x.ndim if axis < 0 else axis
        return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))

    return run


@ops("Squeeze", until=12)
def squeeze_by_attribute(node: Node, env: NodeContext) -> Run:
    axes = node.attr("axes")
    return lambda x: env.xp.squeeze(x, axis=axes)


@ops("Squeeze", since=13, host=(1,))
def squeeze(node: Node, env: NodeContext) -> Run:
    return lambda x, axes=None: env.xp.squeeze(x, axis=None if axes is None else tuple(axes.tolist()))


@ops("Unsqueeze", until=12)
def unsqueeze_by_attribute(node: Node, env: NodeContext) -> Run:
    axes = node.attr("axes")
    return lambda x: env.xp.expand_dims(x, axes)


@ops("Unsqueeze", since=13, host=(1,))
def unsqueeze(node: Node, env: NodeContext) -> Run:
    return lambda x, axes: env.xp.expand_dims(x, tuple(axes.reshape(-1).tolist()))


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
def transpose(node: Node, env: NodeContext) -> Run:
    order = node.attr("perm")
    return lambda x: x.transpose(order)


@ops("DepthToSpace", "SpaceToDepth")
def blocks(node: Node, env: NodeContext) -> Run:
    move = depth_to_space if node.op_type == "DepthToSpace" else space_to_depth
    block, column_first = node.attr("blocksize"), node.attr("mode", "DCR") == "CRD"
    return lambda x: move(x, block, column_first)


@ops("ReverseSequence")
def reverse_sequence(node: Node, env: NodeContext) -> Run:
    """Each batch entry is reversed in its own leading part of the time axis."""
    xp, batch, time = env.xp, node.attr("batch_axis", 1), node.attr("time_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        steps = xp.arange(x.shape[time])
        places = xp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)  # (batch, time)
        places = places if batch < time else places.T
        return xp.take_along_axis(x, places.reshape(*places.shape, *(1,) * (x.ndim - 2)), axis=time)

    return run


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
def concat(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 1)  # the default is version 1's; later ones require it
    return lambda *parts: env.xp.concatenate(parts, axis=axis)


@ops("Split", until=12, host=(1,))
def split_by_attribute(node: Node, env: NodeContext) -> Run:
    """Version 1 may also take the sizes as an input."""
    axis, sizes, count = node.attr("axis", 0), node.attr("split"), env.n_outputs

    def run(x: Array, given: Array | None = None) -> tuple[Array, ...]:
        chosen = given.tolist() if given is not None else sizes
        return split_axis(x, chosen or even(x.shape[axis], count), axis)

    return run


@ops("Split", since=13, host=(1,))
def split(node: Node, env: NodeContext) -> Run:
    axis, count = node.attr("axis", 0), node.attr("num_outputs", env.n_outputs)
    return lambda x, sizes=None: split_axis(x, even(x.shape[axis], count) if sizes is None else sizes.tolist(), axis)


@ops("CenterCropPad", host=(1,))
def center_crop_pad(node: Node, env: NodeContext) -> Run:
    axes = node.attr("axes")

    def run(x: Array, target: Array) -> Array:
        chosen = range(x.ndim) if axes is None else axes
        pads = center([x.shape[axis] for axis in chosen], target.tolist())
        return env.primitives.pad(x, pads, "constant", 0, chosen)

    return run


# ---------------------------------------------------------------------- ranges


def _sliced(
    x: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Array:
    ranges = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step = 1 if steps is None else steps[i]
        # Downwards, an end before the first element is written as a number less than -extent; a slice wants None for it.
        # A start there is the first element all the same (ONNX clamps it to 0); a slice would begin before it.
        extent = x.shape[axis]
        before_first = step < 0 and end < -extent
        ranges[axis] = slice(max(start, -extent) if step < 0 else start, None if before_first else end, step)
    return x[tuple(ranges)]


@ops("Slice", until=9)
def slice_by_attributes(node: Node, env: NodeContext) -> Run:
    starts, ends, axes = node.attr("starts"), node.attr("ends"), node.attr("axes")
    return lambda x: _sliced(x, starts, ends, axes or None, None)


@ops("Slice", since=10, host=(1, 2, 3, 4))
def slice_(node: Node, env: NodeContext) -> Run:
    def run(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
        lists = (None if given is None else given.reshape(-1).tolist() for given in (axes, steps))
        return _sliced(x, starts.reshape(-1).tolist(), ends.reshape(-1).tolist(), *lists)

    return run


# ---------------------------------------------------------------------- reading at indices


@ops("GatherElements")
def gather_elements(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 0)
    return lambda x, indices: env.xp.asarray(x)[_element_places(env.xp, indices, axis)]


def _element_places(xp: Any, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return full coordinates: each index's own, but the index itself along the axis."""
    places = _own_places(xp, indices.shape)
    places[axis] = indices
    return tuple(places)


def _own_places(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """Return for each axis the coordinates along it, to spread over the others."""
    return [_along(xp.arange(extent), axis, len(shape)) for axis, extent in enumerate(shape)]


@ops("GatherND")
def gather_nd(node: Node, env: NodeContext) -> Run:
    """Each row of the last axis of indices is a place in the axes after the batch axes."""
    xp, batch = env.xp, node.attr("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        own = _own_places(xp, indices.shape[:batch])
        own = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in own]
        return xp.asarray(x)[(*own, *xp.moveaxis(indices, -1, 0))]

    return run


@ops("GridSample")
def grid_sample(node: Node, env: NodeContext) -> Run:
    """Read a tensor between its elements."""
    xp, how = env.xp, sample_grid(node)
    return lambda x, grid: read(xp, xp.asarray(x), xp.asarray(grid), how)


# ---------------------------------------------------------------------- writing at indices


def _why_not_multiplied(node: Node, function: Function) -> str | None:
    """CuPy adds at places, and takes the least and the greatest, and has no other `at`."""
    on_device = node.device.partition(":")[0] not in ("", "cpu")
    return "CuPy cannot multiply at places" if on_device and node.attr("reduction", "none") == "mul" else None


@ops("Scatter", "ScatterElements", why_not=_why_not_multiplied, mutable=(0,))
def scatter_elements(node: Node, env: NodeContext) -> Run:
    axis, reduction = node.attr("axis", 0), node.attr("reduction", "none")
    return _scattering(env, reduction, lambda indices: _element_places(env.xp, indices, axis))


@ops("ScatterND", why_not=_why_not_multiplied, mutable=(0,))
def scatter_nd(node: Node, env: NodeContext) -> Run:
    return _scattering(env, node.attr("reduction", "none"), lambda indices: tuple(env.xp.moveaxis(indices, -1, 0)))


def _scattering(env: NodeContext, reduction: str, find_places: Callable[[Array], tuple[Array, ...]]) -> Run:
    """Return a kernel that writes updates at places; with ``out``, into that array, which may be the first argument itself."""

    def run(x: Array, indices: Array, updates: Array, **named: Array) -> Array:
        return env.primitives.scatter(x, find_places(indices), updates, reduction, **named)

    return run


@ops("TensorScatter", mutable=(0,))
def tensor_scatter(node: Node, env: NodeContext) -> Run:
    """Each batch entry of a cache is written from its own place on, around the end when circular."""
    xp, axis, circular = env.xp, node.attr("axis", -2), node.attr("mode", "linear") == "circular"

    def run(cache: Array, update: Array, starts: Array | None = None, **named: Array) -> Array:
        along, batch = axis % cache.ndim, cache.shape[0]
        first = xp.zeros(batch, dtype=np.int64) if starts is None else starts
        places = first[:, None] + xp.arange(update.shape[along])
        places = places % cache.shape[along] if circular else places
        rows, new = xp.moveaxis(cache, along, 1), xp.moveaxis(update, along, 1)
        turned = {name: xp.moveaxis(array, along, 1) for name, array in named.items()}
        return xp.moveaxis(env.primitives.scatter(rows, (xp.arange(batch)[:, None], places), new, "none", **turned), 1, along)

    return run


def _along(x: Array, axis: int, rank: int) -> Array:
    """Return a vector laid along one axis of a tensor of that rank."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
