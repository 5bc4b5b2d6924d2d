"""A decomposition computes what its operator does."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import xrt
from xrt import XRTModule
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.operators import rewrite_nodes
from xrt.operators.decompositions import DECOMPOSITIONS, write_decomposition
from xrt.passes import find_decomposition, fold_constants, infer_shapes
from xrt.testing.cases import node_cases
from xrt.testing.corpus import CORPUS

MOST = 6
"""Cases of an operator that are run."""


ELSEWHERE = {"Equal", "GlobalLpPool", "com.microsoft.QuickGelu"}
"""Operators without a case that can be decomposed, tested below."""


@cache
def cases() -> dict[str, list[Any]]:
    """The node tests and corpus entries by operator."""
    results: dict[str, list[Any]] = {}
    for case in (*node_cases(), *CORPUS):
        if "bf16" not in case.name:  # compared with results of float32
            for operator in {node.op for node in case.function.nodes} & DECOMPOSITIONS.keys():
                results.setdefault(operator, []).append(case)
    return results


def evaluate_decomposed(function: Function, operator: str, inputs: list[Any]) -> list[Any] | None:
    """Evaluate with the operator decomposed; None if no node of it can be."""
    typed = infer_shapes(fold_constants(infer_shapes(function), evaluate))
    lowered = rewrite_nodes(typed, lambda w: write_decomposition(w) if w.node.op == operator else None)
    return None if lowered is typed else list(evaluate(lowered, inputs))


@pytest.mark.parametrize("operator", sorted(DECOMPOSITIONS.keys() - ELSEWHERE))
def test_a_decomposition_computes_what_its_operator_does(operator: str) -> None:
    count = 0
    for case in cases()[operator]:
        inputs = list(case.make_inputs() if hasattr(case, "make_inputs") else case.inputs)
        with np.errstate(all="ignore"):
            results = evaluate_decomposed(case.function, operator, inputs)
        if results is not None:
            assert case.judge(results), case.name
            count += 1
        if count == MOST:
            break
    assert count, f"no case of {operator} is decomposed"


def one(op: str, *inputs: Any, opset: int = 24, **attributes: Any) -> Function:
    """A node of arrays, the first of which is the input."""
    names = [f"i{k}" for k in range(len(inputs))]
    first = TensorType(DType.of(inputs[0]), inputs[0].shape)
    return infer_shapes(
        Function(
            (Value("i0", first),),
            (Value("y"),),
            (Node(op, tuple(names), ("y",), read_attributes(attributes)),),
            {name: Constant(np.asarray(array)) for name, array in zip(names[1:], inputs[1:], strict=True)},
            {"": opset},
        )
    )


@pytest.mark.parametrize("power", [1, 2, 3])
def test_a_global_norm_is_decomposed(power: int) -> None:
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 2, 3, 4)
    function = one("GlobalLpPool", x, p=power)
    lowered = rewrite_nodes(function, write_decomposition)
    assert {node.op for node in lowered.nodes} <= {"Abs", "Pow", "ReduceSum", "ReduceL2"}
    np.testing.assert_allclose(evaluate(lowered, [x])[0], evaluate(function, [x])[0], rtol=1e-5)


def test_equality_of_truth_values_is_decomposed() -> None:
    x, y = np.array([True, False, True]), np.array([True, True, False])
    lowered = rewrite_nodes(one("Equal", x, y), write_decomposition)
    assert [node.op for node in lowered.nodes] == ["Xor", "Not"]
    np.testing.assert_array_equal(evaluate(lowered, [x])[0], x == y)


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
def test_quick_gelu_runs_by_a_kernel_or_its_decomposition(engine: str) -> None:
    pytest.importorskip({"toy": "numpy", "ort": "onnxruntime"}.get(engine, engine))
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    node = Node("QuickGelu", ("x",), ("y",), domain="com.microsoft")
    types = TensorType(DType.FLOAT32, (3, 4))
    function = Function((Value("x", types),), (Value("y", types),), (node,), opsets={"": 20, "com.microsoft": 1})
    module = XRTModule(function, engine=engine, strict=True)
    np.testing.assert_allclose(module(x), x / (1 + np.exp(-1.702 * x)), rtol=1e-5, atol=1e-6)
    gradient = evaluate(xrt.gradient(function), [x])[1]
    weight = 1 / (1 + np.exp(-1.702 * x))
    np.testing.assert_allclose(gradient, weight + 1.702 * x * weight * (1 - weight), rtol=1e-4, atol=1e-6)


def test_an_operator_without_a_rule_gets_the_body_that_onnx_has() -> None:
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    function = one("ReduceL1", x, np.array([1]), keepdims=0)
    body = find_decomposition(function.nodes[0], function)
    assert body is not None
    assert [node.op for node in body.nodes] == ["Abs", "ReduceSum"]
    np.testing.assert_allclose(evaluate(body, [x])[0], np.abs(x).sum(1), rtol=1e-6)
    add = one("Add", x, x)
    assert find_decomposition(add.nodes[0], add) is None
