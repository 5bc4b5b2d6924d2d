"""Operators that move elements without computing: shapes, transposes, joins, splits, padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand, either, ops

__all__ = ["padded"]


# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(at: Site, x: Operand) -> Operand:
    return np.array(x.shape[at.attr("start", 0) : at.attr("end")], dtype=np.int64)


@ops("Size")
def size(at: Site, x: Operand) -> Operand:
    return np.array(x.size, dtype=np.int64)


def _reshaped(x: Operand, target: Sequence[int], allow_zero: bool) -> Operand:
    """A zero copies the extent in that place, unless zeros are allowed."""
    if not allow_zero:
        target = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(target)]
    return x.reshape(tuple(target))


@ops("Reshape", until=4)
@either
def reshape_by_attribute(at: Site, x: Operand) -> Operand:
    return _reshaped(x, at.attr("shape", ()), False)


@ops("Reshape", since=5)
@either
def reshape(at: Site, x: Operand, target: Operand) -> Operand:
    return _reshaped(x, at.ints(target, 1), bool(at.attr("allowzero", 0)))


@ops("Flatten")
@either
def flatten(at: Site, x: Operand) -> Operand:
    axis = at.attr("axis", 1)
    start = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))


@ops("Squeeze", until=12)
@either
def squeeze_by_attribute(at: Site, x: Operand) -> Operand:
    return at.xp.squeeze(x, axis=at.attr("axes"))


@ops("Squeeze", since=13)
@either
def squeeze(at: Site, x: Operand, axes: Operand = None) -> Operand:
    return at.xp.squeeze(x, axis=None if axes is None else at.ints(axes, 1))


@ops("Unsqueeze", until=12)
@either
def unsqueeze_by_attribute(at: Site, x: Operand) -> Operand:
    return at.xp.expand_dims(x, at.attr("axes"))


@ops("Unsqueeze", since=13)
@either
def unsqueeze(at: Site, x: Operand, axes: Operand) -> Operand:
    return at.xp.expand_dims(x, at.ints(axes, 1))


@ops("Expand")
def expand(at: Site, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, at.ints(target, 1))
    return (np if _is_few(x, extents) else jnp).broadcast_to(x, extents)


MOST_KNOWN = 1024
"""Elements up to which what is made of something known is known as well."""


def _is_few(x: Operand, extents: Sequence[int]) -> bool:
    return isinstance(x, np.ndarray) and prod(extents) <= MOST_KNOWN


@ops("Tile", since=6)
def tile(at: Site, x: Operand, repeats: Operand) -> Operand:
    counts = at.ints(repeats, 1)
    few = isinstance(x, np.ndarray) and x.size * prod(counts) <= MOST_KNOWN
    return (np if few else jnp).tile(x, counts)


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
@either
def transpose(at: Site, x: Operand) -> Operand:
    return x.transpose(at.attr("perm"))


@ops("DepthToSpace")
def depth_to_space(at: Site, x: Operand) -> Operand:
    block, (n, c, h, w) = at.attr("blocksize"), x.shape
    if at.attr("mode", "DCR") == "CRD":
        parts = x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


@ops("SpaceToDepth")
def space_to_depth(at: Site, x: Operand) -> Operand:
    block, (n, c, h, w) = at.attr("blocksize"), x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block)
    parts = parts.transpose(0, 1, 3, 5, 2, 4) if at.attr("mode", "DCR") == "CRD" else parts.transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


@ops("ReverseSequence")
def reverse_sequence(at: Site, x: Operand, lengths: Operand) -> Operand:
    """Each batch entry is reversed in its own leading part of the time axis."""
    batch, time = at.attr("batch_axis", 1), at.attr("time_axis", 0)
    steps, ends = jnp.arange(x.shape[time]), jnp.asarray(lengths)[:, None]
    places = jnp.where(steps < ends, ends - 1 - steps, steps)  # (batch, time)
    places = places if batch < time else places.T
    places = places.reshape(*places.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, places, axis=time)


@ops("Trilu")
def trilu(at: Site, x: Operand, k: Operand = None) -> Operand:
    """Element (i, j) belongs to the upper triangle where ``j - i >= k``, to the lower where ``j - i <= k``."""
    offset = 0 if k is None else k.reshape(())
    ahead = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    return jnp.where(ahead >= offset if at.attr("upper", 1) else ahead <= offset, x, jnp.zeros((), x.dtype))


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
@either
def concat(at: Site, *parts: Operand) -> Operand:
    return at.xp.concatenate(parts, axis=at.attr("axis", 1))  # the default is version 1's; later ones require it


def _parts(x: Operand, sizes: Sequence[int], axis: int) -> tuple[Operand, ...]:
    ends = list(accumulate(sizes))
    lead = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*lead, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True))


def _even(extent: int, count: int) -> list[int]:
    """Return ``count`` equal sizes, the last one smaller where they do not divide the extent."""
    each = -(-extent // count)
    return [max(0, min(each, extent - i * each)) for i in range(count)]


@ops("Split", since=2, until=12)
@either
def split_by_attribute(at: Site, x: Operand) -> tuple[Operand, ...]:
    axis = at.attr("axis", 0)
    return _parts(x, at.attr("split") or _even(x.shape[axis], at.n_outputs), axis)


@ops("Split", since=13)
@either
def split(at: Site, x: Operand, sizes: Operand = None) -> tuple[Operand, ...]:
    axis = at.attr("axis", 0)
    even = _even(x.shape[axis], at.attr("num_outputs", at.n_outputs))
    return _parts(x, even if sizes is None else at.ints(sizes, 1), axis)


# ---------------------------------------------------------------------- padding


def padded(x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    chosen = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    widths = [(0, 0)] * x.ndim
    for axis, begin, end in zip(chosen, pads[: len(chosen)], pads[len(chosen) :], strict=True):
        widths[axis] = (begin, end)
    x = x[tuple(slice(max(0, -b), n + min(0, e)) for n, (b, e) in zip(x.shape, widths, strict=True))]
    more = [(max(0, b), max(0, e)) for b, e in widths]
    if mode == "constant":
        return jnp.pad(x, more, constant_values=value)
    return jnp.pad(x, more, mode=mode)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: Site, x: Operand) -> Operand:
    return padded(x, at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0))


@ops("Pad", since=11)
def pad(at: Site, x: Operand, pads: Operand, value: Operand = None, axes: Operand = None) -> Operand:
    fill = 0 if value is None else value.reshape(())
    return padded(x, at.ints(pads, 1), at.attr("mode", "constant"), fill, None if axes is None else at.ints(axes, 3))


@ops("CenterCropPad")
def center_crop_pad(at: Site, x: Operand, target: Operand) -> Operand:
    """An odd number of elements more, or fewer, is one more at the end."""
    chosen = at.attr("axes") or range(x.ndim)
    more = [extent - x.shape[axis] for extent, axis in zip(at.ints(target, 1), chosen, strict=True)]
    begins = [abs(extra) // 2 * (1 if extra > 0 else -1) for extra in more]
    ends = [extra - begin for extra, begin in zip(more, begins, strict=True)]
    return padded(x, [*begins, *ends], "constant", 0, chosen)
