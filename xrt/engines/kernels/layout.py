"""Operators that move elements without computing: shapes, transposes, joins, splits."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.shape import apply_reshape, center, depth_to_space, even, space_to_depth, split_axis

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__: list[str] = []


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
