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
    Gradients,
    RuleContext,
    add_axes,
    cast,
    expand_to,
    get_extent,
    join_extents,
    make_vector,
    reshape,
    reshape_to,
    rule,
    sum_to,
    transpose,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def _register_unary(operator: str, factor: Callable[[Tensor, Tensor], Any], source: str) -> None:
    """Register an elementwise rule: the gradient times ``factor(x, y)``, the derivative. ``source`` is its docstring."""

    def apply_chain_rule(ctx: RuleContext) -> Gradients:
        return (ctx.g * factor(ctx.x, ctx.y),)

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
def pass_on(ctx: RuleContext) -> Gradients:
    """The gradient itself; for -x, with the other sign."""
    return (-ctx.g if ctx.node.op == "Neg" else ctx.g,)


@rule("Cast")
def cast_back(ctx: RuleContext) -> Gradients:
    """Casts between floating point types are treated as the identity: rounding has no gradient."""
    return (cast(ctx.g, ctx.x.dtype),)


@rule("Add")
def add(ctx: RuleContext) -> Gradients:
    """d(a + b) = da + db."""
    return sum_to(ctx.g, ctx.input(0)), sum_to(ctx.g, ctx.input(1))


@rule("Sub")
def subtract(ctx: RuleContext) -> Gradients:
    """d(a - b) = da - db."""
    return sum_to(ctx.g, ctx.input(0)), -sum_to(ctx.g, ctx.input(1))


@rule("Mul")
def multiply(ctx: RuleContext) -> Gradients:
    """d(a b) = b da + a db; d(a a) = 2 a da."""
    a, b = ctx.input(0), ctx.input(1)
    # Both operands are the same value: one product instead of two and a sum.
    if a.name == b.name:
        return (ctx.g * a * 2,)
    return sum_to(ctx.g * b, a), sum_to(ctx.g * a, b)


@rule("Div")
def divide(ctx: RuleContext) -> Gradients:
    """d(a / b) = (da - (a / b) db) / b."""
    a, b = ctx.input(0), ctx.input(1)
    quotient = ctx.g / b
    return sum_to(quotient, a), -sum_to(quotient * ctx.y, b)


@rule("Pow")
def power(ctx: RuleContext) -> Gradients:
    """d(x^p) = p x^(p-1) dx + x^p log x dp; the first term is 0 at p = 0, the second at x = 0 with p >= 0."""
    base_gradient = _differentiate_base(ctx) if ctx.wants(0) else None
    exponent_gradient = _differentiate_exponent(ctx) if ctx.wants(1) else None
    return base_gradient, exponent_gradient


def _differentiate_base(ctx: RuleContext) -> Tensor:
    x, exponents = ctx.x, ctx.constant(1)
    if exponents is not None and exponents.size == 1:
        exponent = float(exponents.reshape(()))
        if exponent in (0, 1):
            return zeros_like(x) if exponent == 0 else sum_to(ctx.g, x)
        # For x^2 the lower power is x: exact, and cheaper than Pow.
        lower_power = x if exponent == 2 else emit("Pow", x, np.asarray(exponent - 1, x.dtype.numpy))
        return sum_to(ctx.g * (lower_power * exponent), x)
    p = cast(ctx.input(1), x.dtype)
    is_zero = emit("Equal", p, 0)
    # For p = 0, x^(p-1) may be infinite, and infinity times 0 would be NaN.
    slope = p * emit("Pow", x, emit("Where", is_zero, 1, p - 1))
    return sum_to(emit("Where", is_zero, 0, ctx.g * slope), x)


def _differentiate_exponent(ctx: RuleContext) -> Tensor:
    x, p = ctx.x, ctx.input(1)
    g, y = cast(ctx.g, p.dtype), cast(ctx.y, p.dtype)
    # There log 0 times 0 would be NaN.
    is_flat = emit("And", emit("Equal", x, 0), emit("GreaterOrEqual", p, 0))
    log = cast(emit("Log", emit("Where", is_flat, 1, x)), p.dtype)
    return sum_to(emit("Where", is_flat, 0, g * y * log), p)


@rule("Mod")
def remainder(ctx: RuleContext) -> Gradients:
    """Rule for a mod b = a - b q, where the integer q is piecewise constant."""
    a, b = ctx.input(0), ctx.input(1)
    quotient = emit("Round", (a - ctx.y) / b)
    return sum_to(ctx.g, a), -sum_to(ctx.g * quotient, b)


@rule("Max", "Min")
def choose_extreme(ctx: RuleContext) -> Gradients:
    """The gradient goes to the selected operand; ties share it equally."""
    operands = [ctx.input(i) for i in range(len(ctx.node.inputs))]
    if len(operands) == 1:
        return (ctx.g,)
    masks = [cast(emit("Equal", operand, ctx.y), ctx.y.dtype) for operand in operands]
    ties = emit("Sum", *masks) if len(masks) > 2 else masks[0] + masks[1]
    share = ctx.g / ties
    return [sum_to(share * mask, operand) for operand, mask in zip(operands, masks, strict=True)]


@rule("Where")
def select(ctx: RuleContext) -> Gradients:
    """Each operand gets the gradient where it is selected, zero elsewhere."""
    condition, a, b = ctx.input(0), ctx.input(1), ctx.input(2)
    return None, sum_to(emit("Where", condition, ctx.g, 0), a), sum_to(emit("Where", condition, 0, ctx.g), b)


@rule("Clip")
def clip(ctx: RuleContext) -> Gradients:
    """min(max(x, low), high): the gradient goes to x for low <= x <= high, else to the active bound."""
    low, high = ctx.optional(1), ctx.optional(2)
    x_gradient = ctx.g
    low_gradient = high_gradient = None
    # ONNX applies the upper bound last, so it is the active one if it is below the lower bound.
    if high is not None:
        raised = ctx.x if low is None else emit("Max", ctx.x, low)
        is_above = emit("Greater", raised, high)
        high_gradient = sum_to(emit("Where", is_above, ctx.g, 0), high)
        x_gradient = emit("Where", is_above, 0, x_gradient)
    if low is not None:
        is_below = emit("Less", ctx.x, low)
        low_gradient = sum_to(emit("Where", is_below, x_gradient, 0), low)
        x_gradient = emit("Where", is_below, 0, x_gradient)
    return x_gradient, low_gradient, high_gradient


@rule("Relu")
def relu(ctx: RuleContext) -> Gradients:
    """For y = max(0, x): dx = g above 0, and 0 elsewhere."""
    return (emit("Where", ctx.x > 0, ctx.g, 0),)


@rule("LeakyRelu")
def leaky_relu(ctx: RuleContext) -> Gradients:
    """For y = alpha x below 0, x elsewhere."""
    return (emit("Where", ctx.x < 0, ctx.g * ctx.attr("alpha", 0.01), ctx.g),)


@rule("PRelu")
def parametric_relu(ctx: RuleContext) -> Gradients:
    """For y = slope x below 0, x elsewhere."""
    x, slope = ctx.input(0), ctx.input(1)
    is_negative = x < 0
    return emit("Where", is_negative, ctx.g * slope, ctx.g), sum_to(emit("Where", is_negative, ctx.g * x, 0), slope)


@rule("Elu")
def elu(ctx: RuleContext) -> Gradients:
    """For y = alpha (exp x - 1) below 0, x elsewhere: dx = g (y + alpha) below 0, g elsewhere."""
    alpha = ctx.attr("alpha", 1.0)
    return (emit("Where", ctx.x < 0, ctx.g * (ctx.y + alpha), ctx.g),)


@rule("Selu")
def selu(ctx: RuleContext) -> Gradients:
    """For y = gamma alpha (exp x - 1) below 0, gamma x above; Klambauer et al., arXiv:1706.02515."""
    # ONNX's function body is not differentiated: for large x its exponential overflows, and the gradient of the branch that
    # Where does not select would be NaN.
    alpha, gamma = ctx.attr("alpha", 1.67326319217681884765625), ctx.attr("gamma", 1.05070102214813232421875)
    return (ctx.g * emit("Where", ctx.x > 0, gamma, ctx.y + gamma * alpha),)


@rule("HardSwish")
def hard_swish(ctx: RuleContext) -> Gradients:
    """For x max(0, min(1, x / 6 + 1 / 2)): x / 3 + 1 / 2 between -3 and 3; Howard et al., arXiv:1905.02244."""
    # ONNX's function body is not differentiated: it has the slope 1 / 6 in float32, also for float64 tensors.
    x = ctx.x
    below_3 = emit("Where", x < 3, ctx.g * (x * (1 / 3) + 0.5), ctx.g)
    return (emit("Where", x > -3, below_3, 0),)


@rule("Gelu")
def gelu(ctx: RuleContext) -> Gradients:
    """For y = x P(x) with the normal distribution P: dx = g (P(x) + x P'(x)); Hendrycks and Gimpel, arXiv:1606.08415.

    With ``approximate="tanh"``, P(x) is the sigmoid of 2 v, where v = sqrt(2 / pi) (x + 0.044715 x^3).
    """
    x, square = ctx.x, ctx.x * ctx.x
    if ctx.attr("approximate", "none") == "tanh":
        # P(x) is the sigmoid of linear * x + cubic * x^3.
        linear = 2 * math.sqrt(2 / math.pi)
        cubic = linear * 0.044715
        p = emit("Sigmoid", x * (square * cubic + linear))
        slope = p + x * (p * (1 - p)) * (square * (3 * cubic) + linear)
    else:
        distribution = (emit("Erf", x * math.sqrt(0.5)) + 1) * 0.5
        slope = distribution + x * emit("Exp", square * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (ctx.g * slope,)


@rule("Softmax")
def softmax(ctx: RuleContext) -> Gradients:
    """For y = exp x / sum exp x: dx = y (g - sum(g y)); Bridle, *Probabilistic interpretation of ... outputs* (1990)."""
    weighted = ctx.g * ctx.y
    total = emit("ReduceSum", weighted, [ctx.attr("axis", -1)], keepdims=1)
    return (weighted - ctx.y * total,)


@rule("LogSoftmax")
def log_softmax(ctx: RuleContext) -> Gradients:
    """For y = x - log sum exp x: dx = g - exp(y) sum g."""
    total = emit("ReduceSum", ctx.g, [ctx.attr("axis", -1)], keepdims=1)
    return (ctx.g - emit("Exp", ctx.y) * total,)


def _swap_last_axes(x: Tensor) -> Tensor:
    rank = x.ndim
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _flatten_batch(x: Tensor) -> Tensor:
    """Reshape (..., rows, columns) to a matrix with the rows of all batches."""
    columns = get_extent(x, -1)
    if isinstance(columns, np.ndarray) and columns.all():
        return reshape(x, join_extents(make_vector(-1), columns))
    # Reshape cannot infer -1 next to an extent of 0, so compute the number of rows.
    return reshape(x, emit("Concat", emit("ReduceProd", emit("Shape", x, end=-1), keepdims=1), columns, axis=0))


@rule("MatMul")
def multiply_matrices(ctx: RuleContext) -> Gradients:
    """C = A B: dA = G B', dB = A' G, summed over broadcast batch axes."""
    a, b, g = ctx.input(0), ctx.input(1), ctx.g
    a_rank, b_rank = ctx.rank(a), ctx.rank(b)
    # MatMul treats a vector as a matrix of one row or one column, and drops this axis from the result.
    left, right = a, b
    if b_rank == 1:
        right, g = add_axes(b, 1), add_axes(g, -1)
    if a_rank == 1:
        left, g = add_axes(a, 0), add_axes(g, -2)
    a_gradient = b_gradient = None
    if ctx.wants(0):
        # `sum_to` drops the batch axes along which `a` was broadcast, `reshape_to` the axis added to a vector.
        a_gradient = reshape_to(sum_to(emit("MatMul", g, _swap_last_axes(right)), left), a)
    if ctx.wants(1) and b_rank == 2 and a_rank > 2:
        # A weight shared by the batch: one large product instead of a batched product and a sum.
        b_gradient = emit("MatMul", _swap_last_axes(_flatten_batch(left)), _flatten_batch(g))
    elif ctx.wants(1):
        b_gradient = reshape_to(sum_to(emit("MatMul", _swap_last_axes(left), g), right), b)
    return a_gradient, b_gradient


@rule("Gemm")
def multiply_and_add(ctx: RuleContext) -> Gradients:
    """Y = alpha A' B' + beta C with optional transposes: the products of MatMul, transposed accordingly."""
    a, b, g = ctx.input(0), ctx.input(1), ctx.g
    alpha, beta, flip_a, flip_b = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0), ctx.attr("transA", 0), ctx.attr("transB", 0)
    a_gradient = b_gradient = c_gradient = None
    # The gradient of a transposed operand is transposed too: exchange the factors, and transpose each.
    if ctx.wants(0) and flip_a:
        a_gradient = emit("Gemm", b, g, alpha=alpha, transA=flip_b, transB=1)
    elif ctx.wants(0):
        a_gradient = emit("Gemm", g, b, alpha=alpha, transB=1 - flip_b)
    if ctx.wants(1) and flip_b:
        b_gradient = emit("Gemm", g, a, alpha=alpha, transA=1, transB=flip_a)
    elif ctx.wants(1):
        b_gradient = emit("Gemm", a, g, alpha=alpha, transA=1 - flip_a)
    if ctx.wants(2):
        c_gradient = sum_to(g if beta == 1 else g * beta, ctx.input(2))
    return a_gradient, b_gradient, c_gradient


@rule("Einsum")
def contract(ctx: RuleContext) -> Gradients:
    """The gradient of a factor is the Einsum of the output's gradient with the other factors.

    Along an index that occurs in this factor only, the gradient is broadcast.
    """
    operands = [ctx.input(i) for i in range(len(ctx.node.inputs))]
    subscripts, result = _read_equation(ctx, [ctx.rank(operand) for operand in operands])
    for indices in (*subscripts, result):
        if len(set(indices)) < len(indices):
            ctx.refuse(f"the indices {indices!r} of its equation repeat one; the rule is for equations without diagonals")
    return [
        _contract_others(ctx, subscripts, result, operands, factor) if ctx.wants(factor) else None
        for factor in range(len(operands))
    ]


def _contract_others(ctx: RuleContext, subscripts: list[str], result: str, operands: list[Tensor], factor: int) -> Tensor:
    """Compute the gradient of one factor of an Einsum. ``factor`` is the index of the operand."""
    others = [k for k in range(len(operands)) if k != factor]
    letters = set(result).union(*(subscripts[k] for k in others))
    target = "".join(letter for letter in subscripts[factor] if letter in letters)
    equation = ",".join([result, *(subscripts[k] for k in others)]) + "->" + target
    gradient = emit("Einsum", ctx.g, *(operands[k] for k in others), equation=equation)
    missing_axes = [axis for axis, letter in enumerate(subscripts[factor]) if letter not in letters]
    if missing_axes:
        return expand_to(add_axes(gradient, *missing_axes), operands[factor])
    return sum_to(gradient, operands[factor])


def _read_equation(ctx: RuleContext, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Read the equation of an Einsum: the indices of each operand and of the result, with letters for ellipses."""
    equation = ctx.attr("equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    subscripts = left.split(",")
    unused_letters = [letter for letter in ascii_letters if letter not in equation]
    # The number of axes that the ellipsis of each operand stands for.
    counts = [0] * len(ranks)
    for index, (rank, indices) in enumerate(zip(ranks, subscripts, strict=True)):
        if "..." in indices:
            counts[index] = rank - len(indices.replace("...", ""))
    if max(counts) > len(unused_letters):
        ctx.refuse("its equation has more axes than there are letters")
    letters = "".join(unused_letters[: max(counts)])
    if not arrow:
        # By default the result has the indices that occur once, in alphabetical order.
        named = left.replace(",", "").replace(".", "")
        result = "".join(sorted(letter for letter in named if named.count(letter) == 1))
        result = f"...{result}" if "..." in left else result
    # Ellipses align at the last axes, as in broadcasting.
    expanded = [
        indices.replace("...", letters[len(letters) - count :]) for indices, count in zip(subscripts, counts, strict=True)
    ]
    return expanded, result.replace("...", letters)
