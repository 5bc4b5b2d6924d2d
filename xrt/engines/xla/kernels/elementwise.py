"""Operators of one tensor, element by element: mathematics and activations."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.xla.table import Kernel, Operand, either, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["array_function", "elu", "hard_sigmoid", "leaky_relu", "sigmoid", "softplus", "softsign", "swish", "thresholded_relu"]

FUNCTIONS = {
    "Abs": "abs",
    "Acos": "arccos",
    "Acosh": "arccosh",
    "Asin": "arcsin",
    "Asinh": "arcsinh",
    "Atan": "arctan",
    "Atanh": "arctanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "rint",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
"""Operators that are one function of the array module."""


def array_function(name: str) -> Kernel:
    """Return a kernel that is the array module's function of that name."""
    return either(lambda at, *operands: getattr(at.xp, name)(*operands))


for _op, _name in FUNCTIONS.items():
    ops(_op)(array_function(_name))


@ops("Identity")
@either
def identity(at: LoweringContext, x: Operand) -> Operand:
    return x


@ops("IsInf")
def is_inf(at: LoweringContext, x: Operand) -> Operand:
    found = jnp.isinf(x)
    if not at.attr("detect_positive", 1):
        found &= x < 0
    if not at.attr("detect_negative", 1):
        found &= x > 0
    return found


@ops("Relu")
def relu(at: LoweringContext, x: Operand) -> Operand:
    return jnp.maximum(x, 0)


def activation(*op_types: str, **defaults: float) -> Callable[[Callable[..., Operand]], Callable[..., Operand]]:
    """Register ``f(x, *attributes)``, a function of one float tensor; the keywords are its attributes' defaults.

    Attributes are float32 numbers, and so are defaults, which a float64 tensor shows.
    """

    def register(compute: Callable[..., Operand]) -> Callable[..., Operand]:
        once = round_once(compute)

        def kernel(at: LoweringContext, x: Operand) -> Operand:
            return once(x, *(at.attr(name, float(np.float32(default))) for name, default in defaults.items()))

        ops(*op_types)(kernel)
        return compute

    return register


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@activation("Sigmoid")
def sigmoid(x: Operand) -> Operand:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + jnp.exp(-x))


@activation("Softplus")
def softplus(x: Operand) -> Operand:
    """Return ``log(1 + exp(x))``."""
    return jnp.logaddexp(x, jnp.zeros((), x.dtype))


@activation("Softsign")
def softsign(x: Operand) -> Operand:
    """Return ``x / (1 + |x|)``."""
    return x / (1 + jnp.abs(x))


@activation("Erf")
def erf(x: Operand) -> Operand:
    """Return the error function."""
    return jax.lax.erf(x)


@activation("Elu", alpha=1.0)
def elu(x: Operand, alpha: float) -> Operand:
    """Return ``alpha * (exp(x) - 1)`` below zero, x above."""
    return jnp.where(x < 0, alpha * jnp.expm1(x), x)


@activation("Selu", alpha=SELU_ALPHA, gamma=SELU_GAMMA)
def selu(x: Operand, alpha: float, gamma: float) -> Operand:
    """Return a scaled `elu`."""
    return gamma * jnp.where(x <= 0, alpha * jnp.expm1(x), x)


@activation("Celu", alpha=1.0)
def celu(x: Operand, alpha: float) -> Operand:
    """Return an `elu` whose slope is continuous whatever alpha is."""
    return jnp.where(x < 0, alpha * jnp.expm1(x / alpha), x)


@activation("LeakyRelu", alpha=0.01)
def leaky_relu(x: Operand, alpha: float) -> Operand:
    """Return ``alpha * x`` below zero, x above."""
    return jnp.where(x < 0, alpha * x, x)


@activation("ThresholdedRelu", alpha=1.0)
def thresholded_relu(x: Operand, alpha: float) -> Operand:
    """Return x above alpha, zero elsewhere."""
    return jnp.where(x > alpha, x, jnp.zeros((), x.dtype))


@activation("HardSigmoid", alpha=0.2, beta=0.5)
def hard_sigmoid(x: Operand, alpha: float, beta: float) -> Operand:
    """Return ``alpha * x + beta``, held between 0 and 1."""
    return jnp.minimum(jnp.maximum(alpha * x + beta, 0), 1)


@activation("HardSwish")
def hard_swish(x: Operand) -> Operand:
    """Return x times its `hard_sigmoid`."""
    return x * hard_sigmoid(x, 1 / 6, 0.5)


@activation("Swish", alpha=1.0)
def swish(x: Operand, alpha: float) -> Operand:
    """Return x times the `sigmoid` of ``alpha * x``."""
    return x / (1 + jnp.exp(-alpha * x))


@activation("Mish")
def mish(x: Operand) -> Operand:
    """Return x times the hyperbolic tangent of its `softplus`."""
    return x * jnp.tanh(softplus(x))


@ops("Gelu")
def gelu(at: LoweringContext, x: Operand) -> Operand:
    compute = _gelu_by_tanh if at.attr("approximate", "none") == "tanh" else _gelu
    return round_once(compute)(x)


def _gelu_by_tanh(x: Operand) -> Operand:
    return 0.5 * x * (1 + jnp.tanh((2 / pi) ** 0.5 * (x + 0.044715 * (x * x * x))))


def _gelu(x: Operand) -> Operand:
    return 0.5 * x * (1 + jax.lax.erf(x * 0.5**0.5))


@ops("Shrink")
def shrink(at: LoweringContext, x: Operand) -> Operand:
    bias, bound = at.attr("bias", 0.0), at.attr("lambd", 0.5)
    moved: Any = jnp.where(x < -bound, x + bias, jnp.where(x > bound, x - bias, 0))
    return moved.astype(x.dtype)
