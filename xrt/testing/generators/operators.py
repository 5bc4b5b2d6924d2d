"""Recipes: each adds one operator, or a few that belong together, to a draft so that the result is valid.

A recipe takes a draft, finds or makes what it needs, and defines values whose types and bounds it knows. What steps
(rounding, comparing floats, choosing an index) is marked, so that nothing is computed from it where engines are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from xrt.graph import DType
from xrt.testing.graph_draft import LARGEST, DraftValue, GraphDraft, broadcastable

__all__ = ["FAMILIES", "Recipe", "gentle"]

Recipe: TypeAlias = Callable[[GraphDraft], None]

FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = (DType.INT64, DType.INT32)

# bound of the result, from the bound of what is read; every one of these has a slope of at most 1 or so
_UNARY: dict[str, Callable[[float], float]] = {
    "Relu": lambda b: b,
    "Neg": lambda b: b,
    "Abs": lambda b: b,
    "Tanh": lambda b: 1.0,
    "Sigmoid": lambda b: 1.0,
    "Erf": lambda b: 1.0,
    "Identity": lambda b: b,
    "LeakyRelu": lambda b: b,
    "Softplus": lambda b: b + 1.0,
    "HardSigmoid": lambda b: 1.0,
    "Softsign": lambda b: 1.0,
    "Sin": lambda b: 1.0,
    "Cos": lambda b: 1.0,
}
_FLOAT32_ONLY = frozenset({"Erf", "Softplus", "HardSigmoid", "Softsign", "Sin", "Cos"})
"""Operators for which engines commonly have no float64 kernel."""


_GENTLE = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")
"""Operators for float32 and float64 alike that every engine has."""


def gentle(draft: GraphDraft, x: DraftValue) -> DraftValue:
    """Add a unary operator that keeps the type, and return its result; for the inside of bodies."""
    op = draft.choose.pick(_GENTLE) if x.dtype.is_float else "Identity"
    return draft.node(op, [x], draft.out(x.dtype, x.shape, _UNARY[op](x.bound)))[0]


def _kinds(draft: GraphDraft, kinds: tuple[DType, ...]) -> tuple[DType, ...]:
    """Return those of the kinds that the draft deals in; the first kind where it deals in none."""
    return tuple(k for k in kinds if k in draft.dtypes) or kinds[:1]


def _float(draft: GraphDraft, **wanted: object) -> DraftValue:
    return draft.want(_kinds(draft, FLOATS), **wanted)  # type: ignore[arg-type]  # passed on as they are


# ---------------------------------------------------------------------- elementwise


def unary(draft: GraphDraft) -> None:
    op = draft.choose.pick(list(_UNARY))
    x = draft.want((DType.FLOAT32,)) if op in _FLOAT32_ONLY else _float(draft)
    draft.node(op, [x], draft.out(x.dtype, x.shape, _UNARY[op](x.bound)))


def clip(draft: GraphDraft) -> None:
    """Clip, one of whose bounds may be left out."""
    x = _float(draft)
    low, high = (draft.constant(x.dtype.numpy.type(value)) for value in (-0.5, 0.5))
    forms: list[list[DraftValue | str]] = [[x, low, high], [x, "", high], [x, low]]
    given = draft.choose.pick(forms)
    draft.node("Clip", given, draft.out(x.dtype, x.shape, max(x.bound, 0.5)))


def binary(draft: GraphDraft) -> None:
    """An arithmetic operator on two values, one of which broadcasts."""
    x = draft.want(_kinds(draft, (*FLOATS, *INTEGERS)))
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    _arithmetic(draft, x, y, x.shape)


def twice(draft: GraphDraft) -> None:
    """An operator that reads the same value in both places."""
    x = draft.want(_kinds(draft, (*FLOATS, *INTEGERS)))
    _arithmetic(draft, x, x, x.shape)


def _arithmetic(draft: GraphDraft, x: DraftValue, y: DraftValue, shape: tuple[int, ...]) -> None:
    bounds = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}
    if x.dtype.is_float:
        bounds |= {"Max": max(x.bound, y.bound), "Min": max(x.bound, y.bound)}
    op = draft.choose.pick([name for name in bounds if bounds[name] <= LARGEST] or ["Sub"])
    if bounds[op] > LARGEST:
        return
    left, right = (x, y) if draft.choose.integer(0, 1) else (y, x)
    draft.node(op, [left, right], draft.out(x.dtype, shape, bounds[op]))


def variadic(draft: GraphDraft) -> None:
    """Sum of one to four values, some of them the same."""
    x = draft.want((DType.FLOAT32,))
    others = [draft.want((x.dtype,), x.shape) for _ in range(draft.choose.integer(0, 3))]
    bound = x.bound + sum(v.bound for v in others)
    if bound <= LARGEST:
        draft.node("Sum", [x, *others], draft.out(x.dtype, x.shape, bound))


def logic(draft: GraphDraft) -> None:
    x = draft.want((DType.BOOL,))
    op = draft.choose.pick(["Not", "And", "Or", "Xor"])
    others = [] if op == "Not" else [draft.want((DType.BOOL,), broadcastable(draft.choose, x.shape))]
    draft.node(op, [x, *others], draft.out(DType.BOOL, x.shape, 1.0))


def compare_integers(draft: GraphDraft) -> None:
    x = draft.want(INTEGERS)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    draft.node(draft.choose.pick(["Less", "Equal", "Greater"]), [x, y], draft.out(DType.BOOL, x.shape, 1.0))


def where(draft: GraphDraft) -> None:
    x = _float(draft)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    condition = draft.want((DType.BOOL,), broadcastable(draft.choose, x.shape))
    draft.node("Where", [condition, x, y], draft.out(x.dtype, x.shape, max(x.bound, y.bound)))


def cast(draft: GraphDraft) -> None:
    """A cast that loses nothing, or from float64 to float32."""
    x = draft.want(_kinds(draft, (DType.INT64, DType.INT32, DType.BOOL, *FLOATS)))
    to = draft.choose.pick([DType.FLOAT32, DType.FLOAT64] if x.dtype.is_float else [DType.FLOAT32, DType.INT64, DType.INT32])
    draft.node("Cast", [x], draft.out(to, x.shape, x.bound), to=to.onnx)


# ---------------------------------------------------------------------- reductions, products, windows


def reduce(draft: GraphDraft) -> None:
    x = draft.want(_kinds(draft, FLOATS), ranks=(1, draft.rank))
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [x.rank - 1]
    count = math.prod(x.shape[a] for a in axes)
    ops = {"ReduceSum": count * x.bound} | (
        {} if count == 0 else dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), x.bound)
    )
    op = draft.choose.pick(list(ops))
    if ops[op] > LARGEST:
        return
    keep = draft.choose.integer(0, 1)
    shape = tuple(1 if a in axes else d for a, d in enumerate(x.shape) if keep or a not in axes)
    signed = [a - x.rank if draft.choose.integer(0, 1) else a for a in axes]
    draft.node(op, [x, draft.axes(*signed)], draft.out(x.dtype, shape, max(ops[op], 0.0)), keepdims=keep)


def softmax(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    draft.node("Softmax", [x], draft.out(x.dtype, x.shape, 1.0), axis=draft.choose.integer(0, x.rank - 1))


def cumsum(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= LARGEST:
        draft.node("CumSum", [x, draft.axis(axis)], draft.out(x.dtype, x.shape, bound))


def matmul(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(2, draft.rank))
    inner = x.shape[-1]
    y = draft.want((x.dtype,), (inner, draft.choose.pick((2, 3, 1, 4))))
    if (bound := x.bound * y.bound * max(inner, 1)) <= LARGEST:
        draft.node("MatMul", [x, y], draft.out(x.dtype, (*x.shape[:-1], y.shape[-1]), bound))


def gemm(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(2, 2))
    rows, inner = x.shape
    columns, transposed = draft.choose.pick((2, 3, 4)), draft.choose.integer(0, 1)
    y = draft.want((x.dtype,), (columns, inner) if transposed else (inner, columns))
    biases = [draft.want((x.dtype,), (columns,))] if draft.choose.integer(0, 1) else []
    if (bound := x.bound * y.bound * max(inner, 1) + sum(b.bound for b in biases)) <= LARGEST:
        draft.node("Gemm", [x, y, *biases], draft.out(x.dtype, (rows, columns), bound), transB=transposed)


def _image(draft: GraphDraft) -> DraftValue:
    """Return a value of rank 4 that windows of three by three fit in."""
    large = draft.find(lambda v: v.dtype is DType.FLOAT32 and v.rank == 4 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    shape = tuple(draft.choose.pick(sizes) for sizes in ((1, 2), (2, 1, 3), (4, 3, 5), (4, 3)))
    return large or draft.add_given(DType.FLOAT32, shape)


def conv(draft: GraphDraft) -> None:
    x = _image(draft)
    maps, kernel, pad = draft.choose.pick((2, 1, 3)), draft.choose.pick((3, 1)), draft.choose.integer(0, 1)
    w = draft.want((DType.FLOAT32,), (maps, x.shape[1], kernel, kernel))
    biases = [draft.want((DType.FLOAT32,), (maps,))] if draft.choose.integer(0, 1) else []
    bound = x.bound * w.bound * x.shape[1] * kernel**2 + sum(b.bound for b in biases)
    if bound <= LARGEST:
        shape = (x.shape[0], maps, *(d + 2 * pad - kernel + 1 for d in x.shape[2:]))
        draft.node("Conv", [x, w, *biases], draft.out(x.dtype, shape, bound), pads=[pad] * 4, kernel_shape=[kernel] * 2)


def pool(draft: GraphDraft) -> None:
    x = _image(draft)
    op, stride = draft.choose.pick(["MaxPool", "AveragePool"]), draft.choose.integer(1, 2)
    shape = (*x.shape[:2], *((d - 2) // stride + 1 for d in x.shape[2:]))
    draft.node(op, [x], draft.out(x.dtype, shape, x.bound), kernel_shape=[2, 2], strides=[stride] * 2)


def dropout(draft: GraphDraft) -> None:
    """Dropout outside of training: what it reads, and a mask that may be left out; so may the ratio."""
    x = draft.want((DType.FLOAT32,))
    ratio, training = draft.constant(np.float32(0.5)), draft.constant(np.array(False))
    forms: list[list[DraftValue | str]] = [[x], [x, ratio], [x, "", training]]
    given = draft.choose.pick(forms)
    out, mask = draft.out(x.dtype, x.shape, x.bound), draft.out(DType.BOOL, x.shape, 1.0)
    draft.node("Dropout", given, *draft.choose.pick([(out,), (out, mask)]))


# ---------------------------------------------------------------------- shapes


def _anything(draft: GraphDraft, low: int = 0) -> DraftValue:
    return draft.want(draft.dtypes, ranks=(low, draft.rank))


def transpose(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    order = list(range(x.rank))
    for last in range(x.rank - 1, 0, -1):
        other = draft.choose.integer(0, last)
        order[last], order[other] = order[other], order[last]
    draft.node("Transpose", [x], draft.out(x.dtype, tuple(x.shape[a] for a in order), x.bound), perm=order)


def reshape(draft: GraphDraft) -> None:
    x = _anything(draft)
    if x.size == 0:
        return
    first = draft.choose.pick([d for d in range(1, x.size + 1) if x.size % d == 0])
    shape, asked = draft.choose.pick(
        [((x.size,), (-1,)), ((first, x.size // first), (first, -1)), ((1, first, x.size // first), (1, first, x.size // first))]
    )
    draft.node("Reshape", [x, draft.axes(*asked)], draft.out(x.dtype, shape, x.bound))


def flatten(draft: GraphDraft) -> None:
    x = _anything(draft)
    axis = draft.choose.integer(0, x.rank)
    draft.node("Flatten", [x], draft.out(x.dtype, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), x.bound), axis=axis)


def unsqueeze(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes, ranks=(0, draft.rank - 1))
    axis = draft.choose.integer(0, x.rank)
    draft.node("Unsqueeze", [x, draft.axes(axis)], draft.out(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]), x.bound))


def squeeze(draft: GraphDraft) -> None:
    x = draft.find(lambda v: 1 in v.shape)
    if x is not None:
        axis = x.shape.index(1)
        draft.node("Squeeze", [x, draft.axes(axis)], draft.out(x.dtype, x.shape[:axis] + x.shape[axis + 1 :], x.bound))


def expand(draft: GraphDraft) -> None:
    x = _anything(draft)
    shape = (draft.choose.integer(1, 3), *x.shape) if x.rank < draft.rank else x.shape
    draft.node("Expand", [x, draft.axes(*shape)], draft.out(x.dtype, shape, x.bound))


def tile(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    times = [draft.choose.integer(1, 2) for _ in x.shape]
    draft.node(
        "Tile", [x, draft.axes(*times)], draft.out(x.dtype, tuple(d * t for d, t in zip(x.shape, times, strict=True)), x.bound)
    )


def slice_(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    start, stop = draft.choose.integer(0, x.shape[axis]), draft.choose.integer(-1, x.shape[axis] + 1)
    kept = len(range(x.shape[axis])[start:stop])
    if kept == 0 and not draft.empty:
        return
    shape = (*x.shape[:axis], kept, *x.shape[axis + 1 :])
    draft.node("Slice", [x, draft.axes(start), draft.axes(stop), draft.axes(axis)], draft.out(x.dtype, shape, x.bound))


def pad(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    before, after = ([draft.choose.integer(0, 1) for _ in x.shape] for _ in range(2))
    shape = tuple(b + d + a for b, d, a in zip(before, x.shape, after, strict=True))
    draft.node("Pad", [x, draft.axes(*before, *after)], draft.out(x.dtype, shape, x.bound))


def gather(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.shape[axis] == 0:
        return
    picked = [draft.choose.integer(-x.shape[axis], x.shape[axis] - 1) for _ in range(draft.choose.integer(1, 3))]
    shape = (*x.shape[:axis], len(picked), *x.shape[axis + 1 :])
    draft.node("Gather", [x, draft.axes(*picked)], draft.out(x.dtype, shape, x.bound), axis=axis)


def shape_operator(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    draft.node("Shape", [x], draft.out(DType.INT64, (x.rank,), float(max(*x.shape, 1))))


def concat(draft: GraphDraft) -> None:
    """Concat of one to three values, the same one more than once where nothing else fits."""
    x = _anything(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)

    def fits(v: DraftValue) -> bool:
        others = [pair for i, pair in enumerate(zip(v.shape, x.shape, strict=False)) if i != axis]
        return v.dtype is x.dtype and v.rank == x.rank and all(a == b for a, b in others)

    parts = [x, *(draft.find(fits) or x for _ in range(draft.choose.integer(0, 2)))]
    shape = (*x.shape[:axis], sum(p.shape[axis] for p in parts), *x.shape[axis + 1 :])
    draft.node("Concat", parts, draft.out(x.dtype, shape, max(p.bound for p in parts)), axis=axis)


def split(draft: GraphDraft) -> None:
    """Split into two or three, each an output of its own."""
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.shape[axis] < 2:
        return
    first = draft.choose.integer(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    outs = [draft.out(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.bound) for size in sizes]
    draft.node("Split", [x, draft.axes(*sizes)], *outs, axis=axis)


# ---------------------------------------------------------------------- what steps


def rounding(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    op = draft.choose.pick(["Round", "Floor", "Ceil"])
    draft.node(op, [x], draft.out(x.dtype, x.shape, x.bound + 1, steps=True))


def cast_to_integers(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    to = draft.choose.pick([DType.INT32, DType.INT64])
    draft.node("Cast", [x], draft.out(to, x.shape, x.bound, steps=True), to=to.onnx)


def threshold(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    draft.node(draft.choose.pick(["Less", "Greater"]), [x, y], draft.out(DType.BOOL, x.shape, 1.0, steps=True))


def arg(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis, keep = draft.choose.integer(0, x.rank - 1), draft.choose.integer(0, 1)
    if x.size == 0:
        return
    shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
    op = draft.choose.pick(["ArgMax", "ArgMin"])
    draft.node(op, [x], draft.out(DType.INT64, shape, max(x.shape), steps=True), axis=axis, keepdims=keep)


def top(draft: GraphDraft) -> None:
    """TopK, whose values are smooth and whose indices step."""
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.size == 0:
        return
    k = draft.choose.integer(1, x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    values, indices = draft.out(x.dtype, shape, x.bound), draft.out(DType.INT64, shape, max(x.shape), steps=True)
    draft.node("TopK", [x, draft.axes(k)], values, indices, axis=axis)


FAMILIES: dict[str, tuple[Recipe, ...]] = {
    "elementwise": (unary, binary, twice, unary, binary, clip, variadic, logic, compare_integers, where, cast, dropout),
    "reduction": (reduce, softmax, cumsum),
    "product": (matmul, gemm),
    "window": (conv, pool),
    "shape": (transpose, reshape, flatten, unsqueeze, squeeze, expand, tile, slice_, pad, gather, shape_operator, concat, split),
    "stepping": (rounding, cast_to_integers, threshold, arg, top),
}
"""What a generated graph may be made of; control flow, which has bodies, is in `xrt.testing.generators.structured`."""
