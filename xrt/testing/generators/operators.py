"""Recipes for computation: elementwise operators, reductions, matrix products, convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from xrt.graph import DType
from xrt.testing.generators.draft import FLOATS, INTEGERS, LARGEST, DraftValue, GraphDraft, broadcastable

F32, BOOL = DType.FLOAT32, DType.BOOL


def _largest(kind: DType) -> float:
    # Integers must not overflow: libraries may wrap around, saturate or compute in a wider type.
    return LARGEST if kind.is_float else min(LARGEST, float(np.iinfo(kind.numpy).max))


def _is_signed(kind: DType) -> bool:
    return kind.is_float or kind.text.startswith("int")


def _make_positive(draft: GraphDraft, x: DraftValue, least: float = 0.5) -> DraftValue:
    """Add nodes that compute ``abs(x) + least``, which is not close to zero."""
    size = draft.node("Abs", [x], draft.like(x, x.bound))[0]
    floor = draft.constant(np.asarray(least, x.dtype.numpy))
    return draft.node("Add", [size, floor], draft.like(x, x.bound + least))[0]


# ---------------------------------------------------------------------- elementwise

# Operator to a function from the operand's bound to the result's. The slopes are about 1 at most, so errors do not grow.
_UNARY: dict[str, Callable[[float], float]] = {
    "Relu": lambda b: b,
    "Neg": lambda b: b,
    "Abs": lambda b: b,
    "Tanh": lambda b: 1.0,
    "Sigmoid": lambda b: 1.0,
    "Identity": lambda b: b,
    "LeakyRelu": lambda b: b,
    "Erf": lambda b: 1.0,
    "Softplus": lambda b: b + 1.0,
    "HardSigmoid": lambda b: 1.0,
    "Softsign": lambda b: 1.0,
    "Sin": lambda b: 1.0,
    "Cos": lambda b: 1.0,
}
_FLOAT32_ONLY = frozenset({"Erf", "Softplus", "HardSigmoid", "Softsign", "Sin", "Cos"})
"""Operators that often have no float64 kernel."""
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
_GENTLE = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")
"""Operators that every engine supports in float32 and float64."""


def gentle(draft: GraphDraft, x: DraftValue) -> DraftValue:
    """Add a unary operator that keeps the type and that every engine supports, and return its result. Used in bodies."""
    # Other types have Identity alone in common: engines differ in which arithmetic they have for integers.
    op = draft.choose.pick(_GENTLE) if x.dtype.is_float else "Identity"
    return draft.node(op, [x], draft.like(x, _UNARY[op](x.bound)))[0]


def unary(draft: GraphDraft) -> None:
    op = draft.choose.pick(list(_UNARY))
    x = draft.want((F32,)) if op in _FLOAT32_ONLY else draft.want_of(FLOATS)
    draft.node(op, [x], draft.like(x, _UNARY[op](x.bound)))


def activation(draft: GraphDraft) -> None:
    op, x = draft.choose.pick(list(_ACTIVATIONS)), draft.want((F32,))
    attributes = {"alpha": 0.3} if op in ("Elu", "Celu", "LeakyRelu") and draft.choose.integer(0, 1) else {}
    draft.node(op, [x], draft.like(x, _ACTIVATIONS[op](x.bound)), **attributes)


def unary_of_integers(draft: GraphDraft) -> None:
    x = draft.want_of(INTEGERS)
    op = draft.choose.pick(("Abs", "Sign", "Neg", "BitwiseNot", "Relu") if _is_signed(x.dtype) else ("Abs", "Sign"))
    if x.bound + 1 <= _largest(x.dtype):  # BitwiseNot of x is -x - 1
        draft.node(op, [x], draft.like(x, x.bound + 1))


def fast_growth(draft: GraphDraft) -> None:
    """Exp, Sinh, Cosh or Tan, of small arguments only."""
    x = draft.want((F32,))
    if x.bound <= 2:
        # Tan has a pole at pi / 2, where every rounding of its argument counts.
        op = draft.choose.pick(("Exp", "Sinh", "Cosh", "Tan") if x.bound <= 1 else ("Exp", "Sinh", "Cosh"))
        draft.node(op, [x], draft.like(x, math.exp(x.bound)))


def away_from_zero(draft: GraphDraft) -> None:
    """Sqrt, Log or Reciprocal, of arguments of at least 0.5."""
    x = _make_positive(draft, draft.want_of(FLOATS))
    draft.node(draft.choose.pick(("Sqrt", "Log", "Reciprocal")), [x], draft.like(x, max(x.bound, 2.0)))


def clip(draft: GraphDraft) -> None:
    """Clip, with one or both bounds."""
    x = draft.want_of((*FLOATS, *INTEGERS))
    low, high = (-0.5, 0.5) if x.dtype.is_float else (1, 3)
    least, most = (draft.constant(np.asarray(bound, x.dtype.numpy)) for bound in (low, high))
    operands: list[DraftValue | str] = draft.choose.pick([[x, least, most], [x, "", most], [x, least]])
    draft.node("Clip", operands, draft.like(x, max(x.bound, high)))


def binary(draft: GraphDraft) -> None:
    """A binary arithmetic operator on two values, one of which broadcasts to the other."""
    x = draft.want_of((*FLOATS, *INTEGERS))
    _arithmetic(draft, x, draft.want_for(x))


def twice(draft: GraphDraft) -> None:
    """A binary arithmetic operator that reads the same value twice."""
    x = draft.want_of((*FLOATS, *INTEGERS))
    _arithmetic(draft, x, x)


def _arithmetic(draft: GraphDraft, x: DraftValue, y: DraftValue) -> None:
    total, most = x.bound + y.bound, max(x.bound, y.bound)
    bounds = {"Add": total, "Sub": total, "Mul": x.bound * y.bound, "Max": most, "Min": most}
    if not _is_signed(x.dtype):
        del bounds["Sub"]  # it may be negative, and the bound says nothing about that
    if fitting := [op for op, bound in bounds.items() if bound <= _largest(x.dtype)]:
        op = draft.choose.pick(fitting)
        left, right = (x, y) if draft.choose.integer(0, 1) else (y, x)
        draft.node(op, [left, right], draft.like(x, bounds[op]))


def variadic(draft: GraphDraft) -> None:
    """Sum, Max, Min and Mean of one to four values that broadcast, possibly repeated."""
    x = draft.want((F32,))
    others = [draft.want_for(x) for _ in range(draft.choose.integer(0, 3))]
    op = draft.choose.pick(("Sum", "Max", "Min", "Mean"))
    bounds = [value.bound for value in (x, *others)]
    if (bound := sum(bounds) if op == "Sum" else max(bounds)) <= LARGEST:
        draft.node(op, [x, *others], draft.like(x, bound))


def division(draft: GraphDraft) -> None:
    x = draft.want_of(FLOATS)
    # A divisor of at least 1, so that the quotient does not exceed the bound of x.
    draft.node("Div", [x, _make_positive(draft, draft.want_for(x), 1.0)], draft.like(x, x.bound))


def division_of_integers(draft: GraphDraft) -> None:
    """Div and Mod (with and without fmod) by constants of both signs."""
    x = draft.want_of(INTEGERS)
    divisors = (2, 3, 1, -2, -3) if _is_signed(x.dtype) else (2, 3, 1)
    shape = broadcastable(draft.choose, x.shape)
    seed = np.random.default_rng(draft.choose.integer(0, 99))
    # A constant, because a computed divisor might be zero, for which no result is defined.
    y = draft.constant(seed.choice(divisors, shape).astype(x.dtype.numpy))
    op, attributes = draft.choose.pick((("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})))
    draft.node(op, [x, y], draft.like(x, max(x.bound, 3.0)), **attributes)


def power(draft: GraphDraft) -> None:
    # A positive base: negative ones have no real power with a fractional exponent.
    x = _make_positive(draft, draft.want((F32,)))
    if x.bound**2 <= LARGEST:
        exponent = draft.constant(np.float32(draft.choose.pick((2.0, 0.5, -1.0, 0.0, 1.5))))
        draft.node("Pow", [x, exponent], draft.like(x, max(2.0, x.bound**2)))


def power_of_integers(draft: GraphDraft) -> None:
    x = draft.want(INTEGERS[:2])
    if x.bound**2 <= LARGEST:
        exponent = draft.constant(np.asarray(draft.choose.integer(0, 2), x.dtype.numpy))
        draft.node("Pow", [x, exponent], draft.like(x, max(1.0, x.bound**2)))


def bitwise(draft: GraphDraft) -> None:
    x = draft.want_of(INTEGERS)
    y = draft.want_for(x)
    op, bound = draft.choose.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), 2 * max(x.bound, y.bound) + 1
    if bound <= _largest(x.dtype):
        draft.node(op, [x, y], draft.like(x, bound))


def bit_shift(draft: GraphDraft) -> None:
    # ONNX defines BitShift for unsigned integers only.
    kinds = [kind for kind in INTEGERS if not _is_signed(kind) and kind in draft.dtypes]
    if not kinds:
        return
    x, places = draft.want(kinds), draft.choose.integer(0, 2)
    if x.bound * 2**places <= _largest(x.dtype):
        amount = draft.constant(np.asarray(places, x.dtype.numpy))
        draft.node("BitShift", [x, amount], draft.like(x, x.bound * 2**places), direction=draft.choose.pick(("LEFT", "RIGHT")))


def slopes(draft: GraphDraft) -> None:
    """PRelu with broadcast slopes."""
    x = draft.want((F32,), ranks=(1, draft.rank))
    slope = draft.want_for(x)
    if (bound := x.bound * max(1.0, slope.bound)) <= LARGEST:
        draft.node("PRelu", [x, slope], draft.like(x, bound))


def logic(draft: GraphDraft) -> None:
    x = draft.want((BOOL,))
    op = draft.choose.pick(["Not", "And", "Or", "Xor"])
    others = [] if op == "Not" else [draft.want_for(x)]
    draft.node(op, [x, *others], draft.like(x, 1.0))


_COMPARISONS = ("Less", "Equal", "Greater", "LessOrEqual", "GreaterOrEqual")


def compare_integers(draft: GraphDraft) -> None:
    x = draft.want_of(INTEGERS)
    draft.node(draft.choose.pick(_COMPARISONS), [x, draft.want_for(x)], draft.out(BOOL, x.shape, 1.0))


def where(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes)
    y, condition = draft.want_for(x), draft.want((BOOL,), broadcastable(draft.choose, x.shape))
    operands = [x, y] if draft.choose.integer(0, 1) else [y, x]
    draft.node("Where", [condition, *operands], draft.like(x, max(x.bound, y.bound)))


def cast(draft: GraphDraft) -> None:
    """Cast to a type that represents all values, from float64 to float32, or to bool."""
    x = draft.want_of((*INTEGERS, BOOL, *FLOATS))
    is_never_negative = x.dtype is BOOL or not _is_signed(x.dtype)
    fitting = [k for k in INTEGERS if k in draft.dtypes and (is_never_negative or _is_signed(k)) and x.bound <= _largest(k)]
    # From floats to integers is `cast_to_integers`: there a rounding error becomes a whole step.
    to = draft.choose.pick([F32, DType.FLOAT64] if x.dtype.is_float else [F32, *fitting, DType.FLOAT64, BOOL])
    draft.node("Cast", [x], draft.out(to, x.shape, 1.0 if to is BOOL else x.bound), to=to.onnx)


def dropout(draft: GraphDraft) -> None:
    """Dropout in inference mode, with and without the ratio input and the mask output."""
    x = draft.want((F32,))
    ratio, training = draft.constant(np.float32(0.5)), draft.constant(np.array(False))
    operands: list[DraftValue | str] = draft.choose.pick([[x], [x, ratio], [x, "", training]])
    out, mask = draft.like(x, x.bound), draft.out(BOOL, x.shape, 1.0)
    draft.node("Dropout", operands, *draft.choose.pick([(out,), (out, mask)]))


def dequantize(draft: GraphDraft) -> None:
    x = draft.want((DType.parse("uint8"), DType.parse("int8")))
    scale, zero = draft.constant(np.float32(0.25)), draft.constant(np.asarray(2, x.dtype.numpy))
    draft.node("DequantizeLinear", draft.choose.pick([[x, scale], [x, scale, zero]]), draft.out(F32, x.shape, x.bound + 2))


ELEMENTWISE = (unary, binary, twice, unary, binary, clip, variadic, logic, compare_integers, where, cast, dropout)
NUMBERS = (bitwise, bit_shift, division_of_integers, unary_of_integers, power_of_integers, dequantize)
FUNCTIONS = (activation, fast_growth, away_from_zero, division, power, slopes)


# ---------------------------------------------------------------------- discontinuous operators


def step(draft: GraphDraft) -> None:
    x = draft.want((F32,))
    attributes = {"ThresholdedRelu": {"alpha": 0.4}, "Shrink": {"lambd": 0.3, "bias": 0.1}}
    op = draft.choose.pick(("Round", "Floor", "Ceil", "Sign", *attributes))
    draft.node(op, [x], draft.like(x, x.bound + 1, steps=True), **attributes.get(op, {}))


def cast_to_integers(draft: GraphDraft) -> None:
    x = draft.want((F32,))
    to = draft.choose.pick([DType.INT32, DType.INT64])
    draft.node("Cast", [x], draft.out(to, x.shape, x.bound, steps=True), to=to.onnx)


def narrow(draft: GraphDraft) -> None:
    """Cast to float16 or bfloat16, sometimes with arithmetic there. Rounding makes it discontinuous, in fine steps."""
    x = draft.want((F32,))
    to = draft.choose.pick((DType.FLOAT16, DType.BFLOAT16))
    y = draft.node("Cast", [x], draft.out(to, x.shape, x.bound, steps=True), to=to.onnx)[0]
    for op in ("Neg", "Abs")[: draft.choose.integer(0, 2)]:
        y = draft.node(op, [y], draft.like(y, x.bound, steps=True))[0]
    if draft.choose.integer(0, 1):
        draft.node("Cast", [y], draft.like(x, x.bound, steps=True), to=F32.onnx)


def compare(draft: GraphDraft) -> None:
    x = draft.want_of(FLOATS)
    draft.node(draft.choose.pick(_COMPARISONS), [x, draft.want_for(x)], draft.out(BOOL, x.shape, 1.0, steps=True))


def arg(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(1, draft.rank))
    axis, keep = draft.choose.integer(0, x.rank - 1), draft.choose.integer(0, 1)
    if x.size:
        shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
        out = draft.out(DType.INT64, shape, max(x.shape), steps=True)
        draft.node(draft.choose.pick(["ArgMax", "ArgMin"]), [x], out, axis=axis, keepdims=keep)


def top(draft: GraphDraft) -> None:
    """TopK of the largest or smallest elements, along any axis; values are continuous, indices are not."""
    x = draft.want((F32, DType.INT64), ranks=(1, draft.rank))
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    place = axis % x.rank
    if x.size:
        k = draft.choose.integer(1, x.shape[place])
        shape = (*x.shape[:place], k, *x.shape[place + 1 :])
        values, indices = draft.out(x.dtype, shape, x.bound), draft.out(DType.INT64, shape, max(x.shape), steps=True)
        draft.node("TopK", [x, draft.int64_list(k)], values, indices, axis=axis, largest=1 - draft.choose.integer(0, 1))


def quantize(draft: GraphDraft) -> None:
    """QuantizeLinear and DequantizeLinear, per tensor or per axis; both results are discontinuous."""
    x = draft.want((F32,), ranks=(1, min(4, draft.rank)))
    axis, kind = draft.choose.integer(0, x.rank - 1), draft.choose.pick((np.uint8, np.int8))
    count = () if draft.choose.integer(0, 1) else (x.shape[axis],)
    scale, zero = draft.constant(np.full(count, 0.05, np.float32)), draft.constant(np.full(count, 3, kind))
    # The integers are bounded by 255, the dequantized values by 0.05 * (255 - 3), rounded up.
    small = draft.out(DType.parse(np.dtype(kind).name), x.shape, 255.0, steps=True)
    draft.node("QuantizeLinear", [x, scale, zero], small, axis=axis)
    draft.node("DequantizeLinear", [small, scale, zero], draft.like(x, 13.0, steps=True), axis=axis)


STEPPING = (step, cast_to_integers, compare, arg, top)
NARROW = (narrow, quantize)


# ---------------------------------------------------------------------- reductions and normalizations


def reduction(draft: GraphDraft) -> None:
    """A reduction over some or all axes; over zero elements only if the result is defined."""
    x = draft.want_of((*FLOATS, *INTEGERS[:2]))
    axes, shape, count = _choose_axes(draft, x)
    bounds = {"ReduceSum": count * x.bound} | (dict.fromkeys(("ReduceMax", "ReduceMin"), x.bound) if count else {})
    bounds |= {"ReduceProd": max(1.0, x.bound) ** count} if count <= 4 else {}  # the exponent could overflow a float
    if x.dtype.is_float:
        bounds |= {"ReduceL1": count * x.bound, "ReduceSumSquare": count * x.bound**2}
        bounds |= {"ReduceMean": x.bound} if count else {}
        bounds |= {"ReduceL2": count * x.bound} if x.bound <= 1 else {}
    _add_reduction(draft, x, bounds, axes, shape)


def logarithmic_reduction(draft: GraphDraft) -> None:
    """ReduceLogSum or ReduceLogSumExp, of values of at least 0.5."""
    x = _make_positive(draft, draft.want((F32,)))
    axes, shape, count = _choose_axes(draft, x)
    if count and x.bound <= 20:
        bound = x.bound + math.log(count) + 1
        _add_reduction(draft, x, dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), bound * count), axes, shape)


def _choose_axes(draft: GraphDraft, x: DraftValue) -> tuple[list[int], tuple[int, ...], int]:
    """Choose axes to reduce. Return them (empty means all), the shape with keepdims, and the number of elements per result."""
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)]
    reduced = axes or list(range(x.rank))
    return axes, tuple(1 if a in reduced else d for a, d in enumerate(x.shape)), math.prod(x.shape[a] for a in reduced)


def _add_reduction(draft: GraphDraft, x: DraftValue, bounds: dict[str, float], axes: list[int], shape: tuple[int, ...]) -> None:
    if not (fitting := [op for op, bound in bounds.items() if bound <= LARGEST]):
        return
    op, keep = draft.choose.pick(fitting), draft.choose.integer(0, 1)
    signed = [a - x.rank if draft.choose.integer(0, 2) == 2 else a for a in axes]
    reduced = shape if keep else tuple(d for a, d in enumerate(shape) if axes and a not in axes)
    read: list[str | DraftValue] = [x, draft.int64_list(*signed)] if axes else [x]
    draft.node(op, read, draft.out(x.dtype, reduced, bounds[op]), keepdims=keep)


def no_reduction(draft: GraphDraft) -> None:
    """ReduceSum with empty axes and ``noop_with_empty_axes``, which is Identity."""
    x = draft.want_of(FLOATS)
    draft.node("ReduceSum", [x, draft.int64_list()], draft.like(x, x.bound), noop_with_empty_axes=1)


def running_sum(draft: GraphDraft) -> None:
    x = draft.want_of(FLOATS, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= LARGEST:
        exclusive, reverse = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
        draft.node("CumSum", [x, draft.int64_constant(axis)], draft.like(x, bound), exclusive=exclusive, reverse=reverse)


def shares(draft: GraphDraft) -> None:
    x = draft.want_of(FLOATS, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    op, bound = draft.choose.pick((("Softmax", 1.0), ("LogSoftmax", 2 * x.bound + 6)))
    if x.bound <= 50:
        draft.node(op, [x], draft.like(x, bound), axis=axis)


def layer_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    # A large epsilon: the deviation of equal elements is zero, and dividing by it would amplify rounding errors.
    scale = draft.want((F32,), x.shape[axis:])
    biases = [draft.want((F32,), x.shape[axis:])] if draft.choose.integer(0, 1) else []
    if (bound := scale.bound * math.sqrt(x.size) + sum(b.bound for b in biases)) <= LARGEST:
        draft.node("LayerNormalization", [x, scale, *biases], draft.like(x, bound), axis=axis, epsilon=0.1)


def batch_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(2, min(draft.rank, 5)))
    channels = x.shape[1]
    scale, bias, mean = (draft.want((F32,), (channels,)) for _ in range(3))
    # A constant that is certainly positive; a computed variance might not be.
    variance = draft.constant(np.linspace(0.5, 1.5, channels, dtype=np.float32))
    if (bound := (x.bound + mean.bound) * scale.bound * 1.5 + bias.bound) <= LARGEST:
        draft.node("BatchNormalization", [x, scale, bias, mean, variance], draft.like(x, bound), epsilon=0.01)


def instance_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(3, min(draft.rank, 5)))
    if x.size:
        scale, bias = (draft.want((F32,), (x.shape[1],)) for _ in range(2))
        if (bound := scale.bound * math.sqrt(x.size) + bias.bound) <= LARGEST:
            draft.node("InstanceNormalization", [x, scale, bias], draft.like(x, bound), epsilon=0.1)


REDUCTIONS = (reduction, shares, running_sum)
NORMALIZATIONS = (logarithmic_reduction, no_reduction, layer_norm, batch_norm, instance_norm)


# ---------------------------------------------------------------------- matrix products


def product(draft: GraphDraft) -> None:
    """MatMul of vectors, matrices and broadcast batches."""
    x = draft.want_of(FLOATS, 1)
    inner, batch = x.shape[-1], broadcastable(draft.choose, x.shape[:-2])
    columns = draft.choose.pick((2, 1, 3))
    shape = draft.choose.pick(((inner, columns), (inner,), (*batch, inner, columns)))
    y = draft.want((x.dtype,), shape)
    rows = x.shape[:-1] if x.rank > 1 or len(shape) <= 2 else shape[:-2]
    result = (*rows, *(shape[-1:] if len(shape) > 1 else ()))
    if (bound := x.bound * y.bound * max(inner, 1)) <= LARGEST:
        draft.node("MatMul", [x, y], draft.out(x.dtype, result, bound))


def gemm(draft: GraphDraft) -> None:
    """Gemm with all attributes, sometimes with C, which broadcasts."""
    x = draft.want_of(FLOATS, 2, 2)
    flip, transposed = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
    rows, inner = x.shape[::-1] if flip else x.shape
    columns = draft.choose.pick((2, 1, 3))
    y = draft.want((x.dtype,), (columns, inner) if transposed else (inner, columns))
    shape = (rows, columns)
    bias = [draft.want((x.dtype,), broadcastable(draft.choose, shape))] if draft.choose.integer(0, 1) else []
    if (bound := x.bound * y.bound * max(inner, 1) + 2 * sum(v.bound for v in bias)) <= LARGEST:
        scales = {"alpha": draft.choose.pick((1.0, 0.5)), "beta": draft.choose.pick((1.0, 2.0))}
        draft.node("Gemm", [x, y, *bias], draft.out(x.dtype, shape, bound), transA=flip, transB=transposed, **scales)


def contraction(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(2, 2))
    y = draft.want((F32,), (x.shape[1], 2))
    i, j, k = x.shape[0], x.shape[1], 2
    equations = (("ij,jk->ik", (i, k), j), ("ij,jk->ki", (k, i), j), ("ij,jk->", (), i * j * k), ("ij,jk->ijk", (i, j, k), 1))
    text, shape, count = draft.choose.pick(equations)
    if (bound := x.bound * y.bound * max(count, 1)) <= LARGEST:
        draft.node("Einsum", [x, y], draft.out(F32, shape, bound), equation=text)


def product_of_integers(draft: GraphDraft) -> None:
    kinds = (DType.parse("uint8"), DType.parse("int8"))
    x = draft.want(kinds[:1], ranks=(2, 3))
    y = draft.want(kinds, (x.shape[-1], 3))
    zeros = [draft.constant(np.asarray(1, v.dtype.numpy)) for v in (x, y)] if draft.choose.integer(0, 1) else []
    bound = (x.bound + 1) * (y.bound + 1) * max(x.shape[-1], 1)
    if bound <= 1e5:
        draft.node("MatMulInteger", [x, y, *zeros], draft.out(DType.INT32, (*x.shape[:-1], 3), bound))


PRODUCTS = (product, gemm)
OTHER_PRODUCTS = (contraction, product_of_integers)


# ---------------------------------------------------------------------- convolution and pooling


def _want_image(draft: GraphDraft, spatial: int) -> DraftValue:
    # At least 3 per spatial axis, so that a dilated kernel of 2 fits without padding.
    image = draft.find(lambda v: v.dtype is F32 and v.rank == spatial + 2 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    sizes = [(1, 2), (2, 4), *[(4, 3, 5)] * spatial]
    return image or draft.add_source(F32, tuple(draft.choose.pick(options) for options in sizes))


def _choose_axes_of_windows(draft: GraphDraft) -> int:
    return draft.choose.pick((2, 1, 3)[: max(1, min(draft.rank - 1, 3))])


def convolution(draft: GraphDraft) -> None:
    """Conv with one to three spatial axes: groups, strides, dilations, asymmetric padding."""
    spatial = _choose_axes_of_windows(draft)
    x = _want_image(draft, spatial)
    groups = x.shape[1] if draft.choose.integer(0, 2) == 2 else 1
    kernel, strides, dilations = ([draft.choose.integer(1, 2) for _ in range(spatial)] for _ in range(3))
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    w = draft.want((F32,), (2 * groups, x.shape[1] // groups, *kernel))
    sizes = _windows(x.shape[2:], kernel, strides, dilations, pads)
    if (bound := x.bound * w.bound * math.prod(w.shape[1:])) <= LARGEST:
        out = draft.out(F32, (x.shape[0], w.shape[0], *sizes), bound)
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
        draft.node("Conv", [x, w], out, **attributes)


def _windows(sizes: tuple[int, ...], kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]) -> list[int]:
    ends = zip(sizes, kernel, strides, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in ends]


def transposed_convolution(draft: GraphDraft) -> None:
    x = _want_image(draft, 2)
    stride, pad = draft.choose.integer(1, 2), draft.choose.integer(0, 1)
    w = draft.want((F32,), (x.shape[1], 2, 3, 3))
    shape = (x.shape[0], 2, *((d - 1) * stride + 3 - 2 * pad for d in x.shape[2:]))
    if (bound := x.bound * w.bound * x.shape[1] * 9) <= LARGEST:
        draft.node("ConvTranspose", [x, w], draft.out(F32, shape, bound), strides=[stride] * 2, pads=[pad] * 4)


def pooling(draft: GraphDraft) -> None:
    """Pooling over one to three spatial axes: strides, padding, with and without ``count_include_pad``."""
    spatial = _choose_axes_of_windows(draft)
    x = _want_image(draft, spatial)
    kernel, strides = [2] * spatial, [draft.choose.integer(1, 2) for _ in range(spatial)]
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    op, attributes = draft.choose.pick(
        (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}), ("LpPool", {}))
    )
    sizes = _windows(x.shape[2:], kernel, strides, [1] * spatial, pads)
    bound = x.bound * 2**spatial
    if bound <= LARGEST and x.bound <= 10:
        out = draft.out(F32, (*x.shape[:2], *sizes), bound, steps=op == "LpPool")  # the root is steep at zero
        draft.node(op, [x], out, kernel_shape=kernel, strides=strides, pads=pads, **attributes)


def global_pooling(draft: GraphDraft) -> None:
    x = _want_image(draft, _choose_axes_of_windows(draft))
    op = draft.choose.pick(("GlobalAveragePool", "GlobalMaxPool"))
    draft.node(op, [x], draft.out(F32, (*x.shape[:2], *[1] * (x.rank - 2)), x.bound))


def blocks(draft: GraphDraft) -> None:
    """SpaceToDepth or DepthToSpace."""
    x = draft.add_source(F32, (draft.choose.integer(1, 2), 4, 2, 4))
    n, c, h, w = x.shape
    if draft.choose.integer(0, 1):
        draft.node("SpaceToDepth", [x], draft.out(F32, (n, 4 * c, h // 2, w // 2), x.bound), blocksize=2)
    else:
        mode = draft.choose.pick(("DCR", "CRD"))
        draft.node("DepthToSpace", [x], draft.out(F32, (n, c // 4, 2 * h, 2 * w), x.bound), blocksize=2, mode=mode)


def resize(draft: GraphDraft) -> None:
    """Resize by integer factors, nearest or linear."""
    x = _want_image(draft, 2)
    # Integer factors: with others, libraries round the sampled positions differently.
    scales = draft.constant(np.array([1, 1, 2, draft.choose.integer(1, 3)], np.float32))
    factors = draft.constants[scales.name].array.astype(int)
    mode, coordinates = draft.choose.pick((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    shape = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    out = draft.out(F32, shape, x.bound)
    draft.node("Resize", [x, "", scales], out, mode=mode, coordinate_transformation_mode=coordinates, **extra)


def channels(draft: GraphDraft) -> None:
    x = _want_image(draft, 2)
    if x.bound <= 10:
        draft.node("LRN", [x], draft.out(F32, x.shape, x.bound), size=3, alpha=0.1, beta=0.5, bias=1.0)


WINDOWS = (convolution, pooling)
OTHER_WINDOWS = (transposed_convolution, global_pooling, blocks, resize, channels)
