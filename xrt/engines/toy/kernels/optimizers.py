"""Steps of optimizers: each tensor keeps its own element type, whatever that of the rate and of the count of steps."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []

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
