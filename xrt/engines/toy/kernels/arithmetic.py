"""Arithmetic that other engines write otherwise: sums, powers, choices, and products by an equation."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arithmetic import binary
from xrt.engines.kernels.elementwise import swish, universal
from xrt.engines.kernels.normalization import (
    compute_likelihood_loss,
    compute_statistics,
    log_softmax,
    normalize_batch,
    update_running,
)
from xrt.engines.toolkit.array_ops.elements import round_once, widen
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(ops, _op, mutable=(0, 1))(universal(_name))


@binary(ops, "Pow")
def power(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(base: Array, exponent: Array) -> Array:
        if base.dtype.kind in "iu" and exponent.dtype.kind == "i" and bool((exponent < 0).any()):
            base, exponent, dtype = base.astype(np.float64), exponent.astype(np.float64), base.dtype
            return xp.power(base, exponent).astype(dtype)
        return xp.power(base, exponent).astype(base.dtype)

    return run


@ops("Where", priority=1, mutable=(1, 2))
def where(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(condition: Array, yes: Array, no: Array, out: Array | None = None) -> Array:
        if out is None:
            return xp.where(condition, yes, no)
        if out is yes:
            xp.copyto(out, no, where=~condition)
            return out
        if out is not no:
            xp.copyto(out, no)
        xp.copyto(out, yes, where=condition)
        return out

    return run


@ops("Einsum")
def einsum(node: Node, env: KernelContext) -> Run:
    equation = node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(t) for t in tensors]
        return env.xp.einsum(equation, *wide, optimize=len(wide) > 2).astype(tensors[0].dtype, copy=False)

    return run


@ops("STFT", devices=CPU)
def short_time_fourier(node: Node, env: KernelContext) -> Run:
    """Return (batch, frames, bins, 2) of a signal (batch, length, 1 or 2), or (batch, length), as TorchScript exports it."""
    xp, onesided = env.xp, bool(node.attr("onesided", 1))

    def run(signal: Array, step: Array, window: Array | None = None, length: Array | None = None) -> Array:
        given = signal[..., None] if signal.ndim == 2 else signal
        if given.ndim != 3 or given.shape[-1] not in (1, 2):
            raise ValueError(
                f"the signal has shape {list(signal.shape)}; it must be [batch, length], [batch, length, 1] or [batch, length, 2]"
            )
        if onesided and given.shape[-1] == 2:
            raise ValueError(f"the signal {list(signal.shape)} is complex; its transform has two sides, so set onesided=0")
        size = _number(length) if length is not None else given.shape[1] if window is None else len(window)
        width = size if window is None else len(window)
        frames = _frames(xp, given.astype(np.float64), _number(step), size, width)
        if window is not None:
            frames = frames * window.astype(np.float64)[:, None]
        values = frames[..., 0] + 1j * frames[..., 1] if given.shape[-1] == 2 else frames[..., 0]
        result = (xp.fft.rfft if onesided else xp.fft.fft)(values, n=size, axis=-1)
        return xp.stack([result.real, result.imag], axis=-1).astype(signal.dtype)

    return run


def _number(value: Array) -> int:
    return int(value.reshape(()))


def _frames(xp: Any, signal: Array, step: int, size: int, width: int) -> Array:
    """Return the frames (batch, frames, width, parts) of a signal (batch, length, parts): as many as hold ``size`` elements.

    A window that is wider than that reads zeros beyond the signal.
    """
    count = max(0, 1 + (signal.shape[1] - size) // step)
    if width > size:
        signal = xp.concatenate([signal, xp.zeros((len(signal), width - size, signal.shape[2]))], axis=1)
    indices = xp.arange(count)[:, None] * step + xp.arange(width)
    return signal[:, indices]


@ops("BatchNormalization", until=13)
def batch_normalization_by_outputs(node: Node, env: KernelContext) -> Run:
    """Up to version 6, ``is_test`` tells training from inference; then, up to 13, more than one output means training."""
    xp, epsilon, momentum = env.xp, node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    training = not node.attr("is_test", 0) if env.version <= 6 else any(node.outputs[1:])

    def run(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Any:
        if not training:
            return normalize_batch(xp, x, scale, bias, mean, var, epsilon)
        now, spread = compute_statistics(xp, x, mean)
        y = normalize_batch(xp, x, scale, bias, now, spread, epsilon)
        saved = (now.astype(mean.dtype), spread.astype(var.dtype))
        return y, update_running(mean, now, momentum), update_running(var, spread, momentum), *saved

    return run


@ops("LpNormalization")
def lp_normalization(node: Node, env: KernelContext) -> Run:
    """A vector of zeros stays zero."""
    xp, axis, p = env.xp, node.attr("axis", -1), node.attr("p", 2)

    def run(x: Array) -> Array:
        norm = xp.sum(xp.abs(x) ** p, axis=axis, keepdims=True) ** (1 / p)
        return xp.where(norm == 0, x.dtype.type(0), x / norm)

    return round_once(run)


@ops("LRN")
def lrn(node: Node, env: KernelContext) -> Run:
    """Divide by a power of the sum of squares over neighbouring channels."""
    xp, size = env.xp, node.attr("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    before = (size - 1) // 2

    def run(x: Array) -> Array:
        channels = x.shape[1]
        squares = xp.zeros((len(x), channels + size - 1, *x.shape[2:]), dtype=x.dtype)
        xp.multiply(x, x, out=squares[:, before : before + channels])
        total = squares[:, :channels].copy()
        for shift in range(1, size):
            total += squares[:, shift : shift + channels]
        return x / (bias + alpha / size * total) ** beta

    return round_once(run)


@ops("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(node: Node, env: KernelContext) -> Run:
    ignored, reduction = node.attr("ignore_index"), node.attr("reduction", "mean")

    def run(scores: Array, target: Array, weight: Array | None = None) -> tuple[Array, Array]:
        logs = log_softmax(env, scores, 1)
        return compute_likelihood_loss(env.xp, logs, target, weight, ignored, reduction), logs

    return run


DOMAIN = "ai.onnx.preview.training"


@ops("Adam", domain=DOMAIN, model_update=True, host=(0, 1))
def adam(node: Node, env: KernelContext) -> Run:
    """Return all tensors, then all their means of gradients, then those of squared gradients."""
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    epsilon = node.attr("epsilon", 1e-6)
    norm, norm_post = (node.attr(name, 0.0) for name in ("norm_coefficient", "norm_coefficient_post"))

    def step(rate: float, x: Array, gradient: Array, mean: Array, square: Array) -> tuple[Array, Array, Array]:
        given = [value.astype(np.float64) for value in (x, gradient, mean, square)]
        gradient = norm * given[0] + given[1]
        new_mean = alpha * given[2] + (1 - alpha) * gradient
        new_square = beta * given[3] + (1 - beta) * gradient * gradient
        moved = given[0] - rate * new_mean / (env.xp.sqrt(new_square) + epsilon)
        return ((1 - norm_post) * moved).astype(x.dtype), new_mean.astype(mean.dtype), new_square.astype(square.dtype)

    def run(rate: Array, count: Array, *tensors: Array) -> tuple[Array, ...]:
        r, t = float(rate), int(count)
        r = r * sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else r
        n = len(tensors) // 4
        found = [step(r, *(tensors[i + part * n] for part in range(4))) for i in range(n)]
        return tuple(found[i][part] for part in range(3) for i in range(n))

    return run


@ops("RotaryEmbedding")
def rotary_embedding(node: Node, env: KernelContext) -> Run:
    """Rotate pairs of features by angles that grow with the position; features beyond ``rotary_embedding_dim`` stay."""
    heads = node.attr("num_heads", 0)
    width, interleaved = node.attr("rotary_embedding_dim", 0), bool(node.attr("interleaved", 0))

    def run(x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (batch, sequence, 1, width / 2)
        parts = x.transpose(0, 2, 1, 3) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
        turned = width or parts.shape[-1]
        y = parts.copy()
        pairs = (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(turned // 2), slice(turned // 2, turned))
        first, second = parts[..., pairs[0]], parts[..., pairs[1]]
        y[..., pairs[0]] = cos * first - sin * second
        y[..., pairs[1]] = sin * first + cos * second
        return y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)

    return run


@ops("SwiGLU")
def swiglu(node: Node, env: KernelContext) -> Run:
    xp, alpha = env.xp, node.attr("alpha", 1.0)
    return round_once(lambda gate, value: swish(xp, gate, alpha) * value)
