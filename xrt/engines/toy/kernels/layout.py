"""Operators that move elements without computing: shapes, transposes, joins, splits, padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.shape import apply_reshape, center, depth_to_space, even, space_to_depth, split_axis, trim
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__ = ["apply_padding"]


# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(node: Node, env: KernelContext) -> Run:
    start, end = node.attr("start", 0), node.attr("end")
    return lambda x: np.array(x.shape[start:end], dtype=np.int64)


@ops("Size")
def size(node: Node, env: KernelContext) -> Run:
    return lambda x: np.array(x.size, dtype=np.int64)


@ops("Reshape", until=4)
def reshape_by_attribute(node: Node, env: KernelContext) -> Run:
    target = node.attr("shape", ())
    return lambda x: apply_reshape(x, target, False)


@ops("Reshape", since=5, host=(1,))
def reshape(node: Node, env: KernelContext) -> Run:
    allow_zero = bool(node.attr("allowzero", 0))
    return lambda x, target: apply_reshape(x, target.tolist(), allow_zero)


@ops("Flatten")
def flatten(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis", 1)

    def run(x: Array) -> Array:
        start = axis + x.ndim if axis < 0 else axis
        return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))

    return run


@ops("Squeeze", until=12)
def squeeze_by_attribute(node: Node, env: KernelContext) -> Run:
    axes = node.attr("axes")
    return lambda x: env.xp.squeeze(x, axis=axes)


@ops("Squeeze", since=13, host=(1,))
def squeeze(node: Node, env: KernelContext) -> Run:
    return lambda x, axes=None: env.xp.squeeze(x, axis=None if axes is None else tuple(axes.tolist()))


@ops("Unsqueeze", until=12)
def unsqueeze_by_attribute(node: Node, env: KernelContext) -> Run:
    axes = node.attr("axes")
    return lambda x: env.xp.expand_dims(x, axes)


@ops("Unsqueeze", since=13, host=(1,))
def unsqueeze(node: Node, env: KernelContext) -> Run:
    return lambda x, axes: env.xp.expand_dims(x, tuple(axes.reshape(-1).tolist()))


@ops("Expand", host=(1,))
def expand(node: Node, env: KernelContext) -> Run:
    xp = env.xp
    return lambda x, target: xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target.tolist())))


@ops("Tile", until=5, host=(1, 2))
def tile_one_axis(node: Node, env: KernelContext) -> Run:
    """Version 1 repeats along one axis, both given as scalars."""

    def run(x: Array, tiles: Array, axis: Array) -> Array:
        repeats = [1] * x.ndim
        repeats[int(axis.reshape(()))] = int(tiles.reshape(()))
        return env.xp.tile(x, repeats)

    return run


@ops("Tile", since=6, host=(1,))
def tile(node: Node, env: KernelContext) -> Run:
    return lambda x, repeats: env.xp.tile(x, repeats.tolist())


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
def transpose(node: Node, env: KernelContext) -> Run:
    order = node.attr("perm")
    return lambda x: x.transpose(order)


@ops("DepthToSpace", "SpaceToDepth")
def blocks(node: Node, env: KernelContext) -> Run:
    move = depth_to_space if node.op_type == "DepthToSpace" else space_to_depth
    block, column_first = node.attr("blocksize"), node.attr("mode", "DCR") == "CRD"
    return lambda x: move(x, block, column_first)


@ops("ReverseSequence")
def reverse_sequence(node: Node, env: KernelContext) -> Run:
    """Each batch entry is reversed in its own leading part of the time axis."""
    xp, batch, time = env.xp, node.attr("batch_axis", 1), node.attr("time_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        steps = xp.arange(x.shape[time])
        places = xp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)  # (batch, time)
        places = places if batch < time else places.T
        return xp.take_along_axis(x, places.reshape(*places.shape, *(1,) * (x.ndim - 2)), axis=time)

    return run


@ops("Trilu", host=(1,))
def trilu(node: Node, env: KernelContext) -> Run:
    keep = env.xp.triu if node.attr("upper", 1) else env.xp.tril
    return lambda x, k=None: keep(x, 0 if k is None else int(k.reshape(())))


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
def concat(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis", 1)  # the default is version 1's; later ones require it
    return lambda *parts: env.xp.concatenate(parts, axis=axis)


@ops("Split", until=12, host=(1,))
def split_by_attribute(node: Node, env: KernelContext) -> Run:
    """Version 1 may also take the sizes as an input."""
    axis, sizes, count = node.attr("axis", 0), node.attr("split"), env.n_outputs

    def run(x: Array, given: Array | None = None) -> tuple[Array, ...]:
        chosen = given.tolist() if given is not None else sizes
        return split_axis(x, chosen or even(x.shape[axis], count), axis)

    return run


@ops("Split", since=13, host=(1,))
def split(node: Node, env: KernelContext) -> Run:
    axis, count = node.attr("axis", 0), node.attr("num_outputs", env.n_outputs)
    return lambda x, sizes=None: split_axis(x, even(x.shape[axis], count) if sizes is None else sizes.tolist(), axis)


# ---------------------------------------------------------------------- padding


def apply_padding(xp: Any, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if mode != "constant":
        return xp.pad(x, more, mode=mode)
    out = xp.full([n + b + e for n, (b, e) in zip(x.shape, more, strict=True)], value, dtype=x.dtype)
    out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, more, strict=True))] = x
    return out


@ops("Pad", until=10)
def pad_by_attributes(node: Node, env: KernelContext) -> Run:
    pads, mode, value = node.attr("pads", node.attr("paddings")), node.attr("mode", "constant"), node.attr("value", 0.0)
    return lambda x: apply_padding(env.xp, x, pads, mode, value)


@ops("Pad", since=11, host=(1, 2, 3))
def pad(node: Node, env: KernelContext) -> Run:
    xp, mode = env.xp, node.attr("mode", "constant")

    def run(x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
        fill = ("" if x.dtype == object else 0) if value is None else value.reshape(()).item()
        return apply_padding(xp, x, pads.tolist(), mode, fill, None if axes is None else axes.tolist())

    return run


@ops("CenterCropPad", host=(1,))
def center_crop_pad(node: Node, env: KernelContext) -> Run:
    xp, axes = env.xp, node.attr("axes")

    def run(x: Array, target: Array) -> Array:
        chosen = range(x.ndim) if axes is None else axes
        return apply_padding(xp, x, center([x.shape[axis] for axis in chosen], target.tolist()), "constant", 0, chosen)

    return run
