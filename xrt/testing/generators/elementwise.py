"""Recipes for what is computed element by element: every width of integers, steep functions, many operands, narrow floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from xrt.graph import DType
from xrt.testing.generators.operators import LARGEST, DraftValue, GraphDraft, broadcastable

__all__ = [
    "CASTS",
    "EXACT_NUMBERS",
    "FLOATING",
    "INTEGERS",
    "PRODUCTS",
    "REDUCTIONS",
    "STEPPING",
    "WINDOWS",
    "integer",
    "positive",
    "real",
]

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
F32 = DType.FLOAT32
# ---------------------------------------------------------------------- reductions


def _reduced(draft: GraphDraft, x: DraftValue) -> tuple[list[int], tuple[int, ...], int]:
    """Return axes, the shape without them, and whether they are kept."""
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)]
    keep = draft.choose.integer(0, 1)
    gone = axes or list(range(x.rank))
    return axes, tuple(1 if a in gone else d for a, d in enumerate(x.shape) if keep or a not in gone), keep


def reduction(draft: GraphDraft) -> None:
    """A reduction over some axes or, where none are given, over all; over no elements too where the result is defined."""
    x = real(draft)
    axes, shape, keep = _reduced(draft, x)
    count = math.prod(x.shape[a] for a in axes or range(x.rank))
    bounds = {"ReduceL1": count * x.bound, "ReduceSumSquare": count * x.bound**2, "ReduceSum": count * x.bound}
    bounds |= {"ReduceL2": count * x.bound} if x.bound <= 1 else {}
    bounds |= {"ReduceProd": max(1.0, x.bound) ** count} if count <= 8 else {}
    _add_reduction(draft, x, bounds, axes, shape, keep)


def smooth_reduction(draft: GraphDraft) -> None:
    """Reductions through a logarithm, of what is away from zero, and those that need an element."""
    x = positive(draft, draft.want((F32,)))
    axes, shape, keep = _reduced(draft, x)
    if (count := math.prod(x.shape[a] for a in axes or range(x.rank))) and x.bound <= 20:
        bound = x.bound + math.log(count) + 1
        ops = ("ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")
        _add_reduction(draft, x, dict.fromkeys(ops, bound * count), axes, shape, keep)


def reduction_of_integers(draft: GraphDraft) -> None:
    x = draft.want((DType.INT64, DType.INT32))
    axes, shape, keep = _reduced(draft, x)
    count = math.prod(x.shape[a] for a in axes or range(x.rank))
    bounds = {"ReduceSum": count * x.bound} | (dict.fromkeys(("ReduceMax", "ReduceMin"), x.bound) if count else {})
    bounds |= {"ReduceProd": max(x.bound, 1.0) ** count} if count <= 4 else {}
    _add_reduction(draft, x, bounds, axes, shape, keep)


def _add_reduction(
    draft: GraphDraft, x: DraftValue, bounds: dict[str, float], axes: list[int], shape: tuple[int, ...], keep: int
) -> None:
    fitting = [op for op, bound in bounds.items() if bound <= LARGEST]
    if not fitting:
        return
    op = draft.choose.pick(fitting)
    signed = [a - x.rank if draft.choose.integer(0, 2) == 2 else a for a in axes]
    read: list[str | DraftValue] = [x, draft.axes(*signed)] if axes else [x]
    draft.node(op, read, draft.out(x.dtype, shape, max(bounds[op], 1.0)), keepdims=keep)


def no_reduction(draft: GraphDraft) -> None:
    """A reduction that no axes turn into Identity."""
    x = real(draft)
    draft.node("ReduceSum", [x, draft.axes()], draft.out(x.dtype, x.shape, x.bound), noop_with_empty_axes=1)


def running_sum(draft: GraphDraft) -> None:
    x = real(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= LARGEST:
        out = draft.out(x.dtype, x.shape, bound)
        exclusive, reverse = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
        draft.node("CumSum", [x, draft.axis(axis)], out, exclusive=exclusive, reverse=reverse)


def shares(draft: GraphDraft) -> None:
    x = real(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    op, bound = draft.choose.pick((("Softmax", 1.0), ("LogSoftmax", 2 * x.bound + 6)))
    if x.bound <= 50:
        draft.node(op, [x], draft.out(x.dtype, x.shape, bound), axis=axis)


def layer_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    scale = draft.want((F32,), x.shape[axis:])
    biases = [draft.want((F32,), x.shape[axis:])] if draft.choose.integer(0, 1) else []
    bound = scale.bound * math.sqrt(x.size) + sum(b.bound for b in biases)
    if bound <= LARGEST:
        draft.node("LayerNormalization", [x, scale, *biases], draft.out(F32, x.shape, bound), axis=axis, epsilon=0.1)


def batch_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(2, min(draft.rank, 5)))
    channels = x.shape[1]
    scale, bias, mean = (draft.want((F32,), (channels,)) for _ in range(3))
    variance = draft.constant(np.linspace(0.5, 1.5, channels, dtype=np.float32))
    bound = (x.bound + mean.bound) * scale.bound * 1.5 + bias.bound
    if bound <= LARGEST:
        draft.node("BatchNormalization", [x, scale, bias, mean, variance], draft.out(F32, x.shape, bound), epsilon=0.01)


def instance_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(3, min(draft.rank, 5)))
    if x.size:
        scale, bias = (draft.want((F32,), (x.shape[1],)) for _ in range(2))
        if (bound := scale.bound * math.sqrt(x.size) + bias.bound) <= LARGEST:
            draft.node("InstanceNormalization", [x, scale, bias], draft.out(F32, x.shape, bound), epsilon=0.1)


# ---------------------------------------------------------------------- products


def product(draft: GraphDraft) -> None:
    """MatMul of any ranks: vectors, matrices, stacks that broadcast."""
    x = real(draft, 1)
    inner, batch = x.shape[-1], broadcastable(draft.choose, x.shape[:-2])
    columns = draft.choose.pick((2, 1, 3))
    shape = draft.choose.pick(((inner, columns), (inner,), (*batch, inner, columns)))
    y = draft.want((x.dtype,), shape)
    rows = x.shape[:-1] if x.rank > 1 or len(shape) <= 2 else shape[:-2]
    result = (*rows, *(shape[-1:] if len(shape) > 1 else ()))
    if (bound := x.bound * y.bound * max(inner, 1)) <= LARGEST:
        draft.node("MatMul", [x, y], draft.out(x.dtype, result, bound))


def gemm(draft: GraphDraft) -> None:
    """Gemm with all of its attributes; what is added broadcasts."""
    x = real(draft, 2) if draft.choose.integer(0, 1) else draft.want((F32,), ranks=(2, 2))
    if x.rank != 2:
        return
    flip = draft.choose.integer(0, 1)
    rows, inner = x.shape[::-1] if flip else x.shape
    y = draft.want((x.dtype,), (inner, draft.choose.pick((2, 1, 3))))
    shape = (rows, y.shape[1])
    added = [draft.want((x.dtype,), broadcastable(draft.choose, shape))] if draft.choose.integer(0, 1) else []
    bound = x.bound * y.bound * max(inner, 1) + 2 * sum(v.bound for v in added)
    if bound <= LARGEST:
        out = draft.out(x.dtype, shape, bound)
        draft.node(
            "Gemm", [x, y, *added], out, transA=flip, alpha=draft.choose.pick((1.0, 0.5)), beta=draft.choose.pick((1.0, 2.0))
        )


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


# ---------------------------------------------------------------------- windows


def _image(draft: GraphDraft, spatial: int) -> DraftValue:
    found = draft.find(lambda v: v.dtype is F32 and v.rank == spatial + 2 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    sizes = [(1, 2), (2, 4), *[(4, 3, 5)] * spatial]
    return found or draft.add_given(F32, tuple(draft.choose.pick(options) for options in sizes))


def convolution(draft: GraphDraft) -> None:
    """Conv of one to three axes: groups, strides, dilations, uneven padding."""
    spatial = draft.choose.integer(1, 3)
    x = _image(draft, spatial)
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
    x = _image(draft, 2)
    stride, pad = draft.choose.integer(1, 2), draft.choose.integer(0, 1)
    w = draft.want((F32,), (x.shape[1], 2, 3, 3))
    shape = (x.shape[0], 2, *((d - 1) * stride + 3 - 2 * pad for d in x.shape[2:]))
    if (bound := x.bound * w.bound * x.shape[1] * 9) <= LARGEST:
        draft.node("ConvTranspose", [x, w], draft.out(F32, shape, bound), strides=[stride] * 2, pads=[pad] * 4)


def pooling(draft: GraphDraft) -> None:
    """Pooling of one to three axes: padding counted or not, strides."""
    spatial = draft.choose.integer(1, 3)
    x = _image(draft, spatial)
    kernel, strides = [2] * spatial, [draft.choose.integer(1, 2) for _ in range(spatial)]
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    op, attributes = draft.choose.pick(
        (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}), ("LpPool", {}))
    )
    sizes = _windows(x.shape[2:], kernel, strides, [1] * spatial, pads)
    bound = x.bound * 2**spatial
    if bound <= LARGEST and x.bound <= 10:
        out = draft.out(F32, (*x.shape[:2], *sizes), bound, steps=op == "LpPool")  # a root is steep at zero
        draft.node(op, [x], out, kernel_shape=kernel, strides=strides, pads=pads, **attributes)


def global_pooling(draft: GraphDraft) -> None:
    x = _image(draft, draft.choose.integer(1, 3))
    op = draft.choose.pick(("GlobalAveragePool", "GlobalMaxPool"))
    draft.node(op, [x], draft.out(F32, (*x.shape[:2], *[1] * (x.rank - 2)), x.bound))


def blocks(draft: GraphDraft) -> None:
    """SpaceToDepth and DepthToSpace."""
    x = draft.add_given(F32, (draft.choose.integer(1, 2), 4, 2, 4))
    n, c, h, w = x.shape
    if draft.choose.integer(0, 1):
        draft.node("SpaceToDepth", [x], draft.out(F32, (n, 4 * c, h // 2, w // 2), x.bound), blocksize=2)
    else:
        mode = draft.choose.pick(("DCR", "CRD"))
        draft.node("DepthToSpace", [x], draft.out(F32, (n, c // 4, 2 * h, 2 * w), x.bound), blocksize=2, mode=mode)


def resize(draft: GraphDraft) -> None:
    """Resize by whole factors, to the nearest pixel or between two."""
    x = _image(draft, 2)
    scales = draft.constant(np.array([1, 1, 2, draft.choose.integer(1, 3)], np.float32))
    factors = draft.constants[scales.name].array.astype(int)
    mode, way = draft.choose.pick((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    shape = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    out = draft.out(F32, shape, x.bound)
    draft.node("Resize", [x, "", scales], out, mode=mode, coordinate_transformation_mode=way, **extra)


def channels(draft: GraphDraft) -> None:
    x = _image(draft, 2)
    if x.bound <= 10:
        draft.node("LRN", [x], draft.out(F32, x.shape, x.bound), size=3, alpha=0.1, beta=0.5, bias=1.0)


REDUCTIONS = (
    reduction,
    reduction,
    smooth_reduction,
    reduction_of_integers,
    no_reduction,
    running_sum,
    shares,
    layer_norm,
    batch_norm,
    instance_norm,
)
PRODUCTS = (product, product, gemm, contraction, product_of_integers)
WINDOWS = (convolution, convolution, transposed_convolution, pooling, pooling, global_pooling, blocks, resize, channels)
_CAST_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_SCALES = (1.0, 2.0**15, 2.0**17, 2.0**-14, 2.0**70)
"""Powers of two, so that only casts round."""


def casts_of_floats(draft: GraphDraft) -> None:
    """A new input, scaled; two to four casts, and products or negatives between them. Nothing is computed from the result.

    The input is new because a difference that is admitted before a cast becomes a step behind it.
    """
    x = draft.add_given(DType.FLOAT32, draft.shape())
    scale = draft.constant(np.float32(draft.choose.pick(_SCALES)))
    value = draft.node("Mul", [x, scale], draft.out(x.dtype, x.shape, np.inf, steps=True))[0]
    for to in (*(draft.choose.pick(_CAST_FLOATS) for _ in range(draft.choose.integer(1, 3))), DType.FLOAT32):
        value = draft.node("Cast", [value], draft.out(to, x.shape, np.inf, steps=True), to=to.onnx)[0]
        op = draft.choose.pick(("", "Neg", "Mul"))
        if op:
            value = draft.node(op, [value] * (2 if op == "Mul" else 1), draft.out(to, x.shape, np.inf, steps=True))[0]


CASTS = (casts_of_floats,)
