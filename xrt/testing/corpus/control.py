"""Control flow: captured values, loop-carried values, scan outputs and nested bodies."""

from __future__ import annotations

import numpy as np

from xrt.graph import Function, Value
from xrt.testing.corpus.entry import CorpusEntry, body, f32, graph, i64, node, tensor

VECTOR = f32([-1, 2, -3])
TRUE, FALSE = np.array(True), np.array(False)

_THEN = body({}, {"t": "float32[3]"}, node("Neg", "x", "t"))
_ELSE = body({}, {"e": "float32[3]"}, node("Add", "x c", "e"), constants={"c": f32(1, 1, 1)})

_NESTED_IF = body(
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

_STEP_WITHOUT_OUTPUT = body(
    {"i": "int64[]", "go": "bool[]", "carried": "float32[3]"},
    {"again": "bool[]", "after": "float32[3]"},
    node("Identity", "go", "again"),
    node("Add", "carried x", "after"),
)

_STEP_WITH_CONDITION = body(
    {"i": "int64[]", "go": "bool[]", "n": "int64[]"},
    {"again": "bool[]", "more": "int64[]"},
    node("Add", "n i", "more"),
    node("Less", "more limit", "again"),
)

_STEP_WITHOUT_STATE = body(
    {"i": "int64[]", "go": "bool[]"},
    {"again": "bool[]", "row": "float32[2,2]"},
    node("Identity", "go", "again"),
    node("Neg", "m", "row"),
)

_SCAN_STEP = body(
    {"sum": "float32[]", "item": "float32[]"},
    {"total": "float32[]", "out": "float32[]"},
    node("Add", "sum item", "total"),
    node("Mul", "total scale", "out"),
)

_SYMBOLIC_STEP = body(
    {"i": "int64[]", "cond": "bool[]", "a": "float32[d]"},
    {"cond_out": "bool[]", "next": "float32[d]", "row": "float32[d]"},
    node("Identity", "cond", "cond_out"),
    node("Neg", "a", "next"),
    node("Abs", "a", "row"),
)

_UNKNOWN_DIMS_STEP = body(
    {"i": "int64[]", "cond": "bool[]", "a": "float32[?,?]"},
    {"cond_out": "bool[]", "next": "float32[?,?]", "sums": "float32[?]"},
    node("Identity", "cond", "cond_out"),
    node("Neg", "a", "next"),
    node("ReduceSum", "a last", "sums", keepdims=0),
    constants={"last": i64([1])},
)

MATRIX = f32([[1, 2], [3, 4]])

_RANGE_STEP = body(
    {"i": "int64[]", "cond": "bool[]", "prev": "int32[]"},
    {"cond_out": "bool[]", "current": "int32[]", "range": "int32[]"},
    node("Identity", "cond", "cond_out"),
    node("Add", "prev delta", "current"),
    node("Identity", "prev", "range"),
)

_RANGE = body(  # names as in ONNX: the crash may depend on them
    {},
    {"output": "int32[2]"},
    node("Sub", "limit start", "sub_result"),
    node("Cast", "sub_result", "sub_result_casted", to=1),
    node("Cast", "delta", "delta_casted", to=1),
    node("Div", "sub_result_casted delta_casted", "div_result"),
    node("Ceil", "div_result", "ceil_result"),
    node("Relu", "ceil_result", "ceil_result_relu"),
    node("Cast", "ceil_result_relu", "ceil_result_relu_int", to=7),
    node("Cast", "ceil_result_relu", "ceil_result_relu_bool", to=9),
    node("Loop", "ceil_result_relu_int ceil_result_relu_bool start", "variadic_output output", body=_RANGE_STEP),
)


def _constant_if(condition: str, then: Function, other: Function, output: str = "int32[2]") -> Function:
    """Make a body with an If whose condition is a Constant node. The body's output has the same name as those of the branches."""
    return body(
        {},
        {"output": output},
        node("Constant", "", condition, value=TRUE),
        node("If", condition, "output", then_branch=then, else_branch=other),
    )


_BRANCH_WITH_SHARED_NAMES = body(
    {},
    {"n": "float32[3]", "k": "float32[3]", "again": "float32[3]", "s": "float32[3]"},
    node("Neg", "x", "s"),
    node("Add", "s k", "n"),
    node("Identity", "s", "again"),
    constants={"k": f32(1, 2, 3)},
)


def _if(condition: bool) -> CorpusEntry:
    return CorpusEntry(
        f"if_{str(condition).lower()}",
        "the branches capture values, which are not inputs of the If",
        graph(
            {"p": "bool[]", "x": "float32[3]"}, {"y": "float32[3]"}, node("If", "p", "y", then_branch=_THEN, else_branch=_ELSE)
        ),
        (np.array(condition), VECTOR),
        (-VECTOR if condition else VECTOR + 1,),
    )


def _loop(name: str, why: str, trips: int, condition: str) -> CorpusEntry:
    sums = [VECTOR * (turn + 1) for turn in range(trips)]
    return CorpusEntry(
        name,
        why,
        graph(
            {"x": "float32[3]", "start": "float32[3]", "trips": "int64[]"},
            {"last": "float32[3]", "all": "float32[?,3]"},
            node("Loop", f"trips {condition} start", "last all", body=_STEP),
            constants={"yes": TRUE},
        ),
        (VECTOR, np.zeros(3, np.float32), i64(trips)),
        (VECTOR * trips, -np.stack(sums) if sums else np.zeros((0, 3), np.float32)),
    )


ENTRIES: tuple[CorpusEntry, ...] = (
    _if(True),
    _if(False),
    CorpusEntry(
        "if_captures_an_inner_value",
        "a branch captures a computed value, which must not be removed or freed before the If",
        graph(
            {"p": "bool[]", "w": "float32[3]"},
            {"y": "float32[3]"},
            node("Tanh", "w", "x"),
            node("If", "p", "y", then_branch=_THEN, else_branch=_ELSE),
        ),
        (TRUE, VECTOR),
        (-np.tanh(VECTOR),),
    ),
    CorpusEntry(
        "if_in_if",
        "the branches of an inner If capture values from outside of the outer If",
        graph(
            {"p": "bool[]", "inner": "bool[]", "x": "float32[3]"},
            {"y": "float32[3]"},
            node("If", "p", "y", then_branch=_NESTED_IF, else_branch=_ELSE),
        ),
        (TRUE, TRUE, VECTOR),
        (VECTOR * VECTOR,),
    ),
    CorpusEntry(
        "if_without_nodes_in_a_branch",
        "a branch that only has a constant",
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
        (TRUE, VECTOR),
        (f32(7, 8, 9),),
    ),
    CorpusEntry(
        "constant_ifs_around_a_loop",
        "onnxruntime 1.31 ends the process when it reads ONNX's own definition of Range in two Ifs with constant conditions",
        _constant_if("outer", _constant_if("inner", _RANGE, _RANGE), _constant_if("inner", _RANGE, _RANGE)).replace(
            inputs=tuple(Value(name, tensor("int32[]")) for name in ("start", "limit", "delta")),
            outputs=(Value("output", tensor("int32[?]")),),
        ),
        (np.array(10, np.int32), np.array(6, np.int32), np.array(-3, np.int32)),
        (np.array([10, 7], np.int32),),
    ),
    CorpusEntry(
        "constant_if_of_taken_names",
        "an inlined branch has a constant output and the names of outer values; a nested branch captures values",
        graph(
            {"x": "float32[3]", "p": "bool[]"},
            {"a": "float32[3]", "b": "float32[3]", "h": "float32[3]", "d": "float32[3]", "k": "float32[3]", "e": "float32[3]"},
            node("Abs", "x", "size"),
            node("If", "yes", "a b h d", then_branch=_BRANCH_WITH_SHARED_NAMES, else_branch=_BRANCH_WITH_SHARED_NAMES),
            node("Mul", "size size", "k"),
            node("If", "p", "e", then_branch=_constant_if("sure", _THEN, _ELSE, "float32[3]"), else_branch=_ELSE),
            node("Neg", "k", "s"),
            constants={"yes": TRUE},
        ),
        (VECTOR, TRUE),
        (f32(1, 2, 3) - VECTOR, f32(1, 2, 3), -VECTOR, -VECTOR, VECTOR * VECTOR, -VECTOR),
    ),
    CorpusEntry(
        "loop_of_one_turn",
        "a Loop of one constant iteration is inlined; its scan output has a first axis of size 1",
        graph(
            {"x": "float32[3]", "start": "float32[3]"},
            {"last": "float32[3]", "all": "float32[?,3]", "kept": "float32[3]"},
            node("Loop", "one yes start", "last all", body=_STEP),
            node("Loop", "zero - last", "kept", body=_STEP_WITHOUT_OUTPUT),
            constants={"one": i64(1), "zero": i64(0), "yes": TRUE},
        ),
        (VECTOR, f32(1, 1, 1)),
        (VECTOR + 1, -(VECTOR + 1)[None], VECTOR + 1),
    ),
    _loop("loop_stacks", "scan outputs are stacked along a new first axis, even if they have other axes", 3, "yes"),
    _loop("loop_without_condition", "without a condition a Loop continues; onnx's reference stops", 2, "-"),
    _loop(
        "loop_of_no_turns", "without iterations, the loop-carried value does not change, and the scan output is empty", 0, "yes"
    ),
    CorpusEntry(
        "loop_of_no_turns_over_open_extents",
        "without iterations, the scan output has the symbolic dims of the body",
        graph(
            {"n": "int64[]", "x": "float32[d]", "z": "float32[k,d]"},
            {"y": "float32[?,d]"},
            node("Loop", "n yes x", "h r", body=_SYMBOLIC_STEP),
            node("Concat", "r z", "y", axis=0),
            constants={"yes": TRUE},
        ),
        (i64(0), VECTOR, np.ones((2, 3), np.float32)),
        (np.ones((2, 3), np.float32),),
    ),
    CorpusEntry(
        "loop_of_no_turns_over_unnamed_extents",
        "without iterations, an unknown dim of the scan output is 0",
        graph(
            {"n": "int64[]", "x": "float32[?,?]"},
            {"y": "float32[?,?]"},
            node("Loop", "n yes x", "h y", body=_UNKNOWN_DIMS_STEP),
            constants={"yes": TRUE},
        ),
        (i64(0), np.ones((2, 5), np.float32)),
        (np.zeros((0, 0), np.float32),),
    ),
    CorpusEntry(
        "loop_stops_by_its_condition",
        "a Loop without a trip count, which its body stops",
        graph(
            {"start": "int64[]", "limit": "int64[]"},
            {"n": "int64[]"},
            node("Loop", "- yes start", "n", body=_STEP_WITH_CONDITION),
            constants={"yes": TRUE},
        ),
        (i64(0), i64(5)),
        (i64(6),),
    ),
    CorpusEntry(
        "loop_stacks_matrices",
        "onnx's reference concatenates matrices instead of stacking them",
        graph(
            {"m": "float32[2,2]", "trips": "int64[]"},
            {"all": "float32[?,2,2]"},
            node("Loop", "trips -", "all", body=_STEP_WITHOUT_STATE),
        ),
        (MATRIX, i64(2)),
        (-np.stack([MATRIX, MATRIX]),),
    ),
    CorpusEntry(
        "scan_captures",
        "the body of a Scan captures an input",
        graph(
            {"xs": "float32[4]", "scale": "float32[]"},
            {"last": "float32[]", "sums": "float32[4]"},
            node("Scan", "zero xs", "last sums", body=_SCAN_STEP, num_scan_inputs=1),
            constants={"zero": f32(0)},
        ),
        (f32(1, 2, 3, 4), f32(10)),
        (f32(10), f32(10, 30, 60, 100)),
    ),
    CorpusEntry(
        "scan_captures_a_result",
        "the body of a Scan captures a computed value, as in the gradient of an LSTM; OpenVINO cannot read it",
        graph(
            {"xs": "float32[4]", "negative": "float32[]"},
            {"last": "float32[]", "sums": "float32[4]"},
            node("Neg", "negative", "scale"),
            node("Scan", "zero xs", "last sums", body=_SCAN_STEP, num_scan_inputs=1),
            constants={"zero": f32(0)},
        ),
        (f32(1, 2, 3, 4), f32(-10)),
        (f32(10), f32(10, 30, 60, 100)),
    ),
)
