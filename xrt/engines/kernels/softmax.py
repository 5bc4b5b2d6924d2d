"""Softmax and its kin, and the losses made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.table import Array, Factory, Run, ops
from xrt.engines.toolkit.array_ops.precision import round_once, widen

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__ = ["compute_likelihood_loss", "log_softmax", "softmax"]

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
