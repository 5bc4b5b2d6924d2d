"""Normalisations: subtract a mean, divide by a deviation or a norm, scale and shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import round_once, widen
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


def _per_channel(v: Operand, x: Operand) -> Operand:
    """Return a vector shaped to broadcast along axis 1 of the tensor; other parameters (a scale per element) as they are."""
    return v.reshape(-1, *(1,) * (x.ndim - 2)) if v.ndim == 1 else v


def _standardised(x: Operand, axes: tuple[int, ...], epsilon: float) -> tuple[Operand, Operand, Operand]:
    """Return the tensor with mean 0 and variance 1 over the axes, the mean, and one over the deviation."""
    mean = jnp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / jnp.sqrt(jnp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


# ---------------------------------------------------------------------- over the batch


def _batch_normal(x: Operand, scale: Operand, bias: Operand, mean: Operand, var: Operand, epsilon: float) -> Operand:
    """Return the tensor scaled and shifted by one factor and one summand per channel."""
    factor = widen(scale) / jnp.sqrt(widen(var) + epsilon)
    y = widen(x) * _per_channel(factor, x) + _per_channel(widen(bias) - widen(mean) * factor, x)
    return y.astype(x.dtype)


@ops("BatchNormalization", since=7, until=13)
def batch_normalization_by_outputs(
    at: LoweringContext, x: Operand, scale: Operand, bias: Operand, mean: Operand, var: Operand
) -> Operand:
    """Up to version 13, more than one output means training."""
    if any(at.node.outputs[1:]):
        raise at.refuse("that trains is not lowered")
    return _batch_normal(x, scale, bias, mean, var, at.attr("epsilon", 1e-5))


@ops("BatchNormalization", since=14, train=True)
def batch_normalization(
    at: LoweringContext, x: Operand, scale: Operand, bias: Operand, mean: Operand, var: Operand
) -> Operand | tuple[Operand, ...]:
    epsilon, momentum = at.attr("epsilon", 1e-5), at.attr("momentum", 0.9)
    if not at.attr("training_mode", 0):
        return _batch_normal(x, scale, bias, mean, var, epsilon)
    axes = (0, *range(2, x.ndim))
    now, spread = jnp.mean(widen(x), axis=axes), jnp.var(widen(x), axis=axes)
    y = _batch_normal(x, scale, bias, now, spread, epsilon)
    return y, _running(mean, now, momentum), _running(var, spread, momentum)


def _running(old: Operand, new: Operand, momentum: float) -> Operand:
    return (widen(old) * momentum + new * (1 - momentum)).astype(old.dtype)


# ---------------------------------------------------------------------- over the elements of one sample


@ops("InstanceNormalization")
def instance_normalization(at: LoweringContext, x: Operand, scale: Operand, bias: Operand) -> Operand:
    epsilon = at.attr("epsilon", 1e-5)

    def compute(x: Operand, scale: Operand, bias: Operand) -> Operand:
        y, _, _ = _standardised(x, tuple(range(2, x.ndim)), epsilon)
        return y * _per_channel(scale, x) + _per_channel(bias, x)

    return round_once(compute)(x, scale, bias)


@ops("GroupNormalization")
def group_normalization(at: LoweringContext, x: Operand, scale: Operand, bias: Operand) -> Operand:
    """Before version 21 there is one scale and bias per group, since then one per channel."""
    epsilon, groups = at.attr("epsilon", 1e-5), at.attr("num_groups")

    def compute(x: Operand, scale: Operand, bias: Operand) -> Operand:
        y = _standardised(x.reshape(len(x), groups, -1), (2,), epsilon)[0].reshape(x.shape)
        each = x.shape[1] // len(scale)
        return y * _per_channel(jnp.repeat(scale, each), x) + _per_channel(jnp.repeat(bias, each), x)

    return round_once(compute)(x, scale, bias)


@ops("LayerNormalization")
def layer_normalization(at: LoweringContext, x: Operand, scale: Operand, bias: Operand = None) -> tuple[Operand, ...]:
    axes = tuple(range(at.attr("axis", -1) % x.ndim, x.ndim))
    stash = x.astype(at.dtype("stash_type", jnp.float32))
    y, mean, inverse = _standardised(stash, axes, at.attr("epsilon", 1e-5))
    y = widen(y.astype(x.dtype)) * widen(scale)
    y = y if bias is None else y + widen(bias)
    return y.astype(x.dtype), mean, inverse


@ops("RMSNormalization")
def rms_normalization(at: LoweringContext, x: Operand, scale: Operand) -> Operand:
    wide = x.astype(at.dtype("stash_type", jnp.float32))
    axes = tuple(range(at.attr("axis", -1) % x.ndim, x.ndim))
    square = jnp.mean(wide * wide, axis=axes, keepdims=True)
    y = (wide / jnp.sqrt(square + at.attr("epsilon", 1e-5))).astype(x.dtype)
    return (widen(y) * widen(scale)).astype(scale.dtype)


@ops("MeanVarianceNormalization")
def mean_variance_normalization(at: LoweringContext, x: Operand) -> Operand:
    axes = tuple(at.attr("axes", (0, 2, 3)))
    return round_once(lambda x: _standardised(x, axes, 1e-9)[0])(x)


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
