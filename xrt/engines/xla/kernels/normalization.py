"""Normalizations, and a loss, that XLA needs otherwise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.kernels.normalization import normalize_batch
from xrt.engines.kernels.softmax import compute_likelihood_loss, log_softmax
from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("BatchNormalization", since=7, until=13)
def batch_normalization_by_outputs(
    at: LoweringContext, x: Operand, scale: Operand, bias: Operand, mean: Operand, var: Operand
) -> Operand:
    """Up to version 13, more than one output means training."""
    if any(at.node.outputs[1:]):
        raise at.refuse("that trains is not lowered")
    return normalize_batch(jnp, x, scale, bias, mean, var, at.attr("epsilon", 1e-5))


@ops("LpNormalization")
def lp_normalization(at: LoweringContext, x: Operand) -> Operand:
    """A vector of zeros stays zero."""
    axis, p = at.attr("axis", -1), at.attr("p", 2)

    def compute(x: Operand) -> Operand:
        norm = jnp.sum(jnp.abs(x), axis=axis, keepdims=True) if p == 1 else jnp.sqrt(jnp.sum(x * x, axis=axis, keepdims=True))
        return jnp.where(norm == 0, jnp.zeros((), x.dtype), x / norm)

    return round_once(compute)(x)


@ops("LRN")
def lrn(at: LoweringContext, x: Operand) -> Operand:
    """Divide by a power of the sum of squares over neighbouring channels."""
    size, alpha, beta, bias = at.attr("size"), at.attr("alpha", 1e-4), at.attr("beta", 0.75), at.attr("bias", 1.0)
    before = (size - 1) // 2

    def compute(x: Operand) -> Operand:
        window = (1, size, *(1,) * (x.ndim - 2))
        around = [(0, 0), (before, size - 1 - before), *((0, 0),) * (x.ndim - 2)]
        zero = jnp.zeros((), x.dtype)
        total = jax.lax.reduce_window(x * x, zero, jax.lax.add, window, (1,) * x.ndim, around)
        return x / (bias + alpha / size * total) ** beta

    return round_once(compute)(x)


@ops("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    at: LoweringContext, scores: Operand, target: Operand, weight: Operand = None
) -> tuple[Operand, Operand]:
    logs = log_softmax(at, scores, 1)
    ignored, reduction = at.attr("ignore_index"), at.attr("reduction", "mean")
    return round_once(partial(compute_likelihood_loss, jnp))(logs, target, weight, ignored, reduction), logs
