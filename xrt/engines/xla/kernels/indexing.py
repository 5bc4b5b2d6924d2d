"""Operators that read at places given by indices or ranges, and those that look for places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.table import Operand, either, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["count_from_start", "make_coordinates"]


# ---------------------------------------------------------------------- ranges


def _sliced(
    x: Operand, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Operand:
    ranges = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step, extent = 1 if steps is None else steps[i], x.shape[axis]
        # Downwards, an end before the first element is written as a number less than -extent; a slice wants None for it.
        # A start there is the first element all the same (ONNX clamps it to 0); a slice would begin before it.
        before_first = step < 0 and end < -extent
        ranges[axis] = slice(max(start, -extent) if step < 0 else start, None if before_first else end, step)
    return x[tuple(ranges)]


@ops("Slice", until=9)
@either
def slice_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return _sliced(x, at.attr("starts"), at.attr("ends"), at.attr("axes") or None, None)


@ops("Slice", since=10)
@either
def slice_(
    at: LoweringContext, x: Operand, starts: Operand, ends: Operand, axes: Operand = None, steps: Operand = None
) -> Operand:
    chosen = None if axes is None else at.ints(axes, 3)
    return _sliced(x, at.ints(starts, 1), at.ints(ends, 2), chosen, None if steps is None else at.ints(steps, 4))


# ---------------------------------------------------------------------- reading at indices


def count_from_start(indices: Operand, extent: int) -> Operand:
    """Return indices of which negative ones counted from the end."""
    return jnp.where(indices < 0, indices + extent, indices)


@ops("Gather")
@either
def gather(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    axis = at.attr("axis", 0)
    if at.xp is np:
        return np.take(x, indices, axis=axis)
    return jnp.take(x, count_from_start(indices, x.shape[axis]), axis=axis, mode="clip")


def make_coordinates(indices: Operand, axis: int, extent: int) -> tuple[Operand, ...]:
    """Return full coordinates: each index's own, but the index itself along the axis."""
    places = [jnp.arange(n).reshape([-1 if i == k else 1 for i in range(indices.ndim)]) for k, n in enumerate(indices.shape)]
    places[axis] = count_from_start(indices, extent)
    return tuple(places)


@ops("GatherElements")
def gather_elements(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    axis = at.attr("axis", 0)
    return jnp.asarray(x)[make_coordinates(indices, axis, x.shape[axis])]


@ops("GatherND")
def gather_nd(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    """Each row of the last axis of indices is a place in the axes after the batch axes."""
    batch, rank = at.attr("batch_dims", 0), indices.ndim - 1
    own = [jnp.arange(n).reshape([-1 if i == k else 1 for i in range(rank)]) for k, n in enumerate(indices.shape[:batch])]
    rows = jnp.moveaxis(jnp.asarray(indices), -1, 0)
    places = [count_from_start(row, n) for row, n in zip(rows, x.shape[batch:], strict=False)]
    return jnp.asarray(x)[(*own, *places)]


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    picked = jnp.take(x, count_from_start(indices.reshape(-1), x.shape[-1]), axis=-1, mode="clip")
    return picked.reshape(1, -1) if x.ndim == 1 else picked


# ---------------------------------------------------------------------- looking for places


@ops("ArgMax", "ArgMin")
def arg_extreme(at: LoweringContext, x: Operand) -> Operand:
    axis, keep = at.attr("axis", 0), bool(at.attr("keepdims", 1))
    find = jnp.argmax if at.node.op_type == "ArgMax" else jnp.argmin
    if not at.attr("select_last_index", 0):
        return find(x, axis=axis, keepdims=keep).astype(np.int64)
    return x.shape[axis] - 1 - find(jnp.flip(x, axis), axis=axis, keepdims=keep).astype(np.int64)


def _top(x: Operand, k: int, axis: int, largest: bool) -> tuple[Operand, Operand]:
    """Return the k extreme elements along an axis, in order, and their places; equal elements by place, NaN last as greatest."""
    along = axis % x.ndim
    order = jnp.argsort(x, axis=along, stable=True, descending=largest)
    order = jnp.take(order, jnp.arange(k), axis=along)
    return jnp.take_along_axis(x, order, axis=along), order.astype(np.int64)


@ops("TopK", until=9)
def top_k_by_attribute(at: LoweringContext, x: Operand) -> tuple[Operand, Operand]:
    return _top(x, at.attr("k"), at.attr("axis", -1), largest=True)


@ops("TopK", since=10)
def top_k(at: LoweringContext, x: Operand, k: Operand) -> tuple[Operand, Operand]:
    return _top(x, at.ints(k, 1)[0], at.attr("axis", -1), bool(at.attr("largest", 1)))
