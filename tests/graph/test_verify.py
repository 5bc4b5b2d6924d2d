"""The rules: each is broken once, and the message read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xrt.errors import ModelError
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, SequenceType, TensorType, Value, read_attributes
from xrt.graph.verify import verify, verify_types
from xrt.testing.corpus.entry import node

F32 = TensorType(DType.FLOAT32, (2,))
BOOL = TensorType(DType.BOOL, ())
X, Y = Value("x", F32), Value("y", F32)


def one(single: Node, **changes: Any) -> Function:
    """Return the function of one node from x, and c of bool, to y."""
    return Function((X, Value("c", BOOL)), (Value("y"),), (single,), opsets={"": 20}).replace(**changes)


def relu(**changes: Any) -> Function:
    return one(node("Relu", "x", "y"), **changes)


def body(inputs: int, outputs: int, /, **changes: Any) -> Function:
    """Return a body that gives its captured x, or copies of it."""
    names = [f"r{i}" for i in range(outputs)]
    nodes = tuple(Node("Identity", ("x",), (name,)) for name in names)
    return Function(
        tuple(Value(f"i{i}") for i in range(inputs)), tuple(map(Value, names)), nodes, opsets={"": 20}, name="body"
    ).replace(**changes)


def if_node(then: Function, other: Function) -> Node:
    return node("If", "c", "y", then_branch=then, else_branch=other)


VALID = {
    "a loop": one(node("Loop", "- c x", "y s", body=body(3, 3))),
    "a loop of two inputs": one(node("Loop", "- c", "y", body=body(2, 2))),
    "a scan of old": Function(
        (X,),
        (Value("y"),),
        (Node("Scan", ("", "x"), ("y",), read_attributes({"body": body(1, 1, opsets={"": 8}), "num_scan_inputs": 1})),),
        opsets={"": 8},
    ),
    "an opaque node": one(Node("Any", ("x", ""), ("y", "z"), read_attributes({"a": 1}), "com.acme"), opsets={"com.acme": 99}),
    "a launch": one(Node("Launch", ("x",), ("y",), read_attributes({"body": relu()}), "xrt")),
    "a device": one(Node("Relu", ("x",), ("y",), device="cuda:12")),
    "an alias": relu(outputs=(Y,), aliases=(("x", "y"),)),
    "an alias of symbolic extents": relu(outputs=(Value("y", TensorType(DType.FLOAT32, ("N",))),), aliases=(("x", "y"),)),
    "an alias of an unknown type": relu(aliases=(("x", "y"),)),
    "types that agree": relu(types={"x": TensorType(DType.FLOAT32)}),
}


@pytest.mark.parametrize("function", VALID.values(), ids=VALID)
def test_what_is_valid(function: Function) -> None:
    verify(function)
    verify_types(function)


BROKEN = [
    (
        one(node("Add", "x xx", "y")),
        "function 'main' is not valid: node 'y' (Add) reads 'xx', which nothing defines. Did you mean 'x'?",
    ),
    (relu(outputs=(Value("yy"),)), "an output is 'yy', which nothing defines. Did you mean 'y'?"),
    (
        one(if_node(body(0, 1), body(0, 1, nodes=(node("Identity", "xs", "r0"),)))),
        "node 'r0' (Identity) in body 'body' reads 'xs', which nothing defines. Did you mean 'x'?",
    ),
    (
        one(if_node(body(0, 1), body(0, 1, outputs=(Value("nowhere"),)))),
        "the output of a body is 'nowhere', which nothing defines.",
    ),
    (relu(inputs=(X, Value(""))), "input 2 has no name"),
    (relu(opsets={"": 0}), "opset 0 of ai.onnx is not known: the installed onnx knows 1 to"),
    (
        relu(constants={"k": Constant(np.zeros(2, np.int64))}, types={"k": F32}),
        "constant 'k' is int64[2], but is also declared as float32[2]",
    ),
    (relu(aliases=(("z", "y"),)), "alias 'z' of 'y': 'z' is not an input."),
    (relu(aliases=(("x", "z"),)), "alias 'x' of 'z': 'z' is not an output."),
    (relu(aliases=(("x", "y"), ("x", "y"))), "input 'x' is updated by two aliases"),
    (
        relu(aliases=(("c", "y"),), outputs=(Y,)),
        "alias 'c' of 'y': the input is bool[], the output float32[2]; they must be of one type",
    ),
    (
        one(node("Identity", "s", "y"), inputs=(Value("s", SequenceType(F32)),), aliases=(("s", "y"),)),
        "alias 's' of 'y': the input is seq(float32[2]); only a tensor has a buffer to update",
    ),
    (
        one(if_node(body(0, 1), body(0, 1, opsets={"": 19}))),
        "body 'body' of node 'y' imports other opsets than the function around it",
    ),
    (
        one(node("Relu", "x", "y", domain="com.acme")),
        "node 'y' (com.acme.Relu): the function imports no opset for com.acme (it imports: ai.onnx)",
    ),
    (one(node("Relu7", "x", "y")), "node 'y' (Relu7): Relu7 is not an operator of ai.onnx at opset 20. Did you mean 'Relu'?"),
    (one(node("HardSwish", "x", "y"), opsets={"": 13}), "HardSwish came with opset 14 of ai.onnx; the graph is at opset 13"),
    (one(node("Upsample", "x x", "y")), "Upsample is deprecated since opset 10 of ai.onnx and cannot be used at opset 20"),
    (one(node("Relu", "x x", "y")), "node 'y' (Relu): takes 1 input(s); it has 2"),
    (one(node("Concat", "", "y", axis=0)), "takes at least 1 input(s); it has 0"),
    (one(node("Add", "x -", "y")), "input 2 (B) is omitted, but the operator requires it"),
    (one(node("Relu", "x", "y z")), "has 1 output(s); the node defines 2"),
    (one(node("Softmax", "x", "y", axes=1)), "has no attribute 'axes' at version 13. Did you mean 'axis'?"),
    (
        one(Node("Softmax", ("x",), ("y",), (Attribute("axis", AttrKind.FLOAT, 1.0),))),
        "attribute 'axis' must be int; it is float",
    ),
    (one(node("Concat", "x", "y")), "needs the attribute 'axis' (int)"),
    (one(node("Not", "x", "y")), "takes no tensor(float) as input 'X' at version 1"),
    (one(node("Where", "c x c", "y")), "needs inputs 'X' and 'Y' of the same type"),
    (one(if_node(body(1, 1), body(0, 1))), "body 'body' has 1 input(s); the node passes 0"),
    (one(if_node(body(0, 2), body(0, 1))), "body 'body' has 2 output(s); the node needs 1"),
    (one(node("Loop", "- c x", "y", body=body(2, 2))), "body 'body' has 2 input(s); the node passes 3"),
    (
        one(if_node(body(0, 1), body(0, 1, nodes=(node("Relu", "x x", "r0"),)))),
        "in body 'body' of node 'y': node 'r0' (Relu): takes 1 input(s); it has 2",
    ),
    (one(Node("Relu", ("x",), ("y",), device="gpu0")), "device 'gpu0' is unknown; a device is 'cpu', 'cuda'"),
]


@pytest.mark.parametrize(("function", "message"), BROKEN, ids=[message[:60] for _, message in BROKEN])
def test_what_is_broken(function: Function, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        verify(function)
    assert message in str(caught.value)
    assert str(caught.value).startswith("function 'main' is not valid: ")


I64 = TensorType(DType.INT64, (2,))


def typed_body(inputs: tuple[Value, ...], *outputs: Value, nodes: tuple[Node, ...] = ()) -> Function:
    return Function(inputs, outputs, nodes, opsets={"": 20}, name="body")


def carrying(op: str, **attributes: Any) -> Function:
    """Return a function of a node that carries x, and whose body makes integers of it."""
    inputs, data = [Value("s", F32)], [Value("after", I64)]
    if op == "Loop":
        inputs, data = [Value("i"), Value("go"), *inputs], [Value("again", BOOL), *data]
    nodes = (node("Shape", "s", "after"), node("Identity", "c", "again"))
    inner = typed_body(tuple(inputs), *data, nodes=nodes)
    reads = ("", "c", "x") if op == "Loop" else ("x",)
    return one(Node(op, reads, ("y",), read_attributes({"body": inner, **attributes})))


THEN, OTHER = (
    typed_body((), Value(name, type_), nodes=(Node("Identity", (name.upper(),), (name,)),))
    for name, type_ in (("a", F32), ("b", I64))
)

INCONSISTENT = {
    "two inputs": (
        one(node("Div", "x s", "y"), nodes=(node("Shape", "x", "s"), node("Div", "x s", "y")), types={"s": I64}),
        "node 'y' (Div): needs inputs 'A' and 'B' of the same type; 'x' is tensor(float) and 's' is tensor(int64)",
    ),
    "an input in a body that comes from outside": (
        one(if_node(body(0, 1, nodes=(node("Not", "x", "r0"),)), body(0, 1))),
        "in body 'body' of node 'y': node 'r0' (Not): takes no tensor(float) as input 'X' at version 1; it takes tensor(bool)",
    ),
    "branches": (
        one(if_node(THEN, OTHER), inputs=(Value("A", F32), Value("B", I64), Value("c", BOOL))),
        "node 'y' (If): output 1 of both branches must have one type; 'a' is float32[2] and 'b' is int64[2]",
    ),
    "a sequence and a tensor": (
        one(if_node(THEN, typed_body((), Value("Q"))), inputs=(Value("A", F32), Value("c", BOOL), Value("Q", SequenceType(F32)))),
        "node 'y' (If): output 1 of both branches must have one type; 'a' is float32[2] and 'Q' is seq(float32[2])",
    ),
    "what a loop carries": (
        carrying("Loop"),
        "node 'y' (Loop): a carried value of body 'body' must keep its type; 'x' is float32[2] and 'after' is int64[2]",
    ),
    "what a scan carries": (
        carrying("Scan", num_scan_inputs=0),
        "node 'y' (Scan): a carried value of body 'body' must keep its type; 'x' is float32[2] and 'after' is int64[2]",
    ),
}


@pytest.mark.parametrize(("function", "message"), INCONSISTENT.values(), ids=INCONSISTENT)
def test_types_that_do_not_fit(function: Function, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        verify_types(function)
    assert str(caught.value) == f"function 'main' is not valid: {message}"


def test_all_violations_are_listed_up_to_a_bound() -> None:
    two = Function((X,), (Value("b"),), (node("Relu9", "x", "a"), node("Tanhh", "a", "b")), opsets={"": 20})
    with pytest.raises(ModelError, match=r"breaks 2 rules:\n  - node 'a' \(Relu9\): .*\n  - node 'b' \(Tanhh\): .*$"):
        verify(two)
    many = Function((X,), (), tuple(Node(f"Op{i}", ("x",), (f"v{i}",)) for i in range(30)), opsets={"": 20})
    with pytest.raises(ModelError) as caught:
        verify(many)
    assert str(caught.value).count("\n") == 21
    assert str(caught.value).endswith("\n  - and more")


def test_alike_nodes_are_distinguished_where_the_rules_differ() -> None:
    """A node is looked at once per likeness; what a rule reads must be part of it."""
    good = node("Add", "x x", "a")
    for bad in (
        node("Add", "x -", "y"),
        node("Add", "x c", "y"),
        node("Add", "x x", "y z"),
        node("Add", "x x", "y", k=1),
        Node("Add", ("x", "x"), ("y",), device="gpu"),
        node("Add", "x x", "y", domain="other"),
    ):
        with pytest.raises(ModelError, match="node 'y'"):
            verify(one(good, nodes=(good, bad)))
