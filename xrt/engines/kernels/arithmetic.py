"""Operators of several tensors, element by element, with broadcasting: arithmetic, comparison, logic, bits, choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from xrt.engines.kernels.elementwise import universal
from xrt.engines.kernels.table import Array, Factory, Run, ops
from xrt.engines.toolkit.array_ops.elements import widen
from xrt.formats.onnx.writing import read_clip_bounds

if TYPE_CHECKING:
    from xrt.engines.contract.op_table import OpTable
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__ = ["binary"]

CLOSED = {"And": "logical_and", "Mul": "multiply", "Or": "logical_or", "Xor": "logical_xor"}
"""Operators that are one universal function of two arrays and keep their dtype; all had a broadcast of their own once."""
COMPARISONS = {"Equal": "equal", "Greater": "greater", "Less": "less"}
"""The same for those that give booleans."""
PLAIN = {"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"}
"""Operators that are one universal function and always had NumPy's broadcasting."""
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}
LEGACY = 6
"""The last version whose broadcast is asked for, and aligned, by attributes."""


def align_legacy_axis(factory: Factory) -> Factory:
    """Return the factory for versions up to 6: ``axis`` says at which axis of A the shape of B begins."""

    def legacy(node: Node, env: NodeContext) -> Run:
        run = factory(node, env)
        axis = node.attr("axis")
        if not node.attr("broadcast", 0) or axis is None:
            return run

        def broadcast(a: Array, b: Array) -> Array:
            start = axis % a.ndim
            return run(a, b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim)))

        return broadcast

    return legacy


def binary(table: OpTable[Factory], *op_types: str, mutable: tuple[int, ...] = ()) -> Callable[[Factory], Factory]:
    """Register a factory of a binary operator in a table for all versions, the legacy broadcast included."""

    def register(factory: Factory) -> Factory:
        table(*op_types, since=LEGACY + 1, mutable=mutable)(factory)
        table(*op_types, until=LEGACY)(align_legacy_axis(factory))
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
        if a.dtype.kind not in "iu":
            return xp.divide(a, b) if out is None else xp.divide(a, b, out=out)  # JAX's division takes no buffer
        quotient = xp.floor_divide(a, b)
        # ONNX truncates towards zero, floor division towards minus infinity: they differ where the remainder is left over.
        return quotient + ((quotient * b != a) & (b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)

    return run


@binary(ops, "PRelu")
def prelu(node: Node, env: NodeContext) -> Run:
    xp = env.xp
    channels_first = env.version <= LEGACY

    def run(x: Array, slope: Array) -> Array:
        if channels_first and slope.ndim == 1 and slope.size > 1:
            slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
        return xp.where(x < 0, slope * x, x)

    return run


@ops("Mod")
def mod(node: Node, env: NodeContext) -> Run:
    """The sign follows the divisor, or with ``fmod`` the dividend."""
    return env.xp.fmod if node.attr("fmod", 0) else env.xp.remainder  # type: ignore[no-any-return]  # functions of the array module


@ops("BitShift")
def bit_shift(node: Node, env: NodeContext) -> Run:
    return env.xp.left_shift if node.attr("direction") == "LEFT" else env.xp.right_shift  # type: ignore[no-any-return]  # as above


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
    return env.xp.where  # type: ignore[no-any-return]  # a function of the array module


def _clipped(env: NodeContext, x: Array, low: Array | float | None, high: Array | float | None) -> Array:
    """The upper bound wins where the bounds cross."""
    if low is not None:
        x = env.xp.maximum(x, low)
    return x if high is None else env.xp.minimum(x, high)


@ops("Clip", until=10)
def clip_by_attributes(node: Node, env: NodeContext) -> Run:
    low, high = read_clip_bounds(node)
    return lambda x: _clipped(env, x, low, high)


@ops("Clip", since=11)
def clip(node: Node, env: NodeContext) -> Run:
    return lambda x, low=None, high=None: _clipped(env, x, low, high)


@ops("MatMul")
def matmul(node: Node, env: NodeContext) -> Run:
    """Narrow floats are multiplied in float32."""
    return lambda a, b: env.primitives.matmul(widen(a), widen(b)).astype(a.dtype, copy=False)


@ops("Gemm")
def gemm(node: Node, env: NodeContext) -> Run:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    flip_a, flip_b = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        y = env.primitives.matmul(widen(a).T if flip_a else widen(a), widen(b).T if flip_b else widen(b))
        y = y if alpha == 1 else y * alpha
        if c is not None and beta != 0:
            y = y + (widen(c) if beta == 1 else widen(c) * beta)
        return y.astype(a.dtype, copy=False)

    return run


@ops("Det")
def det(node: Node, env: NodeContext) -> Run:
    return lambda x: env.xp.linalg.det(widen(x)).astype(x.dtype, copy=False)
