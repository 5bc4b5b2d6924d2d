"""Operators that move elements without computing: shapes, transposes, joins, splits, padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.shape import apply_reshape, center, depth_to_space, even, space_to_depth, split_axis, trim
from xrt.engines.xla.table import Operand, either, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["apply_padding"]


# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(at: LoweringContext, x: Operand) -> Operand:
    return np.array(x.shape[at.attr("start", 0) : at.attr("end")], dtype=np.int64)


@ops("Size")
def size(at: LoweringContext, x: Operand) -> Operand:
    return np.array(x.size, dtype=np.int64)


@ops("Reshape", until=4)
@either
def reshape_by_attribute(at: LoweringContext, x: Operand) -> Operand:
    return apply_reshape(x, at.attr("shape", ()), False)


@ops("Reshape", since=5)
@either
def reshape(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    return apply_reshape(x, at.ints(target, 1), bool(at.attr("allowzero", 0)))


@ops("Flatten")
@either
def flatten(at: LoweringContext, x: Operand) -> Operand:
    axis = at.attr("axis", 1)
    start = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))


@ops("Squeeze", until=12)
@either
def squeeze_by_attribute(at: LoweringContext, x: Operand) -> Operand:
    return at.xp.squeeze(x, axis=at.attr("axes"))


@ops("Squeeze", since=13)
@either
def squeeze(at: LoweringContext, x: Operand, axes: Operand = None) -> Operand:
    return at.xp.squeeze(x, axis=None if axes is None else at.ints(axes, 1))


@ops("Unsqueeze", until=12)
@either
def unsqueeze_by_attribute(at: LoweringContext, x: Operand) -> Operand:
    return at.xp.expand_dims(x, at.attr("axes"))


@ops("Unsqueeze", since=13)
@either
def unsqueeze(at: LoweringContext, x: Operand, axes: Operand) -> Operand:
    return at.xp.expand_dims(x, at.ints(axes, 1))


@ops("Expand")
def expand(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, at.ints(target, 1))
    return (np if _is_few(x, extents) else jnp).broadcast_to(x, extents)


MOST_KNOWN = 1024
"""Elements up to which what is made of something known is known as well."""


def _is_few(x: Operand, extents: Sequence[int]) -> bool:
    return isinstance(x, np.ndarray) and prod(extents) <= MOST_KNOWN


@ops("Tile", since=6)
def tile(at: LoweringContext, x: Operand, repeats: Operand) -> Operand:
    counts = at.ints(repeats, 1)
    few = isinstance(x, np.ndarray) and x.size * prod(counts) <= MOST_KNOWN
    return (np if few else jnp).tile(x, counts)


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
@either
def transpose(at: LoweringContext, x: Operand) -> Operand:
    return x.transpose(at.attr("perm"))


@ops("DepthToSpace", "SpaceToDepth")
def blocks(at: LoweringContext, x: Operand) -> Operand:
    move = depth_to_space if at.node.op_type == "DepthToSpace" else space_to_depth
    return move(x, at.attr("blocksize"), at.attr("mode", "DCR") == "CRD")


@ops("ReverseSequence")
def reverse_sequence(at: LoweringContext, x: Operand, lengths: Operand) -> Operand:
    """Each batch entry is reversed in its own leading part of the time axis."""
    batch, time = at.attr("batch_axis", 1), at.attr("time_axis", 0)
    steps, ends = jnp.arange(x.shape[time]), jnp.asarray(lengths)[:, None]
    places = jnp.where(steps < ends, ends - 1 - steps, steps)  # (batch, time)
    places = places if batch < time else places.T
    places = places.reshape(*places.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, places, axis=time)


@ops("Trilu")
def trilu(at: LoweringContext, x: Operand, k: Operand = None) -> Operand:
    """Element (i, j) belongs to the upper triangle where ``j - i >= k``, to the lower where ``j - i <= k``."""
    offset = 0 if k is None else k.reshape(())
    ahead = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    return jnp.where(ahead >= offset if at.attr("upper", 1) else ahead <= offset, x, jnp.zeros((), x.dtype))


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
@either
def concat(at: LoweringContext, *parts: Operand) -> Operand:
    return at.xp.concatenate(parts, axis=at.attr("axis", 1))  # the default is version 1's; later ones require it


@ops("Split", since=2, until=12)
@either
def split_by_attribute(at: LoweringContext, x: Operand) -> tuple[Operand, ...]:
    axis = at.attr("axis", 0)
    return split_axis(x, at.attr("split") or even(x.shape[axis], at.n_outputs), axis)


@ops("Split", since=13)
@either
def split(at: LoweringContext, x: Operand, sizes: Operand = None) -> tuple[Operand, ...]:
    axis = at.attr("axis", 0)
    chosen = even(x.shape[axis], at.attr("num_outputs", at.n_outputs)) if sizes is None else at.ints(sizes, 1)
    return split_axis(x, chosen, axis)


# ---------------------------------------------------------------------- padding


def apply_padding(x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if mode == "constant":
        return jnp.pad(x, more, constant_values=value)
    return jnp.pad(x, more, mode=mode)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return apply_padding(x, at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0))


@ops("Pad", since=11)
def pad(at: LoweringContext, x: Operand, pads: Operand, value: Operand = None, axes: Operand = None) -> Operand:
    fill = 0 if value is None else value.reshape(())
    return apply_padding(x, at.ints(pads, 1), at.attr("mode", "constant"), fill, None if axes is None else at.ints(axes, 3))


@ops("CenterCropPad")
def center_crop_pad(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    chosen = at.attr("axes") or range(x.ndim)
    return apply_padding(x, center([x.shape[axis] for axis in chosen], at.ints(target, 1)), "constant", 0, chosen)
