"""Arithmetic that XLA needs otherwise: sums, whose order it changes, powers, and products by an equation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.kernels.arithmetic import binary
from xrt.engines.kernels.normalization import compute_likelihood_loss, log_softmax, normalize_batch
from xrt.engines.toolkit.array_ops.elements import round_once, widen
from xrt.engines.xla.table import Operand, factories, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Factory, NodeContext, Run
    from xrt.engines.xla.lowering_context import LoweringContext
    from xrt.graph import Node


def make_sum(name: str) -> Factory:
    """Return a factory of a kernel that adds or subtracts, whose sums with constants XLA does not merge.

    It makes ``x + (a + b)`` of ``(x + a) + b``, and so undoes rounding that was the point of it. The barrier goes before fusion.
    """

    def factory(node: Node, env: NodeContext) -> Run:
        def run(a: Operand, b: Operand) -> Operand:
            if env.xp is jnp and not _is_whole(a) and (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)):
                a, b = (x if isinstance(x, np.ndarray) else jax.lax.optimization_barrier(x) for x in (a, b))
            return getattr(env.xp, name)(a, b)

        return run

    return factory


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(factories, _op)(make_sum(_name))


def _is_whole(x: Operand) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@binary(factories, "Pow")
def power(node: Node, env: NodeContext) -> Run:
    """Mixed types are computed in the wider of floats; whole numbers to negative powers in float64, and cut off."""
    return _power


def _power(base: Operand, exponent: Operand) -> Operand:
    if not _is_whole(base):
        return jnp.power(base, exponent.astype(base.dtype))
    if not _is_whole(exponent):
        return jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    whole = jnp.power(base, jnp.maximum(exponent, 0)).astype(base.dtype)
    if jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return whole
    cut = jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    return jnp.where(exponent < 0, cut, whole)


@ops("Einsum")
def einsum(at: LoweringContext, *tensors: Operand) -> Operand:
    equation = at.attr("equation").replace(" ", "")
    return jnp.einsum(equation, *map(widen, tensors)).astype(tensors[0].dtype)


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


@ops("DFT", until=19)
def dft_by_attribute(at: LoweringContext, x: Operand, length: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], at.attr("axis", 1))


@ops("DFT", since=20)
def dft(at: LoweringContext, x: Operand, length: Operand = None, axis: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], -2 if axis is None else at.ints(axis, 2)[0])


def _transform(at: LoweringContext, x: Operand, length: int | None, axis: int) -> Operand:
    """Transform along an axis of a tensor whose last axis holds real parts, or real and imaginary ones."""
    axis, onesided, inverse = axis % x.ndim, at.attr("onesided", 0), at.attr("inverse", 0)
    # Forward, XLA leaves 1e-5 in float32 where a sum cancels; the inverse divides that by the length.
    wide = x if inverse else x.astype(jnp.float64)
    whole = jax.lax.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(wide[..., 0]))
    n = length or x.shape[axis]
    if onesided and inverse:
        return jnp.fft.irfft(whole, n=length, axis=axis)[..., None].astype(x.dtype)
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(whole, n=n, axis=axis)
    if onesided:
        y = jax.lax.slice_in_dim(y, 0, n // 2 + 1, axis=axis)
    return jnp.stack([y.real, y.imag], axis=-1).astype(x.dtype)
