"""Elementwise operators: math, activations, broadcasting arithmetic, comparison, logic, selection; products and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import round_once, widen
from xrt.engines.kernels.table import Array, Factory, Run, eager, ops
from xrt.formats.onnx.writing import read_clip_bounds

if TYPE_CHECKING:
    from xrt.engines.contract.op_table import OpTable
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node


# ---------------------------------------------------------------------- one tensor

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
"""Operators that map to one unary function of the namespace; all keep the dtype."""


def universal(name: str) -> Factory:
    """The factory of a kernel that calls one function of the namespace."""

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
def relu(node: Node, env: NodeContext) -> Run:
    xp = env.xp
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
"""Functions of one float tensor by qualified operator: ``f(xp, x, *attributes)``, and the attributes' defaults."""


def activation(compute: Callable[..., Array], defaults: Mapping[str, float]) -> Factory:
    """The factory of an activation kernel; narrow floats are rounded once."""

    def factory(node: Node, env: NodeContext) -> Run:
        # Attributes are float32, and so are defaults; a float64 tensor would show the difference.
        attributes = [node.attr(name, float(np.float32(default))) for name, default in defaults.items()]
        return round_once(env.xp, lambda x: compute(env.xp, x, *attributes))

    return factory


for _op, (_compute, _defaults) in ACTIVATIONS.items():
    _domain, _, _kind = _op.rpartition(".")
    ops(_kind, domain=_domain)(activation(_compute, _defaults))


@ops("Erf")
def erf(node: Node, env: NodeContext) -> Run:
    return round_once(env.xp, env.xp.erf)


@ops("Gelu")
def gelu(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    if node.attr("approximate", "none") == "tanh":
        slope = (2 / pi) ** 0.5
        return round_once(xp, lambda x: 0.5 * x * (1 + xp.tanh(slope * (x + 0.044715 * (x * x * x)))))
    return round_once(xp, lambda x: 0.5 * x * (1 + xp.erf(x * 0.5**0.5)))


@ops("Shrink")
def shrink(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    bias, bound = node.attr("bias", 0.0), node.attr("lambd", 0.5)

    def run(x: Array) -> Array:
        # Bias and bound may be fractions.
        wide = xp.astype(x, np.float64) if xp.kind(x) in "iu" else x
        y = xp.where(wide < -bound, wide + bias, xp.where(wide > bound, wide - bias, 0))
        return xp.astype(y, x.dtype)

    return run


# ---------------------------------------------------------------------- two tensors and more

CLOSED = {"And": "logical_and", "Mul": "multiply", "Or": "logical_or", "Xor": "logical_xor"}
"""Binary operators that map to one function and keep their dtype; before version 7 attributes controlled broadcasting."""
COMPARISONS = {"Equal": "equal", "Greater": "greater", "Less": "less"}
"""Comparisons that map to one function of the namespace, with boolean results."""
PLAIN = {"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"}
"""Binary operators that map to one function and always had NumPy's broadcasting."""
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}
LEGACY = 6
"""The last version in which attributes enable and align broadcasting."""


def align_legacy_axis(factory: Factory) -> Factory:
    """Adapt a factory to versions up to 6, where ``axis`` is the axis of A at which the shape of B starts."""

    def legacy(node: Node, env: NodeContext) -> Run:
        run = factory(node, env)
        axis = node.attr("axis")
        # Without an axis the shapes are aligned at the end, as in later versions.
        if not node.attr("broadcast", 0) or axis is None:
            return run

        def broadcast(a: Array, b: Array) -> Array:
            start = axis % a.ndim
            return run(a, b.reshape(*b.shape, *(1,) * (a.ndim - start - b.ndim)))

        return broadcast

    return legacy


def binary(
    table: OpTable[Factory], *op_types: str, mutable: tuple[int, ...] = (), priority: int = 0
) -> Callable[[Factory], Factory]:
    """Register the factory of a binary operator for all versions, including those with the legacy broadcast."""

    def register(factory: Factory) -> Factory:
        table(*op_types, since=LEGACY + 1, mutable=mutable, priority=priority)(factory)
        table(*op_types, until=LEGACY, priority=priority)(align_legacy_axis(factory))
        return factory

    return register


for _op, _name in CLOSED.items():
    binary(ops, _op, mutable=(0, 1))(universal(_name))
for _op, _name in COMPARISONS.items():
    binary(ops, _op)(universal(_name))
for _op, _name in PLAIN.items():
    ops(_op, mutable=(0, 1))(universal(_name))
ops("GreaterOrEqual")(universal("greater_equal"))
ops("LessOrEqual")(universal("less_equal"))


@binary(ops, "Div", mutable=(0, 1))
def div(node: Node, env: NodeContext) -> Run:
    xp = env.xp

    def run(a: Array, b: Array, out: Array | None = None) -> Array:
        if xp.kind(a) not in "iu":
            return xp.divide(a, b) if out is None else xp.divide(a, b, out=out)  # JAX's divide has no out argument
        quotient = xp.floor_divide(a, b)
        # ONNX truncates towards zero, floor division rounds down: they differ for quotients that are negative and inexact.
        return quotient + xp.astype((quotient * b != a) & (b != 0) & ((a < 0) != (b < 0)), a.dtype)

    return run


@binary(ops, "PRelu")
def prelu(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    channels_first = env.version <= LEGACY

    def run(x: Array, slope: Array) -> Array:
        # Up to version 6 a vector has a slope per channel; later it broadcasts from the last axis.
        if channels_first and slope.ndim == 1 and len(slope) > 1:
            slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
        return xp.where(x < 0, slope * x, x)

    return run


@ops("Mod")
def mod(node: Node, env: NodeContext) -> Run:
    """The sign of the result is that of the divisor, or with ``fmod`` of the dividend."""
    return env.xp.fmod if node.attr("fmod", 0) else env.xp.remainder  # type: ignore[no-any-return]  # functions of the namespace


@ops("BitShift")
def bit_shift(node: Node, env: NodeContext) -> Run:
    return env.xp.left_shift if node.attr("direction") == "LEFT" else env.xp.right_shift  # type: ignore[no-any-return]  # functions of the namespace


def variadic(name: str) -> Factory:
    def factory(node: Node, env: NodeContext) -> Run:
        combine = getattr(env.xp, name)
        return lambda *values: reduce(combine, values)

    return factory


for _op, _name in VARIADIC.items():
    ops(_op)(variadic(_name))


@ops("Mean")
def mean(node: Node, env: NodeContext) -> Run:
    add, count = env.xp.add, len(node.inputs)
    return lambda *values: reduce(add, values) / count


@ops("Where")
def where(node: Node, env: NodeContext) -> Run:
    return env.xp.where  # type: ignore[no-any-return]  # a function of the namespace


def _clip_values(env: NodeContext, x: Array, low: Array | float | None, high: Array | float | None) -> Array:
    """Clip; if low exceeds high, the result is high."""
    if low is not None:
        x = env.xp.maximum(x, low)
    return x if high is None else env.xp.minimum(x, high)


@ops("Clip", until=10)
def clip_by_attributes(node: Node, env: NodeContext) -> Run:
    low, high = read_clip_bounds(node)
    return lambda x: _clip_values(env, x, low, high)


@ops("Clip", since=11)
def clip(node: Node, env: NodeContext) -> Run:
    return lambda x, low=None, high=None: _clip_values(env, x, low, high)


@ops("MatMul")
def matmul(node: Node, env: NodeContext) -> Run:
    """Narrow floats are computed in float32."""
    xp = env.xp
    return lambda a, b: xp.astype(xp.matmul(widen(xp, a), widen(xp, b)), a.dtype)


@ops("Gemm")
def gemm(node: Node, env: NodeContext) -> Run:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    xp, flip_a, flip_b = env.xp, bool(node.attr("transA", 0)), bool(node.attr("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        left, right = widen(xp, a), widen(xp, b)
        y = xp.matmul(xp.transpose(left) if flip_a else left, xp.transpose(right) if flip_b else right)
        # Factors of 1 are skipped: each product is a pass over the tensor.
        y = y if alpha == 1 else y * alpha
        # With beta=0 the result must not depend on C, which may hold NaN.
        if c is not None and beta != 0:
            y = y + (widen(xp, c) if beta == 1 else widen(xp, c) * beta)
        return xp.astype(y, a.dtype)

    return run


@ops("Det")
def det(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    return lambda x: xp.astype(xp.linalg.det(widen(xp, x)), x.dtype)


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(eager, _op, mutable=(0, 1))(universal(_name))


@binary(eager, "Pow")
def power(node: Node, env: NodeContext) -> Run:
    xp = env.xp

    def run(base: Array, exponent: Array) -> Array:
        # NumPy refuses negative exponents of integers.
        if xp.kind(base) in "iu" and xp.kind(exponent) == "i" and bool(xp.any(exponent < 0)):
            base, exponent, dtype = xp.astype(base, np.float64), xp.astype(exponent, np.float64), base.dtype
            return xp.astype(xp.power(base, exponent), dtype)
        return xp.astype(xp.power(base, exponent), base.dtype)

    return run


@eager("Where", priority=1, mutable=(1, 2))
def where_in_place(node: Node, env: NodeContext) -> Run:
    xp = env.xp

    def run(condition: Array, yes: Array, no: Array, out: Array | None = None) -> Array:
        if out is None:
            return xp.where(condition, yes, no)
        # If the buffer is one of the operands, only the elements of the other one are written.
        if out is yes:
            xp.copyto(out, no, where=~condition)
            return out
        if out is not no:
            xp.copyto(out, no)
        xp.copyto(out, yes, where=condition)
        return out

    return run


@ops("Einsum")
def einsum(node: Node, env: NodeContext) -> Run:
    xp, equation = env.xp, node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(xp, t) for t in tensors]
        # Two tensors have one order of contraction; to choose among several is worth its time.
        return xp.astype(xp.einsum(equation, *wide, optimize=len(wide) > 2), tensors[0].dtype)

    return run


DOMAIN = "ai.onnx.preview.training"


@eager("Adam", domain=DOMAIN, model_update=True, host=(0, 1))
def adam(node: Node, env: NodeContext) -> Run:
    """Outputs: the updated tensors, then the averages of their gradients, then those of the squared gradients."""
    xp, alpha, beta = env.xp, node.attr("alpha", 0.9), node.attr("beta", 0.999)
    epsilon = node.attr("epsilon", 1e-6)
    norm, norm_post = (node.attr(name, 0.0) for name in ("norm_coefficient", "norm_coefficient_post"))

    def step(rate: float, x: Array, gradient: Array, mean: Array, square: Array) -> tuple[Array, Array, Array]:
        wide_x, wide_gradient, wide_mean, wide_square = (xp.astype(value, np.float64) for value in (x, gradient, mean, square))
        regularized = norm * wide_x + wide_gradient
        new_mean = alpha * wide_mean + (1 - alpha) * regularized
        new_square = beta * wide_square + (1 - beta) * regularized * regularized
        new_x = wide_x - rate * new_mean / (xp.sqrt(new_square) + epsilon)
        return xp.astype((1 - norm_post) * new_x, x.dtype), xp.astype(new_mean, mean.dtype), xp.astype(new_square, square.dtype)

    def run(rate: Array, count: Array, *tensors: Array) -> tuple[Array, ...]:
        r, t = float(rate), int(count)
        # Corrects the averages, which start at zero and are too small in the first steps.
        r = r * sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else r
        n = len(tensors) // 4
        steps = [step(r, *(tensors[i + part * n] for part in range(4))) for i in range(n)]
        return tuple(steps[i][part] for part in range(3) for i in range(n))

    return run


@eager("RotaryEmbedding")
def rotary_embedding(node: Node, env: NodeContext) -> Run:
    """Rotate pairs of features by position-dependent angles; features beyond ``rotary_embedding_dim`` are unchanged."""
    xp, heads = env.xp, node.attr("num_heads", 0)
    width, interleaved = node.attr("rotary_embedding_dim", 0), bool(node.attr("interleaved", 0))

    def run(x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (batch, sequence, 1, width / 2)
        parts = xp.transpose(x, (0, 2, 1, 3)) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
        count = width or parts.shape[-1]
        # The features that are not rotated are copied.
        y = xp.copy(parts)
        pairs = (slice(0, count, 2), slice(1, count, 2)) if interleaved else (slice(count // 2), slice(count // 2, count))
        first, second = parts[..., pairs[0]], parts[..., pairs[1]]
        y[..., pairs[0]] = cos * first - sin * second
        y[..., pairs[1]] = sin * first + cos * second
        return xp.transpose(y, (0, 2, 1, 3)) if x.ndim == 4 else y.reshape(x.shape)

    return run


@eager("SwiGLU")
def swiglu(node: Node, env: NodeContext) -> Run:
    xp, alpha = env.xp, node.attr("alpha", 1.0)
    return round_once(xp, lambda gate, value: _swish(xp, gate, alpha) * value)
