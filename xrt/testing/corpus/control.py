"""Control flow: bodies that capture, carry, stack and nest."""

from __future__ import annotations

import numpy as np

from xrt.testing.corpus.entry import Entry, body, f32, graph, i64, node

__all__ = ["ENTRIES"]

X = f32([-1, 2, -3])
TRUE, FALSE = np.array(True), np.array(False)

_THEN = body({}, {"t": "float32[3]"}, node("Neg", "x", "t"))
_ELSE = body({}, {"e": "float32[3]"}, node("Add", "x c", "e"), constants={"c": f32(1, 1, 1)})

_NESTED = body(
    {},
    {"o": "float32[3]"},
    node(
        "If",
        "inner",
        "o",
        then_branch=body({}, {"a": "float32[3]"}, node("Mul", "x x", "a")),
        else_branch=body({}, {"b": "float32[3]"}, node("Neg", "x", "b")),
    ),
)

_STEP = body(
    {"i": "int64[]", "go": "bool[]", "carried": "float32[3]"},
    {"again": "bool[]", "after": "float32[3]", "stacked": "float32[3]"},
    node("Identity", "go", "again"),
    node("Add", "carried x", "after"),
    node("Neg", "after", "stacked"),
)

_COUNTED = body(
    {"i": "int64[]", "go": "bool[]", "n": "int64[]"},
    {"again": "bool[]", "more": "int64[]"},
    node("Add", "n i", "more"),
    node("Less", "more limit", "again"),
)

_MATRIX = body(
    {"i": "int64[]", "go": "bool[]"},
    {"again": "bool[]", "row": "float32[2,2]"},
    node("Identity", "go", "again"),
    node("Neg", "m", "row"),
)

_SCAN = body(
    {"sum": "float32[]", "item": "float32[]"},
    {"total": "float32[]", "out": "float32[]"},
    node("Add", "sum item", "total"),
    node("Mul", "total scale", "out"),
)

M = f32([[1, 2], [3, 4]])


def _if(condition: bool) -> Entry:
    return Entry(
        f"if_{str(condition).lower()}",
        "branches read values from outside that are not among the inputs of the node",
        graph(
            {"p": "bool[]", "x": "float32[3]"}, {"y": "float32[3]"}, node("If", "p", "y", then_branch=_THEN, else_branch=_ELSE)
        ),
        (np.array(condition), X),
        (-X if condition else X + 1,),
    )


def _loop(name: str, why: str, trips: int, condition: str) -> Entry:
    sums = [X * (turn + 1) for turn in range(trips)]
    return Entry(
        name,
        why,
        graph(
            {"x": "float32[3]", "start": "float32[3]", "trips": "int64[]"},
            {"last": "float32[3]", "all": "float32[?,3]"},
            node("Loop", f"trips {condition} start", "last all", body=_STEP),
            constants={"yes": TRUE},
        ),
        (X, np.zeros(3, np.float32), i64(trips)),
        (X * trips, -np.stack(sums) if sums else np.zeros((0, 3), np.float32)),
    )


ENTRIES: tuple[Entry, ...] = (
    _if(True),
    _if(False),
    Entry(
        "if_captures_an_inner_value",
        "a branch reads what another node computes; that node must not be folded away from it, nor freed before it",
        graph(
            {"p": "bool[]", "w": "float32[3]"},
            {"y": "float32[3]"},
            node("Tanh", "w", "x"),
            node("If", "p", "y", then_branch=_THEN, else_branch=_ELSE),
        ),
        (TRUE, X),
        (-np.tanh(X),),
    ),
    Entry(
        "if_in_if",
        "the inner branches capture through the outer one",
        graph(
            {"p": "bool[]", "inner": "bool[]", "x": "float32[3]"},
            {"y": "float32[3]"},
            node("If", "p", "y", then_branch=_NESTED, else_branch=_ELSE),
        ),
        (TRUE, TRUE, X),
        (X * X,),
    ),
    Entry(
        "if_without_nodes_in_a_branch",
        "a branch that is a constant and nothing else",
        graph(
            {"p": "bool[]", "x": "float32[3]"},
            {"y": "float32[3]"},
            node(
                "If",
                "p",
                "y",
                then_branch=body({}, {"k": "float32[3]"}, constants={"k": f32(7, 8, 9)}),
                else_branch=body({}, {"e": "float32[3]"}, node("Neg", "x", "e")),
            ),
        ),
        (TRUE, X),
        (f32(7, 8, 9),),
    ),
    _loop("loop_stacks", "what each turn gives is stacked along a new first axis, also when it has axes of its own", 3, "yes"),
    _loop("loop_without_condition", "no condition means go on; the reference of onnx takes it for stop", 2, "-"),
    _loop("loop_of_no_turns", "no turn: the carried value comes out as it went in, and nothing is stacked", 0, "yes"),
    Entry(
        "loop_stops_by_its_condition",
        "no trip count: the body itself says when to stop",
        graph(
            {"start": "int64[]", "limit": "int64[]"},
            {"n": "int64[]"},
            node("Loop", "- yes start", "n", body=_COUNTED),
            constants={"yes": TRUE},
        ),
        (i64(0), i64(5)),
        (i64(6),),
    ),
    Entry(
        "loop_stacks_matrices",
        "the reference of onnx joins matrices end to end instead of stacking them",
        graph({"m": "float32[2,2]", "trips": "int64[]"}, {"all": "float32[?,2,2]"}, node("Loop", "trips -", "all", body=_MATRIX)),
        (M, i64(2)),
        (-np.stack([M, M]),),
    ),
    Entry(
        "scan_captures",
        "the body of a Scan reads a value from outside",
        graph(
            {"xs": "float32[4]", "scale": "float32[]"},
            {"last": "float32[]", "sums": "float32[4]"},
            node("Scan", "zero xs", "last sums", body=_SCAN, num_scan_inputs=1),
            constants={"zero": f32(0)},
        ),
        (f32(1, 2, 3, 4), f32(10)),
        (f32(10), f32(10, 30, 60, 100)),
    ),
)
