"""Operators that read at places given by indices, and that look for places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.table import Operand, either, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


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


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    picked = jnp.take(x, count_from_start(indices.reshape(-1), x.shape[-1]), axis=-1, mode="clip")
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@ops("OneHot")
def one_hot(at: LoweringContext, indices: Operand, depth: Operand, values: Operand) -> Operand:
    count, axis = at.ints(depth, 1)[0], at.attr("axis", -1)
    rank = indices.ndim + 1
    whole = indices.astype(jnp.int64)
    classes = jnp.arange(count).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    hits = jnp.expand_dims(count_from_start(whole, count), axis) == classes
    return jnp.where(hits, values[1], values[0])


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
