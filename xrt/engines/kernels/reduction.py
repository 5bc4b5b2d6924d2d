"""Reductions, argmin and argmax, cumulative sums, normalizations and softmax."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np

from xrt.engines.kernels.arrays import flatten_to_matrix, reshape_along_axis, round_once, widen
from xrt.engines.kernels.table import Array, Factory, NodeContext, Run, ops
from xrt.graph import DType, Node

Axes = tuple[int, ...] | None
ReduceFunction = Callable[[Any, Array, Axes, bool], Array]
"""``f(namespace, tensor, axes, keepdims)``. None as ``axes`` means all axes."""


def _mean(xp: Any, x: Array, axis: Axes, keepdims: bool) -> Array:
    if 0 in x.shape and xp.dtype_kind(x) == "f":  # NumPy warns about the mean of an empty array
        return xp.sum(x, axis=axis, keepdims=keepdims) * nan
    return xp.mean(x, axis=axis, keepdims=keepdims)


def _reduce_min(xp: Any, x: Array, axis: Axes, keepdims: bool) -> Array:
    return _fill_reduced(xp, x, axis, keepdims, lowest=False) if 0 in x.shape else xp.min(x, axis=axis, keepdims=keepdims)


def reduce_max(xp: Any, x: Array, axis: Axes | int, keepdims: bool) -> Array:
    """Compute the maximum over axes; the lowest number if there are no elements."""
    return _fill_reduced(xp, x, axis, keepdims, lowest=True) if 0 in x.shape else xp.max(x, axis=axis, keepdims=keepdims)


def _fill_reduced(xp: Any, x: Array, axis: Axes | int, keepdims: bool, *, lowest: bool) -> Array:
    """Make the minimum or maximum of an empty tensor, for which array libraries raise: the extreme value of its dtype."""
    # NumPy computes the shape of the result by a reduction that supports empty arrays.
    shape = np.any(np.empty(x.shape, bool), axis=axis, keepdims=keepdims).shape
    return xp.full(shape, xp.get_extreme_value(x.dtype, lowest=lowest), dtype=x.dtype)


def _log_sum_exp(xp: Any, x: Array, axis: Axes, keepdims: bool) -> Array:
    """Compute log(sum(exp(x))). The maximum is subtracted first, so that no exponential overflows."""
    x = x if xp.dtype_kind(x) == "f" else xp.astype(x, np.float64)
    top = reduce_max(xp, x, axis, True)
    # Do not subtract an infinite maximum, because infinity minus infinity is NaN.
    top = xp.where(xp.isfinite(top), top, 0)
    total = xp.log(xp.sum(xp.exp(x - top), axis=axis, keepdims=True)) + top
    if keepdims:
        return total
    return xp.squeeze(total, axis=tuple(range(x.ndim)) if axis is None else axis)


REDUCTIONS: dict[str, ReduceFunction] = {
    "ReduceL1": lambda xp, x, axis, keepdims: xp.sum(xp.abs(x), axis=axis, keepdims=keepdims),
    "ReduceL2": lambda xp, x, axis, keepdims: xp.sqrt(xp.sum(x * x, axis=axis, keepdims=keepdims)),
    "ReduceLogSum": lambda xp, x, axis, keepdims: xp.log(xp.sum(x, axis=axis, keepdims=keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": reduce_max,
    "ReduceMean": _mean,
    "ReduceMin": _reduce_min,
    "ReduceProd": lambda xp, x, axis, keepdims: xp.prod(x, axis=axis, keepdims=keepdims),
    "ReduceSum": lambda xp, x, axis, keepdims: xp.sum(x, axis=axis, keepdims=keepdims),
    "ReduceSumSquare": lambda xp, x, axis, keepdims: xp.sum(x * x, axis=axis, keepdims=keepdims),
}


@ops(*REDUCTIONS, host=(1,))
def reduce_axes(node: Node, ctx: NodeContext) -> Run:
    """Reduce over the axes in an attribute or, in later versions, an optional input. Floats under 32 bits are widened."""
    compute, xp = REDUCTIONS[node.op_type], ctx.xp
    fixed_axes, keepdims = node.attr("axes"), bool(node.attr("keepdims", 1))
    # Without axes all are reduced, or with `noop_with_empty_axes` none.
    default: Axes = () if node.attr("noop_with_empty_axes", 0) else None

    def run(x: Array, axes: Array | None = None) -> Array:
        listed = fixed_axes if axes is None else axes.tolist()
        result = compute(xp, widen(xp, x), tuple(listed) if listed else default, keepdims)
        return xp.astype(result, x.dtype)

    return run


@ops("ArgMax", "ArgMin")
def arg_max_or_min(node: Node, ctx: NodeContext) -> Run:
    xp, axis, keepdims = ctx.xp, node.attr("axis", 0), bool(node.attr("keepdims", 1))
    find = xp.argmax if node.op_type == "ArgMax" else xp.argmin
    last = bool(node.attr("select_last_index", 0))

    def run(x: Array) -> Array:
        if not last:
            return xp.astype(find(x, axis=axis, keepdims=keepdims), np.int64)
        # The last of equal elements is the first one of the flipped axis.
        return x.shape[axis] - 1 - xp.astype(find(xp.flip(x, axis), axis=axis, keepdims=keepdims), np.int64)

    return run


@ops("CumSum", "CumProd", host=(1,))
def cumulative(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    accumulate, neutral = (xp.cumsum, 0) if node.op_type == "CumSum" else (xp.cumprod, 1)
    exclusive, reverse = node.attr("exclusive", 0), node.attr("reverse", 0)

    def run(x: Array, axis: Array) -> Array:
        along = int(axis.reshape(())) % x.ndim
        x = xp.flip(x, along) if reverse else x  # the result is flipped back
        wide = np.float32 if x.dtype in xp.narrow else x.dtype
        total = xp.astype(accumulate(x, axis=along, dtype=wide), x.dtype)
        if exclusive and x.shape[along]:
            # Shift by one element, so that no element is part of its own sum or product.
            first = xp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), neutral, dtype=x.dtype)
            all_but_last = total[(slice(None),) * along + (slice(None, -1),)]
            total = xp.concatenate([first, all_but_last], axis=along)
        return xp.flip(total, along) if reverse else total

    return run


def _per_channel(v: Array, x: Array) -> Array:
    """Reshape a vector ``v``, one number per channel, to broadcast with ``x`` (N, C, ...). Other shapes are unchanged."""
    return reshape_along_axis(v, 1, x.ndim) if v.ndim == 1 else v


def _standardize(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Normalize to zero mean and unit variance over the axes; return the result, the mean and the inverse standard deviation."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


def _normalize_batch(xp: Any, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """Normalize ``x`` by the mean and variance per channel, then apply scale and bias."""
    factor = widen(xp, scale) / xp.sqrt(widen(xp, var) + epsilon)
    y = widen(xp, x) * _per_channel(factor, x)
    y += _per_channel(widen(xp, bias) - widen(xp, mean) * factor, x)
    return xp.astype(y, x.dtype)


def _update_running(xp: Any, old: Array, new: Array, momentum: float) -> Array:
    return xp.astype(widen(xp, old) * momentum + new * (1 - momentum), old.dtype)


@ops("BatchNormalization", since=14, train=True)
@ops("BatchNormalization", until=13)
def batch_normalization(node: Node, ctx: NodeContext) -> Run:
    """The training form has ``training_mode=1`` (since 14), several outputs (7 to 13), or ``is_test=0`` (up to 6)."""
    xp, version, epsilon, momentum = ctx.xp, ctx.version, node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    if version >= 14:
        training = bool(node.attr("training_mode", 0))
    else:
        training = any(node.outputs[1:]) if version > 6 else not node.attr("is_test", 0)

    def infer(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
        return _normalize_batch(xp, x, scale, bias, mean, var, epsilon)

    def train(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> tuple[Array, ...]:
        # A running mean has one number per channel, or, before version 9 with `spatial=0`, one per element of a sample.
        axes = (0, *range(1 + mean.ndim, x.ndim))
        batch_mean, batch_var = xp.mean(widen(xp, x), axis=axes), xp.var(widen(xp, x), axis=axes)
        y = _normalize_batch(xp, x, scale, bias, batch_mean, batch_var, epsilon)
        # Up to version 13 the statistics of the batch are also outputs.
        saved = (xp.astype(batch_mean, mean.dtype), xp.astype(batch_var, var.dtype)) if version < 14 else ()
        return y, _update_running(xp, mean, batch_mean, momentum), _update_running(xp, var, batch_var, momentum), *saved

    return train if training else infer


@ops("InstanceNormalization")
def instance_normalization(node: Node, ctx: NodeContext) -> Run:
    xp, epsilon = ctx.xp, node.attr("epsilon", 1e-5)

    def run(x: Array, scale: Array, bias: Array) -> Array:
        y, _, _ = _standardize(xp, x, tuple(range(2, x.ndim)), epsilon)
        return y * _per_channel(scale, x) + _per_channel(bias, x)

    return round_once(xp, run)


@ops("GroupNormalization")
def group_normalization(node: Node, ctx: NodeContext) -> Run:
    """There is one scale and bias per group before version 21, and one per channel since then."""
    xp, epsilon, groups = ctx.xp, node.attr("epsilon", 1e-5), node.attr("num_groups")

    def run(x: Array, scale: Array, bias: Array) -> Array:
        parts = x.reshape(len(x), groups, -1)
        y = _standardize(xp, parts, (2,), epsilon)[0].reshape(x.shape)
        # Repeat the scale and bias of a group for its channels. Those of a channel are "repeated" once.
        repeats = x.shape[1] // len(scale)
        return y * _per_channel(xp.repeat(scale, repeats), x) + _per_channel(xp.repeat(bias, repeats), x)

    return round_once(xp, run)


@ops("LayerNormalization")
def layer_normalization(node: Node, ctx: NodeContext) -> Run:
    xp, epsilon, axis = ctx.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)
    statistics_dtype = (ctx.get_dtype_attribute("stash_type") or DType.FLOAT32).numpy

    def run(x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, Array, Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        y, mean, inverse = _standardize(xp, xp.astype(x, statistics_dtype), axes, epsilon)
        # ONNX's definition rounds to the type of the input before it applies scale and bias.
        y = widen(xp, xp.astype(y, x.dtype)) * widen(xp, scale)
        y = y if bias is None else y + widen(xp, bias)
        return xp.astype(y, x.dtype), mean, inverse

    return run


@ops("RMSNormalization")
def rms_normalization(node: Node, ctx: NodeContext) -> Run:
    xp, epsilon, axis = ctx.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)
    statistics_dtype = (ctx.get_dtype_attribute("stash_type") or DType.FLOAT32).numpy

    def run(x: Array, scale: Array) -> Array:
        wide = xp.astype(x, statistics_dtype)
        square = xp.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
        y = xp.astype(wide / xp.sqrt(square + epsilon), x.dtype)
        return xp.astype(widen(xp, y) * widen(xp, scale), scale.dtype)

    return run


@ops("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, ctx: NodeContext) -> Run:
    axes = node.attr("axes", (0, 2, 3))
    return round_once(ctx.xp, lambda x: _standardize(ctx.xp, x, tuple(axes), 1e-9)[0])


@ops("LpNormalization")
def lp_normalization(node: Node, ctx: NodeContext) -> Run:
    """Divide by the norm along an axis. A zero vector stays zero."""
    xp, axis, p = ctx.xp, node.attr("axis", -1), node.attr("p", 2)

    def run(x: Array) -> Array:
        norm = xp.sum(xp.abs(x) ** p, axis=axis, keepdims=True) ** (1 / p)
        return xp.where(norm == 0, 0, x / norm)

    return round_once(xp, run)


@ops("LRN")
def lrn(node: Node, ctx: NodeContext) -> Run:
    """Divide by a power of the sum of squares over neighboring channels."""
    xp, size = ctx.xp, node.attr("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    # With an even size, the window has one more channel after the element than before it.
    before = (size - 1) // 2

    def run(x: Array) -> Array:
        channels = x.shape[1]
        squares = xp.pad_axes(x * x, (before, size - 1 - before), "constant", 0, (1,))
        total = squares[:, :channels]
        for shift in range(1, size):
            total = total + squares[:, shift : shift + channels]
        return x / (bias + alpha / size * total) ** beta

    return round_once(xp, run)


def softmax(xp: Any, x: Array, axis: int) -> Array:
    """Compute softmax along an axis. Each step is rounded to the type of the tensor, as in ONNX's definition."""
    powers = xp.exp(xp.subtract_max(x, axis))
    powers /= xp.astype(xp.sum(widen(xp, powers), axis=axis, keepdims=True), x.dtype)
    return powers


def log_softmax(xp: Any, x: Array, axis: int) -> Array:
    """Compute the logarithm of `softmax`, without its division. Floats under 32 bits are computed in float32."""
    shifted = xp.subtract_max(widen(xp, x), axis)
    return xp.astype(shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True)), x.dtype)


def hardmax(xp: Any, x: Array, axis: int) -> Array:
    """Return ones at the first maximum along the axis, and zeros elsewhere."""
    first = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    indices = reshape_along_axis(xp.arange(x.shape[axis]), axis, x.ndim)
    return xp.astype(indices == first, x.dtype)


def make_axis_factory(compute: Callable[[Any, Array, int], Array]) -> Factory:
    """Make the factory of a kernel that calls ``compute(namespace, tensor, axis)`` with the attribute ``axis``."""

    def factory(node: Node, ctx: NodeContext) -> Run:
        axis = node.attr("axis", -1)
        return lambda x: compute(ctx.xp, x, axis)

    return factory


def make_flattening_factory(compute: Callable[[Any, Array, int], Array]) -> Factory:
    """Make the factory of a kernel that merges ``axis`` and all later axes to one axis, as Softmax does before version 13."""

    def factory(node: Node, ctx: NodeContext) -> Run:
        axis = node.attr("axis", 1)

        def run(x: Array) -> Array:
            return compute(ctx.xp, flatten_to_matrix(x, axis), -1).reshape(x.shape)

        return run

    return factory


for _op, _compute_along in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
    ops(_op, since=13)(make_axis_factory(_compute_along))
    ops(_op, until=12)(make_flattening_factory(_compute_along))
