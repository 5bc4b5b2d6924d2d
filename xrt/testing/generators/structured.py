"""Recipes with structure: Scan, lists of tensors, numbers that are not finite."""

from __future__ import annotations

import numpy as np

from xrt.graph import DType, Function, TensorType, Value
from xrt.testing.generators.operators import Recipe, gentle
from xrt.testing.graph_draft import OPSET, DraftValue, GraphDraft

__all__ = ["CONTROL", "LISTS", "SCANS", "SPECIALS", "branch", "loop"]

F32 = DType.FLOAT32


def scan(draft: GraphDraft) -> None:
    """A Scan that carries a sum, gives its Tanh at every turn, and captures a value."""
    xs = draft.want((F32,), ranks=(1, draft.rank))
    if not xs.shape[0]:
        return
    row = xs.shape[1:]
    start, way = draft.want((F32,), row), draft.choose.integer(0, 1)
    inner = draft.body()
    state, x = (DraftValue(inner.fresh("b"), F32, row, 1.0) for _ in range(2))
    captured = inner.want((F32,), row)
    inner.values.extend((state, x))
    first = inner.node("Add", [state, x], inner.out(F32, row, 2.0))[0]
    total = inner.node("Add", [first, captured], inner.out(F32, row, 2.0 + captured.bound))[0]
    after = inner.node("Tanh", [total], inner.out(F32, row, 1.0))[0]
    turn = inner.node("Identity", [after], inner.out(F32, row, 1.0))[0]
    values = [tuple(Value(v.name, TensorType(F32, row)) for v in vs) for vs in ((state, x), (after, turn))]
    body = Function(values[0], values[1], tuple(inner.nodes), inner.constants, {"": OPSET}, name=inner.fresh("body"))
    last, all_ = draft.out(F32, row, 1.0), draft.out(F32, xs.shape, 1.0)
    draft.node("Scan", [start, xs], last, all_, body=body, num_scan_inputs=1, scan_input_directions=[way])


def list_of_tensors(draft: GraphDraft) -> None:
    """Make a list, put one in or take one out, and read it again: one element, all of them, or their number."""
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    y = draft.want((x.dtype,), x.shape)
    items = [x, y, x][: draft.choose.integer(1, 3)]
    held = _list(draft, "SequenceConstruct", [v.name for v in items])
    change = draft.choose.integer(0, 2)
    if change == 1:
        held, items = _list(draft, "SequenceInsert", [held, y.name, draft.axis(0)]), [y, *items]
    elif change == 2 and len(items) > 1:
        held, items = _list(draft, "SequenceErase", [held, draft.axis(-1)]), items[:-1]
    _read_list(draft, held, items)


def _list(draft: GraphDraft, op: str, read: list[str]) -> str:
    made = DraftValue(draft.fresh("s"), F32, (), 0.0)
    draft.node(op, list(read), made)
    draft.values.pop()  # nothing but the operators of lists may read it
    return made.name


def _read_list(draft: GraphDraft, held: str, items: list[DraftValue]) -> None:
    first, bound = items[0], max(v.bound for v in items)
    way, count = draft.choose.integer(0, 3), len(items)
    if way == 0:
        place = draft.choose.integer(-count, count - 1)
        draft.node("SequenceAt", [held, draft.axis(place)], draft.out(first.dtype, first.shape, bound))
    elif way == 1:
        draft.node("SequenceLength", [held], draft.out(DType.INT64, (), 4.0))
    elif way == 2 and first.rank < draft.rank:
        out = draft.out(first.dtype, (count, *first.shape), bound)
        draft.node("ConcatFromSequence", [held], out, axis=0, new_axis=1)
    else:
        out = draft.out(first.dtype, (count * first.shape[0], *first.shape[1:]), bound)
        draft.node("ConcatFromSequence", [held], out, axis=0)


def split_to_list(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    if x.shape[0]:
        held = _list(draft, "SplitToSequence", [x.name])
        row = draft.out(x.dtype, (1, *x.shape[1:]), x.bound)
        draft.node("SequenceAt", [held, draft.axis(draft.choose.integer(-x.shape[0], x.shape[0] - 1))], row)


_RAW = ("Log", "Sqrt", "Reciprocal", "Acos", "Acosh", "Atanh")
_AFTER = ("Neg", "Abs", "Identity", "Exp", "Add", "Mul", "Sub")


def not_finite(draft: GraphDraft) -> None:
    """What gives NaN and infinity, and what then keeps them: of constants, so that every engine reads the same."""
    numbers = np.array([0, -0.0, 1, -1, 0.5, 2, np.inf, -np.inf, np.nan, -3], np.float32)
    x = draft.constant(numbers[: draft.choose.integer(2, 10)])
    x = DraftValue(x.name, F32, x.shape, np.inf)
    draft.values.pop()  # nothing else may read it: its bound is none
    y = _hidden(draft, draft.choose.pick(_RAW), [x], F32)
    for _ in range(draft.choose.integer(0, 3)):
        op = draft.choose.pick(_AFTER)
        y = _hidden(draft, op, [y, x] if op in ("Add", "Mul", "Sub") else [y], F32)
    if draft.choose.integer(0, 1):
        _hidden(draft, draft.choose.pick(("IsNaN", "IsInf")), [y], DType.BOOL)


def _hidden(draft: GraphDraft, op: str, read: list[DraftValue], kind: DType) -> DraftValue:
    """Add a node whose result only its own recipe computes with."""
    return draft.node(op, read, DraftValue(draft.fresh("v"), kind, read[0].shape, np.inf, leaf=True))[0]


SCANS = (scan,)
LISTS = (list_of_tensors, list_of_tensors, split_to_list)
SPECIALS = (not_finite,)
_TYPES = (DType.FLOAT32, DType.INT64, DType.BOOL)


def branch(draft: GraphDraft) -> None:
    """An If whose branches take values from outside, and now and then hold an If themselves."""
    condition = draft.want((DType.BOOL,), ())
    x = draft.want(_TYPES)
    results = [_branch_body(draft, x) for _ in range(2)]
    (then, one), (otherwise, other) = results
    out = draft.out(x.dtype, x.shape, max(one.bound, other.bound))
    draft.node("If", [condition], out, then_branch=then, else_branch=otherwise)


def _branch_body(outer: GraphDraft, x: DraftValue) -> tuple[Function, DraftValue]:
    inner = outer.body()
    value = gentle(inner, x)
    if x.dtype.is_float and (y := inner.find(lambda v: v.dtype is x.dtype and v.shape == x.shape)) is not None:
        value = inner.node("Add", [value, y], inner.out(x.dtype, x.shape, value.bound + y.bound))[0]
    if _depth(inner) < 2 and inner.choose.integer(0, 4) == 4:
        branch(inner)
    if inner.choose.integer(0, 3) == 3:
        value = gentle(inner, value)
    return _closed(inner, [], [value]), value


def _depth(draft: GraphDraft) -> int:
    return 0 if draft.parent is None else 1 + _depth(draft.parent)


def loop(draft: GraphDraft) -> None:
    """A Loop with a carried value, a captured one, and what every turn gives stacked up."""
    carried = draft.want((DType.FLOAT32,))
    turns = draft.choose.integer(1, 3)
    trips = draft.constant(np.array(turns, np.int64))
    go_on = "" if draft.choose.integer(0, 1) else draft.constant(np.array(True))
    body = draft.body()
    number, keep, inside = (DraftValue(body.fresh("b"), d, s, b) for d, s, b in _loop_inputs(carried))
    captured = body.want((DType.FLOAT32,), carried.shape)
    body.values.append(inside)
    total = body.node("Add", [inside, captured], body.out(carried.dtype, carried.shape, 1.0 + captured.bound))[0]
    after = body.node("Tanh", [total], body.out(carried.dtype, carried.shape, 1.0))[0]
    again = body.node("Identity", [keep], body.out(DType.BOOL, (), 1.0))[0]
    function = _closed(body, [number, keep, inside], [again, after, total])
    last = draft.out(carried.dtype, carried.shape, max(1.0, carried.bound))
    stacked = draft.out(carried.dtype, (turns, *carried.shape), max(1.0, carried.bound) + captured.bound)
    draft.node("Loop", [trips, go_on, carried], last, stacked, body=function)


def _loop_inputs(carried: DraftValue) -> list[tuple[DType, tuple[int, ...], float]]:
    return [(DType.INT64, (), 3.0), (DType.BOOL, (), 1.0), (carried.dtype, carried.shape, max(1.0, carried.bound))]


def _closed(draft: GraphDraft, inputs: list[DraftValue], outputs: list[DraftValue]) -> Function:
    """Return the body; the values that it reads and does not define are its captures."""
    first, last = (tuple(Value(v.name, TensorType(v.dtype, v.shape)) for v in values) for values in (inputs, outputs))
    return Function(first, last, tuple(draft.nodes), draft.constants, {"": OPSET}, name=draft.fresh("body"))


CONTROL: tuple[Recipe, ...] = (branch, loop)
