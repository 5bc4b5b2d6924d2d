"""Elementwise arithmetic with broadcasting, and elementary functions.

Derivatives are those of Abramowitz and Stegun, *Handbook of Mathematical Functions* (1964), 3.3, 4.2 to 4.6 and 7.1. A gradient
of a broadcast operand is summed over the axes along which it was repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import RULES, RuleContext, rule
from xrt.passes.gradient.tensors import cast, number, sum_to, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]

# ---------------------------------------------------------------------- functions of one variable


def _unary(operator: str, factor: Callable[[Tensor, Tensor], Any], source: str) -> None:
    """Register the rule of an elementwise function: the gradient times a factor, its derivative, made of x and y."""

    def apply_chain_rule(at: RuleContext) -> Gradients:
        return (at.g * factor(at.x, at.y),)

    apply_chain_rule.__doc__ = source
    RULES[operator] = apply_chain_rule


def _one_over_root(x: Tensor) -> Tensor:
    return emit("Reciprocal", emit("Sqrt", x))


_unary("Abs", lambda x, y: emit("Sign", x), "d|x| = sign x; 0 at 0.")
_unary("Acos", lambda x, y: -_one_over_root(1 - x * x), "d arccos x = -1 / sqrt(1 - x^2).")
_unary("Acosh", lambda x, y: _one_over_root(x * x - 1), "d arcosh x = 1 / sqrt(x^2 - 1).")
_unary("Asin", lambda x, y: _one_over_root(1 - x * x), "d arcsin x = 1 / sqrt(1 - x^2).")
_unary("Asinh", lambda x, y: _one_over_root(x * x + 1), "d arsinh x = 1 / sqrt(x^2 + 1).")
_unary("Atan", lambda x, y: emit("Reciprocal", x * x + 1), "d arctan x = 1 / (1 + x^2).")
_unary("Atanh", lambda x, y: emit("Reciprocal", 1 - x * x), "d artanh x = 1 / (1 - x^2).")
_unary("Cos", lambda x, y: -emit("Sin", x), "d cos x = -sin x.")
_unary("Cosh", lambda x, y: emit("Sinh", x), "d cosh x = sinh x.")
_unary("Erf", lambda x, y: emit("Exp", -(x * x)) * (2 / math.sqrt(math.pi)), "d erf x = 2 / sqrt(pi) exp(-x^2).")
_unary("Exp", lambda x, y: y, "d exp x = exp x.")
_unary("Log", lambda x, y: emit("Reciprocal", x), "d log x = 1 / x.")
_unary("Reciprocal", lambda x, y: -(y * y), "d (1 / x) = -1 / x^2.")
_unary("Sin", lambda x, y: emit("Cos", x), "d sin x = cos x.")
_unary("Sinh", lambda x, y: emit("Cosh", x), "d sinh x = cosh x.")
_unary("Sqrt", lambda x, y: emit("Reciprocal", y) * 0.5, "d sqrt x = 1 / (2 sqrt x).")
_unary("Tan", lambda x, y: y * y + 1, "d tan x = 1 + tan^2 x.")
_unary("Tanh", lambda x, y: 1 - y * y, "d tanh x = 1 - tanh^2 x.")


@rule("Identity")
def pass_on(at: RuleContext) -> Gradients:
    """The gradient itself."""
    return (at.g,)


@rule("Neg")
def negate(at: RuleContext) -> Gradients:
    """d(-x) = -1."""
    return (-at.g,)


@rule("Cast", "CastLike")
def cast_back(at: RuleContext) -> Gradients:
    """A conversion between types of floating point is the identity but for rounding."""
    return (cast(at.g, at.x.dtype),)


# ---------------------------------------------------------------------- functions of several variables


@rule("Add")
def add(at: RuleContext) -> Gradients:
    """d(a + b) = da + db."""
    return tuple(sum_to(at.g, at.input(i)) if at.wants(i) else None for i in range(2))


@rule("Sub")
def subtract(at: RuleContext) -> Gradients:
    """d(a - b) = da - db."""
    a = sum_to(at.g, at.input(0)) if at.wants(0) else None
    return a, -sum_to(at.g, at.input(1)) if at.wants(1) else None


@rule("Mul")
def multiply(at: RuleContext) -> Gradients:
    """d(a b) = b da + a db; d(a a) = 2 a da."""
    a, b = at.input(0), at.input(1)
    if a.name == b.name:
        return (at.g * a * 2,)
    return sum_to(at.g * b, a) if at.wants(0) else None, sum_to(at.g * a, b) if at.wants(1) else None


@rule("Div")
def divide(at: RuleContext) -> Gradients:
    """d(a / b) = (da - (a / b) db) / b."""
    a, b = at.input(0), at.input(1)
    quotient = at.g / b
    return sum_to(quotient, a) if at.wants(0) else None, -sum_to(quotient * at.y, b) if at.wants(1) else None


@rule("Pow")
def power(at: RuleContext) -> Gradients:
    """d(x^p) = p x^(p-1) dx + x^p log x dp; the first is 0 where p is 0, the second where x is 0 and p is not negative."""
    x, p = at.input(0), at.input(1)
    base = exponent = None
    known = at.constant(1)
    if at.wants(0) and known is not None and known.size == 1:
        value = float(known.reshape(()))
        slope = x if value == 2 else emit("Pow", x, number(value - 1, x))
        base = zeros_like(x) if value == 0 else sum_to(at.g if value == 1 else at.g * (slope * value), x)
    elif at.wants(0):
        q = cast(p, x.dtype)
        is_zero = emit("Equal", q, number(0, q))
        slope = q * emit("Pow", x, emit("Where", is_zero, number(1, q), q - 1))
        base = sum_to(emit("Where", is_zero, number(0, x), at.g * slope), x)
    if at.wants(1):
        g, y, one = cast(at.g, p.dtype), cast(at.y, p.dtype), number(1, x)
        is_flat = emit("And", emit("Equal", x, number(0, x)), emit("GreaterOrEqual", p, number(0, p)))
        log = cast(emit("Log", emit("Where", is_flat, one, x)), p.dtype)
        exponent = sum_to(emit("Where", is_flat, number(0, p), g * y * log), p)
    return base, exponent


@rule("Mod")
def remainder(at: RuleContext) -> Gradients:
    """The function a mod b = a - b q with an integer q, which is constant between its steps."""
    a, b = at.input(0), at.input(1)
    quotient = emit("Round", (a - at.y) / b) if at.wants(1) else None
    first = sum_to(at.g, a) if at.wants(0) else None
    return first, None if quotient is None else -sum_to(at.g * quotient, b)


@rule("Max", "Min")
def choose_extreme(at: RuleContext) -> Gradients:
    """The gradient goes to the operand that is chosen; operands that are equal share it."""
    operands = [at.input(i) for i in range(len(at.node.inputs))]
    if len(operands) == 1:
        return (at.g,)
    masks = [cast(emit("Equal", operand, at.y), at.y.dtype) for operand in operands]
    ties = emit("Sum", *masks) if len(masks) > 2 else masks[0] + masks[1]
    share = at.g / ties
    return tuple(
        sum_to(share * mask, x) if at.wants(i) else None for i, (x, mask) in enumerate(zip(operands, masks, strict=True))
    )


@rule("Sum", "Mean")
def average(at: RuleContext) -> Gradients:
    """Each summand has the gradient of the sum, divided by their number for the mean."""
    number_of = len(at.node.inputs)
    g = at.g if at.node.op == "Sum" or number_of == 1 else at.g * (1 / number_of)
    return tuple(sum_to(g, at.input(i)) if at.wants(i) else None for i in range(number_of))


@rule("Where")
def select(at: RuleContext) -> Gradients:
    """Each operand has the gradient where it is chosen, and zero elsewhere."""
    condition, zero = at.input(0), number(0, at.g)
    a = sum_to(emit("Where", condition, at.g, zero), at.input(1)) if at.wants(1) else None
    return None, a, sum_to(emit("Where", condition, zero, at.g), at.input(2)) if at.wants(2) else None


@rule("Clip")
def clip(at: RuleContext) -> Gradients:
    """min(max(x, low), high): the gradient goes to x between the bounds, themselves included, and to the bound elsewhere."""
    low, high = at.optional(1), at.optional(2)
    raised = at.x if low is None else emit("Max", at.x, low)
    below = None if low is None else emit("Less", at.x, low)
    above = None if high is None else emit("Greater", raised, high)
    zero, x, bottom, top = number(0, at.g), at.g, None, None
    if above is not None and high is not None:
        top = sum_to(emit("Where", above, at.g, zero), high) if at.wants(2) else None
        x = emit("Where", above, zero, x)
    if below is not None and low is not None:
        bottom = sum_to(emit("Where", below, x, zero), low) if at.wants(1) else None
        x = emit("Where", below, zero, x)
    return x, bottom, top
