"""Recipes for data movement, control flow (If, Loop, Scan) and sequences of tensors."""

from __future__ import annotations

import math

import numpy as np

from xrt.graph import DType, Function, TensorType, Value
from xrt.testing.generators.draft import OPSET, DraftValue, GraphDraft, Recipe
from xrt.testing.generators.operators import add_simple_unary

F32, I64 = DType.FLOAT32, DType.INT64


def _pick_any_operand(draft: GraphDraft, low: int = 0) -> DraftValue:
    return draft.pick_operand(draft.dtypes, ranks=(low, draft.rank))


def add_transpose(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    # Fisher-Yates with the chooser's numbers, so that hypothesis can shrink the permutation.
    order = list(range(x.rank))
    for last in range(x.rank - 1, 0, -1):
        other = draft.choose.integer(0, last)
        order[last], order[other] = order[other], order[last]
    draft.node("Transpose", [x], draft.make_output(x.dtype, tuple(x.shape[a] for a in order), x.bound), perm=order)


def add_reshape(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft)
    if x.size == 0:
        return  # -1 is ambiguous; `add_special_reshape` reshapes empty values
    first = draft.choose.pick([d for d in range(1, x.size + 1) if x.size % d == 0])
    shape, target = draft.choose.pick(
        [((x.size,), (-1,)), ((first, x.size // first), (first, -1)), ((1, first, x.size // first), (1, first, x.size // first))]
    )
    draft.node("Reshape", [x, draft.int64_values(target)], draft.make_output(x.dtype, shape, x.bound))


def add_flatten(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft)
    axis = draft.choose.integer(0, x.rank)
    draft.node(
        "Flatten", [x], draft.make_output(x.dtype, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), x.bound), axis=axis
    )


def add_unsqueeze(draft: GraphDraft) -> None:
    x = draft.pick_operand(draft.dtypes, ranks=(0, draft.rank - 1))
    axis = draft.choose.integer(0, x.rank)
    draft.node(
        "Unsqueeze", [x, draft.int64_values([axis])], draft.make_output(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]), x.bound)
    )


def add_squeeze(draft: GraphDraft) -> None:
    x = draft.pick_visible(lambda v: 1 in v.shape)
    if x is not None:
        axis = x.shape.index(1)
        draft.node(
            "Squeeze", [x, draft.int64_values([axis])], draft.make_output(x.dtype, x.shape[:axis] + x.shape[axis + 1 :], x.bound)
        )


def add_tile(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    times = [draft.choose.integer(1, 2) for _ in x.shape]
    draft.node(
        "Tile",
        [x, draft.int64_values(times)],
        draft.make_output(x.dtype, tuple(d * t for d, t in zip(x.shape, times, strict=True)), x.bound),
    )


def add_concat(draft: GraphDraft) -> None:
    """Concat of one to three values; repeats ``x`` if no other value fits."""
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)

    def fits(v: DraftValue) -> bool:
        return v.dtype is x.dtype and v.rank == x.rank and all(v.shape[a] == x.shape[a] for a in range(x.rank) if a != axis)

    parts = [x, *(draft.pick_visible(fits) or x for _ in range(draft.choose.integer(0, 2)))]
    shape = (*x.shape[:axis], sum(p.shape[axis] for p in parts), *x.shape[axis + 1 :])
    draft.node("Concat", parts, draft.make_output(x.dtype, shape, max(p.bound for p in parts)), axis=axis)


def add_split(draft: GraphDraft) -> None:
    """Split into two parts, by sizes or by ``num_outputs``, where the last part may be smaller."""
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    dim = axis % x.rank
    if x.shape[dim] < 2:
        return
    by_count = draft.choose.integer(0, 1)
    # With num_outputs, ONNX rounds the size of a part up, and the last part is smaller.
    first = -(-x.shape[dim] // 2) if by_count else draft.choose.integer(1, x.shape[dim] - 1)
    sizes = (first, x.shape[dim] - first)
    outs = [draft.make_output(x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1 :]), x.bound) for size in sizes]
    if by_count:
        draft.node("Split", [x], *outs, axis=axis, num_outputs=2)
    else:
        draft.node("Split", [x, draft.int64_values(sizes)], *outs, axis=axis)


def add_expand(draft: GraphDraft) -> None:
    """Expand that broadcasts in both directions: the input and the target shape may have dims of 1."""
    x = _pick_any_operand(draft)
    if x.rank < draft.rank:
        shape = (draft.choose.integer(0 if draft.empty else 1, 2), *(1 if draft.choose.integer(0, 1) else d for d in x.shape))
        result = (shape[0], *x.shape)
        draft.node("Expand", [x, draft.int64_values(shape)], draft.make_output(x.dtype, result, x.bound))


def add_slice(draft: GraphDraft) -> None:
    """Slice over several axes, with positive and negative steps and ends out of range."""
    x = _pick_any_operand(draft, 1)
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [0]
    ranges, shape = [], list(x.shape)
    for axis in axes:
        size, step = x.shape[axis], draft.choose.pick((1, 2, -1, -2))
        start, end = draft.choose.integer(-size - 1, size + 1), draft.choose.integer(-size - 2, size + 2)
        ranges.append((start, end, axis, step))
        first = max(start, -size) if step < 0 else start  # out of range with a negative step: ONNX clamps to 0, Python to -1
        shape[axis] = len(range(size)[first:end:step])
    if draft.empty or 0 not in shape:
        operands = [draft.int64_values(numbers) for numbers in zip(*ranges, strict=True)]  # starts, ends, axes, steps
        draft.node("Slice", [x, *operands], draft.make_output(x.dtype, tuple(shape), x.bound))


def add_pad(draft: GraphDraft) -> None:
    """Pad in all modes, with and without a value, over some axes, with negative padding too."""
    x = draft.pick_operand((F32, I64), ranks=(1, draft.rank))
    mode = draft.choose.pick(("constant", "edge", "reflect"))
    if mode != "constant" and min(x.shape) < 2:
        return  # an axis of one element has nothing to reflect
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [x.rank - 1]
    low = -1 if mode == "constant" and all(x.shape[a] > 2 for a in axes) else 0  # -1 crops an element
    before, after = ([draft.choose.integer(low, 1) for _ in axes] for _ in range(2))
    shape = list(x.shape)
    for axis, low_pad, high_pad in zip(axes, before, after, strict=True):
        shape[axis] += low_pad + high_pad
    value: DraftValue | str = draft.constant(np.asarray(2, x.dtype.numpy)) if draft.choose.integer(0, 1) else ""
    out = draft.make_output(x.dtype, tuple(shape), max(x.bound, 2.0))
    draft.node("Pad", [x, draft.int64_values([*before, *after]), value, draft.int64_values(axes)], out, mode=mode)


def _make_indices(draft: GraphDraft, shape: tuple[int, ...], size: int, kind: type = np.int64) -> DraftValue:
    rng = np.random.default_rng(draft.choose.integer(0, 99))
    return draft.constant(rng.integers(-size, size, shape).astype(kind))


def add_gather(draft: GraphDraft) -> None:
    """Gather with int32 or int64 indices of rank 0 to 2, sometimes without elements."""
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    shape = draft.choose.pick(((2,), (), (2, 2), (0,) if draft.empty else (1,)))
    if not x.shape[axis] or x.rank - 1 + len(shape) > draft.rank:
        return
    indices = _make_indices(draft, shape, x.shape[axis], draft.choose.pick((np.int64, np.int32)))
    dim = axis % x.rank
    out = draft.make_output(x.dtype, (*x.shape[:dim], *shape, *x.shape[dim + 1 :]), x.bound)
    draft.node("Gather", [x, indices], out, axis=axis)


def add_shape_or_size(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    if draft.choose.integer(0, 1):
        draft.node("Size", [x], draft.make_output(I64, (), float(max(x.size, 1))))
    else:
        start, end = draft.choose.integer(-x.rank, x.rank - 1), draft.choose.integer(-x.rank, x.rank)
        extents = x.shape[start:end]
        if extents or draft.empty:
            draft.node("Shape", [x], draft.make_output(I64, (len(extents),), float(max((*extents, 1)))), start=start, end=end)


SHAPE = (
    add_transpose,
    add_reshape,
    add_flatten,
    add_unsqueeze,
    add_squeeze,
    add_expand,
    add_tile,
    add_slice,
    add_pad,
    add_gather,
    add_shape_or_size,
    add_concat,
    add_split,
)


def add_gather_elements(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    if x.size:
        shape = tuple(draft.choose.integer(1, 3) if a == axis else draft.choose.integer(1, d) for a, d in enumerate(x.shape))
        indices = _make_indices(draft, shape, x.shape[axis])
        draft.node("GatherElements", [x, indices], draft.make_output(x.dtype, shape, x.bound), axis=axis)


def add_gather_nd(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    depth = draft.choose.integer(1, x.rank)
    if x.size:
        rng = np.random.default_rng(draft.choose.integer(0, 99))
        indices = draft.constant(np.stack([rng.integers(-d, d, (2,)) for d in x.shape[:depth]], -1))
        draft.node("GatherND", [x, indices], draft.make_output(x.dtype, (2, *x.shape[depth:]), x.bound))


def add_scatter_elements(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    # The start of a permutation, which has no duplicates: the order of their writes would be undefined.
    rng = np.random.default_rng(draft.choose.integer(0, 99))
    count = draft.choose.integer(1, x.shape[axis])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    order = np.argsort(rng.random(x.shape), axis=axis).take(range(count), axis=axis)
    updates = draft.pick_operand((x.dtype,), shape)
    out = draft.make_output(x.dtype, x.shape, max(x.bound, updates.bound))
    draft.node("ScatterElements", [x, draft.constant(order.astype(np.int64)), updates], out, axis=axis)


def add_scatter_nd(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 1)
    if x.shape[0]:
        count = draft.choose.integer(1, x.shape[0])
        rows = np.random.default_rng(draft.choose.integer(0, 99)).permutation(x.shape[0])[:count, None]
        updates = draft.pick_operand((x.dtype,), (count, *x.shape[1:]))
        out = draft.make_output(x.dtype, x.shape, max(x.bound, updates.bound))
        draft.node("ScatterND", [x, draft.constant(rows.astype(np.int64)), updates], out)


def add_one_hot(draft: GraphDraft) -> None:
    x = draft.pick_operand((I64,), ranks=(1, draft.rank - 1))  # onnx infers no type for a 0-d index
    axis = draft.choose.integer(-1, x.rank)
    dim = x.rank if axis == -1 else axis
    off_on = draft.constant(np.array([-1, 2], np.float32))
    out = draft.make_output(F32, (*x.shape[:dim], 3, *x.shape[dim:]), 2.0)
    draft.node("OneHot", [x, draft.int64_values(3), off_on], out, axis=axis)


def add_trilu(draft: GraphDraft) -> None:
    x = draft.pick_operand([k for k in (F32, I64, DType.BOOL) if k in draft.dtypes] or (F32,), ranks=(2, draft.rank))
    operands: list[str | DraftValue] = [x, draft.int64_values(draft.choose.integer(-2, 2))] if draft.choose.integer(0, 1) else [x]
    draft.node("Trilu", operands, draft.make_output(x.dtype, x.shape, x.bound), upper=draft.choose.integer(0, 1))


def add_eye_like(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft, 2)
    if x.rank == 2:
        draft.node("EyeLike", [x], draft.make_output(F32, x.shape, 1.0), k=draft.choose.integer(-1, 1), dtype=F32.onnx)


def add_range(draft: GraphDraft) -> None:
    start, limit, delta = draft.choose.pick(((0, 4, 1), (3, -2, -2), (1, 1, 1), (0, 5, 2)))
    kind = draft.choose.pick((np.int64, np.float32, np.int32))
    operands = [draft.constant(np.asarray(number, kind)) for number in (start, limit, delta)]
    size = len(range(start, limit, delta))
    if size or draft.empty:
        draft.node("Range", operands, draft.make_output(DType.parse(np.dtype(kind).name), (size,), 5.0))


def add_filled_tensor(draft: GraphDraft) -> None:
    x = _pick_any_operand(draft)
    shape = draft.node("Shape", [x], draft.make_output(I64, (x.rank,), float(max((*x.shape, 1)))))[0]
    if draft.choose.integer(0, 1):
        draft.node("ConstantOfShape", [shape], draft.make_output(F32, x.shape, 1.0), value=np.array([0.5], np.float32))
    else:
        scalar = draft.pick_operand((F32,), ())
        draft.node("Expand", [scalar, shape], draft.make_output(F32, x.shape, scalar.bound))


def add_special_reshape(draft: GraphDraft) -> None:
    """Reshape with a 0 that copies a dim, or to a computed shape, of which dims may be 0."""
    x = _pick_any_operand(draft, 1)
    if draft.choose.integer(0, 1):
        shape = draft.node("Shape", [x], draft.make_output(I64, (x.rank,), float(max((*x.shape, 1)))))[0]
        flat = draft.node(
            "Reshape", [x, draft.int64_values([x.size])], draft.make_output(x.dtype, (x.size,), x.bound), allowzero=1
        )[0]
        draft.node("Reshape", [flat, shape], draft.make_output(x.dtype, x.shape, x.bound), allowzero=1)
    elif x.size:
        columns = math.prod(x.shape[1:])
        draft.node("Reshape", [x, draft.int64_values([0, columns])], draft.make_output(x.dtype, (x.shape[0], columns), x.bound))


def add_reverse_sequence(draft: GraphDraft) -> None:
    x = draft.pick_operand((F32, I64), ranks=(2, draft.rank))
    if x.size:
        lengths = [draft.choose.integer(1, x.shape[0]) for _ in range(x.shape[1])]
        draft.node("ReverseSequence", [x, draft.int64_values(lengths)], draft.make_output(x.dtype, x.shape, x.bound))


def add_compress(draft: GraphDraft) -> None:
    """Compress by a constant condition, which may be shorter than the axis."""
    x = _pick_any_operand(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    mask = [bool(draft.choose.integer(0, 1)) for _ in range(draft.choose.integer(1, max(x.shape[axis], 1)))]
    count = sum(mask)
    if x.size and (count or draft.empty):
        out = draft.make_output(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.bound)
        draft.node("Compress", [x, draft.constant(np.array(mask))], out, axis=axis)


def add_nonzero(draft: GraphDraft) -> None:
    """NonZero of a constant, so that the generator knows the number of results."""
    shape = draft.choose_shape(1, min(3, draft.rank))
    array = np.random.default_rng(draft.choose.integer(0, 99)).integers(0, 2, shape).astype(np.bool_)
    count = int(array.sum())
    if count or draft.empty:
        draft.node("NonZero", [draft.constant(array)], draft.make_output(I64, (len(shape), count), 5.0))


INDEXING = (
    *(add_gather_elements, add_gather_nd, add_scatter_elements, add_scatter_nd, add_one_hot, add_trilu, add_eye_like),
    *(add_range, add_filled_tensor, add_special_reshape, add_reverse_sequence, add_compress, add_nonzero),
)


_TYPES = (DType.FLOAT32, DType.INT64, DType.BOOL)


def add_if(draft: GraphDraft) -> None:
    """An If whose branches capture values and sometimes contain another If."""
    condition = draft.pick_operand((DType.BOOL,), ())
    x = draft.pick_operand(_TYPES)
    (then, then_value), (otherwise, else_value) = (_branch_body(draft, x) for _ in range(2))
    out = draft.make_output(x.dtype, x.shape, max(then_value.bound, else_value.bound))
    draft.node("If", [condition], out, then_branch=then, else_branch=otherwise)


def _branch_body(outer: GraphDraft, x: DraftValue) -> tuple[Function, DraftValue]:
    """Make a branch of an If, whose only output has the type of ``x``; also return the draft of this output."""
    inner = outer.body()
    value = add_simple_unary(inner, x)
    if x.dtype.is_float and (y := inner.pick_visible(lambda v: v.dtype is x.dtype and v.shape == x.shape)) is not None:
        value = inner.node("Add", [value, y], inner.make_output(x.dtype, x.shape, value.bound + y.bound))[0]
    # At most two levels, because each doubles the number of bodies.
    if _count_parents(inner) < 2 and inner.choose.integer(0, 4) == 4:
        add_if(inner)
    if inner.choose.integer(0, 3) == 3:
        value = add_simple_unary(inner, value)
    return _make_body(inner, [], [value]), value


def _count_parents(draft: GraphDraft) -> int:
    return 0 if draft.parent is None else 1 + _count_parents(draft.parent)


def add_loop(draft: GraphDraft) -> None:
    """A Loop with a loop-carried value, a captured value and a scan output."""
    carried = draft.pick_operand((DType.FLOAT32,))
    iterations = draft.choose.integer(1, 3)
    trips = draft.constant(np.array(iterations, np.int64))
    initial_condition = "" if draft.choose.integer(0, 1) else draft.constant(np.array(True))
    body, bound = draft.body(), max(1.0, carried.bound)
    iteration, condition = DraftValue(body.make_name("b"), I64, (), 3.0), DraftValue(body.make_name("b"), DType.BOOL, (), 1.0)
    inside = DraftValue(body.make_name("b"), carried.dtype, carried.shape, bound)
    # Chosen before ``inside`` is visible, so that the body reads a value from outside.
    captured = body.pick_operand((DType.FLOAT32,), carried.shape)
    body.values.append(inside)
    sum_ = body.node("Add", [inside, captured], body.make_output(carried.dtype, carried.shape, 1.0 + captured.bound))[0]
    # Tanh bounds the carried value, which would otherwise grow with each turn.
    next_state = body.node("Tanh", [sum_], body.make_output(carried.dtype, carried.shape, 1.0))[0]
    next_condition = body.node("Identity", [condition], body.make_output(DType.BOOL, (), 1.0))[0]
    function = _make_body(body, [iteration, condition, inside], [next_condition, next_state, sum_])
    last = draft.make_output(carried.dtype, carried.shape, bound)
    stacked = draft.make_output(carried.dtype, (iterations, *carried.shape), bound + captured.bound)
    draft.node("Loop", [trips, initial_condition, carried], last, stacked, body=function)


def _make_body(draft: GraphDraft, inputs: list[DraftValue], outputs: list[DraftValue]) -> Function:
    """Make the body Function; values that it reads but does not define are captured."""
    first, last = (tuple(Value(v.name, TensorType(v.dtype, v.shape)) for v in values) for values in (inputs, outputs))
    return Function(first, last, tuple(draft.nodes), draft.constants, {"": OPSET}, name=draft.make_name("body"))


def add_scan(draft: GraphDraft) -> None:
    """A Scan with a sum as state, its Tanh as scan output, and a captured value."""
    xs = draft.pick_operand((F32,), ranks=(1, draft.rank))
    if not xs.shape[0]:
        return
    row = xs.shape[1:]
    start, direction = draft.pick_operand((F32,), row), draft.choose.integer(0, 1)
    inner = draft.body()
    state, x = (DraftValue(inner.make_name("b"), F32, row, 1.0) for _ in range(2))
    captured = inner.pick_operand((F32,), row)  # before the body's inputs are visible, as in `add_loop`
    inner.values.extend((state, x))
    first = inner.node("Add", [state, x], inner.make_output(F32, row, 2.0))[0]
    sum_ = inner.node("Add", [first, captured], inner.make_output(F32, row, 2.0 + captured.bound))[0]
    next_state = inner.node("Tanh", [sum_], inner.make_output(F32, row, 1.0))[0]
    scan_output = inner.node("Identity", [next_state], inner.make_output(F32, row, 1.0))[0]
    body = _make_body(inner, [state, x], [next_state, scan_output])
    last_state, stacked = draft.make_output(F32, row, 1.0), draft.make_output(F32, xs.shape, 1.0)
    draft.node("Scan", [start, xs], last_state, stacked, body=body, num_scan_inputs=1, scan_input_directions=[direction])


def add_sequence_operators(draft: GraphDraft) -> None:
    """Construct a sequence, sometimes insert or erase a tensor, then read an element, the concatenation or the length."""
    x = draft.pick_operand(draft.dtypes, ranks=(1, draft.rank))
    y = draft.pick_operand((x.dtype,), x.shape)
    items = [x, y, x][: draft.choose.integer(1, 3)]
    sequence = _add_sequence(draft, "SequenceConstruct", [v.name for v in items])
    change = draft.choose.integer(0, 2)
    if change == 1:
        sequence, items = _add_sequence(draft, "SequenceInsert", [sequence, y.name, draft.int64_values(0)]), [y, *items]
    elif change == 2 and len(items) > 1:
        sequence, items = _add_sequence(draft, "SequenceErase", [sequence, draft.int64_values(-1)]), items[:-1]
    _add_reader(draft, sequence, items)


def _add_sequence(draft: GraphDraft, op: str, operands: list[str]) -> str:
    # GraphDraft has only tensors: a dummy tensor stands for the sequence.
    sequence = DraftValue(draft.make_name("s"), F32, (), 0.0)
    draft.node(op, list(operands), sequence)
    draft.values.pop()  # only sequence operators may read it
    return sequence.name


def _add_reader(draft: GraphDraft, sequence: str, items: list[DraftValue]) -> None:
    """Read an element, the length, the stacked or the concatenated tensors of a sequence that holds ``items``."""
    first, bound, count = items[0], max(v.bound for v in items), len(items)
    choice = draft.choose.integer(0, 3)
    if choice == 0:
        index = draft.choose.integer(-count, count - 1)
        draft.node("SequenceAt", [sequence, draft.int64_values(index)], draft.make_output(first.dtype, first.shape, bound))
    elif choice == 1:
        draft.node("SequenceLength", [sequence], draft.make_output(DType.INT64, (), 4.0))
    elif choice == 2 and first.rank < draft.rank:
        out = draft.make_output(first.dtype, (count, *first.shape), bound)
        draft.node("ConcatFromSequence", [sequence], out, axis=0, new_axis=1)
    else:
        out = draft.make_output(first.dtype, (count * first.shape[0], *first.shape[1:]), bound)
        draft.node("ConcatFromSequence", [sequence], out, axis=0)


def add_split_to_sequence(draft: GraphDraft) -> None:
    x = draft.pick_operand(draft.dtypes, ranks=(1, draft.rank))
    if x.shape[0]:
        sequence = _add_sequence(draft, "SplitToSequence", [x.name])
        row = draft.make_output(x.dtype, (1, *x.shape[1:]), x.bound)
        draft.node("SequenceAt", [sequence, draft.int64_values(draft.choose.integer(-x.shape[0], x.shape[0] - 1))], row)


CONTROL: tuple[Recipe, ...] = (add_if, add_loop)
SCAN = (add_scan,)
SEQUENCE = (add_sequence_operators, add_sequence_operators, add_split_to_sequence)
