"""Which nodes mean the same at every size of their symbolic dims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from xrt.engines.toolkit.support import EVERY, has_symbolic_dims, why_not_at_every_size
from xrt.graph import Node, Value
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, i64, node

LATER, DECIDES = "is known only when it is computed", "symbolic dims decide what"


def ask(inputs: Mapping[str, str], made: Node, output: str = "", constants: Mapping[str, Any] | None = None) -> str | None:
    """Return the answer for a node whose result is y."""
    function = graph({name: f"float32[{dims}]" for name, dims in inputs.items()}, {"y": "float32[?]"}, made, constants=constants)
    function = infer_shapes(function.replace(outputs=(Value("y"),)))
    if output:
        declared = graph({"y": f"float32[{output}]"}, {}).inputs
        function = function.replace(outputs=declared)
    assert has_symbolic_dims(function.nodes[0], function)
    return why_not_at_every_size(function.nodes[0], function, EVERY)


@pytest.mark.parametrize(
    ("inputs", "made", "constants"),
    [
        ({"x": "N,3"}, node("Relu", "x", "y"), {}),
        ({"x": "N,3", "z": "N,3"}, node("Add", "x z", "y"), {}),
        ({"x": "N,3", "z": "1,3"}, node("Add", "x z", "y"), {}),
        ({"x": "N,3", "z": "3"}, node("Mul", "x z", "y"), {}),
        ({"x": "N,3", "z": "3,4"}, node("MatMul", "x z", "y"), {}),
        ({"x": "B,N,3", "z": "B,3,N"}, node("MatMul", "x z", "y"), {}),
        ({"x": "N,3", "z": "4,3", "c": "4"}, node("Gemm", "x z c", "y", transB=1), {}),
        ({"x": "N,3", "z": "N,2"}, node("Concat", "x z", "y", axis=1), {}),
        ({"x": "N,4"}, node("Reshape", "x k", "y"), {"k": i64([0, 2, 2])}),
        ({"x": "N,3"}, node("Slice", "x a b c", "y"), {"a": i64([0]), "b": i64([2]), "c": i64([1])}),
        ({"x": "N,M"}, node("Softmax", "x", "y", axis=0), {}),
        ({"x": "N,M"}, node("ReduceSum", "x k", "y"), {"k": i64([1])}),
        ({"x": "N,M"}, node("Transpose", "x", "y", perm=[1, 0]), {}),
        ({"x": "N,3,8,8", "w": "4,3,3,3"}, node("Conv", "x w", "y"), {}),
    ],
    ids=str,
)
def test_the_same_at_every_size(inputs: Any, made: Node, constants: Any) -> None:
    assert ask(inputs, made, constants=constants) is None


@pytest.mark.parametrize(
    ("inputs", "made", "constants", "reason"),
    [
        ({"x": "N,3", "z": "M,3"}, node("Add", "x z", "y"), {}, LATER),
        ({"x": "?,3"}, node("Relu", "x", "y"), {}, LATER),
        ({"x": "N,3", "z": "M,3"}, node("Concat", "x z", "y", axis=0), {}, LATER),
        ({"x": "N,3,K", "z": "M,K,2"}, node("MatMul", "x z", "y"), {}, LATER),
        ({"x": "N,M", "z": "3,4"}, node("MatMul", "x z", "y"), {}, DECIDES),
        ({"x": "B,N,3", "z": "1,3,4"}, node("MatMul", "x z", "y"), {}, DECIDES),
        ({"x": "N,4"}, node("Reshape", "x k", "y"), {"k": i64([-1])}, LATER),
        ({"x": "N,3"}, node("Slice", "x a b", "y"), {"a": i64([0]), "b": i64([2])}, LATER),
        ({"x": "1,3,H,W", "w": "4,3,3,3"}, node("Conv", "x w", "y"), {}, LATER),
        ({"x": "N,3"}, node("NonZero", "x", "y"), {}, "NonZero is not computed with symbolic dims"),
    ],
    ids=str,
)
def test_not_the_same_at_every_size(inputs: Any, made: Node, constants: Any, reason: str) -> None:
    found = ask(inputs, made, constants=constants)
    assert found is not None
    assert reason in found


def test_a_declared_extent_that_does_not_follow_is_not_believed() -> None:
    constants = {"k": i64([1])}
    assert ask({"x": "N,M"}, node("ReduceSum", "x k", "y", keepdims=0), "N", constants) is None
    found = ask({"x": "N,M"}, node("ReduceSum", "x k", "y", keepdims=0), "M", constants)
    assert found == "the extents that the model declares for this ReduceSum do not follow from those of its inputs"


def test_operators_that_were_not_tried_are_not_taken() -> None:
    function = infer_shapes(graph({"x": "float32[N]"}, {"y": "float32[N]"}, node("Relu", "x", "y")))
    assert why_not_at_every_size(function.nodes[0], function, {"Neg"}) == "Relu is not computed with symbolic dims"
    fixed = infer_shapes(graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Relu", "x", "y")))
    assert not has_symbolic_dims(fixed.nodes[0], fixed)
