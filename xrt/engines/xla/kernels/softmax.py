"""Softmax and its kin, and the losses made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import round_once, widen
from xrt.engines.xla.table import Kernel, Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["log_softmax", "softmax"]

Along = Callable[[Operand, int], Operand]
"""Takes the tensor and the one axis."""


def _below_top(x: Operand, axis: int) -> Operand:
    """Return each element less the greatest along the axis; the greatest itself gives exactly zero.

    If x is a product, XLA computes it again for the difference, within an FMA and so unrounded: for large numbers, the greatest
    would be hundreds away from itself.
    """
    top = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    return jnp.where(x == top, top - top, x - top)


def softmax(x: Operand, axis: int) -> Operand:
    """Return the exponentials along an axis over their sum; the greatest is taken out first, so none overflows.

    Each step is rounded to the tensor's type, as in the function body that defines the operator.
    """
    powers = jnp.exp(_below_top(x, axis))
    return powers / jnp.sum(widen(powers), axis=axis, keepdims=True).astype(x.dtype)


def log_softmax(x: Operand, axis: int) -> Operand:
    """Return the logarithm of `softmax`, computed without the quotient; narrow floats are rounded once."""
    shifted = _below_top(widen(x), axis)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))).astype(x.dtype)


def hardmax(x: Operand, axis: int) -> Operand:
    """Return one at the first greatest element along the axis, zero elsewhere."""
    first = jnp.argmax(x, axis=axis, keepdims=True)
    places = jnp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))
    return (places == first).astype(x.dtype)


def _along_axis(compute: Along) -> Kernel:
    return lambda at, x: compute(x, at.attr("axis", -1))


def _flattened(compute: Along) -> Kernel:
    """Before version 13, all axes from ``axis`` on are one."""

    def kernel(at: LoweringContext, x: Operand) -> Operand:
        axis = at.attr("axis", 1)
        start = axis + x.ndim if axis < 0 else axis
        return compute(x.reshape(prod(x.shape[:start]), prod(x.shape[start:])), -1).reshape(x.shape)

    return kernel


for _op, _compute in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
    ops(_op, since=13)(_along_axis(_compute))
    ops(_op, until=12)(_flattened(_compute))


def _weights(target: Operand, weight: Operand, ignored: int | None, dtype: jnp.dtype) -> tuple[Operand, Operand]:
    """Return each target's weight, zero for the ignored ones, and the targets made safe to index with."""
    counts = jnp.ones(target.shape, bool) if ignored is None else target != ignored
    safe = jnp.where(counts, target, 0)
    each = jnp.ones(target.shape, dtype) if weight is None else jnp.take(weight, safe, mode="clip")
    return jnp.where(counts, each, 0), safe


def _likelihood_loss(logs: Operand, target: Operand, weight: Operand, ignored: int | None, reduction: str) -> Operand:
    """Return minus the logarithm (N, C, ...) at each target (N, ...), weighted, and averaged over the weights or summed."""
    weights, safe = _weights(target, weight, ignored, logs.dtype)
    picked = jnp.take_along_axis(logs, jnp.expand_dims(safe, 1), axis=1).squeeze(1)
    loss = -picked * weights
    if reduction == "none":
        return loss
    total = jnp.sum(loss)
    return total if reduction == "sum" else total / jnp.sum(weights)


@ops("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(at: LoweringContext, logs: Operand, target: Operand, weight: Operand = None) -> Operand:
    return round_once(_likelihood_loss)(logs, target, weight, at.attr("ignore_index"), at.attr("reduction", "mean"))


@ops("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    at: LoweringContext, scores: Operand, target: Operand, weight: Operand = None
) -> tuple[Operand, Operand]:
    logs = log_softmax(scores, 1)
    ignored, reduction = at.attr("ignore_index"), at.attr("reduction", "mean")
    return round_once(_likelihood_loss)(logs, target, weight, ignored, reduction), logs
