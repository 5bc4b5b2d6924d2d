"""Operators of one tensor, element by element: mathematics and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.kernels.table import Array, Factory, Run, ops
from xrt.engines.toolkit.array_ops.elements import round_once

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__ = ["elu", "hard_sigmoid", "leaky_relu", "sigmoid", "softplus", "softsign", "swish", "thresholded_relu", "universal"]

UFUNCS = {
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
"""Operators that are one universal function of the array module; all keep the dtype."""


def universal(name: str) -> Factory:
    """Return a factory whose kernel is the array module's function of that name."""

    def factory(node: Node, env: NodeContext) -> Run:
        run: Run = getattr(env.xp, name)
        return run

    return factory


for _op, _name in UFUNCS.items():
    ops(_op, mutable=(0,))(universal(_name))
ops("IsNaN")(universal("isnan"))


@ops("Identity")
def identity(node: Node, env: NodeContext) -> Run:
    return lambda x: x


@ops("IsInf")
def is_inf(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    negative, positive = node.attr("detect_negative", 1), node.attr("detect_positive", 1)
    if negative and positive:
        return xp.isinf  # type: ignore[no-any-return]  # a function of the array module

    def run(x: Array) -> Array:
        found = xp.isinf(x)
        if not positive:
            found &= x < 0
        if not negative:
            found &= x > 0
        return found

    return run


@ops("Relu", mutable=(0,))
def relu(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    return lambda x, out=None: xp.maximum(x, 0, out=out)


def activation(*op_types: str, since: int = 1, **defaults: float) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register ``f(xp, x, *attributes)``, a function of one float tensor; the keywords are its attributes' defaults.

    Attributes are float32 numbers, and so are defaults, which a float64 tensor shows.
    """

    def register(compute: Callable[..., Array]) -> Callable[..., Array]:
        def factory(node: Node, env: NodeContext) -> Run:
            xp = env.xp
            given = [node.attr(name, float(np.float32(default))) for name, default in defaults.items()]
            return round_once(lambda x: compute(xp, x, *given))

        ops(*op_types, since=since)(factory)
        return compute

    return register


SELU_ALPHA, SELU_GAMMA = float(np.float32(1.67326319217681884765625)), float(np.float32(1.05070102214813232421875))


@activation("Sigmoid")
def sigmoid(xp: Array, x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + xp.exp(-x))


@activation("Softplus")
def softplus(xp: Array, x: Array) -> Array:
    """Return ``log(1 + exp(x))``."""
    return xp.logaddexp(x, x.dtype.type(0))


@activation("Softsign")
def softsign(xp: Array, x: Array) -> Array:
    """Return ``x / (1 + |x|)``."""
    return x / (1 + xp.abs(x))


@activation("Elu", alpha=1.0)
def elu(xp: Array, x: Array, alpha: float) -> Array:
    """Return ``alpha * (exp(x) - 1)`` below zero, x above."""
    return xp.where(x < 0, alpha * xp.expm1(x), x)


@activation("Selu", alpha=SELU_ALPHA, gamma=SELU_GAMMA)
def selu(xp: Array, x: Array, alpha: float, gamma: float) -> Array:
    """Return a scaled `elu`."""
    return gamma * xp.where(x <= 0, alpha * xp.expm1(x), x)


@activation("Celu", alpha=1.0)
def celu(xp: Array, x: Array, alpha: float) -> Array:
    """Return an `elu` whose slope is continuous whatever alpha is."""
    return xp.where(x < 0, alpha * xp.expm1(x / alpha), x)


@activation("LeakyRelu", alpha=0.01)
def leaky_relu(xp: Array, x: Array, alpha: float) -> Array:
    """Return ``alpha * x`` below zero, x above."""
    return xp.where(x < 0, alpha * x, x)


@activation("ThresholdedRelu", alpha=1.0)
def thresholded_relu(xp: Array, x: Array, alpha: float) -> Array:
    """Return x above alpha, zero elsewhere."""
    return xp.where(x > alpha, x, x.dtype.type(0))


@activation("HardSigmoid", alpha=0.2, beta=0.5)
def hard_sigmoid(xp: Array, x: Array, alpha: float, beta: float) -> Array:
    """Return ``alpha * x + beta``, limited to 0 and 1."""
    return xp.minimum(xp.maximum(alpha * x + beta, 0), 1)


@activation("HardSwish")
def hard_swish(xp: Array, x: Array) -> Array:
    """Return x times its `hard_sigmoid`."""
    return x * hard_sigmoid(xp, x, 1 / 6, 0.5)


@activation("Swish", alpha=1.0)
def swish(xp: Array, x: Array, alpha: float) -> Array:
    """Return x times the `sigmoid` of ``alpha * x``."""
    return x / (1 + xp.exp(-alpha * x))


@activation("Mish")
def mish(xp: Array, x: Array) -> Array:
    """Return x times the hyperbolic tangent of its `softplus`."""
    return x * xp.tanh(softplus(xp, x))


@ops("Erf")
def erf(node: Node, env: NodeContext) -> Run:
    return round_once(env.primitives.erf)


@ops("Gelu")
def gelu(node: Node, env: NodeContext) -> Run:
    xp, erf = env.xp, env.primitives.erf
    if node.attr("approximate", "none") == "tanh":
        slope = (2 / np.pi) ** 0.5
        return round_once(lambda x: 0.5 * x * (1 + xp.tanh(slope * (x + 0.044715 * (x * x * x)))))
    return round_once(lambda x: 0.5 * x * (1 + erf(x * 0.5**0.5)))


@ops("Shrink")
def shrink(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    bias, bound = node.attr("bias", 0.0), node.attr("lambd", 0.5)

    def run(x: Array) -> Array:
        moved = xp.where(x < -bound, x + bias, xp.where(x > bound, x - bias, 0))
        return moved.astype(x.dtype)

    return run
