"""Recipes that move elements: slices, gathers and scatters of every kind, shapes and indices that are computed on the way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.testing.graph_draft import DraftValue, GraphDraft

__all__ = ["MOVES"]

F32, I64 = DType.FLOAT32, DType.INT64


def _any(draft: GraphDraft, low: int = 0) -> DraftValue:
    return draft.want(draft.dtypes, ranks=(low, draft.rank))


def slices(draft: GraphDraft) -> None:
    """Slice of several axes: steps of both signs, ends beyond the extent."""
    x = _any(draft, 1)
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [0]
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    shape = list(x.shape)
    for axis in axes:
        size, step = x.shape[axis], draft.choose.pick((1, 2, -1, -2))
        start, end = draft.choose.integer(-size - 1, size + 1), draft.choose.integer(-size - 2, size + 2)
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
        first = max(start, -size) if step < 0 else start  # ONNX begins at the first element, Python before it
        shape[axis] = len(range(size)[first:end:step])
    if not draft.empty and 0 in shape:
        return
    out = draft.out(x.dtype, tuple(shape), x.bound)
    draft.node("Slice", [x, *(draft.axes(*numbers) for numbers in (starts, ends, axes, steps))], out)


def padding(draft: GraphDraft) -> None:
    """Pad of every mode, with a value, over some axes only, and by less than nothing."""
    x = draft.want((F32, I64), ranks=(1, draft.rank))
    mode = draft.choose.pick(("constant", "edge", "reflect"))
    if mode != "constant" and min(x.shape) < 2:
        return
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [x.rank - 1]
    low = -1 if mode == "constant" and all(x.shape[a] > 2 for a in axes) else 0
    before, after = ([draft.choose.integer(low, 1) for _ in axes] for _ in range(2))
    shape = list(x.shape)
    for axis, b, a in zip(axes, before, after, strict=True):
        shape[axis] += b + a
    value: DraftValue | str = draft.constant(np.asarray(2, x.dtype.numpy)) if draft.choose.integer(0, 1) else ""
    out = draft.out(x.dtype, tuple(shape), max(x.bound, 2.0))
    draft.node("Pad", [x, draft.axes(*before, *after), value, draft.axes(*axes)], out, mode=mode)


def _indices(draft: GraphDraft, shape: tuple[int, ...], size: int, kind: type = np.int64) -> DraftValue:
    rng = np.random.default_rng(draft.choose.integer(0, 99))
    return draft.constant(rng.integers(-size, size, shape).astype(kind))


def gather(draft: GraphDraft) -> None:
    """Gather by indices of any rank and both types, none at all among them."""
    x = _any(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    shape = draft.choose.pick(((2,), (), (2, 2), (0,) if draft.empty else (1,)))
    if not x.shape[axis] or x.rank - 1 + len(shape) > draft.rank:
        return
    indices = _indices(draft, shape, x.shape[axis], draft.choose.pick((np.int64, np.int32)))
    place = axis % x.rank
    out = draft.out(x.dtype, (*x.shape[:place], *shape, *x.shape[place + 1 :]), x.bound)
    draft.node("Gather", [x, indices], out, axis=axis)


def gather_elements(draft: GraphDraft) -> None:
    x = _any(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    if x.size:
        shape = tuple(draft.choose.integer(1, 3) if a == axis else draft.choose.integer(1, d) for a, d in enumerate(x.shape))
        indices = _indices(draft, shape, x.shape[axis])
        draft.node("GatherElements", [x, indices], draft.out(x.dtype, shape, x.bound), axis=axis)


def gather_nd(draft: GraphDraft) -> None:
    x = _any(draft, 1)
    depth = draft.choose.integer(1, x.rank)
    if x.size:
        rng = np.random.default_rng(draft.choose.integer(0, 99))
        indices = draft.constant(np.stack([rng.integers(-d, d, (2,)) for d in x.shape[:depth]], -1))
        draft.node("GatherND", [x, indices], draft.out(x.dtype, (2, *x.shape[depth:]), x.bound))


def scatter_elements(draft: GraphDraft) -> None:
    """ScatterElements along an axis, no place twice."""
    x = _any(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    rng = np.random.default_rng(draft.choose.integer(0, 99))
    count = draft.choose.integer(1, x.shape[axis])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    order = np.argsort(rng.random(x.shape), axis=axis).take(range(count), axis=axis)
    updates = draft.want((x.dtype,), shape)
    out = draft.out(x.dtype, x.shape, max(x.bound, updates.bound))
    draft.node("ScatterElements", [x, draft.constant(order.astype(np.int64)), updates], out, axis=axis)


def scatter_nd(draft: GraphDraft) -> None:
    x = _any(draft, 1)
    if x.shape[0]:
        count = draft.choose.integer(1, x.shape[0])
        rows = np.random.default_rng(draft.choose.integer(0, 99)).permutation(x.shape[0])[:count, None]
        updates = draft.want((x.dtype,), (count, *x.shape[1:]))
        out = draft.out(x.dtype, x.shape, max(x.bound, updates.bound))
        draft.node("ScatterND", [x, draft.constant(rows.astype(np.int64)), updates], out)


def one_hot(draft: GraphDraft) -> None:
    x = draft.want((I64,), ranks=(1, draft.rank - 1))  # onnx infers no type for a single index
    axis = draft.choose.integer(-1, x.rank)
    place = x.rank if axis == -1 else axis
    off_on = draft.constant(np.array([-1, 2], np.float32))
    out = draft.out(F32, (*x.shape[:place], 3, *x.shape[place:]), 2.0)
    draft.node("OneHot", [x, draft.axis(3), off_on], out, axis=axis)


def triangle(draft: GraphDraft) -> None:
    x = draft.want([k for k in (F32, I64, DType.BOOL) if k in draft.dtypes] or (F32,), ranks=(2, draft.rank))
    read: list[str | DraftValue] = [x, draft.axis(draft.choose.integer(-2, 2))] if draft.choose.integer(0, 1) else [x]
    draft.node("Trilu", read, draft.out(x.dtype, x.shape, x.bound), upper=draft.choose.integer(0, 1))


def identity_matrix(draft: GraphDraft) -> None:
    x = _any(draft, 2)
    if x.rank == 2:
        draft.node("EyeLike", [x], draft.out(F32, x.shape, 1.0), k=draft.choose.integer(-1, 1), dtype=F32.onnx)


def range_between(draft: GraphDraft) -> None:
    """Range between constants, upwards and downwards."""
    start, limit, delta = draft.choose.pick(((0, 4, 1), (3, -2, -2), (1, 1, 1), (0, 5, 2)))
    kind = draft.choose.pick((np.int64, np.float32, np.int32))
    read = [draft.constant(np.asarray(number, kind)) for number in (start, limit, delta)]
    size = len(range(start, limit, delta))
    if size or draft.empty:
        draft.node("Range", read, draft.out(DType.parse(np.dtype(kind).name), (size,), 5.0))


def fill(draft: GraphDraft) -> None:
    """ConstantOfShape and Expand by a shape that another value has."""
    x = _any(draft)
    shape = draft.node("Shape", [x], draft.out(I64, (x.rank,), float(max((*x.shape, 1)))))[0]
    if draft.choose.integer(0, 1):
        draft.node("ConstantOfShape", [shape], draft.out(F32, x.shape, 1.0), value=np.array([0.5], np.float32))
    else:
        one = draft.want((F32,), ())
        draft.node("Expand", [one, shape], draft.out(F32, x.shape, one.bound))


def reshape_like(draft: GraphDraft) -> None:
    """Reshape by zeros that copy an extent, by a computed shape, and to no elements."""
    x = _any(draft, 1)
    if draft.choose.integer(0, 1):
        shape = draft.node("Shape", [x], draft.out(I64, (x.rank,), float(max((*x.shape, 1)))))[0]
        flat = draft.node("Reshape", [x, draft.axes(x.size)], draft.out(x.dtype, (x.size,), x.bound), allowzero=1)[0]
        draft.node("Reshape", [flat, shape], draft.out(x.dtype, x.shape, x.bound), allowzero=1)
    elif x.size:
        rest = math.prod(x.shape[1:])
        draft.node("Reshape", [x, draft.axes(0, rest)], draft.out(x.dtype, (x.shape[0], rest), x.bound))


def part_of_shape(draft: GraphDraft) -> None:
    x = _any(draft, 1)
    if draft.choose.integer(0, 1):
        draft.node("Size", [x], draft.out(I64, (), float(max(x.size, 1))))
    else:
        start, end = draft.choose.integer(-x.rank, x.rank - 1), draft.choose.integer(-x.rank, x.rank)
        kept = x.shape[start:end]
        if kept or draft.empty:
            draft.node("Shape", [x], draft.out(I64, (len(kept),), float(max((*kept, 1)))), start=start, end=end)


def squeezes(draft: GraphDraft) -> None:
    """Unsqueeze by several axes counted from the end, and Squeeze of all."""
    x = draft.want(draft.dtypes, ranks=(0, draft.rank - 2))
    wide = draft.node("Unsqueeze", [x, draft.axes(-1, 0)], draft.out(x.dtype, (1, *x.shape, 1), x.bound))[0]
    if draft.choose.integer(0, 1):
        draft.node("Squeeze", [wide], draft.out(x.dtype, tuple(d for d in x.shape if d != 1), x.bound))


def even_split(draft: GraphDraft) -> None:
    """Split by a count, the last part smaller."""
    x = _any(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    place, size = axis % x.rank, -(-x.shape[axis] // 2)
    if x.shape[place] >= 2:
        sizes = (size, x.shape[place] - size)
        outs = [draft.out(x.dtype, (*x.shape[:place], n, *x.shape[place + 1 :]), x.bound) for n in sizes]
        draft.node("Split", [x], *outs, axis=axis, num_outputs=2)


def broadcast(draft: GraphDraft) -> None:
    """Expand both ways: extents of one on either side."""
    x = _any(draft)
    if x.rank < draft.rank:
        shape = (draft.choose.integer(0 if draft.empty else 1, 2), *(1 if draft.choose.integer(0, 1) else d for d in x.shape))
        result = (shape[0], *x.shape)
        draft.node("Expand", [x, draft.axes(*shape)], draft.out(x.dtype, result, x.bound))


def reverse(draft: GraphDraft) -> None:
    x = draft.want((F32, I64), ranks=(2, draft.rank))
    if x.size:
        lengths = [draft.choose.integer(1, x.shape[0]) for _ in range(x.shape[1])]
        draft.node("ReverseSequence", [x, draft.axes(*lengths)], draft.out(x.dtype, x.shape, x.bound))


def compress(draft: GraphDraft) -> None:
    """Compress by a constant condition that may be shorter than the axis."""
    x = _any(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    mask = [bool(draft.choose.integer(0, 1)) for _ in range(draft.choose.integer(1, max(x.shape[axis], 1)))]
    kept = sum(mask)
    if x.size and (kept or draft.empty):
        out = draft.out(x.dtype, (*x.shape[:axis], kept, *x.shape[axis + 1 :]), x.bound)
        draft.node("Compress", [x, draft.constant(np.array(mask))], out, axis=axis)


def nonzero(draft: GraphDraft) -> None:
    """NonZero of a constant, whose count is known here and to no engine."""
    shape = draft.shape(1, min(3, draft.rank))
    array = np.random.default_rng(draft.choose.integer(0, 99)).integers(0, 2, shape).astype(np.bool_)
    count = int(array.sum())
    if count or draft.empty:
        draft.node("NonZero", [draft.constant(array)], draft.out(I64, (len(shape), count), 5.0))


def tops(draft: GraphDraft) -> None:
    """TopK of the smallest or the largest, along any axis; the values only."""
    x = draft.want((F32, I64), ranks=(1, draft.rank))
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    place = axis % x.rank
    if x.size:
        k = draft.choose.integer(1, x.shape[place])
        shape = (*x.shape[:place], k, *x.shape[place + 1 :])
        values, indices = draft.out(x.dtype, shape, x.bound), draft.out(I64, shape, 5.0, steps=True)
        draft.node("TopK", [x, draft.axes(k)], values, indices, axis=axis, largest=draft.choose.integer(0, 1))


MOVES = (
    slices,
    slices,
    padding,
    gather,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    one_hot,
    triangle,
    identity_matrix,
    range_between,
    fill,
    reshape_like,
    part_of_shape,
    squeezes,
    even_split,
    broadcast,
    reverse,
    compress,
    nonzero,
    tops,
)
