"""What engines are asked, how often, and what becomes of an engine that misbehaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.partition.drawn import F32, chain, engine, function, node
from xrt.engines import GraphCompiler
from xrt.errors import PlanError
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.partition import SupportMatrix, partition


def asked_about(graph: Function) -> list[str]:
    curious = engine("curious")
    SupportMatrix.of(graph, [curious], "cpu")
    return type(curious).asked  # type: ignore[attr-defined, no-any-return]  # the mock's own list


def pair(**change: Any) -> Function:
    """Return two nodes that differ in names alone, and then in the given fields of the second."""
    first = node("Red", "x y", "a", name="first")
    second = replace(node("Red", "y x", "b", name="second"), **change)
    return function([first, second], "a b", "x y", constants={"c": Constant(np.zeros(4, np.float32))})


def test_nodes_that_differ_in_names_alone_are_asked_about_once() -> None:
    assert asked_about(pair()) == ["first"]
    assert asked_about(chain("RRGRG")) == ["n0", "n2"]


@pytest.mark.parametrize(
    "change",
    [
        {"op_type": "Green"},
        {"domain": "com.microsoft"},
        {"device": "cuda:1"},
        {"inputs": ("x", "x")},
        {"inputs": ("x", "")},
        {"inputs": ("x",)},
        {"inputs": ("x", "c")},
        {"outputs": ("b", "d")},
        {"attributes": read_attributes({"axis": 1})},
    ],
    ids=str,
)
def test_nodes_that_an_engine_can_tell_apart_are_asked_about_each(change: dict[str, Any]) -> None:
    assert asked_about(pair(**change)) == ["first", "second"]


@pytest.mark.parametrize(("one", "two"), [(1, 1.0), (0.0, -0.0), ("1", 1), ([1], [1.0])], ids=repr)
def test_attributes_that_only_python_takes_for_equal_are_asked_about_each(one: Any, two: Any) -> None:
    graph = pair(attributes=read_attributes({"k": two}))
    first = replace(graph.node("first"), attributes=read_attributes({"k": one}))
    assert asked_about(graph.replace(nodes=(first, graph.node("second")))) == ["first", "second"]


def test_types_are_distinguished() -> None:
    values = (Value("x", F32), Value("y", TensorType(DType.FLOAT16, (4,))))
    nodes = (node("Red", "x", "a", name="first"), node("Red", "y", "b", name="second"))
    assert asked_about(Function(values, (Value("a"), Value("b")), nodes, opsets={"": 20})) == ["first", "second"]


def test_constants_are_distinguished_and_shared_ones_not() -> None:
    constants = {"c": Constant(np.zeros(4, np.float32)), "d": Constant(np.ones(4, np.float32))}
    nodes = [node("Red", read, made, name=made) for read, made in (("c", "p"), ("d", "q"), ("c", "r"))]
    assert asked_about(function(nodes, "p q r", constants=constants)) == ["p", "q"]


def test_bodies_are_distinguished() -> None:
    def looping(name: str) -> Node:
        body = Function((), (Value("b"),), (node("Inner", "x", "b"),), opsets={"": 20})
        return node("Red", "x", name, name=name, attributes=(Attribute("body", AttrKind.GRAPH, body),))

    assert asked_about(function([looping("p"), looping("q")], "p q")) == ["p", "q"]


def test_outputs_without_readers_are_distinguished_from_those_with_some() -> None:
    nodes = [
        node("Red", "x", "a b", name="first"),
        node("Red", "x", "c d", name="second"),
        node("Red", "x", "e f", name="third"),
        node("Green", "d", "g", name="fourth"),
    ]
    assert asked_about(function(nodes, "a c e g")) == ["first", "second", "fourth"]


def test_what_is_made_of_constants_is_distinguished_by_how_it_is_made() -> None:
    """An engine may find the value through the node: of a Constant, the Shape of a static value, or what is made of these."""
    nodes = [
        node("Constant", "", "p", name="p", attributes=read_attributes({"value": np.zeros(4, np.float32)})),
        node("Constant", "", "q", name="q", attributes=read_attributes({"value": np.ones(4, np.float32)})),
        node("Identity", "q", "r", name="r"),
        node("Shape", "x", "s", name="s"),
        *(node("Red", f"x {given}", f"y{i}", name=f"reads {given}") for i, given in enumerate("xpqqrs")),
    ]
    asked = asked_about(function(nodes, "y0 y1 y2 y3 y4 y5"))
    assert sorted(asked) == ["p", "q", "r", "reads p", "reads q", "reads r", "reads s", "reads x", "s"]


class Broken(GraphCompiler):
    name = "broken"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def why_not(self, node: Node, function: Function) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]  # the mistake under test

    def compile(self, function: Function, context: Any) -> Any:
        raise NotImplementedError

    @property
    def spec(self) -> str:
        return "broken"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KeyError("k"), "engine 'broken' failed when asked: KeyError: 'k'"),
        (RecursionError("deep"), "engine 'broken' failed when asked: RecursionError: deep"),
        ("", "engine 'broken' answered '' when asked, which is neither a reason nor None"),
        (True, "engine 'broken' answered True when asked, which is neither a reason nor None"),
    ],
    ids=repr,
)
def test_an_engine_that_misbehaves_declines(answer: Any, reason: str) -> None:
    plan = partition(chain("R"), [Broken(answer), engine("all")])
    assert [(r.engine, r.text) for r in plan.reasons] == [("broken", reason)]


def test_an_engine_is_not_asked_about_a_device_that_it_does_not_run_on() -> None:
    graph = function([node("Red", "x", "y", name="n", device="cuda:1")], "y")
    plan = partition(graph, [Broken(ValueError("asked")), engine("all")])
    assert [r.text for r in plan.reasons] == ["the node runs on cuda:1; engine 'broken' runs on cpu"]


def test_nodes_without_a_device_run_where_the_module_does() -> None:
    plan = partition(chain("R"), [Broken(None), engine("all")], device="cuda")
    assert [r.text for r in plan.reasons] == ["the node runs on cuda; engine 'broken' runs on cpu"]
    with pytest.raises(PlanError, match=r"broken: the node runs on cuda; engine 'broken' runs on cpu"):
        partition(chain("R"), [Broken(None)], device="cuda")
