"""Reductions over axes, argmin and argmax, cumulative sums; normalizations and softmax."""

from __future__ import annotations

from collections.abc import Callable
from math import nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import round_once, widen
from xrt.engines.kernels.table import Array, Factory, Run, ops
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node


Axes = tuple[int, ...] | None
Reduce = Callable[[Any, Array, Axes, bool], Array]
"""``f(namespace, tensor, axes, keep)``; None as axes means all, ``keep`` keeps reduced axes with extent 1."""


def reduction(compute: Reduce) -> Factory:
    """The factory of a reduction whose axes are an attribute or, in later versions, an optional input."""

    def factory(node: Node, env: NodeContext) -> Run:
        fixed_axes, keep, xp = node.attr("axes"), bool(node.attr("keepdims", 1)), env.xp
        empty: Axes = () if node.attr("noop_with_empty_axes", 0) else None

        def run(x: Array, axes: Array | None = None) -> Array:
            reduced = fixed_axes if axes is None else axes.tolist()
            return _reduce_widened(compute, xp, x, tuple(reduced) if reduced else empty, keep)

        return run

    return factory


def _reduce_widened(compute: Reduce, xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    """Reduce, in float32 for narrower floats; the result has the tensor's dtype."""
    return xp.astype(compute(xp, widen(xp, x), axis, keep), x.dtype)


def _mean(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    if not prod(x.shape) and xp.kind(x) == "f":  # NumPy warns about the mean of an empty array
        return xp.sum(x, axis=axis, keepdims=keep) * nan
    return xp.mean(x, axis=axis, keepdims=keep)


def _least(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    if prod(x.shape):
        return xp.min(x, axis=axis, keepdims=keep)
    return xp.full(_get_reduced_shape(x.shape, axis, keep), xp.extreme(x.dtype, lowest=False), dtype=x.dtype)


def greatest(xp: Any, x: Array, axis: Axes | int, keep: bool) -> Array:
    """The maximum over axes; the lowest number if they are empty. CuPy has no ``initial``."""
    if prod(x.shape):
        return xp.max(x, axis=axis, keepdims=keep)
    return xp.full(_get_reduced_shape(x.shape, axis, keep), xp.extreme(x.dtype, lowest=True), dtype=x.dtype)


def _get_reduced_shape(shape: tuple[int, ...], axis: Axes | int, keep: bool) -> tuple[int, ...]:
    """The shape after a reduction over ``axis``: one axis or several, None for all; negative ones count from the end."""
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    positions = {i % len(shape) for i in axes}
    return tuple(1 if i in positions else n for i, n in enumerate(shape) if keep or i not in positions)


def _log_sum_exp(xp: Any, x: Array, axis: Axes, keep: bool) -> Array:
    """Subtracts the maximum first, so that no exponential overflows."""
    x = x if xp.kind(x) == "f" else xp.astype(x, np.float64)
    top = greatest(xp, x, axis, True)
    # Infinity less infinity would be NaN.
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
        # The last of equal elements is the first one of the flipped axis.
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
            # Shifted by one, so that no element is part of its own sum or product.
            first = xp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), neutral, dtype=x.dtype)
            rest = total[(slice(None),) * along + (slice(None, -1),)]
            total = xp.concatenate([first, rest], axis=along) if x.shape[along] else total
        return xp.flip(total, along) if reverse else total

    return run


def _per_channel(v: Array, x: Array) -> Array:
    """Reshape a vector to broadcast along axis 1 of the tensor; other parameters (one per element) are unchanged."""
    return v.reshape(-1, *(1,) * (x.ndim - 2)) if v.ndim == 1 else v


def _standardize(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Standardize over the axes; return the result, the mean, and the inverse standard deviation."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


# ---------------------------------------------------------------------- over the batch


def _normalize_batch(xp: Any, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """Normalize with mean and variance per channel, then scale and shift."""
    factor = widen(xp, scale) / xp.sqrt(widen(xp, var) + epsilon)
    y = widen(xp, x) * _per_channel(factor, x)
    y += _per_channel(widen(xp, bias) - widen(xp, mean) * factor, x)
    return xp.astype(y, x.dtype)


def _compute_statistics(xp: Any, x: Array, running: Array) -> tuple[Array, Array]:
    """Mean and population variance over the batch, one for each element of the running mean.

    That is one per channel, or before version 9 with ``spatial=0`` one per element of a sample.
    """
    axes = (0, *range(1 + running.ndim, x.ndim))
    return xp.mean(widen(xp, x), axis=axes), xp.var(widen(xp, x), axis=axes)


def _update_running(xp: Any, old: Array, new: Array, momentum: float) -> Array:
    """Update the running mean of a statistic."""
    return xp.astype(widen(xp, old) * momentum + new * (1 - momentum), old.dtype)


@ops("BatchNormalization", since=14, train=True)
@ops("BatchNormalization", until=13)
def batch_normalization(node: Node, env: NodeContext) -> Run:
    """Training mode is requested by an attribute since version 14, by several outputs from 7 to 13, by ``is_test=0`` up to 6."""
    xp, version, epsilon, momentum = env.xp, env.version, node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    if version >= 14:
        training = bool(node.attr("training_mode", 0))
    else:
        training = any(node.outputs[1:]) if version > 6 else not node.attr("is_test", 0)

    def infer(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
        return _normalize_batch(xp, x, scale, bias, mean, var, epsilon)

    def train(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> tuple[Array, ...]:
        now, spread = _compute_statistics(xp, x, mean)
        y = _normalize_batch(xp, x, scale, bias, now, spread, epsilon)
        # Up to version 13 the statistics of the batch are outputs too.
        saved = (xp.astype(now, mean.dtype), xp.astype(spread, var.dtype)) if version < 14 else ()
        return y, _update_running(xp, mean, now, momentum), _update_running(xp, var, spread, momentum), *saved

    return train if training else infer


# ---------------------------------------------------------------------- over the elements of one sample


@ops("InstanceNormalization")
def instance_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon = env.xp, node.attr("epsilon", 1e-5)

    def run(x: Array, scale: Array, bias: Array) -> Array:
        y, _, _ = _standardize(xp, x, tuple(range(2, x.ndim)), epsilon)
        return y * _per_channel(scale, x) + _per_channel(bias, x)

    return round_once(xp, run)


@ops("GroupNormalization")
def group_normalization(node: Node, env: NodeContext) -> Run:
    """One scale and bias per group before version 21, per channel since then."""
    xp, epsilon, groups = env.xp, node.attr("epsilon", 1e-5), node.attr("num_groups")

    def run(x: Array, scale: Array, bias: Array) -> Array:
        parts = x.reshape(len(x), groups, -1)
        y = _standardize(xp, parts, (2,), epsilon)[0].reshape(x.shape)
        # One scale per group or per channel: repeated to one per channel in both cases.
        each = x.shape[1] // len(scale)
        return y * _per_channel(xp.repeat(scale, each), x) + _per_channel(xp.repeat(bias, each), x)

    return round_once(xp, run)


def _cast_to_stash(xp: Any, node: Node, x: Array) -> Array:
    """Cast the tensor to the type in which the node computes its statistics."""
    dtype = DType.from_onnx(node.attr("stash_type", DType.FLOAT32.onnx)).numpy
    return xp.astype(x, dtype)


@ops("LayerNormalization")
def layer_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon, axis = env.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)

    def run(x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, Array, Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        y, mean, inverse = _standardize(xp, _cast_to_stash(xp, node, x), axes, epsilon)
        # The operator's function body rounds to the tensor's type before it scales.
        y = widen(xp, xp.astype(y, x.dtype)) * widen(xp, scale)
        y = y if bias is None else y + widen(xp, bias)
        return xp.astype(y, x.dtype), mean, inverse

    return run


@ops("RMSNormalization")
def rms_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon, axis = env.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)

    def run(x: Array, scale: Array) -> Array:
        wide = _cast_to_stash(xp, node, x)
        square = xp.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
        y = xp.astype(wide / xp.sqrt(square + epsilon), x.dtype)
        return xp.astype(widen(xp, y) * widen(xp, scale), scale.dtype)

    return run


@ops("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, env: NodeContext) -> Run:
    axes = node.attr("axes", (0, 2, 3))
    return round_once(env.xp, lambda x: _standardize(env.xp, x, tuple(axes), 1e-9)[0])


@ops("LpNormalization")
def lp_normalization(node: Node, env: NodeContext) -> Run:
    """A zero vector stays zero."""
    xp, axis, p = env.xp, node.attr("axis", -1), node.attr("p", 2)

    def run(x: Array) -> Array:
        norm = xp.sum(xp.abs(x) ** p, axis=axis, keepdims=True) ** (1 / p)
        return xp.where(norm == 0, 0, x / norm)

    return round_once(xp, run)


@ops("LRN")
def lrn(node: Node, env: NodeContext) -> Run:
    """Divide by a power of the sum of squares over neighboring channels."""
    xp, size = env.xp, node.attr("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    # With an even size, one channel more comes after the element than before it.
    before = (size - 1) // 2

    def run(x: Array) -> Array:
        channels = x.shape[1]
        squares = xp.pad_axes(x * x, (before, size - 1 - before), "constant", 0, (1,))
        total = squares[:, :channels]
        for shift in range(1, size):
            total = total + squares[:, shift : shift + channels]
        return x / (bias + alpha / size * total) ** beta

    return round_once(xp, run)


Along = Callable[[Any, Array, int], Array]
"""``f(namespace, tensor, axis)``."""


def softmax(xp: Any, x: Array, axis: int) -> Array:
    """Exponentials along an axis divided by their sum; the maximum is subtracted first to avoid overflow.

    Each step is rounded to the tensor's type, as in the function body that defines the operator.
    """
    powers = xp.exp(xp.subtract_max(x, axis))
    powers /= xp.astype(xp.sum(widen(xp, powers), axis=axis, keepdims=True), x.dtype)
    return powers


def log_softmax(xp: Any, x: Array, axis: int) -> Array:
    """The logarithm of `softmax` without the division; narrow floats are rounded once."""
    shifted = xp.subtract_max(widen(xp, x), axis)
    return xp.astype(shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True)), x.dtype)


def hardmax(xp: Any, x: Array, axis: int) -> Array:
    """One at the first maximum along the axis, zero elsewhere."""
    first = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    places = xp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))
    return xp.astype(places == first, x.dtype)


def along_axis(compute: Along) -> Factory:
    def factory(node: Node, env: NodeContext) -> Run:
        axis = node.attr("axis", -1)
        return lambda x: compute(env.xp, x, axis)

    return factory


def flatten_axes(compute: Along) -> Factory:
    """Before version 13, the axes from ``axis`` on are flattened to one."""

    def factory(node: Node, env: NodeContext) -> Run:
        axis = node.attr("axis", 1)

        def run(x: Array) -> Array:
            # Not a remainder: an axis equal to the rank is valid.
            start = axis + x.ndim if axis < 0 else axis
            rows = x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))
            return compute(env.xp, rows, -1).reshape(x.shape)

        return run

    return factory


for _op, _along in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
    ops(_op, since=13)(along_axis(_along))
    ops(_op, until=12)(flatten_axes(_along))
