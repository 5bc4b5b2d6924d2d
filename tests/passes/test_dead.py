"""Dropping what no output needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.passes import drop_dead_nodes
from xrt.testing.strategies import functions

F = TensorType(DType.FLOAT32, (2,))


def graph(*nodes: Node, outputs: tuple[str, ...] = ("y",), **changes: object) -> Function:
    return Function((Value("x", F),), tuple(map(Value, outputs)), nodes, opsets={"": 17, "com.acme": 1}).replace(**changes)


def names(function: Function) -> list[str]:
    return [node.name for node in function.nodes]


KEPT = Node("Relu", ("x",), ("y",), name="kept")


def test_nodes_constants_and_types_that_nothing_needs_go() -> None:
    function = graph(
        KEPT,
        Node("Add", ("x", "k"), ("a",), name="dead"),
        Node("Neg", ("a",), ("b",), name="deader"),
        Node("RandomNormal", (), ("r",), read_attributes({"shape": [2]}), name="random"),
        constants={"k": Constant(np.ones(2, np.float32)), "unused": Constant(np.ones(1))},
        types={"a": F, "b": F, "nowhere": F},
    )
    dropped = drop_dead_nodes(function)
    assert dropped == graph(KEPT)
    assert drop_dead_nodes(dropped) is dropped


def test_inputs_and_outputs_stay() -> None:
    function = graph(inputs=(Value("x", F), Value("unused", F)), outputs=("x", "k"), constants={"k": Constant(np.ones(1))})
    assert drop_dead_nodes(function) is function


def test_a_node_with_one_output_in_use_stays_whole() -> None:
    function = graph(
        Node("Split", ("x",), ("a", "y", "c"), read_attributes({"num_outputs": 3}), name="s"), types={"a": F, "c": F}
    )
    assert drop_dead_nodes(function) is function


def test_an_operator_of_another_domain_may_have_an_effect() -> None:
    function = graph(
        KEPT,
        Node("Neg", ("x",), ("a",), name="fed"),
        Node("Log", ("a",), ("b",), domain="com.acme", name="effect"),
        types={"a": F},
    )
    assert drop_dead_nodes(function) is function


def test_so_may_one_inside_of_a_body() -> None:
    def body(domain: str) -> Function:
        node = Node("Neg", ("x",), ("b",), domain=domain)
        return Function((), (Value("b"),), (node,), opsets={"": 17, "com.acme": 1})

    def branches(domain: str) -> Node:
        return Node("If", ("c",), ("z",), read_attributes({"then_branch": body(""), "else_branch": body(domain)}), name="if")

    inputs = (Value("x", F), Value("c", TensorType(DType.BOOL, ())))
    assert names(drop_dead_nodes(graph(KEPT, branches("com.acme"), inputs=inputs))) == ["kept", "if"]
    assert names(drop_dead_nodes(graph(KEPT, branches(""), inputs=inputs))) == ["kept"]


def test_what_a_node_must_run_after_stays() -> None:
    first = Node("Neg", ("x",), ("a",), name="first")
    after = Node("Relu", ("x",), ("y",), name="after", control=("first",))
    assert names(drop_dead_nodes(graph(first, after, Node("Abs", ("x",), ("q",), name="dead")))) == ["first", "after"]


def test_a_body_that_needs_less_captures_less() -> None:
    dead = Node("Neg", ("big",), ("d",), name="dead")
    body = Function((), (Value("b"),), (Node("Relu", ("x",), ("b",), name="live"), dead), opsets={"": 17}, types={"d": F})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}), name="if")
    function = graph(
        Node("Exp", ("x",), ("big",), name="big"), node, inputs=(Value("x", F), Value("c", TensorType(DType.BOOL, ())))
    )
    dropped = drop_dead_nodes(function)
    assert names(dropped) == ["if"]
    assert [names(body) for body in dropped.nodes[0].bodies] == [["live"], ["live"]]
    assert dropped.nodes[0].captures == ("x",)
    assert drop_dead_nodes(dropped) is dropped


@pytest.mark.slow
@given(functions())
@settings(max_examples=50, deadline=None)
def test_generated_functions_keep_their_face_and_nothing_dead(function: Function) -> None:
    dropped = drop_dead_nodes(function)
    assert (dropped.inputs, dropped.outputs, dropped.aliases) == (function.inputs, function.outputs, function.aliases)
    assert drop_dead_nodes(dropped) is dropped
    assert set(names(dropped)) <= set(names(function))
