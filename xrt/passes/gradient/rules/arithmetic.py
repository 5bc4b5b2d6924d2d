"""Gradients of elementwise arithmetic, activations, softmax and matrix products.

Derivatives follow Abramowitz and Stegun, *Handbook of Mathematical Functions* (1964), 3.3, 4.2 to 4.6 and 7.1. The gradient of
a broadcast operand is summed over the broadcast axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import (
    RULES,
    RuleContext,
    add_axes,
    cast,
    expand_to,
    extent,
    integers,
    join,
    number,
    reshape,
    reshape_to,
    rule,
    sum_to,
    transpose,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]
# ---------------------------------------------------------------------- functions of one variable


def _register_unary(operator: str, factor: Callable[[Tensor, Tensor], Any], source: str) -> None:
    """Register an elementwise rule: the gradient times the derivative, a function of x and y."""

    def apply_chain_rule(at: RuleContext) -> Gradients:
        return (at.g * factor(at.x, at.y),)

    apply_chain_rule.__doc__ = source
    RULES[operator] = apply_chain_rule


def _one_over_root(x: Tensor) -> Tensor:
    return emit("Reciprocal", emit("Sqrt", x))


_register_unary("Abs", lambda x, y: emit("Sign", x), "d|x| = sign x; 0 at 0.")
_register_unary("Acos", lambda x, y: -_one_over_root(1 - x * x), "d arccos x = -1 / sqrt(1 - x^2).")
_register_unary("Acosh", lambda x, y: _one_over_root(x * x - 1), "d arcosh x = 1 / sqrt(x^2 - 1).")
_register_unary("Asin", lambda x, y: _one_over_root(1 - x * x), "d arcsin x = 1 / sqrt(1 - x^2).")
_register_unary("Asinh", lambda x, y: _one_over_root(x * x + 1), "d arsinh x = 1 / sqrt(x^2 + 1).")
_register_unary("Atan", lambda x, y: emit("Reciprocal", x * x + 1), "d arctan x = 1 / (1 + x^2).")
_register_unary("Atanh", lambda x, y: emit("Reciprocal", 1 - x * x), "d artanh x = 1 / (1 - x^2).")
_register_unary("Cos", lambda x, y: -emit("Sin", x), "d cos x = -sin x.")
_register_unary("Cosh", lambda x, y: emit("Sinh", x), "d cosh x = sinh x.")
_register_unary("Erf", lambda x, y: emit("Exp", -(x * x)) * (2 / math.sqrt(math.pi)), "d erf x = 2 / sqrt(pi) exp(-x^2).")
_register_unary("Exp", lambda x, y: y, "d exp x = exp x.")
_register_unary("Log", lambda x, y: emit("Reciprocal", x), "d log x = 1 / x.")
_register_unary("Reciprocal", lambda x, y: -(y * y), "d (1 / x) = -1 / x^2.")
_register_unary("Sigmoid", lambda x, y: y * (1 - y), "For s = 1 / (1 + exp(-x)): s (1 - s).")
_register_unary("Sin", lambda x, y: emit("Cos", x), "d sin x = cos x.")
_register_unary("Sinh", lambda x, y: emit("Cosh", x), "d sinh x = cosh x.")
_register_unary("Softplus", lambda x, y: emit("Sigmoid", x), "log(1 + exp x): 1 / (1 + exp(-x)).")
_register_unary("Sqrt", lambda x, y: emit("Reciprocal", y) * 0.5, "d sqrt x = 1 / (2 sqrt x).")
_register_unary("Tan", lambda x, y: y * y + 1, "d tan x = 1 + tan^2 x.")
_register_unary("Tanh", lambda x, y: 1 - y * y, "d tanh x = 1 - tanh^2 x.")


@rule("Identity", "Neg")
def pass_on(at: RuleContext) -> Gradients:
    """The gradient itself; for -x, with the other sign."""
    return (-at.g if at.node.op == "Neg" else at.g,)


@rule("Cast")
def cast_back(at: RuleContext) -> Gradients:
    """Casts between floating point types are treated as the identity: rounding has no gradient."""
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
    # Both operands are the same value: one product instead of two and a sum.
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
    """d(x^p) = p x^(p-1) dx + x^p log x dp; the first term is 0 at p = 0, the second at x = 0 with p >= 0."""
    x, p = at.input(0), at.input(1)
    base = exponent = None
    exponents = at.constant(1)
    if at.wants(0) and exponents is not None and exponents.size == 1:
        value = float(exponents.reshape(()))
        # x^(p-1) at p - 1 = 1 is x: exact, and cheaper than Pow.
        slope = x if value == 2 else emit("Pow", x, number(value - 1, x))
        base = zeros_like(x) if value == 0 else sum_to(at.g if value == 1 else at.g * (slope * value), x)
    elif at.wants(0):
        q = cast(p, x.dtype)
        is_zero = emit("Equal", q, number(0, q))
        slope = q * emit("Pow", x, emit("Where", is_zero, number(1, q), q - 1))
        base = sum_to(emit("Where", is_zero, number(0, x), at.g * slope), x)
    if at.wants(1):
        g, y, one = cast(at.g, p.dtype), cast(at.y, p.dtype), number(1, x)
        # log 0 times 0 would be NaN.
        is_flat = emit("And", emit("Equal", x, number(0, x)), emit("GreaterOrEqual", p, number(0, p)))
        log = cast(emit("Log", emit("Where", is_flat, one, x)), p.dtype)
        exponent = sum_to(emit("Where", is_flat, number(0, p), g * y * log), p)
    return base, exponent


@rule("Mod")
def remainder(at: RuleContext) -> Gradients:
    """Rule for a mod b = a - b q, where the integer q is piecewise constant."""
    a, b = at.input(0), at.input(1)
    quotient = emit("Round", (a - at.y) / b) if at.wants(1) else None
    first = sum_to(at.g, a) if at.wants(0) else None
    return first, None if quotient is None else -sum_to(at.g * quotient, b)


@rule("Max", "Min")
def choose_extreme(at: RuleContext) -> Gradients:
    """The gradient goes to the selected operand; ties share it equally."""
    operands = [at.input(i) for i in range(len(at.node.inputs))]
    if len(operands) == 1:
        return (at.g,)
    masks = [cast(emit("Equal", operand, at.y), at.y.dtype) for operand in operands]
    ties = emit("Sum", *masks) if len(masks) > 2 else masks[0] + masks[1]
    share = at.g / ties
    return tuple(
        sum_to(share * mask, x) if at.wants(i) else None for i, (x, mask) in enumerate(zip(operands, masks, strict=True))
    )


@rule("Where")
def select(at: RuleContext) -> Gradients:
    """Each operand gets the gradient where it is selected, zero elsewhere."""
    condition, zero = at.input(0), number(0, at.g)
    a = sum_to(emit("Where", condition, at.g, zero), at.input(1)) if at.wants(1) else None
    return None, a, sum_to(emit("Where", condition, zero, at.g), at.input(2)) if at.wants(2) else None


@rule("Clip")
def clip(at: RuleContext) -> Gradients:
    """min(max(x, low), high): the gradient goes to x for low <= x <= high, else to the active bound."""
    low, high = at.optional(1), at.optional(2)
    raised = at.x if low is None else emit("Max", at.x, low)
    below = None if low is None else emit("Less", at.x, low)
    above = None if high is None else emit("Greater", raised, high)
    zero, x, bottom, top = number(0, at.g), at.g, None, None
    # ONNX applies the upper bound last, so it wins over the lower one.
    if above is not None and high is not None:
        top = sum_to(emit("Where", above, at.g, zero), high) if at.wants(2) else None
        x = emit("Where", above, zero, x)
    if below is not None and low is not None:
        bottom = sum_to(emit("Where", below, x, zero), low) if at.wants(1) else None
        x = emit("Where", below, zero, x)
    return x, bottom, top


def _where(condition: Tensor, a: Tensor | float, b: Tensor | float, like: Tensor) -> Tensor:
    """Emit Where; numbers become scalars of the type of `like`."""
    first, second = (number(v, like) if isinstance(v, int | float) else v for v in (a, b))
    return emit("Where", condition, first, second)


def _is_positive(x: Tensor) -> Tensor:
    return emit("Greater", x, number(0, x))


def _is_negative(x: Tensor) -> Tensor:
    return emit("Less", x, number(0, x))


@rule("Relu")
def relu(at: RuleContext) -> Gradients:
    """For y = max(0, x): dx = g above 0, and 0 elsewhere."""
    return (_where(_is_positive(at.x), at.g, 0, at.g),)


@rule("LeakyRelu")
def leaky_relu(at: RuleContext) -> Gradients:
    """For y = alpha x below 0, x elsewhere."""
    return (_where(_is_negative(at.x), at.g * at.attr("alpha", 0.01), at.g, at.g),)


@rule("PRelu")
def parametric_relu(at: RuleContext) -> Gradients:
    """For y = slope x below 0, x elsewhere."""
    x, slope = at.input(0), at.input(1)
    below = _is_negative(x)
    first = _where(below, at.g * slope, at.g, at.g) if at.wants(0) else None
    return first, sum_to(_where(below, at.g * x, 0, at.g), slope) if at.wants(1) else None


@rule("Elu")
def elu(at: RuleContext) -> Gradients:
    """For y = alpha (exp x - 1) below 0, x elsewhere: dx = g (y + alpha) below 0, g elsewhere."""
    alpha = at.attr("alpha", 1.0)
    return (_where(_is_negative(at.x), at.g * (at.y + alpha), at.g, at.g),)


@rule("Selu")
def selu(at: RuleContext) -> Gradients:
    """For y = gamma alpha (exp x - 1) below 0, gamma x above; Klambauer et al., arXiv:1706.02515."""
    # Not ONNX's body: its exponential overflows for large x, and the gradient of the branch that is not selected would be NaN.
    alpha, gamma = at.attr("alpha", 1.67326319217681884765625), at.attr("gamma", 1.05070102214813232421875)
    return (at.g * _where(_is_positive(at.x), gamma, at.y + gamma * alpha, at.y),)


@rule("HardSwish")
def hard_swish(at: RuleContext) -> Gradients:
    """For x max(0, min(1, x / 6 + 1 / 2)): x / 3 + 1 / 2 between -3 and 3; Howard et al., arXiv:1905.02244."""
    # ONNX's body has the slope 1 / 6 in float32.
    x = at.x
    inside = _where(emit("Less", x, number(3, x)), at.g * (x * (1 / 3) + 0.5), at.g, at.g)
    return (_where(emit("Greater", x, number(-3, x)), inside, 0, at.g),)


@rule("Gelu")
def gelu(at: RuleContext) -> Gradients:
    """For y = x P(x) with the normal distribution P: dx = g (P(x) + x P'(x)); Hendrycks and Gimpel, arXiv:1606.08415.

    With ``approximate="tanh"``, P(x) is the sigmoid of 2 v, where v = sqrt(2 / pi) (x + 0.044715 x^3).
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


@rule("Softmax")
def softmax(at: RuleContext) -> Gradients:
    """For y = exp x / sum exp x: dx = y (g - sum(g y)); Bridle, *Probabilistic interpretation of ... outputs* (1990)."""
    weighted = at.g * at.y
    total = emit("ReduceSum", weighted, [at.attr("axis", -1)], keepdims=1)
    return (weighted - at.y * total,)


@rule("LogSoftmax")
def log_softmax(at: RuleContext) -> Gradients:
    """For y = x - log sum exp x: dx = g - exp(y) sum g."""
    total = emit("ReduceSum", at.g, [at.attr("axis", -1)], keepdims=1)
    return (at.g - emit("Exp", at.y) * total,)


def _swap(x: Tensor) -> Tensor:
    """Transpose the last two axes."""
    rank = x.ndim
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _as_rows(x: Tensor) -> Tensor:
    """Reshape (..., rows, columns) to (all rows, columns)."""
    columns = extent(x, -1)
    # Reshape cannot infer -1 next to an extent of 0.
    if isinstance(columns, np.ndarray) and columns.all():
        return reshape(x, join(integers(-1), columns))
    return reshape(x, emit("Concat", emit("ReduceProd", emit("Shape", x, end=-1), keepdims=1), columns, axis=0))


@rule("MatMul")
def multiply_matrices(at: RuleContext) -> Gradients:
    """C = A B: dA = G B', dB = A' G, summed over broadcast batch axes."""
    a, b, g = at.input(0), at.input(1), at.g
    ranks = at.rank(a), at.rank(b)
    left = add_axes(a, 0) if ranks[0] == 1 else a
    right = add_axes(b, 1) if ranks[1] == 1 else b
    if ranks[1] == 1:
        g = add_axes(g, -1)
    if ranks[0] == 1:
        g = add_axes(g, -2)
    first = second = None
    if at.wants(0):
        # sum_to drops batch axes along which `a` was broadcast, reshape_to the axis added to a vector.
        first = reshape_to(sum_to(emit("MatMul", g, _swap(right)), left), a)
    # A weight shared by the batch: one large product instead of a batched product and a sum.
    if at.wants(1) and ranks[1] == 2 and ranks[0] > 2:
        second = emit("MatMul", _swap(_as_rows(left)), _as_rows(g))
    elif at.wants(1):
        second = reshape_to(sum_to(emit("MatMul", _swap(left), g), right), b)
    return first, second


@rule("Gemm")
def multiply_and_add(at: RuleContext) -> Gradients:
    """Y = alpha A' B' + beta C with optional transposes: the products of MatMul, transposed accordingly."""
    a, b, g = at.input(0), at.input(1), at.g
    alpha, beta, ta, tb = at.attr("alpha", 1.0), at.attr("beta", 1.0), at.attr("transA", 0), at.attr("transB", 0)
    first = second = third = None
    if at.wants(0):
        first = emit("Gemm", b, g, alpha=alpha, transA=tb, transB=1) if ta else emit("Gemm", g, b, alpha=alpha, transB=1 - tb)
    if at.wants(1):
        second = emit("Gemm", g, a, alpha=alpha, transA=1, transB=ta) if tb else emit("Gemm", a, g, alpha=alpha, transA=1 - ta)
    if at.wants(2):
        third = sum_to(g if beta == 1 else g * beta, at.input(2))
    return first, second, third


@rule("Einsum")
def contract(at: RuleContext) -> Gradients:
    """The gradient of a factor is the Einsum of the output's gradient with the other factors.

    Along an index that occurs in this factor only, the gradient is broadcast.
    """
    operands = [at.input(i) for i in range(len(at.node.inputs))]
    subscripts, result = _read_equation(at, [at.rank(operand) for operand in operands])
    for term in (*subscripts, result):
        if len(set(term)) < len(term):
            at.refuse(f"the indices {term!r} of its equation repeat one, and the rule is for equations without diagonals")
    return tuple(
        _contract_others(at, subscripts, result, operands, index) if at.wants(index) else None for index in range(len(operands))
    )


def _contract_others(at: RuleContext, subscripts: list[str], result: str, operands: list[Tensor], index: int) -> Tensor:
    """The gradient of one factor of an Einsum."""
    others = [k for k in range(len(operands)) if k != index]
    letters = set(result).union(*(subscripts[k] for k in others))
    target = "".join(letter for letter in subscripts[index] if letter in letters)
    equation = ",".join([result, *(subscripts[k] for k in others)]) + "->" + target
    gradient = emit("Einsum", at.g, *(operands[k] for k in others), equation=equation)
    missing = [place for place, letter in enumerate(subscripts[index]) if letter not in letters]
    if missing:
        return expand_to(add_axes(gradient, *missing), operands[index])
    return sum_to(gradient, operands[index])


def _read_equation(at: RuleContext, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Read the equation of an Einsum: the indices of each operand and of the result, with letters for ellipses."""
    equation = at.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    subscripts = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    counts = [rank - len(term.replace("...", "")) if "..." in term else 0 for rank, term in zip(ranks, subscripts, strict=True)]
    if max(counts) > len(free):
        at.refuse("its equation has more axes than there are letters")
    letters = "".join(free[: max(counts)])
    if not arrow:
        chars = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(letter for letter in set(chars) if chars.count(letter) == 1))
    # Ellipses align at the last axes, as in broadcasting.
    expanded = [term.replace("...", letters[len(letters) - count :]) for term, count in zip(subscripts, counts, strict=True)]
    return expanded, right.replace("...", letters)
