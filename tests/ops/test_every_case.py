"""Every node test of onnx can be written with xrt.ops: the same node comes out, with the types that the test declares."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

from tests.graph.tracing import trace
from xrt import ops
from xrt.formats import onnx
from xrt.graph import Function, Node, TensorType
from xrt.graph.schemas import may_equal

REFUSED = ("test_scan_sum",)
"""Scan of opset 8 works on batches; it is not traced, and says so."""


def single_nodes() -> list[tuple[str, Function]]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their data with deprecated parts of NumPy
        cases = [(case.name, onnx.load(case.model)) for case in collect_testcases(None)]  # type: ignore[arg-type]  # None is all
    return [(name, function) for name, function in cases if len(function.nodes) == 1 and name not in REFUSED]


def rewritten(function: Function) -> Function:
    """Return the function of one node, written anew with xrt.ops."""
    (node,) = function.nodes

    def build(*inputs: Any) -> Any:
        given = {value.name: tensor for value, tensor in zip(function.inputs, inputs, strict=True)} | dict(function.constants)
        attributes = {a.name: a for a in node.attributes}
        results = ops.functions.find("xrt.ops", node.domain, node.op_type)(
            *(given[name] if name else None for name in node.inputs),
            outputs=len(node.outputs),
            **{name: attribute.value for name, attribute in attributes.items()},
        )
        return [result for result, name in zip(results, node.outputs, strict=True) if name]

    return trace(build, *(value.type for value in function.inputs), opsets=function.opsets)


def shape_of(node: Node) -> object:
    """Return what must be the same: the operator, which inputs and outputs there are, and the attributes but for bodies."""
    plain = tuple(a for a in node.attributes if not list(a.bodies()))
    inputs = list(map(bool, node.inputs))
    while inputs and not inputs[-1]:
        inputs.pop()
    return node.op, inputs, len(node.outputs), plain


@pytest.mark.full
@pytest.mark.slow
def test_every_node_test_can_be_written_with_xrt_ops() -> None:
    wrong = []
    counted: Counter[str] = Counter()
    for name, function in single_nodes():
        again = rewritten(function)
        counted[function.nodes[0].op] += 1
        if shape_of(again.nodes[-1]) != shape_of(function.nodes[0]):
            wrong.append(f"{name}: another node")
        for mine, theirs in zip(again.outputs, function.outputs, strict=True):
            if mine.type is not None and isinstance(theirs.type, TensorType) and not may_equal(mine.type, theirs.type):
                wrong.append(f"{name}: {mine} is declared as {theirs}")
    assert wrong == []
    assert sum(counted.values()) > 1000
    assert len(counted) > 150
