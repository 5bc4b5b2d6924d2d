"""Reductions over axes, argmin and argmax, and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable
from math import nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import widen
from xrt.engines.kernels.table import Array, Factory, Run, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node


Axes = tuple[int, ...] | None
Reduce = Callable[[Any, Array, Axes, bool], Array]
"""``f(namespace, tensor, axes, keep)``; None as axes means all, ``keep`` keeps reduced axes with extent 1."""


def reduction(compute: Reduce) -> Factory:
    """The factory of a reduction whose axes are an attribute or, in later versions, an optional input."""

    def factory(node: Node, env: NodeContext) -> Run:
        listed, keep, xp = node.attr("axes"), bool(node.attr("keepdims", 1)), env.xp
        empty: Axes = () if node.attr("noop_with_empty_axes", 0) else None

        def run(x: Array, axes: Array | None = None) -> Array:
            chosen = listed if axes is None else axes.tolist()
            return _typed(compute, xp, x, tuple(chosen) if chosen else empty, keep)

        return run

    return factory


def _typed(compute: Reduce, xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    """Reduce, in float32 for narrower floats; the result has the tensor's dtype."""
    return xp.astype(compute(xp, widen(xp, x), axis, keep), x.dtype)


def _mean(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    if not prod(x.shape) and xp.kind(x) == "f":  # NumPy warns about the mean of an empty array
        return xp.sum(x, axis=axis, keepdims=keep) * nan
    return xp.mean(x, axis=axis, keepdims=keep)


def _least(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    if prod(x.shape):
        return xp.min(x, axis=axis, keepdims=keep)
    return xp.full(_reduced(x.shape, axis, keep), xp.extreme(x.dtype, lowest=False), dtype=x.dtype)


def greatest(xp: Any, x: Array, axis: Axes | int, keep: bool) -> Array:
    """The maximum over axes; the lowest number if they are empty. CuPy has no ``initial``."""
    if prod(x.shape):
        return xp.max(x, axis=axis, keepdims=keep)
    return xp.full(_reduced(x.shape, axis, keep), xp.extreme(x.dtype, lowest=True), dtype=x.dtype)


def _reduced(shape: tuple[int, ...], axis: Axes | int, keep: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    reduced = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = {i % len(shape) for i in reduced}
    return tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone)


def _log_sum_exp(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    """Subtracts the maximum first, so that no exponential overflows."""
    x = x if xp.kind(x) == "f" else xp.astype(x, np.float64)
    top = greatest(xp, x, axis, True)
    top = xp.where(xp.isfinite(top), top, 0)
    total = xp.log(xp.sum(xp.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keep else xp.squeeze(total, axis=tuple(range(x.ndim)) if axis is None else axis)


REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda xp, x, axis, keep: xp.sum(xp.abs(x), axis=axis, keepdims=keep),
    "ReduceL2": lambda xp, x, axis, keep: xp.sqrt(xp.sum(x * x, axis=axis, keepdims=keep)),
    "ReduceLogSum": lambda xp, x, axis, keep: xp.log(xp.sum(x, axis=axis, keepdims=keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": greatest,
    "ReduceMean": _mean,
    "ReduceMin": _least,
    "ReduceProd": lambda xp, x, axis, keep: xp.prod(x, axis=axis, keepdims=keep),
    "ReduceSum": lambda xp, x, axis, keep: xp.sum(x, axis=axis, keepdims=keep),
    "ReduceSumSquare": lambda xp, x, axis, keep: xp.sum(x * x, axis=axis, keepdims=keep),
}
for _op, _compute in REDUCTIONS.items():
    ops(_op, host=(1,))(reduction(_compute))


@ops("ArgMax", "ArgMin")
def arg_extreme(node: Node, env: NodeContext) -> Run:
    xp, axis, keep = env.xp, node.attr("axis", 0), bool(node.attr("keepdims", 1))
    find = xp.argmax if node.op_type == "ArgMax" else xp.argmin
    last = bool(node.attr("select_last_index", 0))

    def run(x: Array) -> Array:
        if not last:
            return xp.astype(find(x, axis=axis, keepdims=keep), np.int64)
        return x.shape[axis] - 1 - xp.astype(find(xp.flip(x, axis), axis=axis, keepdims=keep), np.int64)

    return run


@ops("CumSum", "CumProd", host=(1,))
def cumulative(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    accumulate, neutral = (xp.cumsum, 0) if node.op_type == "CumSum" else (xp.cumprod, 1)
    exclusive, reverse = node.attr("exclusive", 0), node.attr("reverse", 0)

    def run(x: Array, axis: Array) -> Array:
        along = int(axis.reshape(())) % x.ndim
        x = xp.flip(x, along) if reverse else x
        total = xp.astype(accumulate(x, axis=along, dtype=np.float32 if x.dtype in xp.narrow else x.dtype), x.dtype)
        if exclusive:
            first = xp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), neutral, dtype=x.dtype)
            rest = total[(slice(None),) * along + (slice(None, -1),)]
            total = xp.concatenate([first, rest], axis=along) if x.shape[along] else total
        return xp.flip(total, along) if reverse else total

    return run
