"""Normalizations, and a loss, that other engines write otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xrt.engines.kernels.normalization import compute_statistics, normalize_batch, update_running
from xrt.engines.kernels.softmax import compute_likelihood_loss, log_softmax
from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


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
