"""Elementwise operators (functions, activations, arithmetic, comparisons, logic, selection), matrix products and Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import round_once, widen
from xrt.engines.kernels.table import Array, Factory, NodeContext, Run, eager, ops
from xrt.formats.onnx.writing import CLIP_BOUND_INPUTS_OPSET, read_clip_bounds

if TYPE_CHECKING:
    from xrt.engines.contract.op_table import OpTable
    from xrt.graph import Node


UNARY_FUNCTIONS = {
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
"""The function of the namespace that computes an operator of one array, whose result has the dtype of the input."""


def make_function_factory(name: str) -> Factory:
    """Make the factory of a kernel that only calls the namespace's function ``name``."""

    def factory(node: Node, ctx: NodeContext) -> Run:
        run: Run = getattr(ctx.xp, name)
        return run

    return factory


for _op, _name in UNARY_FUNCTIONS.items():
    ops(_op, mutable=(0,))(make_function_factory(_name))
for _op, _name in {"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"}.items():
    ops(_op, mutable=(0, 1))(make_function_factory(_name))
for _op, _name in {"GreaterOrEqual": "greater_equal", "IsNaN": "isnan", "LessOrEqual": "less_equal", "Where": "where"}.items():
    ops(_op)(make_function_factory(_name))


ops("Identity")(lambda node, ctx: lambda x: x)


@ops("IsInf")
def is_inf(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    negative, positive = node.attr("detect_negative", 1), node.attr("detect_positive", 1)
    if negative and positive:
        return xp.isinf  # type: ignore[no-any-return]  # a function of the namespace

    def run(x: Array) -> Array:
        mask = xp.isinf(x)
        if not positive:
            mask &= x < 0
        if not negative:
            mask &= x > 0
        return mask

    return run


@ops("Relu", mutable=(0,))
def relu(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    return lambda x, out=None: xp.maximum(x, 0, out=out)


def _hard_sigmoid(xp: Any, x: Array, alpha: float, beta: float) -> Array:
    return xp.minimum(xp.maximum(alpha * x + beta, 0), 1)


def _swish(xp: Any, x: Array, alpha: float) -> Array:
    return x / (1 + xp.exp(-alpha * x))


ACTIVATIONS: Mapping[str, tuple[Callable[..., Array], Mapping[str, float]]] = {
    "Celu": (lambda xp, x, alpha: xp.where(x < 0, alpha * xp.expm1(x / alpha), x), {"alpha": 1.0}),
    "Elu": (lambda xp, x, alpha: xp.where(x < 0, alpha * xp.expm1(x), x), {"alpha": 1.0}),
    "HardSigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": (lambda xp, x: x * _hard_sigmoid(xp, x, 1 / 6, 0.5), {}),
    "LeakyRelu": (lambda xp, x, alpha: xp.where(x < 0, alpha * x, x), {"alpha": 0.01}),
    "Mish": (lambda xp, x: x * xp.tanh(xp.logaddexp(x, 0)), {}),
    "Selu": (
        lambda xp, x, alpha, gamma: gamma * xp.where(x <= 0, alpha * xp.expm1(x), x),
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    ),
    "Sigmoid": (lambda xp, x: 1 / (1 + xp.exp(-x)), {}),
    "Softplus": (lambda xp, x: xp.logaddexp(x, 0), {}),
    "Softsign": (lambda xp, x: x / (1 + xp.abs(x)), {}),
    "Swish": (_swish, {"alpha": 1.0}),
    "ThresholdedRelu": (lambda xp, x, alpha: xp.where(x > alpha, x, 0), {"alpha": 1.0}),
    "com.microsoft.QuickGelu": (_swish, {"alpha": 1.702}),
}
"""Operator, with its domain if that is not ONNX's, to ``f(xp, x, *attributes)`` and the default values of the attributes."""


def activation(node: Node, ctx: NodeContext) -> Run:
    compute, defaults = ACTIVATIONS[node.op]
    # Attributes have float32 precision, so the defaults must have it too: a float64 tensor shows the difference.
    attributes = [node.attr(name, float(np.float32(default))) for name, default in defaults.items()]
    return round_once(ctx.xp, lambda x: compute(ctx.xp, x, *attributes))


for _op in ACTIVATIONS:
    _domain, _, _name = _op.rpartition(".")
    ops(_name, domain=_domain)(activation)


ops("Erf")(lambda node, ctx: round_once(ctx.xp, ctx.xp.erf))


@ops("Gelu")
def gelu(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    if node.attr("approximate", "none") == "tanh":
        slope = (2 / pi) ** 0.5
        return round_once(xp, lambda x: 0.5 * x * (1 + xp.tanh(slope * (x + 0.044715 * (x * x * x)))))
    return round_once(xp, lambda x: 0.5 * x * (1 + xp.erf(x * 0.5**0.5)))


@ops("Shrink")
def shrink(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    bias, bound = node.attr("bias", 0.0), node.attr("lambd", 0.5)

    def run(x: Array) -> Array:
        # Integers are computed in float64, because bias and bound may be fractions.
        wide = xp.astype(x, np.float64) if xp.dtype_kind(x) in "iu" else x
        y = xp.where(wide < -bound, wide + bias, xp.where(wide > bound, wide - bias, 0))
        return xp.astype(y, x.dtype)

    return run


LAST_LEGACY_VERSION = 6
"""The last version in which the attributes ``broadcast`` and ``axis`` control the broadcasting of a binary operator."""


def support_legacy_broadcast(factory: Factory) -> Factory:
    """Adapt a factory to versions up to 6, in which the attribute ``axis`` aligns the first axis of B with an axis of A."""

    def legacy(node: Node, ctx: NodeContext) -> Run:
        run = factory(node, ctx)
        axis = node.attr("axis")
        # Without an axis the shapes are aligned at the end, as in later versions.
        if not node.attr("broadcast", 0) or axis is None:
            return run

        def broadcast(a: Array, b: Array) -> Array:
            trailing_axes = a.ndim - axis % a.ndim - b.ndim
            return run(a, b.reshape(*b.shape, *(1,) * trailing_axes))

        return broadcast

    return legacy


def register_binary(
    table: OpTable[Factory], *op_types: str, mutable: tuple[int, ...] = (), priority: int = 0
) -> Callable[[Factory], Factory]:
    """Decorate the factory of a binary operator to register it in ``table``, for old versions with their broadcasting."""

    def register(factory: Factory) -> Factory:
        table(*op_types, since=LAST_LEGACY_VERSION + 1, mutable=mutable, priority=priority)(factory)
        # Not `mutable`: the function that aligns B has no parameter ``out``, so the result never overwrites an input.
        table(*op_types, until=LAST_LEGACY_VERSION, priority=priority)(support_legacy_broadcast(factory))
        return factory

    return register


for _op, _name in {"And": "logical_and", "Mul": "multiply", "Or": "logical_or", "Xor": "logical_xor"}.items():
    register_binary(ops, _op, mutable=(0, 1))(make_function_factory(_name))
for _op, _name in {"Equal": "equal", "Greater": "greater", "Less": "less"}.items():
    register_binary(ops, _op)(make_function_factory(_name))


@register_binary(ops, "Div", mutable=(0, 1))
def div(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp

    def run(a: Array, b: Array, out: Array | None = None) -> Array:
        if xp.dtype_kind(a) not in "iu":
            return xp.divide(a, b) if out is None else xp.divide(a, b, out=out)  # JAX's divide has no out argument
        quotient = xp.floor_divide(a, b)
        # ONNX truncates towards zero. Floor division rounds down, which differs by 1 if the quotient is negative and inexact.
        return quotient + xp.astype((quotient * b != a) & (b != 0) & ((a < 0) != (b < 0)), a.dtype)

    return run


@register_binary(ops, "PRelu")
def prelu(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    has_channel_slopes = ctx.version <= LAST_LEGACY_VERSION

    def run(x: Array, slope: Array) -> Array:
        # Up to version 6 a vector has one slope per channel. Later it broadcasts along the last axis.
        if has_channel_slopes and slope.ndim == 1 and len(slope) > 1:
            slope = slope.reshape(-1, *(1,) * (x.ndim - 2))  # (C, 1, 1) for images
        return xp.where(x < 0, slope * x, x)

    return run


@ops("Mod")
def mod(node: Node, ctx: NodeContext) -> Run:
    """The result has the sign of the divisor, or with ``fmod`` of the dividend."""
    return ctx.xp.fmod if node.attr("fmod", 0) else ctx.xp.remainder  # type: ignore[no-any-return]  # functions of the namespace


@ops("BitShift")
def bit_shift(node: Node, ctx: NodeContext) -> Run:
    return ctx.xp.left_shift if node.attr("direction") == "LEFT" else ctx.xp.right_shift  # type: ignore[no-any-return]  # functions of the namespace


VARIADIC_FUNCTIONS = {"Max": "maximum", "Mean": "add", "Min": "minimum", "Sum": "add"}
"""The function of the namespace that combines two operands of an operator of any number of arrays."""


@ops(*VARIADIC_FUNCTIONS)
def variadic(node: Node, ctx: NodeContext) -> Run:
    combine, count = getattr(ctx.xp, VARIADIC_FUNCTIONS[node.op_type]), len(node.inputs)
    if node.op_type == "Mean":
        return lambda *values: reduce(combine, values) / count
    return lambda *values: reduce(combine, values)


@ops("Clip")
def clip(node: Node, ctx: NodeContext) -> Run:
    """Clip to [low, high]. If low exceeds high, the result is high."""
    xp = ctx.xp
    fixed_low, fixed_high = read_clip_bounds(node) if ctx.version < CLIP_BOUND_INPUTS_OPSET else (None, None)

    def run(x: Array, low: Array | float | None = fixed_low, high: Array | float | None = fixed_high) -> Array:
        if low is not None:
            x = xp.maximum(x, low)
        return x if high is None else xp.minimum(x, high)

    return run


@ops("MatMul")
def matmul(node: Node, ctx: NodeContext) -> Run:
    """Floats under 32 bits are computed in float32."""
    xp = ctx.xp
    return lambda a, b: xp.astype(xp.matmul(widen(xp, a), widen(xp, b)), a.dtype)


@ops("Gemm")
def gemm(node: Node, ctx: NodeContext) -> Run:
    """Compute ``alpha * A' B' + beta * C``. Floats under 32 bits are computed in float32, and the result is rounded."""
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    xp, transpose_a, transpose_b = ctx.xp, node.attr("transA", 0), node.attr("transB", 0)

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        left, right = widen(xp, a), widen(xp, b)
        y = xp.matmul(xp.transpose(left) if transpose_a else left, xp.transpose(right) if transpose_b else right)
        # Skip factors of 1, because each multiplication is a pass over the tensor.
        y = y if alpha == 1 else y * alpha
        # With beta=0 the result must not depend on C, which may contain NaN.
        if c is not None and beta != 0:
            y = y + (widen(xp, c) if beta == 1 else widen(xp, c) * beta)
        return xp.astype(y, a.dtype)

    return run


@ops("Det")
def det(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp
    return lambda x: xp.astype(xp.linalg.det(widen(xp, x)), x.dtype)


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    register_binary(eager, _op, mutable=(0, 1))(make_function_factory(_name))


@register_binary(eager, "Pow")
def power(node: Node, ctx: NodeContext) -> Run:
    xp = ctx.xp

    def run(base: Array, exponent: Array) -> Array:
        # NumPy raises for integers to negative powers.
        if xp.dtype_kind(base) in "iu" and xp.dtype_kind(exponent) == "i" and bool(xp.any(exponent < 0)):
            y = xp.power(xp.astype(base, np.float64), xp.astype(exponent, np.float64))
            return xp.astype(y, base.dtype)
        return xp.astype(xp.power(base, exponent), base.dtype)

    return run


@ops("Einsum")
def einsum(node: Node, ctx: NodeContext) -> Run:
    xp, equation = ctx.xp, node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(xp, t) for t in tensors]
        # For more than two tensors it is worth the time to search for the best order of contractions.
        return xp.astype(xp.einsum(equation, *wide, optimize=len(wide) > 2), tensors[0].dtype)

    return run


@eager("Adam", domain="ai.onnx.preview.training", model_update=True, host=(0, 1))
def adam(node: Node, ctx: NodeContext) -> Run:
    """The outputs are the updated parameters, the averages of their gradients, and the averages of the squared gradients."""
    xp, alpha, beta = ctx.xp, node.attr("alpha", 0.9), node.attr("beta", 0.999)
    epsilon = node.attr("epsilon", 1e-6)
    norm, norm_post = (node.attr(name, 0.0) for name in ("norm_coefficient", "norm_coefficient_post"))

    def update(rate: float, *tensors: Array) -> tuple[Array, Array, Array]:
        x, gradient, mean, square = (xp.astype(tensor, np.float64) for tensor in tensors)
        regularized = norm * x + gradient
        new_mean = alpha * mean + (1 - alpha) * regularized
        new_square = beta * square + (1 - beta) * regularized * regularized
        new_x = (1 - norm_post) * (x - rate * new_mean / (xp.sqrt(new_square) + epsilon))
        return xp.astype(new_x, tensors[0].dtype), xp.astype(new_mean, tensors[2].dtype), xp.astype(new_square, tensors[3].dtype)

    def run(learning_rate: Array, step: Array, *tensors: Array) -> tuple[Array, ...]:
        rate, t = float(learning_rate), int(step)
        # Bias correction: the averages start at zero, so they are too small in the first steps.
        rate = rate * sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else rate
        # Four groups of n tensors: parameters, gradients, averages, and averages of squares.
        n = len(tensors) // 4
        updates = [update(rate, *tensors[i::n]) for i in range(n)]  # `i::n` is tensor i of each group
        parameters, means, squares = zip(*updates, strict=True)
        return *parameters, *means, *squares

    return run


@eager("RotaryEmbedding")
def rotary_embedding(node: Node, ctx: NodeContext) -> Run:
    """Rotate pairs of features by angles that depend on the position. Features from ``rotary_embedding_dim`` on are unchanged."""
    xp, heads = ctx.xp, node.attr("num_heads", 0)
    width, interleaved = node.attr("rotary_embedding_dim", 0), bool(node.attr("interleaved", 0))

    def run(x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        if positions is not None:
            cos, sin = cos[positions], sin[positions]  # rows of a table with one row per position
        cos, sin = cos[:, :, None], sin[:, :, None]  # (batch, sequence, 1, width / 2)
        # (batch, sequence, heads, features)
        features = xp.transpose(x, (0, 2, 1, 3)) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
        count = width or features.shape[-1]  # 0 means all features
        # The copy contains the features that are not rotated.
        y = xp.copy(features)
        if interleaved:  # a pair is two neighbors
            first_slice, second_slice = slice(0, count, 2), slice(1, count, 2)
        else:  # a pair is an element of the first half and one of the second half
            first_slice, second_slice = slice(count // 2), slice(count // 2, count)
        first, second = features[..., first_slice], features[..., second_slice]
        y[..., first_slice] = cos * first - sin * second
        y[..., second_slice] = sin * first + cos * second
        return xp.transpose(y, (0, 2, 1, 3)) if x.ndim == 4 else y.reshape(x.shape)

    return run


@eager("SwiGLU")
def swiglu(node: Node, ctx: NodeContext) -> Run:
    xp, alpha = ctx.xp, node.attr("alpha", 1.0)
    return round_once(xp, lambda gate, value: _swish(xp, gate, alpha) * value)
