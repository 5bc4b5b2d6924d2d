"""Softmax and its kin, and the losses made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.kernels.precision import NARROW, round_once, widen
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

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
