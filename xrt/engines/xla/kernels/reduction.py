"""Reductions over axes, and running sums along one."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import extreme, widen
from xrt.engines.xla.lowering_context import LoweringContext
from xrt.engines.xla.table import Kernel, Operand, either, is_either, ops

__all__: list[str] = []

Axes = tuple[int, ...] | None
Reduce = Callable[[LoweringContext, Operand, Axes, bool], Operand]
"""Takes the site, the tensor, the axes (None for all) and whether they are kept with extent 1."""


def reduction(op_type: str, axes_are_input_since: int = 18) -> Callable[[Reduce], Reduce]:
    """Register a reduction: axes come as an attribute before some version, and as an optional input since."""

    def register(compute: Reduce) -> Reduce:
        by_attribute, by_input = _by_attribute(compute), _by_input(compute)
        if is_either(compute):
            by_attribute, by_input = either(by_attribute), either(by_input)
        ops(op_type, until=axes_are_input_since - 1)(by_attribute)
        ops(op_type, since=axes_are_input_since)(by_input)
        return compute

    return register


def _by_attribute(compute: Reduce) -> Kernel:
    def kernel(at: LoweringContext, x: Operand) -> Operand:
        axes = at.attr("axes")
        return _typed(compute, at, x, tuple(axes) if axes else None)

    return kernel


def _by_input(compute: Reduce) -> Kernel:
    def kernel(at: LoweringContext, x: Operand, axes: Operand = None) -> Operand:
        empty: Axes = () if at.attr("noop_with_empty_axes", 0) else None
        return _typed(compute, at, x, empty if axes is None or axes.size == 0 else at.ints(axes, 1))

    return kernel


def _typed(compute: Reduce, at: LoweringContext, x: Operand, axis: Axes) -> Operand:
    """Reduce, in float32 for narrower floats; the result has the tensor's type."""
    return at.xp.asarray(compute(at, widen(x), axis, bool(at.attr("keepdims", 1)))).astype(x.dtype)


@reduction("ReduceSum", axes_are_input_since=13)
@either
def reduce_sum(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return at.xp.sum(x, axis=axis, keepdims=keep)


@reduction("ReduceMean")
def reduce_mean(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return jnp.mean(x, axis=axis, keepdims=keep)


@reduction("ReduceProd")
@either
def reduce_prod(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return at.xp.prod(x, axis=axis, keepdims=keep)


@reduction("ReduceMax")
@either
def reduce_max(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return at.xp.max(x, axis=axis, keepdims=keep, initial=extreme(x.dtype, lowest=True))


@reduction("ReduceMin")
@either
def reduce_min(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return at.xp.min(x, axis=axis, keepdims=keep, initial=extreme(x.dtype, lowest=False))


@reduction("ReduceL1")
def reduce_l1(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return jnp.sum(jnp.abs(x), axis=axis, keepdims=keep)


@reduction("ReduceL2")
def reduce_l2(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return jnp.sqrt(reduce_sum_square(at, x, axis, keep))


@reduction("ReduceSumSquare")
def reduce_sum_square(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return jnp.sum(x * x, axis=axis, keepdims=keep)


@reduction("ReduceLogSum")
def reduce_log_sum(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    return jnp.log(jnp.sum(x, axis=axis, keepdims=keep))


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(at: LoweringContext, x: Operand, axis: Axes, keep: bool) -> Operand:
    """The largest element is taken out first, so that no exponential overflows."""
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float64)
    top = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keep else jnp.squeeze(total, axis=tuple(range(x.ndim)) if axis is None else axis)


@ops("CumSum", "CumProd")
def cumulative(at: LoweringContext, x: Operand, axis: Operand) -> Operand:
    accumulate, neutral = (jnp.cumsum, 0) if at.node.op_type == "CumSum" else (jnp.cumprod, 1)
    along, wide = at.ints(axis, 1)[0] % x.ndim, widen(x)
    wide = jnp.flip(wide, along) if at.attr("reverse", 0) else wide
    total = accumulate(wide, axis=along, dtype=wide.dtype)
    if at.attr("exclusive", 0) and x.shape[along]:
        first = jnp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), neutral, dtype=wide.dtype)
        total = jnp.concatenate([first, total[(slice(None),) * along + (slice(None, -1),)]], axis=along)
    return (jnp.flip(total, along) if at.attr("reverse", 0) else total).astype(x.dtype)
