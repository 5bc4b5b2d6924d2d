"""Normalisations: subtract a mean, divide by a deviation or a norm, scale and shift."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from xrt.engines.torch.kernel_context import Run, Tensor, ops
from xrt.engines.torch.kernels.arithmetic import NARROW, round_once, widen

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext


def _per_channel(v: Tensor, x: Tensor) -> Tensor:
    """Return a vector shaped to broadcast along axis 1 of the tensor; other parameters (a scale per element) as they are."""
    return v.reshape(-1, *(1,) * (x.ndim - 2)) if v.ndim == 1 else v


def _standardize(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensor with mean 0 and variance 1 over the axes, the mean, and one over the deviation."""
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = 1 / torch.sqrt((centred * centred).mean(axes, keepdim=True) + epsilon)
    return centred * inverse, mean, inverse


# ---------------------------------------------------------------------- over the batch


def _batch_normal(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    """Return the tensor scaled and shifted by one factor and one summand per channel."""
    factor = widen(scale) / torch.sqrt(widen(var) + epsilon)
    y = widen(x) * _per_channel(factor, x) + _per_channel(widen(bias) - widen(mean) * factor, x)
    return y.to(x.dtype)


@ops("BatchNormalization", until=13)
def batch_normalization_by_outputs(at: TorchKernelContext) -> Run:
    """Up to version 13, more than one output means training; before 7 an attribute says so too."""
    if any(at.node.outputs[1:]) or (at.version < 7 and not at.attr("is_test", 0)):
        raise at.refuse("that trains is not computed before version 14")
    epsilon = at.attr("epsilon", 1e-5)
    return lambda x, scale, bias, mean, var: _batch_normal(x, scale, bias, mean, var, epsilon)


@ops("BatchNormalization", since=14, train=True)
def batch_normalization(at: TorchKernelContext) -> Run:
    epsilon, momentum = at.attr("epsilon", 1e-5), at.attr("momentum", 0.9)

    def infer(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return _batch_normal(x, scale, bias, mean, var, epsilon)

    def train(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        axes = [0, *range(2, x.ndim)]
        spread, now = torch.var_mean(widen(x), axes, correction=0)
        y = _batch_normal(x, scale, bias, now, spread, epsilon)
        return y, _running(mean, now, momentum), _running(var, spread, momentum)

    return train if at.attr("training_mode", 0) else infer


def _running(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    return (widen(old) * momentum + new * (1 - momentum)).to(old.dtype)


# ---------------------------------------------------------------------- over the elements of one sample


@ops("InstanceNormalization")
def instance_normalization(at: TorchKernelContext) -> Run:
    epsilon = at.attr("epsilon", 1e-5)

    def compute(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        y, _, _ = _standardize(x, list(range(2, x.ndim)), epsilon)
        return y * _per_channel(scale, x) + _per_channel(bias, x)

    return round_once(compute)


@ops("GroupNormalization")
def group_normalization(at: TorchKernelContext) -> Run:
    """Before version 21 there is one scale and bias per group, since then one per channel."""
    epsilon, groups = at.attr("epsilon", 1e-5), at.attr("num_groups")

    def compute(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        y = _standardize(x.reshape(len(x), groups, -1), [2], epsilon)[0].reshape(x.shape)
        each = x.shape[1] // len(scale)
        scales, biases = (v.repeat_interleave(each) for v in (scale, bias))
        return y * _per_channel(scales, x) + _per_channel(biases, x)

    return round_once(compute)


@ops("LayerNormalization")
def layer_normalization(at: TorchKernelContext) -> Run:
    axis, epsilon, stash_dtype = (
        at.attr("axis", -1),
        at.attr("epsilon", 1e-5),
        at.attribute_torch_dtype("stash_type") or torch.float32,
    )

    def run(x: Tensor, scale: Tensor, bias: Tensor = None) -> tuple[Tensor, ...]:
        axes = list(range(axis % x.ndim, x.ndim))
        y, mean, inverse = _standardize(x.to(stash_dtype), axes, epsilon)
        y = widen(y.to(x.dtype)) * widen(scale)
        y = y if bias is None else y + widen(bias)
        return y.to(x.dtype), mean, inverse

    def fused(x: Tensor, scale: Tensor, bias: Tensor = None) -> tuple[Tensor, ...]:
        extents = x.shape[axis % x.ndim :]
        whole = scale.shape == extents and (bias is None or bias.shape == extents)
        fits = whole and x.dtype is stash_dtype is torch.float32 and extents.numel() > 1  # one element may overflow in torch's
        return torch.native_layer_norm(x, extents, scale, bias, epsilon) if fits else run(x, scale, bias)

    return fused


@ops("RMSNormalization")
def rms_normalization(at: TorchKernelContext) -> Run:
    axis, epsilon, stash_dtype = (
        at.attr("axis", -1),
        at.attr("epsilon", 1e-5),
        at.attribute_torch_dtype("stash_type") or torch.float32,
    )

    def run(x: Tensor, scale: Tensor) -> Tensor:
        wide = x.to(stash_dtype)
        square = (wide * wide).mean(list(range(axis % x.ndim, x.ndim)), keepdim=True)
        y = (wide / torch.sqrt(square + epsilon)).to(x.dtype)
        return (widen(y) * widen(scale)).to(scale.dtype)

    return run


@ops("MeanVarianceNormalization")
def mean_variance_normalization(at: TorchKernelContext) -> Run:
    axes = list(at.attr("axes", (0, 2, 3)))
    return round_once(lambda x: _standardize(x, axes, 1e-9)[0])


@ops("LpNormalization")
def lp_normalization(at: TorchKernelContext) -> Run:
    """A vector of zeros stays zero."""
    axis, p = at.attr("axis", -1), at.attr("p", 2)

    def compute(x: Tensor) -> Tensor:
        norm = x.abs().sum(axis, keepdim=True) if p == 1 else torch.sqrt((x * x).sum(axis, keepdim=True))
        return torch.where(norm == 0, x.new_zeros(()), x / norm)

    return round_once(compute)


@ops("LRN")
def lrn(at: TorchKernelContext) -> Run:
    """Divide by a power of the sum of squares over neighbouring channels."""
    size, alpha, beta, bias = at.attr("size"), at.attr("alpha", 1e-4), at.attr("beta", 0.75), at.attr("bias", 1.0)
    before = (size - 1) // 2

    def compute(x: Tensor) -> Tensor:
        around = functional.pad(x * x, [*(0, 0) * (x.ndim - 2), before, size - 1 - before])
        total = around.unfold(1, size, 1).sum(-1)
        return x / (bias + alpha / size * total) ** beta

    return round_once(compute)


Along = Callable[[Tensor, int], Tensor]
"""Takes the tensor and the one axis."""


def softmax(x: Tensor, axis: int) -> Tensor:
    """Return the exponentials along an axis over their sum; narrow floats are rounded at each step, as the definition does."""
    if x.dtype not in NARROW:
        return torch.softmax(x, axis)
    powers = torch.exp(x - x.amax(axis, keepdim=True))
    return powers / powers.float().sum(axis, keepdim=True).to(x.dtype)


def hardmax(x: Tensor, axis: int) -> Tensor:
    """Return one at the first greatest element along the axis, zero elsewhere."""
    return torch.zeros_like(x).scatter(axis, torch.argmax(x, axis, True), 1)


def _along_axis(compute: Along) -> Callable[[TorchKernelContext], Run]:
    def factory(at: TorchKernelContext) -> Run:
        axis = at.attr("axis", -1)
        return lambda x: compute(x, axis)

    return factory


def _flattened(compute: Along) -> Callable[[TorchKernelContext], Run]:
    """Before version 13, all axes from ``axis`` on are one."""

    def factory(at: TorchKernelContext) -> Run:
        axis = at.attr("axis", 1)

        def run(x: Tensor) -> Tensor:
            start = axis + x.ndim if axis < 0 else axis
            return compute(x.reshape(prod(x.shape[:start]), prod(x.shape[start:])), -1).reshape(x.shape)

        return run

    return factory


_NORMAL: dict[str, Along] = {"Softmax": softmax, "LogSoftmax": round_once(torch.log_softmax), "Hardmax": hardmax}
for _op, _compute in _NORMAL.items():
    ops(_op, since=13)(_along_axis(_compute))
    ops(_op, until=12)(_flattened(_compute))


def _likelihood_loss(logs: Tensor, target: Tensor, weight: Tensor, ignored: int | None, reduction: str) -> Tensor:
    """Return minus the logarithm (N, C, ...) at each target (N, ...), weighted, and averaged over the weights or summed."""
    target = target.long()
    counts = torch.ones(target.shape, dtype=torch.bool) if ignored is None else target != ignored
    safe = torch.where(counts, target, 0)
    safe = torch.where(safe < 0, safe + logs.shape[1], safe)
    each = torch.ones(target.shape, dtype=logs.dtype) if weight is None else weight[safe]
    weights = torch.where(counts, each, 0)
    loss = -logs.gather(1, safe.unsqueeze(1)).squeeze(1) * weights
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weights.sum()


@ops("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(at: TorchKernelContext) -> Run:
    ignored, reduction = at.attr("ignore_index"), at.attr("reduction", "mean")
    loss = round_once(_likelihood_loss)
    return lambda logs, target, weight=None: loss(logs, target, weight, ignored, reduction)


@ops("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(at: TorchKernelContext) -> Run:
    ignored, reduction = at.attr("ignore_index"), at.attr("reduction", "mean")
    loss = round_once(_likelihood_loss)

    def run(scores: Tensor, target: Tensor, weight: Tensor = None) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(widen(scores), 1).to(scores.dtype)
        return loss(logs, target, weight, ignored, reduction), logs

    return run
