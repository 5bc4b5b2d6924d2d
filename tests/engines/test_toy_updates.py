"""Outputs in the memory of inputs: whatever pairs an executable proposes, the results are those of arrays of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xrt.engines import CompileContext, RunOptions
from xrt.engines.toy import Toy
from xrt.engines.toy.tape import order_updates
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.passes import infer_shapes


def node(op: str, inputs: str, output: str, **attributes: Any) -> Node:
    return Node(op, tuple(inputs.split()), (output,), read_attributes(attributes), name=output)


def adam(*extra: Node, outputs: str) -> Function:
    """Return an update of three states by a gradient."""
    nodes = (
        node("Mul", "m decay", "kept"),
        node("Add", "kept g", "m_next"),
        node("Mul", "g g", "square"),
        node("Add", "v square", "v_next"),
        node("Sqrt", "v_next", "root"),
        node("Div", "m_next root", "change"),
        node("Sub", "w change", "w_next"),
    )
    type_ = TensorType(DType.FLOAT32, (1000,))
    inputs = tuple(Value(name, type_) for name in ("w", "m", "v", "g"))
    found = Function(inputs, tuple(map(Value, outputs.split())), (*extra, *nodes), {"decay": Constant(np.float32(0.9))}, {"": 20})
    return infer_shapes(found.replace(aliases=(("w", "w_next"), ("m", "m_next"), ("v", "v_next"))))


def propose(function: Function, engine: Toy) -> set[tuple[str, str]]:
    executable = engine.compile(function, CompileContext(threads=1))
    executable.prepare()
    names = [v.name for v in function.inputs], [v.name for v in function.outputs]
    return {(names[0][i], names[1][o]) for i, o in executable.inplace_pairs()}


@pytest.mark.parametrize("engine", [Toy(), Toy(native="off")], ids=str)
def test_all_states_of_an_update_are_written_where_they_are(engine: Toy) -> None:
    function = adam(outputs="m_next v_next w_next")
    assert propose(function, engine) >= {("w", "w_next"), ("m", "m_next"), ("v", "v_next")}


@pytest.mark.parametrize("engine", [Toy(), Toy(native="off")], ids=str)
def test_an_update_waits_for_what_else_reads_the_state(engine: Toy) -> None:
    """The outputs of the update come first, so that the order of nodes alone would write before the last read."""
    function = adam(node("CumSum", "w axis", "sum"), outputs="m_next v_next w_next sum")
    function = function.replace(constants={**function.constants, "axis": Constant(np.array(0))})
    assert propose(function, engine) >= {("w", "w_next"), ("m", "m_next"), ("v", "v_next")}


def test_an_update_waits_for_what_reads_a_view_of_the_state() -> None:
    """As a step of a layer does: the gradient of its input reads the weight transposed, after the weight's own is known."""
    pair = Constant(np.array([2, 500]))
    function = adam(node("Reshape", "w pair", "view"), node("Neg", "view", "last"), outputs="m_next v_next w_next last")
    function = infer_shapes(function.replace(constants={**function.constants, "pair": pair}))
    assert ("w", "w_next") in propose(function, Toy(native="off"))
    assert {node.name: node.control for node in order_updates(function, {"Reshape"}).nodes}["w_next"] == ("last", "view")


@pytest.mark.parametrize("condition", [np.array(True), np.arange(12) % 3 > 0], ids=["scalar", "vector"])
@pytest.mark.parametrize("state", ["a b", "b a"])
def test_a_choice_is_written_over_either_of_both(state: str, condition: np.ndarray[Any, Any]) -> None:
    """As accumulation keeps parameters in the calls that change nothing."""
    type_, flag = TensorType(DType.FLOAT32, (12,)), TensorType(DType.BOOL, condition.shape)
    inputs = (Value("c", flag), Value("a", type_), Value("b", type_))
    function = infer_shapes(Function(inputs, (Value("x"),), (node("Where", f"c {state}", "x"),), opsets={"": 20}))
    assert propose(function, Toy(native="off")) == {("a", "x"), ("b", "x")}
    executable = Toy(native="off").compile(function, CompileContext(threads=1))
    executable.prepare()
    a, b = np.arange(12, dtype="float32"), -np.arange(12, dtype="float32")
    expected = np.where(condition, *((a, b) if state == "a b" else (b, a)))
    for place in (1, 2, None):
        given = [condition, a.copy(), b.copy()]
        out = np.empty_like(a) if place is None else given[place]
        (found,) = executable.run(given, RunOptions(out=[out]))
        assert found is out
        np.testing.assert_array_equal(found, expected)


def test_what_reads_the_update_and_the_state_is_no_reason_to_wait() -> None:
    function = adam(node("Sub", "w_next w", "step"), outputs="m_next v_next w_next step")
    ordered = {node.name: node.control for node in order_updates(function).nodes}
    assert "step" not in ordered["w_next"]
    crossed = Function(
        tuple(Value(name, TensorType(DType.FLOAT32, (2,))) for name in "ab"),
        (Value("x"), Value("y")),
        (node("Add", "a b", "x"), node("Sub", "a b", "y")),
        opsets={"": 20},
    ).replace(aliases=(("a", "x"), ("b", "y")))
    assert order_updates(crossed) is crossed


def test_a_view_that_is_read_later_keeps_its_values() -> None:
    """The sum of one tensor is this tensor; the update finds that something refers to it, and is computed elsewhere."""
    type_ = TensorType(DType.FLOAT32, (4, 6))
    nodes = (node("Sum", "w", "t"), node("Neg", "w", "next"), node("Mul", "next t", "y"))
    function = infer_shapes(
        Function((Value("w", type_),), (Value("next"), Value("y")), nodes, opsets={"": 20}).replace(aliases=(("w", "next"),))
    )
    w = np.random.default_rng(0).standard_normal((4, 6), dtype="float32")
    executable = Toy(native="off").compile(function, CompileContext(threads=1))
    executable.prepare()
    assert (0, 0) in executable.inplace_pairs()
    given = w.copy()
    found = executable.run([given], RunOptions(out=[given, None]))
    assert found[0] is given
    np.testing.assert_array_equal(given, -w)
    np.testing.assert_array_equal(found[1], -w * w)


def test_a_view_that_an_operator_of_shapes_makes_is_a_reader() -> None:
    type_ = TensorType(DType.FLOAT32, (4, 6))
    nodes = (node("Transpose", "w", "t"), node("Neg", "w", "next"), node("MatMul", "next t", "y"))
    function = infer_shapes(Function((Value("w", type_),), (Value("next"), Value("y")), nodes, opsets={"": 20}))
    assert propose(function, Toy(native="off")) == set()
    shorter = function.replace(outputs=function.outputs[:1], nodes=nodes[1:2])
    assert propose(shorter, Toy(native="off")) == {("w", "next")}
