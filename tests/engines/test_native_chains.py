"""Which elementwise nodes are folded together: as many as can be, and never so that a path leaves a chain and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tests.engines.native_running import on_native, on_python
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE, LONGEST, fuse_elementwise
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.passes import infer_shapes

SQUARE = TensorType(DType.FLOAT32, (4, 4))


def graph(
    *nodes: Node, outputs: str, opset: int = 20, inputs: Mapping[str, TensorType] | None = None, **constants: Any
) -> Function:
    """Return a typed Function over squares of float32."""
    values = tuple(Value(name, type_) for name, type_ in (inputs or {"x": SQUARE}).items())
    held = {name: Constant(np.asarray(array, np.float32)) for name, array in constants.items()}
    return infer_shapes(Function(values, tuple(map(Value, outputs.split())), nodes, held, {"": opset}))


def node(op: str, inputs: str, output: str, **attributes: Any) -> Node:
    return Node(op, tuple(inputs.split()), (output,), read_attributes(attributes), name=output)


def members(function: Function) -> list[list[str]]:
    """Return the names of each chain's nodes."""
    return [sorted(n.attr("nodes")) for n in fuse_elementwise(function).nodes if (n.domain, n.op_type) == (DOMAIN, ELEMENTWISE)]


def test_a_path_that_leaves_and_comes_back_splits_a_chain() -> None:
    function = graph(node("Exp", "x", "a"), node("MatMul", "a a", "b"), node("Add", "a b", "c"), outputs="c")
    assert members(function) == [["a"], ["c"]]


def test_what_is_left_alone() -> None:
    alone = graph(node("Softmax", "x", "a"), outputs="a")
    assert fuse_elementwise(alone) is alone
    old = graph(node("Add", "x x", "a"), outputs="a", opset=6)
    assert fuse_elementwise(old) is old
    refused = graph(node("Exp", "x", "a"), outputs="a")
    assert fuse_elementwise(refused, lambda n: False) is refused
    controlled = refused.replace(nodes=(*refused.nodes, Node("Neg", ("x",), ("z",), name="z", control=("a",))))
    assert fuse_elementwise(controlled) is controlled
    elsewhere = graph(Node("Exp", ("x",), ("a",), name="a", device="cuda:0"), outputs="a")
    assert fuse_elementwise(elsewhere) is elsewhere


def test_long_chains_are_cut() -> None:
    count = 3 * LONGEST + 5
    names = ["x", *(f"v{i}" for i in range(count))]
    function = graph(*(node("Neg", a, b) for a, b in pairwise(names)), outputs=names[-1])
    assert [len(chain) for chain in members(function)] == [LONGEST, LONGEST, LONGEST, 5]
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(on_native(function, [x])[0], -x)


@st.composite
def graphs(draw: st.DrawFn) -> Function:
    """Draw a graph of elementwise nodes with matrix products, transposes and row sums between them."""
    names, nodes = ["x", "y"], []
    for i in range(draw(st.integers(1, 18))):
        a, b = draw(st.sampled_from(names[-6:])), draw(st.sampled_from(names))
        op = draw(st.sampled_from(["Neg", "Relu", "Add", "Sub", "Max", "Add", "Transpose", "Add"]))
        nodes.append(node(op, a if op in ("Neg", "Relu", "Transpose") else f"{a} {b}", f"v{i}"))
        names.append(f"v{i}")
    outputs = draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True))
    return graph(*nodes, outputs=" ".join(outputs), inputs={"x": SQUARE, "y": SQUARE})


@pytest.mark.slow
@given(graphs())
@settings(max_examples=150, deadline=None)
def test_chains_are_convex_and_change_nothing(function: Function) -> None:
    """A Function cannot hold a cycle, so that it can be built shows that no chain waits for itself."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2)]
    for actual, expected in zip(on_native(function, inputs), on_python(function, inputs), strict=True):
        np.testing.assert_array_equal(actual, expected)
    after = fuse_elementwise(function)
    folded = sum(len(n.attr("nodes")) for n in after.nodes if n.domain == DOMAIN)
    assert folded == sum(n.op_type != "Transpose" for n in function.nodes)
