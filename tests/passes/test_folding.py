"""Folding constants and inlining control flow that they decide: what is computed once, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import parser

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx import load
from xrt.graph import Constant, Function, Value
from xrt.graph.verify import verify
from xrt.module.programs import optimize
from xrt.passes import fold_constants, infer_shapes, inline_constant_control_flow, simplification
from xrt.testing.corpus import CORPUS
from xrt.testing.corpus.entry import body, f32, graph, node, sequence
from xrt.testing.strategies import functions, make_random_inputs


def read(text: str, **constants: np.ndarray) -> Function:
    function = load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "com.acme": 1]> g {text}'))
    return function.replace(
        inputs=tuple(value for value in function.inputs if value.name not in constants),
        constants={**function.constants, **{name: Constant(array) for name, array in constants.items()}},
    )


def fold(function: Function) -> Function:
    return fold_constants(infer_shapes(function), evaluate)


def ops(function: Function) -> list[str]:
    return [node.op for node in function.nodes]


TWO = np.array([1, 2], np.float32)


def test_a_chain_of_constants_becomes_one() -> None:
    function = read("(float[2] x, float[2] k) => (float[2] y) { a = Neg(k)  b = Exp(a)  y = Add(x, b) }", k=TWO)
    folded = fold(function)
    assert ops(folded) == ["Add"]
    assert folded.node("y") == function.node("y")  # under the same names
    assert dict(folded.constants) == {"b": Constant(np.exp(-TWO))}
    assert "b" not in folded.types
    assert fold_constants(folded, evaluate) is folded


def test_an_output_may_become_a_constant_and_keeps_its_place() -> None:
    folded = fold(read("(float[2] x, float[2] k) => (float[2] y, float[2] z) { y = Neg(k)  z = Neg(x) }", k=TWO))
    assert [value.name for value in folded.outputs] == ["y", "z"]
    assert list(folded.constants) == ["y"]


def test_constants_that_others_read_stay() -> None:
    function = read("(float[2] x, float[2] k) => (float[2] y) { a = Neg(k)  b = Add(x, k)  y = Add(a, b) }", k=TWO)
    assert set(fold(function).constants) == {"a", "k"}


def test_constant_nodes_need_no_evaluator() -> None:
    evaluator = Mock(side_effect=evaluate)
    # Larger than what would be computed, but it is there already.
    value = Constant(np.zeros(simplification.MAX_FOLDED_BYTES // 8 + 1))
    folded = fold_constants(graph({}, {"k": None}, node("Constant", "", "k", value=value)), evaluator)
    assert folded.constants["k"] is value
    evaluator.assert_not_called()


def test_the_shape_of_a_value_is_a_constant_where_all_its_extents_are_known() -> None:
    text = "(float[{n},3,4] x) => (int64 a, int64 b) {{ r = Relu(x)  a = Shape<start={k}>(r)  b = Shape<start=-2, end=-1>(x) }}"
    for n, k, expected in ((2, 0, {"a": [2, 3, 4], "b": [3]}), ("N", 1, {"a": [3, 4], "b": [3]}), ("N", 0, {"b": [3]})):
        folded = fold(read(text.format(n=n, k=k)))
        assert {name: constant.array.tolist() for name, constant in folded.constants.items()} == expected


# ---------------------------------------------------------------------------------------------- left alone


def left_alone(function: Function) -> int:
    """Check that nothing is folded, and return how often the evaluator was called."""
    evaluator = Mock(side_effect=evaluate)
    function = infer_shapes(function)
    assert fold_constants(function, evaluator) is function
    return evaluator.call_count


def test_what_is_random_or_unknown() -> None:
    assert not left_alone(read("() => (float[2] y) { y = RandomNormal<shape=[2]>() }"))
    assert not left_alone(read("(float[2] k) => (float[2] y) { y = com.acme.Foo(k) }", k=TWO))
    dropout = "(float[2] k, float r, bool t) => (float[2] y) { y = Dropout(k, r, t) }"
    assert not left_alone(read(dropout, k=TWO, r=np.float32(0.5), t=np.True_))
    assert not left_alone(read("(float[2] k) => (seq(float[2]) y) { y = SequenceConstruct(k) }", k=TWO))


def test_what_is_part_of_a_control_edge() -> None:
    nodes = node("Neg", "k", "a", name="first"), node("Exp", "k", "b", control=("first",))
    assert not left_alone(graph({}, {"a": None, "b": None}, *nodes, constants={"k": TWO}))
    # Nothing reads b, and with its node goes the control edge.
    assert not optimize(infer_shapes(graph({}, {"a": None}, *nodes, constants={"k": TWO})), fold=True).nodes


@pytest.mark.slow
def test_what_would_be_too_large() -> None:
    count = simplification.MAX_FOLDED_BYTES // 4
    text = "(int64[1] s) => (float y) { y = ConstantOfShape(s) }"
    assert not left_alone(read(text, s=np.array([count + 1])))
    assert not left_alone(read(text, s=np.array([1 << 60])))
    folded = fold_constants(infer_shapes(read(text, s=np.array([count]))), evaluate)
    assert folded.constants["y"].nbytes == simplification.MAX_FOLDED_BYTES


@pytest.mark.parametrize("value", [None, np.array([7], np.int64), np.array([True]), np.array([-0.0], np.float16)])
@pytest.mark.parametrize("shape", [[], [0, 3], [2, 3]])
def test_a_constant_of_a_shape_is_what_the_evaluator_gives(shape: list[int], value: np.ndarray | None) -> None:
    filled = node("ConstantOfShape", "s", "y", **({} if value is None else {"value": value}))
    function = infer_shapes(graph({}, {"y": None}, filled, constants={"s": np.array(shape, np.int64)}, opset=20))
    evaluator = Mock(side_effect=evaluate)
    assert fold_constants(function, evaluator).constants["y"] == Constant(evaluate(function, [])[0])
    evaluator.assert_not_called()


def test_what_is_not_known_to_be_small() -> None:
    function = read("(string[2] k) => (string y, int64 n) { y, n = StringSplit(k) }", k=np.array(["a b", "c"], object))
    assert not left_alone(function)


def test_what_the_data_decide_is_computed_where_it_cannot_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    function = read("(float[2] k) => (int64 y) { y = NonZero(k) }", k=TWO)
    assert fold(function).constants["y"].array.tolist() == [[0, 1]]
    monkeypatch.setattr(simplification, "MAX_DATA_SIZED_BYTES", 4)
    assert not left_alone(function)


FLOAT64, LONGER, DEEPER = TWO.astype(np.float64), np.zeros(3, np.float32), np.zeros((2, 1), np.float32)


@pytest.mark.parametrize(
    "answer", [ValueError("cannot"), MemoryError(), [], [None], [[TWO]], [TWO, TWO], [FLOAT64], [LONGER], [DEEPER]], ids=repr
)
def test_an_evaluation_that_fails_or_gives_something_else(answer: Any) -> None:
    function = infer_shapes(read("(float[2] k) => (float[2] y) { y = Neg(k) }", k=TWO))
    evaluator = Mock(side_effect=answer) if isinstance(answer, Exception) else Mock(return_value=answer)
    assert fold_constants(function, evaluator) is function


# ---------------------------------------------------------------------------------------------- bodies


IF = """(bool c, float[2] x, float[2] k) => (float[2] y) {
    y = If(c) <then_branch = t () => (float[2] a) { p = Neg(k)  a = Add(p, %s) },
               else_branch = e () => (float[2] b) { b = Exp(k) }>
}"""


def test_bodies_are_folded_inside_with_the_constants_around_them() -> None:
    folded = fold(read(IF % "x", k=TWO))
    other, then = folded.nodes[0].bodies  # in the order of the attributes' names
    assert ops(then) == ["Add"]
    assert then.constants["p"] == Constant(-TWO)
    assert not ops(other)
    assert [value.name for value in other.outputs] == ["b"]
    assert "k" not in folded.constants  # the bodies alone have read it


def test_control_flow_over_constants_alone_is_folded_whole() -> None:
    evaluator = Mock(side_effect=evaluate)
    folded = fold_constants(infer_shapes(read(IF % "k", k=TWO, c=np.array(False)).replace(inputs=())), evaluator)
    assert [ops(call.args[0]) for call in evaluator.call_args_list] == [["Exp"]]  # the branch, inlined
    assert dict(folded.constants) == {"y": Constant(np.exp(TWO))}


LOOP = """(int64 m, bool c, float[2] k) => (float[2] y) {
    y = Loop(m, c, k) <body = b (int64 i, bool d, float[2] s) => (bool d2, float[2] t) { d2 = Identity(d)  t = Add(s, k) }>
}"""


def loop(trips: int) -> Function:
    """Return a Loop over constants whose state is declared to keep its shape, which onnx does not infer."""
    return read(LOOP, m=np.array(trips), c=np.array(True), k=TWO)


def test_a_loop_is_folded_where_it_is_known_to_end_soon() -> None:
    assert fold(loop(3)).constants["y"] == Constant(TWO * 4)
    assert not left_alone(loop(simplification.MAX_ITERATIONS + 1))


def test_a_loop_without_a_limit() -> None:
    function = loop(3)
    (turns,) = function.nodes
    assert not left_alone(function.replace(nodes=(replace(turns, inputs=("", *turns.inputs[1:])),)))


def test_a_large_value_inside_of_a_body() -> None:
    text = """(int64 m, bool c, float k) => (float y) {{
        y = Loop(m, c, k) <body = b (int64 i, bool d, float s) => (bool d2, float t) <int64[1] n = {{{size}}}> {{
            d2 = Identity(d)  q = ConstantOfShape(n)  r = ReduceSum<keepdims=0>(q)  t = Add(s, r)
        }}>
    }}"""
    results = {"m": np.array(2), "c": np.array(True), "k": np.float32(3)}
    assert fold(read(text.format(size=5), **results)).constants["y"].array == 3
    evaluator = Mock(side_effect=evaluate)
    folded = fold_constants(infer_shapes(read(text.format(size=1 << 40), **results)), evaluator)
    assert ops(folded) == ["Loop"]
    evaluator.assert_not_called()


# ---------------------------------------------------------------------------------------------- laws


def test_numbers_that_overflow_while_folding_are_no_warning() -> None:
    text = "(float[2] k) => (float[2] y, float[2] z) { y = Exp(k)  i = Exp(k)  z = Sub(i, y) }"
    folded = fold_constants(infer_shapes(read(text, k=np.array([1000, 1], np.float32))), evaluate)  # warnings are errors here
    assert folded.constants["y"].array[0] == np.inf
    assert np.isnan(folded.constants["z"].array[0])


TRUE, FALSE = np.array(True), np.array(False)
X = f32([-1, 2, -3])
F3 = "float32[3]"


def inlined(function: Function) -> Function:
    """Inline, and check that the result is valid and has the same inputs and outputs."""
    verify(function)
    result = inline_constant_control_flow(function)
    verify(result)
    assert result.inputs == function.inputs
    assert result.outputs == function.outputs
    assert inline_constant_control_flow(result) is result
    return result


def one_if(then: Function, other: Function, outputs: str = "y", condition: Any = TRUE, **fields: Any) -> Function:
    choice = node("If", "yes", outputs, then_branch=then, else_branch=other, **fields)
    return graph({"x": F3}, dict.fromkeys(outputs.split(), F3), choice, constants={"yes": condition})


NEG = body({}, {"t": F3}, node("Neg", "x", "t"))
EXP = body({}, {"t": F3}, node("Exp", "x", "u"), node("Exp", "u", "t"))


@pytest.mark.parametrize(("condition", "expected"), [(TRUE, ["Neg"]), (FALSE, ["Exp", "Exp"]), (np.array([True]), ["Neg"])])
def test_the_branch_that_is_taken_is_in_place_of_the_if(condition: np.ndarray[Any, Any], expected: list[str]) -> None:
    result = inlined(one_if(NEG, EXP, condition=condition))
    assert ops(result) == expected
    assert result.nodes[-1].outputs == ("y",)


def test_the_condition_may_be_a_constant_node_of_the_function_or_of_one_around_it() -> None:
    inner = body({}, {"t": F3}, node("If", "yes", "t", then_branch=NEG, else_branch=EXP))
    function = graph(
        {"x": F3, "p": "bool[]"},
        {"y": F3},
        node("Constant", "", "yes", value=TRUE),
        node("If", "p", "y", then_branch=inner, else_branch=EXP),
    )
    outer = inlined(function).node("y")
    assert [ops(branch) for branch in outer.bodies] == [["Exp", "Exp"], ["Neg"]]


def test_what_is_not_constant_is_left_alone() -> None:
    function = graph({"x": F3, "p": "bool[]"}, {"y": F3}, node("If", "p", "y", then_branch=NEG, else_branch=EXP))
    assert inline_constant_control_flow(function) is function


def test_results_that_no_node_makes_are_copied() -> None:
    then = body({}, {"x": None, "k": None, "t": None}, node("Neg", "x", "t"), constants={"k": X})
    then = then.replace(outputs=(*then.outputs, Value("t")))
    function = one_if(then, then, outputs="a b c d")
    result = inlined(function)
    assert ops(result) == ["Identity", "Identity", "Neg", "Identity"]
    assert_same(function, result, [X])


def test_a_sequence_that_identity_cannot_copy_keeps_its_if() -> None:
    for opset, expected in ((13, ["If"]), (18, ["Identity"])):
        branch = body({}, {"s": sequence(F3)}, opset=opset)
        choice = node("If", "yes", "y", then_branch=branch, else_branch=branch)
        function = graph({"s": sequence(F3)}, {"y": sequence(F3)}, choice, constants={"yes": TRUE}, opset=opset)
        assert ops(inline_constant_control_flow(function)) == expected


def test_an_if_with_control_edges_stays() -> None:
    function = one_if(EXP, EXP, name="choice")
    (choice,) = function.nodes
    waiting = node("Abs", "x", "a", name="before"), replace(choice, control=("before",))
    awaited = choice, node("Sqrt", "x", "b", name="behind", control=("choice",))
    for nodes in (waiting, awaited):
        changed = function.replace(nodes=nodes)
        assert inline_constant_control_flow(changed) is changed


def test_inlined_nodes_run_on_the_device_of_the_if() -> None:
    function = one_if(NEG, EXP)
    (choice,) = function.nodes
    placed = function.replace(nodes=(replace(choice, device="cuda:1"),))
    assert [node.device for node in inlined(placed).nodes] == ["cuda:1"]


# ---------------------------------------------------------------------------------------------- laws


def assert_same(before: Function, after: Function, inputs: list[Any]) -> None:
    for actual, expected in zip(evaluate(after, inputs), evaluate(before, inputs), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("entry", [e for e in CORPUS if e.name.startswith(("constant_if", "if_", "loop_"))], ids=lambda e: e.name)
@pytest.mark.parametrize("fold", [True, False])
def test_models_with_control_flow_compute_the_same(entry: Any, fold: bool) -> None:
    assert entry.judge(evaluate(optimize(infer_shapes(entry.function), fold=fold), entry.make_inputs()))


@pytest.mark.slow
@given(functions())
@settings(max_examples=60, deadline=None)
def test_generated_functions_compute_the_same_in_a_branch_that_is_taken(function: Function) -> None:
    results = {f"result_{i}": value.type for i, value in enumerate(function.outputs)}
    branch = function.replace(inputs=(), aliases=())
    choice = node("If", "yes", " ".join(results), then_branch=branch, else_branch=branch)
    wrapped = graph({v.name: v.type for v in function.inputs}, results, choice, constants={"yes": TRUE})
    result = inline_constant_control_flow(wrapped.replace(opsets=function.opsets))
    assert all("yes" not in inner.inputs for inner in result.nodes)
    with np.errstate(all="ignore"):
        assert_same(function, result, list(make_random_inputs(function, 0)))
