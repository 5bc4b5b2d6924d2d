"""Activation functions, softmax among them.

Each is differentiated as ONNX defines it, branch by branch. At a kink the branch decides that the definition takes there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import number, sum_to

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _where(condition: Tensor, a: Tensor | float, b: Tensor | float, like: Tensor) -> Tensor:
    """Return a choice; numbers are scalars of the tensor's type."""
    first, second = (number(v, like) if isinstance(v, int | float) else v for v in (a, b))
    return emit("Where", condition, first, second)


def _is_positive(x: Tensor) -> Tensor:
    return emit("Greater", x, number(0, x))


def _is_negative(x: Tensor) -> Tensor:
    return emit("Less", x, number(0, x))


@rule("Relu")
def relu(at: RuleContext) -> Gradients:
    """max(0, x): 1 above 0, and 0 elsewhere."""
    return (_where(_is_positive(at.x), at.g, 0, at.g),)


@rule("LeakyRelu")
def leaky_relu(at: RuleContext) -> Gradients:
    """The function alpha x below 0, x elsewhere."""
    return (_where(_is_negative(at.x), at.g * at.attr("alpha", 0.01), at.g, at.g),)


@rule("PRelu")
def parametric_relu(at: RuleContext) -> Gradients:
    """The function slope x below 0, x elsewhere."""
    x, slope = at.input(0), at.input(1)
    below = _is_negative(x)
    first = _where(below, at.g * slope, at.g, at.g) if at.wants(0) else None
    return first, sum_to(_where(below, at.g * x, 0, at.g), slope) if at.wants(1) else None


@rule("ThresholdedRelu")
def relu_above_threshold(at: RuleContext) -> Gradients:
    """The function x above alpha, 0 elsewhere."""
    return (_where(emit("Greater", at.x, number(at.attr("alpha", 1.0), at.x)), at.g, 0, at.g),)


@rule("Elu")
def elu(at: RuleContext) -> Gradients:
    """The function alpha (exp x - 1) below 0, x elsewhere."""
    alpha = at.attr("alpha", 1.0)
    return (_where(_is_negative(at.x), at.g * (at.y + alpha), at.g, at.g),)


@rule("Selu")
def selu(at: RuleContext) -> Gradients:
    """The function gamma alpha (exp x - 1) up to 0, gamma x above."""
    alpha, gamma = at.attr("alpha", 1.67326319217681884765625), at.attr("gamma", 1.05070102214813232421875)
    return (_where(_is_positive(at.x), at.g * gamma, at.g * (at.y + alpha * gamma), at.g),)


@rule("Celu")
def celu(at: RuleContext) -> Gradients:
    """The function alpha (exp(x / alpha) - 1) below 0, x elsewhere; Barron, arXiv:1704.07483."""
    slope = emit("Exp", emit("Min", at.x, number(0, at.x)) * (1 / at.attr("alpha", 1.0)))
    return (at.g * slope,)


@rule("HardSigmoid")
def hard_sigmoid(at: RuleContext) -> Gradients:
    """max(0, min(1, alpha x + beta)): alpha where the result is neither 0 nor 1."""
    inside = emit("And", _is_positive(at.y), emit("Less", at.y, number(1, at.y)))
    return (_where(inside, at.g * at.attr("alpha", 0.2), 0, at.g),)


@rule("HardSwish")
def hard_swish(at: RuleContext) -> Gradients:
    """The function x max(0, min(1, x / 6 + 1 / 2)): x / 3 + 1 / 2 between -3 and 3; Howard et al., arXiv:1905.02244."""
    x = at.x
    inside = _where(emit("Less", x, number(3, x)), at.g * (x * (1 / 3) + 0.5), at.g, at.g)
    return (_where(emit("Greater", x, number(-3, x)), inside, 0, at.g),)


@rule("Shrink")
def shrink(at: RuleContext) -> Gradients:
    """The function x - bias above lambd, x + bias below -lambd, 0 between."""
    limit = number(at.attr("lambd", 0.5), at.x)
    return (_where(emit("Greater", emit("Abs", at.x), limit), at.g, 0, at.g),)


@rule("Sigmoid")
def sigmoid(at: RuleContext) -> Gradients:
    """The function s = 1 / (1 + exp(-x)): s (1 - s)."""
    return (at.g * (at.y * (1 - at.y)),)


@rule("Softplus")
def softplus(at: RuleContext) -> Gradients:
    """log(1 + exp x): 1 / (1 + exp(-x))."""
    return (at.g * emit("Sigmoid", at.x),)


@rule("Softsign")
def softsign(at: RuleContext) -> Gradients:
    """The function x / (1 + |x|): 1 / (1 + |x|)^2."""
    base = emit("Abs", at.x) + 1
    return (at.g / (base * base),)


@rule("Gelu")
def gelu(at: RuleContext) -> Gradients:
    """The function x P(x) with the normal distribution P, or its form by tanh; Hendrycks and Gimpel, arXiv:1606.08415.

    That form is x s(2 v) with the sigmoid s, since tanh v = 2 s(2 v) - 1.
    """
    x, square = at.x, at.x * at.x
    if at.attr("approximate", "none") == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        cubic = scale * 0.044715
        s = emit("Sigmoid", x * (square * cubic + scale))
        slope = s + x * (s * (1 - s)) * (square * (3 * cubic) + scale)
    else:
        distribution = (emit("Erf", x * math.sqrt(0.5)) + 1) * 0.5
        slope = distribution + x * emit("Exp", square * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (at.g * slope,)


@rule("Mish")
def mish(at: RuleContext) -> Gradients:
    """The function x tanh(log(1 + exp x)) = x t: t + x (1 - t^2) s with the sigmoid s; Misra, arXiv:1908.08681."""
    t = emit("Tanh", emit("Softplus", at.x))
    return (at.g * (t + at.x * (1 - t * t) * emit("Sigmoid", at.x)),)


@rule("Swish")
def swish(at: RuleContext) -> Gradients:
    """The function x s(alpha x) with the sigmoid s: s + alpha x s (1 - s); Ramachandran et al., arXiv:1710.05941."""
    alpha = at.attr("alpha", 1.0)
    s = emit("Sigmoid", at.x * alpha)
    return (at.g * (s + at.x * s * (1 - s) * alpha),)


@rule("Softmax")
def softmax(at: RuleContext) -> Gradients:
    """The function y = exp x / sum exp x: dx = y (g - sum(g y)); Bridle, *Probabilistic interpretation of ... outputs* (1990)."""
    weighted = at.g * at.y
    total = emit("ReduceSum", weighted, [at.attr("axis", -1)], keepdims=1)
    return (weighted - at.y * total,)


@rule("LogSoftmax")
def log_softmax(at: RuleContext) -> Gradients:
    """The function y = x - log sum exp x: dx = g - exp(y) sum g."""
    total = emit("ReduceSum", at.g, [at.attr("axis", -1)], keepdims=1)
    return (at.g - emit("Exp", at.y) * total,)
