"""Operators that read at places given by indices or conditions, and that look for places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("Gather")
def gather(node: Node, env: KernelContext) -> Run:
    take, axis = env.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, env: KernelContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        picked = env.xp.take(x, indices.reshape(-1), axis=-1)
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run


@ops("Compress")
def compress(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: env.xp.compress(condition, x, axis=axis)


@ops("NonZero")
def non_zero(node: Node, env: KernelContext) -> Run:
    """A tensor without axes has places without coordinates: its result has no rows."""
    xp = env.xp

    def run(x: Array) -> Array:
        return xp.stack(xp.nonzero(xp.atleast_1d(x))).astype(np.int64, copy=False)[: x.ndim]

    return run


@ops("Unique")
def unique(node: Node, env: KernelContext) -> Run:
    """Return the distinct elements (or parts along an axis), their first positions, which is where, and how many of each."""
    xp, axis, in_order = env.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)
            first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(v.astype(np.int64, copy=False) for v in (first, inverse, counts))

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, env: KernelContext) -> Run:
    xp, axis = env.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        hits = xp.expand_dims(indices % count, axis) == _along(xp.arange(count), axis, indices.ndim + 1)
        in_range = xp.expand_dims((indices >= -count) & (indices < count), axis)
        return xp.where(hits & in_range, values[1], values[0])

    return run


def _along(x: Array, axis: int, rank: int) -> Array:
    """Return a vector laid along one axis of a tensor of that rank."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _top(xp: Any, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """Return the k extreme elements along an axis, in order, and their places; equal elements by place, NaN last as greatest."""
    along = axis % x.ndim
    if largest:
        # A stable sort of the flipped axis, flipped back, is a stable descending sort; no negation, which wraps unsigned numbers.
        order = x.shape[along] - 1 - xp.flip(xp.argsort(xp.flip(x, along), axis=along, kind="stable"), along)
    else:
        order = xp.argsort(x, axis=along, kind="stable")
    order = xp.take(order, xp.arange(k), axis=along)
    return xp.take_along_axis(x, order, axis=along), order.astype(np.int64, copy=False)


@ops("TopK", until=9)
def top_k_by_attribute(node: Node, env: KernelContext) -> Run:
    xp, k, axis = env.xp, node.attr("k"), node.attr("axis", -1)
    return lambda x: _top(xp, x, k, axis, largest=True)


@ops("TopK", since=10, host=(1,))
def top_k(node: Node, env: KernelContext) -> Run:
    xp, axis, largest = env.xp, node.attr("axis", -1), bool(node.attr("largest", 1))
    return lambda x, k: _top(xp, x, int(k.reshape(())), axis, largest)
