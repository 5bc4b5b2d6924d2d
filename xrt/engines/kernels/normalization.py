"""Normalisations: subtract a mean, divide by a deviation or a norm, scale and shift."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.table import Array, Factory, Run, ops
from xrt.engines.toolkit.array_ops.elements import round_once, widen
from xrt.graph import DType, Node

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext

__all__ = ["compute_likelihood_loss", "compute_statistics", "log_softmax", "normalize_batch", "softmax", "update_running"]


def _per_channel(v: Array, x: Array) -> Array:
    """Return a vector shaped to broadcast along axis 1 of the tensor; other parameters (a scale per element) as they are."""
    return v.reshape(-1, *(1,) * (x.ndim - 2)) if v.ndim == 1 else v


def _standardised(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Return the tensor with mean 0 and variance 1 over the axes, the mean, and one over the deviation."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


# ---------------------------------------------------------------------- over the batch


def normalize_batch(xp: Any, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """Return the tensor scaled and shifted by one factor and one summand per channel."""
    factor = widen(scale) / xp.sqrt(widen(var) + epsilon)
    y = widen(x) * _per_channel(factor, x)
    y += _per_channel(widen(bias) - widen(mean) * factor, x)
    return y.astype(x.dtype, copy=False)


def compute_statistics(xp: Any, x: Array, running: Array) -> tuple[Array, Array]:
    """Return mean and (population) variance over the batch, one for each element of the running mean.

    That is one per channel; before version 9, with ``spatial=0``, one per element of a sample.
    """
    axes = (0, *range(1 + running.ndim, x.ndim))
    return xp.mean(widen(x), axis=axes), xp.var(widen(x), axis=axes)


def update_running(old: Array, new: Array, momentum: float) -> Array:
    """Return the running mean of a statistic, with its new value taken in."""
    return (widen(old) * momentum + new * (1 - momentum)).astype(old.dtype)


@ops("BatchNormalization", since=14, train=True)
def batch_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon, momentum = env.xp, node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)

    def infer(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
        return normalize_batch(xp, x, scale, bias, mean, var, epsilon)

    def train(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> tuple[Array, Array, Array]:
        now, spread = compute_statistics(xp, x, mean)
        y = normalize_batch(xp, x, scale, bias, now, spread, epsilon)
        return y, update_running(mean, now, momentum), update_running(var, spread, momentum)

    return train if node.attr("training_mode", 0) else infer


# ---------------------------------------------------------------------- over the elements of one sample


@ops("InstanceNormalization")
def instance_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon = env.xp, node.attr("epsilon", 1e-5)

    def run(x: Array, scale: Array, bias: Array) -> Array:
        y, _, _ = _standardised(xp, x, tuple(range(2, x.ndim)), epsilon)
        return y * _per_channel(scale, x) + _per_channel(bias, x)

    return round_once(run)


@ops("GroupNormalization")
def group_normalization(node: Node, env: NodeContext) -> Run:
    """Before version 21 there is one scale and bias per group, since then one per channel."""
    xp, epsilon, groups = env.xp, node.attr("epsilon", 1e-5), node.attr("num_groups")

    def run(x: Array, scale: Array, bias: Array) -> Array:
        parts = x.reshape(len(x), groups, -1)
        y = _standardised(xp, parts, (2,), epsilon)[0].reshape(x.shape)
        each = x.shape[1] // len(scale)
        return y * _per_channel(xp.repeat(scale, each), x) + _per_channel(xp.repeat(bias, each), x)

    return round_once(run)


def _stash(node: Node, x: Array) -> Array:
    """Return the tensor in the type in which the node computes its statistics."""
    dtype = DType.from_onnx(node.attr("stash_type", DType.FLOAT32.onnx)).numpy
    return x.astype(dtype, copy=False)


@ops("LayerNormalization")
def layer_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon, axis = env.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)

    def run(x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, Array, Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        y, mean, inverse = _standardised(xp, _stash(node, x), axes, epsilon)
        y = widen(y.astype(x.dtype, copy=False)) * widen(scale)
        y = y if bias is None else y + widen(bias)
        return y.astype(x.dtype, copy=False), mean, inverse

    return run


@ops("RMSNormalization")
def rms_normalization(node: Node, env: NodeContext) -> Run:
    xp, epsilon, axis = env.xp, node.attr("epsilon", 1e-5), node.attr("axis", -1)

    def run(x: Array, scale: Array) -> Array:
        wide = _stash(node, x)
        square = xp.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
        y = (wide / xp.sqrt(square + epsilon)).astype(x.dtype, copy=False)
        return (widen(y) * widen(scale)).astype(scale.dtype, copy=False)

    return run


@ops("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, env: NodeContext) -> Run:
    axes = node.attr("axes", (0, 2, 3))
    return round_once(lambda x: _standardised(env.xp, x, tuple(axes), 1e-9)[0])


Along = Callable[[Any, Array, int], Array]
"""Takes the context, the tensor and the one axis."""


def softmax(env: NodeContext, x: Array, axis: int) -> Array:
    """Return the exponentials along an axis over their sum; the greatest is taken out first, so none overflows.

    Each step is rounded to the tensor's type, as in the function body that defines the operator.
    """
    powers = env.xp.exp(env.primitives.subtract_max(x, axis))
    powers /= env.xp.sum(widen(powers), axis=axis, keepdims=True).astype(x.dtype, copy=False)
    return powers


def log_softmax(env: NodeContext, x: Array, axis: int) -> Array:
    """Return the logarithm of `softmax`, computed without the quotient; narrow floats are rounded once."""
    xp, shifted = env.xp, env.primitives.subtract_max(widen(x), axis)
    return (shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))).astype(x.dtype, copy=False)


def hardmax(env: NodeContext, x: Array, axis: int) -> Array:
    """Return one at the first greatest element along the axis, zero elsewhere."""
    xp = env.xp
    first = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    places = xp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))
    return (places == first).astype(x.dtype)


def _along_axis(compute: Along) -> Factory:
    def factory(node: Node, env: NodeContext) -> Run:
        axis = node.attr("axis", -1)
        return lambda x: compute(env, x, axis)

    return factory


def _flattened(compute: Along) -> Factory:
    """Before version 13, all axes from ``axis`` on are one."""

    def factory(node: Node, env: NodeContext) -> Run:
        axis = node.attr("axis", 1)

        def run(x: Array) -> Array:
            start = axis + x.ndim if axis < 0 else axis
            rows = x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))
            return compute(env, rows, -1).reshape(x.shape)

        return run

    return factory


for _op, _compute in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
    ops(_op, since=13)(_along_axis(_compute))
    ops(_op, until=12)(_flattened(_compute))


def _weights(xp: Any, target: Array, weight: Array | None, ignored: int | None, classes: int, dtype: Any) -> tuple[Array, Array]:
    """Return each target's weight, zero for the ignored ones, and the targets made safe to index with."""
    counts = xp.ones(target.shape, dtype=bool) if ignored is None else target != ignored
    safe = xp.where(counts, target, 0)
    each = xp.ones(target.shape, dtype=dtype) if weight is None else xp.take(weight, safe)
    return xp.where(counts, each, each.dtype.type(0)), safe


def compute_likelihood_loss(
    xp: Any, logs: Array, target: Array, weight: Array | None, ignored: int | None, reduction: str
) -> Array:
    """Return minus the logarithm (N, C, ...) at each target (N, ...), weighted, and averaged over the weights or summed."""
    weights, safe = _weights(xp, target, weight, ignored, logs.shape[1], logs.dtype)
    picked = xp.take_along_axis(logs, xp.expand_dims(safe, 1).astype(np.int64), axis=1).squeeze(1)
    loss = -picked * weights
    if reduction == "none":
        return loss
    total = xp.sum(loss)
    return total if reduction == "sum" else total / xp.sum(weights)


@ops("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(node: Node, env: NodeContext) -> Run:
    xp, ignored, reduction = env.xp, node.attr("ignore_index"), node.attr("reduction", "mean")

    def run(logs: Array, target: Array, weight: Array | None = None) -> Array:
        return compute_likelihood_loss(xp, logs, target, weight, ignored, reduction)

    return round_once(run)
