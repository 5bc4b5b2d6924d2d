"""Operators of one tensor, element by element: mathematics and activations."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.engines.torch.kernels.precision import is_whole, round_once
from xrt.engines.torch.table import Factory, Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["elu", "fixed", "hard_sigmoid", "leaky_relu", "softsign", "thresholded_relu"]


def fixed(run: Run) -> Factory:
    """Return the factory of a kernel that has no attributes."""
    return lambda at: run


FUNCTIONS: dict[str, Run] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
"""Operators that are one function of torch's."""

for _op, _run in FUNCTIONS.items():
    ops(_op)(fixed(_run))


@ops("Sign")
def sign(at: TorchKernelContext) -> Run:
    """The sign of NaN is NaN, where torch's is zero."""
    return lambda x: torch.sign(x) if is_whole(x) else torch.where(torch.isnan(x), x, torch.sign(x))


@ops("IsInf")
def is_inf(at: TorchKernelContext) -> Run:
    positive, negative = at.attr("detect_positive", 1), at.attr("detect_negative", 1)
    if not positive and not negative:
        return lambda x: torch.zeros_like(x, dtype=torch.bool)
    found: Run = torch.isinf if positive and negative else torch.isposinf if positive else torch.isneginf
    return found


def activation(*op_types: str, **defaults: float) -> Callable[[Run], Run]:
    """Register ``f(x, *attributes)``, a function of one float tensor; the keywords are its attributes' defaults.

    Attributes are float32 numbers, and so are defaults, which a float64 tensor shows.
    """

    def register(compute: Run) -> Run:
        once = round_once(compute)

        def factory(at: TorchKernelContext) -> Run:
            given = [at.attr(name, float(np.float32(default))) for name, default in defaults.items()]
            return (lambda x: once(x, *given)) if given else once

        ops(*op_types)(factory)
        return compute

    return register


activation("Sigmoid")(torch.sigmoid)
activation("Erf")(torch.erf)
activation("HardSwish")(lambda x: x * hard_sigmoid(x, 1 / 6, 0.5))
activation("Mish")(lambda x: x * torch.tanh(softplus(x)))


@activation("Softplus")
def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))``."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


@activation("Softsign")
def softsign(x: Tensor) -> Tensor:
    """Return ``x / (1 + |x|)``."""
    return x / (1 + torch.abs(x))


@activation("Elu", alpha=1.0)
def elu(x: Tensor, alpha: float) -> Tensor:
    """Return ``alpha * (exp(x) - 1)`` below zero, x above."""
    return torch.where(x < 0, alpha * torch.expm1(x), x)


@activation("Selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return a scaled `elu`."""
    return gamma * torch.where(x <= 0, alpha * torch.expm1(x), x)


@activation("Celu", alpha=1.0)
def celu(x: Tensor, alpha: float) -> Tensor:
    """Return an `elu` whose slope is continuous whatever alpha is."""
    return torch.where(x < 0, alpha * torch.expm1(x / alpha), x)


@activation("LeakyRelu", alpha=0.01)
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """Return ``alpha * x`` below zero, x above."""
    return torch.where(x < 0, alpha * x, x)


@activation("ThresholdedRelu", alpha=1.0)
def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """Return x above alpha, zero elsewhere."""
    return torch.where(x > alpha, x, torch.zeros((), dtype=x.dtype))


@activation("HardSigmoid", alpha=0.2, beta=0.5)
def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Return ``alpha * x + beta``, held between 0 and 1."""
    return torch.clamp(alpha * x + beta, 0, 1)


@activation("Swish", alpha=1.0)
def swish(x: Tensor, alpha: float) -> Tensor:
    """Return x times the sigmoid of ``alpha * x``."""
    return x * torch.sigmoid(alpha * x)


@ops("Gelu")
def gelu(at: TorchKernelContext) -> Run:
    """Written out: torch's own function gives NaN for infinity."""
    return round_once(_gelu_by_tanh if at.attr("approximate", "none") == "tanh" else _gelu)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / pi) ** 0.5 * (x + 0.044715 * (x * x * x))))


@ops("Shrink")
def shrink(at: TorchKernelContext) -> Run:
    bias, bound = at.attr("bias", 0.0), at.attr("lambd", 0.5)

    def run(x: Tensor) -> Tensor:
        wide = x if x.dtype.is_floating_point else x.to(torch.float64)
        moved: Any = torch.where(wide < -bound, wide + bias, torch.where(wide > bound, wide - bias, 0))
        return moved.to(x.dtype)

    return run
