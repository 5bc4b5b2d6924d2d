"""Recipes for control flow: nodes whose bodies capture values from outside."""

from __future__ import annotations

import numpy as np

from xrt.graph import DType, Function, TensorType, Value
from xrt.testing.generators.operators import Recipe, gentle
from xrt.testing.graph_draft import OPSET, DraftValue, GraphDraft

__all__ = ["CONTROL", "branch", "loop"]

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
