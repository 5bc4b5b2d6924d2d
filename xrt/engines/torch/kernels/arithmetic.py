"""Operators of several tensors, element by element, with broadcasting: arithmetic, comparison, logic, bits, choice."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.kernel_context import find_known
from xrt.engines.torch.kernels.precision import is_whole, round_once, widen
from xrt.engines.torch.table import Factory, Run, Tensor, ops
from xrt.formats.onnx.clip_bounds import read_clip_bounds
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

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
