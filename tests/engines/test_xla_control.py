"""If, Loop and Scan on the xla engine: what is decided while a graph is traced, and what by the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.written import function, tensor
from tests.engines.xla_running import INT, run, why
from xrt.graph import DType, Function, Node, TensorType, read_attributes

BOOL = TensorType(DType.BOOL, ())


def body(*nodes: Node, inputs: dict[str, TensorType | None], outputs: dict[str, TensorType | None], **more: Any) -> Function:
    return function(*nodes, inputs=inputs, outputs=outputs, **more)


def test_branches_of_two_shapes_are_declined() -> None:
    then = body(Node("Relu", ("x",), ("a",)), inputs={}, outputs={"a": tensor(2)})
    other = body(Node("ReduceSum", ("x",), ("b",)), inputs={}, outputs={"b": tensor(1)})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": then, "else_branch": other}))
    f = function(node, inputs={"c": BOOL, "x": tensor(2)}, outputs={"y": None})
    assert why(f).startswith("XLA cannot take this If: ")


def doubling(condition: str = "c") -> Function:
    """A body that doubles what it carries and scans its square; it goes on as ``condition`` says."""
    nodes = [
        Node("Identity", (condition,), ("go",)),
        Node("Add", ("v", "v"), ("w",)),
        Node("Mul", ("w", "w"), ("q",)),
        Node("Less", ("w", "limit"), ("low",)),
        Node("Squeeze", ("low",), ("flag",)),
    ]
    return body(
        *nodes,
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": tensor(1)},
        outputs={"go": BOOL, "w": tensor(1), "q": tensor(1)},
        constants={"limit": np.array([10], np.float32)},
    )


def test_a_loop_whose_scan_is_as_long_as_the_run_says_is_declined() -> None:
    node = Node("Loop", ("m", "", "x"), ("y", "squares"), read_attributes({"body": doubling()}))
    f = function(node, inputs={"m": tensor(dtype=INT), "x": tensor(1)}, outputs={"y": tensor(1), "squares": None})
    assert why(f) == "Loop scans as many results as only the run shows, and XLA has no such shape"


def test_a_short_loop_may_change_shapes() -> None:
    inner = body(
        Node("Identity", ("c",), ("go",)),
        Node("Concat", ("v", "x"), ("w",), read_attributes({"axis": 0})),
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": None},
        outputs={"go": BOOL, "w": None},
    )
    node = Node("Loop", ("m", "", "x"), ("y",), read_attributes({"body": inner}))
    f = function(node, inputs={"x": tensor(1)}, outputs={"y": tensor(4)}, constants={"m": np.array(3)})
    assert why(f) == ""
    assert run(f, np.array([7], np.float32))[0].tolist() == [7] * 4
