"""Operators of several tensors, element by element, with broadcasting: arithmetic, comparison, logic, bits, choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.kernels.elementwise import array_function
from xrt.engines.xla.table import Kernel, Operand, either, is_either, ops
from xrt.formats.onnx.clip_bounds import read_clip_bounds

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []

FUNCTIONS = {
    "And": "logical_and",
    "Equal": "equal",
    "Greater": "greater",
    "Less": "less",
    "Mul": "multiply",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
"""Operators that are one function of two arrays; all had a broadcast of their own once."""
PLAIN = {
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "GreaterOrEqual": "greater_equal",
    "LessOrEqual": "less_equal",
    "Where": "where",
}
"""Those that always had NumPy's broadcasting."""
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}

LEGACY = 6
"""The last version whose broadcast is asked for, and aligned, by attributes."""


def align_legacy_axis(kernel: Kernel) -> Kernel:
    """Return the kernel for versions up to 6: ``axis`` says at which axis of A the shape of B begins."""

    @wraps(kernel)
    def legacy(at: LoweringContext, a: Operand, b: Operand) -> Operand:
        axis = at.attr("axis")
        if at.attr("broadcast", 0) and axis is not None:
            b = b.reshape(b.shape + (1,) * (a.ndim - axis % a.ndim - b.ndim))
        return kernel(at, a, b)

    return either(legacy) if is_either(kernel) else legacy


def binary(op_type: str) -> Callable[[Kernel], Kernel]:
    """Register a kernel of a binary operator for all versions, the legacy broadcast included."""

    def register(kernel: Kernel) -> Kernel:
        ops(op_type, since=LEGACY + 1)(kernel)
        ops(op_type, until=LEGACY)(align_legacy_axis(kernel))
        return kernel

    return register


for _op, _name in FUNCTIONS.items():
    binary(_op)(array_function(_name))
for _op, _name in PLAIN.items():
    ops(_op)(array_function(_name))


def make_sum(name: str) -> Kernel:
    """Return a kernel that adds or subtracts, whose sums with constants XLA does not merge.

    It makes ``x + (a + b)`` of ``(x + a) + b``, and so undoes rounding that was the point of it. The barrier goes before fusion.
    """

    def kernel(at: LoweringContext, a: Operand, b: Operand) -> Operand:
        if at.xp is jnp and not _is_whole(a) and (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)):
            a, b = (x if isinstance(x, np.ndarray) else jax.lax.optimization_barrier(x) for x in (a, b))
        return getattr(at.xp, name)(a, b)

    return either(kernel)


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(_op)(make_sum(_name))


def _is_whole(x: Operand) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@binary("Div")
@either
def div(at: LoweringContext, a: Operand, b: Operand) -> Operand:
    """Whole numbers are divided towards zero, where the array modules' division goes towards minus infinity."""
    if not _is_whole(a):
        return at.xp.divide(a, b)
    quotient = at.xp.floor_divide(a, b)
    return quotient + ((quotient * b != a) & (b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


@binary("Pow")
def power(at: LoweringContext, base: Operand, exponent: Operand) -> Operand:
    """Mixed types are computed in the wider of floats; whole numbers to negative powers in float64, and cut off."""
    if not _is_whole(base):
        return jnp.power(base, exponent.astype(base.dtype))
    if not _is_whole(exponent):
        return jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    whole = jnp.power(base, jnp.maximum(exponent, 0)).astype(base.dtype)
    if jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return whole
    cut = jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    return jnp.where(exponent < 0, cut, whole)


@binary("PRelu")
def prelu(at: LoweringContext, x: Operand, slope: Operand) -> Operand:
    if at.version <= LEGACY and slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return jnp.where(x < 0, slope * x, x)


@ops("Mod")
@either
def mod(at: LoweringContext, a: Operand, b: Operand) -> Operand:
    """The sign follows the divisor, or with ``fmod`` the dividend."""
    return (at.xp.fmod if at.attr("fmod", 0) else at.xp.remainder)(a, b)


@ops("BitShift")
def bit_shift(at: LoweringContext, x: Operand, amount: Operand) -> Operand:
    return (jnp.left_shift if at.attr("direction") == "LEFT" else jnp.right_shift)(x, amount)


def variadic(name: str) -> Kernel:
    """Return a kernel that combines any number of tensors, two by two."""
    return either(lambda at, *operands: reduce(getattr(at.xp, name), operands))


for _op, _name in VARIADIC.items():
    ops(_op)(variadic(_name))


@ops("Mean")
def mean(at: LoweringContext, *operands: Operand) -> Operand:
    return (reduce(jnp.add, operands) / len(operands)).astype(operands[0].dtype)


def _clipped(x: Operand, low: Operand, high: Operand) -> Operand:
    """The upper bound wins where the bounds cross."""
    if low is not None:
        x = jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


@ops("Clip", until=10)
def clip_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return _clipped(x, *read_clip_bounds(at.node))


@ops("Clip", since=11)
def clip(at: LoweringContext, x: Operand, low: Operand = None, high: Operand = None) -> Operand:
    bounds = (None if bound is None else bound.reshape(()) for bound in (low, high))
    return _clipped(x, *bounds)
