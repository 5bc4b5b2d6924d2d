"""Steps of optimizers: each tensor keeps its own element type, and is computed in double precision."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

DOMAIN = "ai.onnx.preview.training"
Step = Callable[[float, int, list[Tensor]], tuple[Tensor, ...]]
"""Takes the rate, the count of steps and a tensor with its gradient and states; returns the tensor and its states."""


def _each(step: Step, kinds: int) -> Run:
    """Return a kernel that takes all tensors, then all gradients, then each kind of state, and returns them in this order."""

    def run(rate: Tensor, count: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(tensors) // kinds
        groups = [[tensors[i + part * n] for part in range(kinds)] for i in range(n)]
        found = [step(float(rate), int(count), [x.double() for x in group]) for group in groups]
        kept = [(group[0], *group[2:]) for group in groups]
        return tuple(found[i][part].to(kept[i][part].dtype) for part in range(kinds - 1) for i in range(n))

    return run


@ops("Adam", domain=DOMAIN, model_update=True)
def adam(at: TorchKernelContext) -> Run:
    alpha, beta, epsilon = at.attr("alpha", 0.9), at.attr("beta", 0.999), at.attr("epsilon", 1e-6)
    norm, norm_post = at.attr("norm_coefficient", 0.0), at.attr("norm_coefficient_post", 0.0)

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, mean, square = values
        rate = rate * sqrt(1 - beta**count) / (1 - alpha**count) if count > 0 else rate
        gradient = norm * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        square = beta * square + (1 - beta) * gradient * gradient
        return (1 - norm_post) * (x - rate * mean / (torch.sqrt(square) + epsilon)), mean, square

    return _each(step, 4)


@ops("Adagrad", domain=DOMAIN, model_update=True)
def adagrad(at: TorchKernelContext) -> Run:
    decay, epsilon, norm = at.attr("decay_factor", 0.0), at.attr("epsilon", 1e-6), at.attr("norm_coefficient", 0.0)

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, square = values
        gradient = norm * x + gradient
        square = square + gradient * gradient
        return x - rate / (1 + count * decay) * gradient / (torch.sqrt(square) + epsilon), square

    return _each(step, 3)


@ops("Momentum", domain=DOMAIN, model_update=True)
def momentum(at: TorchKernelContext) -> Run:
    """With Nesterov's mode, the step looks ahead by one more gradient."""
    alpha, beta, norm = at.attr("alpha"), at.attr("beta"), at.attr("norm_coefficient")
    ahead = at.attr("mode") == "nesterov"

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, velocity = values
        gradient = norm * x + gradient
        velocity = alpha * velocity + (beta if count > 0 else 1.0) * gradient
        return x - rate * (gradient + alpha * velocity if ahead else velocity), velocity

    return _each(step, 3)
