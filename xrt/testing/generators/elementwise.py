"""Recipes for what is computed element by element: every width of integers, steep functions, many operands, narrow floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from xrt.graph import DType
from xrt.testing.graph_draft import LARGEST, DraftValue, GraphDraft, broadcastable

__all__ = ["EXACT_NUMBERS", "FLOATING", "INTEGERS", "STEPPING", "integer", "positive", "real"]

INTEGERS = tuple(map(DType.parse, ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")))
_FLOATS = (DType.FLOAT32, DType.FLOAT64)


def real(draft: GraphDraft, low: int = 0, shape: tuple[int, ...] | None = None) -> DraftValue:
    """Return a float32 or float64 of at least that rank, or of that shape."""
    kinds = tuple(kind for kind in _FLOATS if kind in draft.dtypes) or _FLOATS[:1]
    return draft.want(kinds, shape, ranks=(low, draft.rank))


def integer(draft: GraphDraft, low: int = 0) -> DraftValue:
    """Return an integer of some width."""
    return draft.want([kind for kind in INTEGERS if kind in draft.dtypes] or INTEGERS[:1], ranks=(low, draft.rank))


def positive(draft: GraphDraft, x: DraftValue, least: float = 0.5) -> DraftValue:
    """Add nodes that keep a value away from zero: its magnitude plus ``least``."""
    size = draft.node("Abs", [x], draft.out(x.dtype, x.shape, x.bound))[0]
    floor = draft.constant(np.asarray(least, x.dtype.numpy))
    return draft.node("Add", [size, floor], draft.out(x.dtype, x.shape, x.bound + least))[0]


def _largest(kind: DType) -> float:
    return min(LARGEST, float(np.iinfo(kind.numpy).max))


def _is_signed(kind: DType) -> bool:
    return kind.text.startswith("int")


# ---------------------------------------------------------------------- integers


def arithmetic_of_integers(draft: GraphDraft) -> None:
    x = integer(draft)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    total, most = x.bound + y.bound, max(x.bound, y.bound)
    bounds = {"Add": total, "Mul": x.bound * y.bound, "Min": most, "Max": most} | ({"Sub": total} if _is_signed(x.dtype) else {})
    fitting = [op for op, bound in bounds.items() if bound <= _largest(x.dtype)]
    if fitting:
        op = draft.choose.pick(fitting)
        draft.node(op, [x, y], draft.out(x.dtype, x.shape, bounds[op]))


def bitwise(draft: GraphDraft) -> None:
    x = integer(draft)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    op, bound = draft.choose.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), 2 * max(x.bound, y.bound) + 1
    if bound <= _largest(x.dtype):
        draft.node(op, [x, y], draft.out(x.dtype, x.shape, bound))


def bit_shift(draft: GraphDraft) -> None:
    kinds = [kind for kind in INTEGERS if not _is_signed(kind) and kind in draft.dtypes]
    if not kinds:
        return
    x, places = draft.want(kinds), draft.choose.integer(0, 2)
    if x.bound * 2**places <= _largest(x.dtype):
        amount = draft.constant(np.asarray(places, x.dtype.numpy))
        way = draft.choose.pick(("LEFT", "RIGHT"))
        draft.node("BitShift", [x, amount], draft.out(x.dtype, x.shape, x.bound * 2**places), direction=way)


def division_of_integers(draft: GraphDraft) -> None:
    """Div and Mod of both kinds, by constants of both signs."""
    x = integer(draft)
    divisors = (2, 3, 1, -2, -3) if _is_signed(x.dtype) else (2, 3, 1)
    shape = broadcastable(draft.choose, x.shape)
    seed = np.random.default_rng(draft.choose.integer(0, 99))
    y = draft.constant(seed.choice(divisors, shape).astype(x.dtype.numpy))
    op, attributes = draft.choose.pick((("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})))
    draft.node(op, [x, y], draft.out(x.dtype, x.shape, max(x.bound, 3.0)), **attributes)


def unary_of_integers(draft: GraphDraft) -> None:
    x = integer(draft)
    ops = ("Abs", "Sign", "Neg", "BitwiseNot", "Relu") if _is_signed(x.dtype) else ("Abs", "Sign")
    op = draft.choose.pick(ops)
    if x.bound + 1 <= _largest(x.dtype):
        draft.node(op, [x], draft.out(x.dtype, x.shape, x.bound + 1))


def power_of_integers(draft: GraphDraft) -> None:
    x = draft.want((DType.INT64, DType.INT32))
    if x.bound**2 <= LARGEST:
        exponent = draft.constant(np.asarray(draft.choose.integer(0, 2), x.dtype.numpy))
        draft.node("Pow", [x, exponent], draft.out(x.dtype, x.shape, max(1.0, x.bound**2)))


def cast_of_integers(draft: GraphDraft) -> None:
    """A cast that keeps the number: to a wider or narrower type that holds it, to a float, to a truth value."""
    x = draft.want([*INTEGERS, DType.BOOL])
    is_never_negative = x.dtype is DType.BOOL or not _is_signed(x.dtype)
    fitting = [k for k in INTEGERS if (is_never_negative or _is_signed(k)) and x.bound <= _largest(k)]
    to = draft.choose.pick([*fitting, DType.FLOAT32, DType.FLOAT64, DType.BOOL])
    draft.node("Cast", [x], draft.out(to, x.shape, 1.0 if to is DType.BOOL else x.bound), to=to.onnx)


def comparison_of_integers(draft: GraphDraft) -> None:
    x = draft.want([*INTEGERS])
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    op = draft.choose.pick(("LessOrEqual", "GreaterOrEqual", "Less", "Greater", "Equal"))
    draft.node(op, [x, y], draft.out(DType.BOOL, x.shape, 1.0))


def clip_of_integers(draft: GraphDraft) -> None:
    x = integer(draft)
    low, high = (draft.constant(np.asarray(number, x.dtype.numpy)) for number in (1, 3))
    draft.node(
        "Clip", draft.choose.pick([[x, low, high], [x, "", high], [x, low]]), draft.out(x.dtype, x.shape, max(x.bound, 3.0))
    )


def where_of_anything(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    condition = draft.want((DType.BOOL,), broadcastable(draft.choose, x.shape))
    read = [x, y] if draft.choose.integer(0, 1) else [y, x]
    draft.node("Where", [condition, *read], draft.out(x.dtype, x.shape, max(x.bound, y.bound)))


# ---------------------------------------------------------------------- floats

_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "Elu": lambda b: b + 1,
    "Selu": lambda b: 1.8 * b + 2,
    "Celu": lambda b: b + 1,
    "HardSwish": lambda b: b,
    "Mish": lambda b: b + 1,
    "Atan": lambda b: 2.0,
    "Asinh": lambda b: b,
    "LeakyRelu": lambda b: b,
}


def activation(draft: GraphDraft) -> None:
    op, x = draft.choose.pick(list(_ACTIVATIONS)), draft.want((DType.FLOAT32,))
    attributes = {"alpha": 0.3} if op in ("Elu", "Celu", "LeakyRelu") and draft.choose.integer(0, 1) else {}
    draft.node(op, [x], draft.out(x.dtype, x.shape, _ACTIVATIONS[op](x.bound)), **attributes)


def fast_growth(draft: GraphDraft) -> None:
    """Functions that grow quickly, where their argument is small."""
    x = draft.want((DType.FLOAT32,))
    if x.bound <= 2:
        op = draft.choose.pick(("Exp", "Sinh", "Cosh", "Tan") if x.bound <= 1 else ("Exp", "Sinh", "Cosh"))
        draft.node(op, [x], draft.out(x.dtype, x.shape, math.exp(x.bound)))


def away_from_zero(draft: GraphDraft) -> None:
    """Functions that are steep at zero, on arguments away from it."""
    x = positive(draft, real(draft))
    op = draft.choose.pick(("Sqrt", "Log", "Reciprocal"))
    draft.node(op, [x], draft.out(x.dtype, x.shape, max(x.bound, 2.0)))


def division(draft: GraphDraft) -> None:
    x = real(draft)
    y = positive(draft, draft.want((x.dtype,), broadcastable(draft.choose, x.shape)), 1.0)
    draft.node("Div", [x, y], draft.out(x.dtype, x.shape, x.bound))


def power(draft: GraphDraft) -> None:
    x = positive(draft, draft.want((DType.FLOAT32,)))
    if x.bound**2 <= LARGEST:
        exponent = draft.constant(np.float32(draft.choose.pick((2.0, 0.5, -1.0, 0.0, 1.5))))
        draft.node("Pow", [x, exponent], draft.out(x.dtype, x.shape, max(2.0, x.bound**2)))


def slopes(draft: GraphDraft) -> None:
    """PRelu, whose slopes broadcast."""
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    slope = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    if (bound := x.bound * max(1.0, slope.bound)) <= LARGEST:
        draft.node("PRelu", [x, slope], draft.out(x.dtype, x.shape, bound))


def many(draft: GraphDraft) -> None:
    """Max, Min and Mean of one to four values that broadcast."""
    x = draft.want((DType.FLOAT32,))
    others = [draft.want((x.dtype,), broadcastable(draft.choose, x.shape)) for _ in range(draft.choose.integer(0, 3))]
    op = draft.choose.pick(("Max", "Min", "Mean"))
    draft.node(op, [x, *others], draft.out(x.dtype, x.shape, max(v.bound for v in (x, *others))))


def narrow(draft: GraphDraft) -> None:
    """A cast to a narrow float and, now and then, some arithmetic there. It steps, if finely."""
    x = draft.want((DType.FLOAT32,))
    to = draft.choose.pick((DType.FLOAT16, DType.BFLOAT16))
    y = draft.node("Cast", [x], draft.out(to, x.shape, x.bound, steps=True), to=to.onnx)[0]
    for op in ("Neg", "Abs")[: draft.choose.integer(0, 2)]:
        y = draft.node(op, [y], draft.out(to, x.shape, x.bound, steps=True))[0]
    if draft.choose.integer(0, 1):
        draft.node("Cast", [y], draft.out(DType.FLOAT32, x.shape, x.bound, steps=True), to=DType.FLOAT32.onnx)


# ---------------------------------------------------------------------- what steps


def sign(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    op, attributes = draft.choose.pick(
        (("Sign", {}), ("ThresholdedRelu", {"alpha": 0.4}), ("Shrink", {"lambd": 0.3, "bias": 0.1}))
    )
    draft.node(op, [x], draft.out(x.dtype, x.shape, x.bound + 1, steps=True), **attributes)


def comparison(draft: GraphDraft) -> None:
    x = real(draft)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    op = draft.choose.pick(("LessOrEqual", "GreaterOrEqual", "Equal", "Less", "Greater"))
    draft.node(op, [x, y], draft.out(DType.BOOL, x.shape, 1.0, steps=True))


def quantise(draft: GraphDraft) -> None:
    """QuantizeLinear, per tensor or per axis, and back; both step."""
    x = draft.want((DType.FLOAT32,), ranks=(1, min(4, draft.rank)))
    axis, kind = draft.choose.integer(0, x.rank - 1), draft.choose.pick((np.uint8, np.int8))
    count = () if draft.choose.integer(0, 1) else (x.shape[axis],)
    scale, zero = draft.constant(np.full(count, 0.05, np.float32)), draft.constant(np.full(count, 3, kind))
    small = draft.out(DType.parse(np.dtype(kind).name), x.shape, 255.0, steps=True)
    draft.node("QuantizeLinear", [x, scale, zero], small, axis=axis)
    draft.node("DequantizeLinear", [small, scale, zero], draft.out(DType.FLOAT32, x.shape, 13.0, steps=True), axis=axis)


def exact_dequantise(draft: GraphDraft) -> None:
    x = draft.want((DType.parse("uint8"), DType.parse("int8")))
    scale = draft.constant(np.float32(0.25))
    zero = draft.constant(np.asarray(2, x.dtype.numpy))
    read = draft.choose.pick([[x, scale], [x, scale, zero]])
    draft.node("DequantizeLinear", read, draft.out(DType.FLOAT32, x.shape, x.bound + 2))


EXACT_NUMBERS = (
    arithmetic_of_integers,
    arithmetic_of_integers,
    bitwise,
    bit_shift,
    division_of_integers,
    unary_of_integers,
    power_of_integers,
    cast_of_integers,
    cast_of_integers,
    comparison_of_integers,
    clip_of_integers,
    where_of_anything,
    exact_dequantise,
)
FLOATING = (activation, fast_growth, away_from_zero, division, power, slopes, many)
STEPPING = (narrow, sign, comparison, quantise)
