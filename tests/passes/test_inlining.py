"""Inlining of control flow that constants decide: names, captured values, control edges, devices, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from xrt.graph import Constant, Function, Node, Value
from xrt.graph.verify import verify
from xrt.module.specialization import optimize
from xrt.passes import infer_shapes, inline_constant_control_flow
from xrt.placement.reference import evaluate
from xrt.testing.corpus import CORPUS
from xrt.testing.corpus.entry import body, f32, graph, node, sequence
from xrt.testing.strategies import functions, make_random_inputs

TRUE, FALSE = np.array(True), np.array(False)
X = f32([-1, 2, -3])
F3 = "float32[3]"


def ops(function: Function) -> list[str]:
    return [node.op for node in function.nodes]


def inlined(function: Function) -> Function:
    """Inline, and check that the result is valid and has the same inputs and outputs."""
    verify(function)
    result = inline_constant_control_flow(function)
    verify(result)
    assert result.inputs == function.inputs
    assert result.outputs == function.outputs
    assert inline_constant_control_flow(result) is result
    return result


def one_if(then: Function, other: Function, outputs: str = "y", **fields: Any) -> Function:
    constants = {"yes": fields.pop("condition", TRUE)}
    branches = {"then_branch": then, "else_branch": other}
    return graph(
        {"x": F3}, dict.fromkeys(outputs.split(), F3), node("If", "yes", outputs, **fields, **branches), constants=constants
    )


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


def test_names_stay_where_they_are_free_and_are_numbered_where_they_are_not() -> None:
    deep = body(
        {"i": "int64[]", "go": "bool[]", "s": F3}, {"go2": "bool[]", "u": F3}, node("Not", "go", "go2"), node("Add", "s t", "u")
    )
    then = body({}, {"v": F3}, node("Neg", "x", "t", name="first"), node("Loop", "- - t", "v", body=deep, name="second"))
    function = graph(
        {"x": F3},
        {"y": F3, "z": F3},
        node("If", "yes", "y", then_branch=then, else_branch=then),
        node("Abs", "x", "first_value", name="first"),
        node("Exp", "first_value", "t"),
        node("Add", "t y", "z"),
        constants={"yes": TRUE},
    )
    result = inlined(function)
    names = {node.name: node for node in result.nodes}
    assert names["first_2"].outputs == ("t_2",)
    assert names["second"].inputs == ("", "", "t_2")
    assert names["second"].outputs == ("y",)
    assert names["second"].captures == ("t_2",)
    assert names["first"].op == "Abs"
    assert_same(function, result, [X])


def test_results_that_no_node_makes_are_copied() -> None:
    then = Function(
        (), (Value("x"), Value("k"), Value("t"), Value("t")), (Node("Neg", ("x",), ("t",)),), {"k": Constant(X)}, {"": 18}
    )
    function = one_if(then, then, outputs="a b c d")
    result = inlined(function)
    assert ops(result) == ["Identity", "Identity", "Neg", "Identity"]
    assert_same(function, result, [X])


def test_a_sequence_that_identity_cannot_copy_keeps_its_if() -> None:
    held = Function((), (Value("s", sequence(F3)),), opsets={"": 13})
    for opset, expected in ((13, ["If"]), (18, ["Identity"])):
        branch = held.replace(opsets={"": opset})
        choice = node("If", "yes", "y", then_branch=branch, else_branch=branch)
        function = graph({"s": sequence(F3)}, {"y": sequence(F3)}, choice, constants={"yes": TRUE}, opset=opset)
        assert ops(inline_constant_control_flow(function)) == expected


def test_control_edges_lead_to_the_last_nodes_and_come_to_the_first() -> None:
    choice = replace(one_if(EXP, EXP, name="choice").nodes[0], control=("before",))
    more = (node("Abs", "x", "a", name="before"), node("Sqrt", "x", "b", name="behind", control=("choice",)))
    result = inlined(graph({"x": F3}, {"y": F3, "b": F3}, *more, choice, constants={"yes": TRUE}))
    edges = {node.name: node.control for node in result.nodes}
    assert edges == {"before": (), "u": ("before",), "t": (), "behind": ("t",)}


def test_a_chain_of_control_edges_through_inlined_nodes() -> None:
    nested = body({}, {"t": F3}, node("If", "yes", "t", name="inner", then_branch=NEG, else_branch=EXP))
    function = one_if(nested, nested, name="choice")
    behind = node("Sqrt", "x", "b", name="behind", control=("choice",))
    result = inlined(function.replace(nodes=(*function.nodes, behind), outputs=(*function.outputs, Value("b"))))
    assert {node.name: node.control for node in result.nodes} == {"t": (), "behind": ("t",)}


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
    results = tuple(Value(f"result_{i}", value.type) for i, value in enumerate(function.outputs))
    branch = function.replace(inputs=(), aliases=())
    choice = node("If", "yes", " ".join(value.name for value in results), then_branch=branch, else_branch=branch)
    wrapped = Function(function.inputs, results, (choice,), {"yes": Constant(TRUE)}, function.opsets)
    result = inline_constant_control_flow(wrapped)
    assert all("yes" not in inner.inputs for inner in result.nodes)
    with np.errstate(all="ignore"):
        assert_same(function, result, list(make_random_inputs(function, 0)))
