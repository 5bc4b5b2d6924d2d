"""Operators of several tensors, element by element, with broadcasting: arithmetic, comparison, logic, bits, choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from math import pi
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.engines.torch.kernel_context import Factory, Run, Tensor, find_known, ops
from xrt.formats.onnx.writing import read_clip_bounds
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = [
    "NARROW",
    "elu",
    "extreme",
    "fixed",
    "hard_sigmoid",
    "is_whole",
    "leaky_relu",
    "round_once",
    "softsign",
    "thresholded_relu",
    "widen",
]

NARROW = frozenset({torch.float16, torch.bfloat16})


def widen(x: Tensor) -> Tensor:
    """Return narrow floats as float32, everything else as it is."""
    return x.float() if x.dtype in NARROW else x


def round_once(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of float tensors compute narrow types in float32, and round its result to their type at the end.

    The type is that of the first argument; arguments that are not tensors pass through.
    """

    @wraps(compute)
    def run(x: Tensor, *rest: Any, **options: Any) -> Any:
        if x.dtype not in NARROW:
            return compute(x, *rest, **options)
        wide = (widen(value) if isinstance(value, torch.Tensor) else value for value in rest)
        return compute(x.float(), *wide, **options).to(x.dtype)

    return run


def is_whole(x: Tensor) -> bool:
    """Whether a tensor holds whole numbers or truth values."""
    return not x.dtype.is_floating_point


def extreme(dtype: torch.dtype, *, lowest: bool) -> Any:
    """Return what the extreme of no elements is: the value that every other one beats."""
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return float("-inf") if lowest else float("inf")
    info = torch.iinfo(dtype)
    return info.min if lowest else info.max


SIGN = torch.iinfo(torch.int64).min
"""The bit whose change makes int64 compare as uint64 of the same bits does."""
ORDERED = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"})
LEGACY = 6
"""The last version whose broadcast is asked for, and aligned, by attributes."""


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient; whole numbers are divided towards zero, and by zero give zero.

    torch raises for a division by zero, and the process ends when the least number is divided by -1.
    """
    if not is_whole(a):
        return torch.div(a, b)
    none = b == 0
    if not a.dtype.is_signed:
        return torch.div(a, b.masked_fill(none, 1), rounding_mode="trunc").masked_fill_(none, 0)
    opposite = b == -1
    quotient = torch.div(a, b.masked_fill(none | opposite, 1), rounding_mode="trunc")
    return torch.where(opposite, -quotient, quotient).masked_fill_(none, 0)


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return the power in the base's type; whole numbers to negative or broken powers in float64, and cut off."""
    if not is_whole(base):
        if exponent.dtype == torch.float64 and base.dtype != torch.float64:
            exponent = exponent.to(base.dtype)
        return torch.pow(base, exponent if is_whole(exponent) else exponent.to(base.dtype))
    if not is_whole(exponent):
        return torch.pow(base.double(), exponent.double()).to(base.dtype)
    whole = torch.pow(base, exponent.clamp(min=0)).to(base.dtype)
    cut = torch.pow(base.double(), exponent.double()).to(base.dtype)
    return torch.where(exponent < 0, cut, whole)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Return x above zero, and x times its slope below."""
    return torch.where(x < 0, slope * x, x)


BINARY: dict[str, Run] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Div": divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": power,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}


def _legacy(run: Run) -> Factory:
    """Return the factory for versions up to 6: ``axis`` says at which axis of A the shape of B begins."""

    def factory(at: TorchKernelContext) -> Run:
        axis, broadcast = at.attr("axis"), at.attr("broadcast", 0)
        if not broadcast or axis is None:
            return run
        return lambda a, b: run(a, b.reshape(*b.shape, *(1,) * (a.ndim - axis % a.ndim - b.ndim)))

    return factory


def _compare_uint64(run: Run) -> Run:
    return lambda *operands: run(*(x ^ SIGN for x in operands))


def _binary(run: Run) -> Factory:
    """Return the factory of a function of two tensors."""
    return lambda at: _compare_uint64(run) if at.input_dtype(0) is DType.UINT64 and at.node.op_type in ORDERED else run


for _op, _run in BINARY.items():
    ops(_op, since=LEGACY + 1)(_binary(_run))
    ops(_op, until=LEGACY)(_legacy(_run))


@ops("PRelu", since=LEGACY + 1)
def prelu_by_broadcasting(at: TorchKernelContext) -> Run:
    return prelu


@ops("PRelu", until=LEGACY)
def prelu_by_channel(at: TorchKernelContext) -> Run:
    return lambda x, slope: prelu(x, slope.reshape(-1, *(1,) * (x.ndim - 2)) if slope.ndim == 1 and len(slope) > 1 else slope)


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int32: torch.int32, torch.int64: torch.int64}
_FEW = 4096
"""Elements to which `torch.where` takes no longer than operators on the bits."""


@ops("Where")
def where(at: TorchKernelContext) -> Run:
    """Zeros are chosen by operators on the bits: `torch.where` takes ten times as long, since it computes no vectors."""
    known = (find_known(at.node, at.function, place) for place in (1, 2))
    zeros = [one is not None and one.array.size == 1 and not any(one.array.tobytes()) for one in known]

    def choose(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        kept, zero = (x, y) if zeros[1] else (y, x)
        bits = _BITS.get(kept.dtype)
        if type(kept) is not torch.Tensor or bits is None or condition.numel() < _FEW or zero.ndim > condition.ndim:
            return torch.where(condition, x, y)
        mask = condition.to(bits)
        return (kept.view(bits) & (mask.neg_() if zeros[1] else mask.sub_(1))).view(kept.dtype)

    return choose if any(zeros) else torch.where


@ops("Mod")
def mod(at: TorchKernelContext) -> Run:
    """The sign follows the divisor, or with ``fmod`` the dividend; whole numbers modulo zero give zero, where torch raises."""
    remainder = torch.fmod if at.attr("fmod", 0) else torch.remainder

    def run(a: Tensor, b: Tensor) -> Tensor:
        if not is_whole(a):
            return remainder(a, b)
        none = b == 0
        return remainder(a, b.masked_fill(none, 1)).masked_fill_(none, 0)

    return run


@ops("BitShift")
def bit_shift(at: TorchKernelContext) -> Run:
    """A shift by all bits or more gives zero."""
    shift = torch.bitwise_left_shift if at.attr("direction") == "LEFT" else torch.bitwise_right_shift
    return lambda x, amount: shift(x, amount.to(x.dtype))


def _variadic(combine: Run) -> Factory:
    """Return the factory of a kernel that combines any number of tensors, two by two."""

    def factory(at: TorchKernelContext) -> Run:
        run: Run = lambda *operands: reduce(combine, operands)  # noqa: E731  # a kernel, as all of them
        if at.input_dtype(0) is not DType.UINT64 or at.node.op_type not in ORDERED:
            return run
        return lambda *operands: _compare_uint64(run)(*operands) ^ SIGN

    return factory


VARIADIC: dict[str, Run] = {"Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add}
for _op, _run in VARIADIC.items():
    ops(_op)(_variadic(_run))


@ops("Mean")
def mean(at: TorchKernelContext) -> Run:
    return lambda *operands: (reduce(torch.add, map(widen, operands)) / len(operands)).to(operands[0].dtype)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The upper bound wins where the bounds cross; NaN stays."""
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


@ops("Clip", until=10)
def clip_by_attributes(at: TorchKernelContext) -> Run:
    low, high = read_clip_bounds(at.node)
    return round_once(lambda x: torch.clamp(x, low, high))


@ops("Clip", since=11)
def clip(at: TorchKernelContext) -> Run:
    return lambda x, low=None, high=None: _clip(x, *(None if b is None else b.reshape(()) for b in (low, high)))


ops("MatMul")(lambda at: lambda a, b: torch.matmul(widen(a), widen(b)).to(a.dtype))


@ops("Gemm")
def gemm(at: TorchKernelContext) -> Run:
    """``alpha * A' B' + beta * C``, C always being broadcast; the sums of narrow floats are rounded once."""
    alpha, beta = at.attr("alpha", 1.0), at.attr("beta", 1.0)
    left, right = at.attr("transA", 0), at.attr("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor = None) -> Tensor:
        wide_a, wide_b = widen(a), widen(b)
        if left:
            wide_a = wide_a.T
        if right:
            wide_b = wide_b.T
        if c is not None and alpha == 1 and beta == 1 and a.dtype.is_floating_point:
            return torch.addmm(widen(c), wide_a, wide_b).to(a.dtype)
        y = torch.matmul(wide_a, wide_b)
        y = y if alpha == 1 else y * alpha
        if c is not None and beta != 0:
            y = y + (widen(c) if beta == 1 else widen(c) * beta)
        return y.to(a.dtype)

    return run


@ops("Einsum")
def einsum(at: TorchKernelContext) -> Run:
    equation = at.attr("equation").replace(" ", "")
    return lambda *tensors: torch.einsum(equation, *map(widen, tensors)).to(tensors[0].dtype)


ops("Det")(lambda at: lambda x: torch.linalg.det(widen(x)).to(x.dtype))


def fixed(run: Run) -> Factory:
    """Return the factory of a kernel that has no attributes."""
    return lambda at: run


FUNCTIONS: dict[str, Run] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
"""Operators that are one function of torch's."""
for _operator, _function in FUNCTIONS.items():
    ops(_operator)(fixed(_function))


@ops("Sign")
def sign(at: TorchKernelContext) -> Run:
    """The sign of NaN is NaN, where torch's is zero."""
    return lambda x: torch.sign(x) if is_whole(x) else torch.where(torch.isnan(x), x, torch.sign(x))


@ops("IsInf")
def is_inf(at: TorchKernelContext) -> Run:
    positive, negative = at.attr("detect_positive", 1), at.attr("detect_negative", 1)
    if not positive and not negative:
        return lambda x: torch.zeros_like(x, dtype=torch.bool)
    found: Run = torch.isinf if positive and negative else torch.isposinf if positive else torch.isneginf
    return found


def activation(*op_types: str, **defaults: float) -> Callable[[Run], Run]:
    """Register ``f(x, *attributes)``, a function of one float tensor; the keywords are its attributes' defaults.

    Attributes are float32 numbers, and so are defaults, which a float64 tensor shows.
    """

    def register(compute: Run) -> Run:
        once = round_once(compute)

        def factory(at: TorchKernelContext) -> Run:
            given = [at.attr(name, float(np.float32(default))) for name, default in defaults.items()]
            return (lambda x: once(x, *given)) if given else once

        ops(*op_types)(factory)
        return compute

    return register


activation("Sigmoid")(torch.sigmoid)
activation("Erf")(torch.erf)
activation("HardSwish")(lambda x: x * hard_sigmoid(x, 1 / 6, 0.5))
activation("Mish")(lambda x: x * torch.tanh(softplus(x)))


@activation("Softplus")
def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))``."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


@activation("Softsign")
def softsign(x: Tensor) -> Tensor:
    """Return ``x / (1 + |x|)``."""
    return x / (1 + torch.abs(x))


@activation("Elu", alpha=1.0)
def elu(x: Tensor, alpha: float) -> Tensor:
    """Return ``alpha * (exp(x) - 1)`` below zero, x above."""
    return torch.where(x < 0, alpha * torch.expm1(x), x)


@activation("Selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return a scaled `elu`."""
    return gamma * torch.where(x <= 0, alpha * torch.expm1(x), x)


@activation("Celu", alpha=1.0)
def celu(x: Tensor, alpha: float) -> Tensor:
    """Return an `elu` whose slope is continuous whatever alpha is."""
    return torch.where(x < 0, alpha * torch.expm1(x / alpha), x)


@activation("LeakyRelu", alpha=0.01)
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """Return ``alpha * x`` below zero, x above."""
    return torch.where(x < 0, alpha * x, x)


@activation("ThresholdedRelu", alpha=1.0)
def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """Return x above alpha, zero elsewhere."""
    return torch.where(x > alpha, x, torch.zeros((), dtype=x.dtype))


@activation("HardSigmoid", alpha=0.2, beta=0.5)
def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Return ``alpha * x + beta``, held between 0 and 1."""
    return torch.clamp(alpha * x + beta, 0, 1)


@activation("Swish", alpha=1.0)
def swish(x: Tensor, alpha: float) -> Tensor:
    """Return x times the sigmoid of ``alpha * x``."""
    return x * torch.sigmoid(alpha * x)


@ops("Gelu")
def gelu(at: TorchKernelContext) -> Run:
    """Written out: torch's own function gives NaN for infinity."""
    return round_once(_gelu_by_tanh if at.attr("approximate", "none") == "tanh" else _gelu)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / pi) ** 0.5 * (x + 0.044715 * (x * x * x))))


@ops("Shrink")
def shrink(at: TorchKernelContext) -> Run:
    bias, bound = at.attr("bias", 0.0), at.attr("lambd", 0.5)

    def run(x: Tensor) -> Tensor:
        wide = x if x.dtype.is_floating_point else x.to(torch.float64)
        moved: Any = torch.where(wide < -bound, wide + bias, torch.where(wide > bound, wide - bias, 0))
        return moved.to(x.dtype)

    return run
