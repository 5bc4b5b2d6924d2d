"""Operators brought to a newer opset."""

from __future__ import annotations

import numpy as np
import pytest

from xrt.engines.contract import registry
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.passes import infer_shapes
from xrt.passes.opset_upgrade import upgrade_opset, why_not_upgradable
from xrt.verify.execution import run_alone


def old(*nodes: Node, opset: int = 9) -> Function:
    x = Value("x", TensorType(DType.FLOAT32, (2, 3)))
    return infer_shapes(Function((x,), (Value("y"),), nodes, {"s": Constant(np.array([3, 2]))}, {"": opset}))


def test_attributes_become_inputs_and_numbers_stay() -> None:
    f = old(
        Node("Clip", ("x",), ("c",), read_attributes({"min": 0.0, "max": 1.5})),
        Node("Unsqueeze", ("c",), ("u",), read_attributes({"axes": [0]})),
        Node("ReduceSum", ("u",), ("r",), read_attributes({"axes": [2], "keepdims": 0})),
        Node("Relu", ("r",), ("y",), name="last"),
    )
    newer = upgrade_opset(f, 18)
    assert newer.opset() == 18 and newer.nodes[-1] == f.nodes[-1]
    assert not any(node.attr("axes") for node in newer.nodes)
    x = np.array([[-1, 1, 4], [2, 0, 0.5]], np.float32)
    toy = registry.create("toy")
    assert np.array_equal(run_alone(toy, newer, [x])[0], run_alone(toy, f, [x])[0])
    assert run_alone(toy, newer, [x])[0].tolist() == [[2.5, 2.0]]


@pytest.mark.parametrize("given", [{}, {"min": 1.0}, {"max": 1.0}], ids=["no bound", "lower", "upper"])
def test_a_bound_that_is_left_out_keeps_its_default(given: dict[str, float]) -> None:
    f = old(Node("Clip", ("x",), ("y",), read_attributes(given)))
    x = np.array([[np.inf, -np.inf, 3], [0, 1, 2]], np.float32)
    most = np.finfo(np.float32).max
    want = np.clip(x, given.get("min", -most), given.get("max", most))
    toy = registry.create("toy")
    for function in (f, upgrade_opset(f, 18)):
        np.testing.assert_array_equal(run_alone(toy, function, [x])[0], want)


def test_what_is_new_enough_stays_itself() -> None:
    f = old(Node("Relu", ("x",), ("y",)), opset=20)
    assert upgrade_opset(f, 18) is f
    assert why_not_upgradable(f.nodes[0], f, 18) is None


def test_what_cannot_be_raised_has_a_reason() -> None:
    f = old(Node("Scatter", ("x", "s", "s"), ("y",), name="n"))
    told = why_not_upgradable(f.nodes[0], f, 18)
    assert told is not None and told.startswith("node 'n' (Scatter) cannot be brought from opset 9 to 18: ")
