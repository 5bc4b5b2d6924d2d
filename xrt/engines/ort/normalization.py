"""MeanVarianceNormalization of ONNX Runtime divides by zero where all elements are equal; here it is said by its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.graph import Constant, Function, Node, TensorType, read_attributes

__all__ = ["decompose_normalization"]

EPSILON = 1e-9
"""What the definition adds to the deviation: https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html"""
AXES_ARE_INPUTS = 18
"""The opset from which ReduceMean reads its axes."""


def decompose_normalization(function: Function) -> Function:
    """Return the Function with each MeanVarianceNormalization as means, a difference and a quotient, in bodies too."""
    return _within(function, function.opsets.get("", 0))


def _within(function: Function, opset: int) -> Function:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for node in function.nodes:
        if node.op == "MeanVarianceNormalization":
            nodes += _decompose(node, function, opset, constants)
        else:
            nodes.append(node.map_bodies(lambda body: _within(body, opset)))
    if all(new is old for new, old in zip(nodes, function.nodes, strict=False)) and len(nodes) == len(function.nodes):
        return function
    return function.replace(nodes=tuple(nodes), constants={**function.constants, **constants})


def _decompose(node: Node, function: Function, opset: int, constants: dict[str, Constant]) -> list[Node]:
    """Return (x - mean) / (sqrt(mean of squares of the difference) + epsilon)."""
    (x,), (y,) = node.inputs, node.outputs
    type_ = function.get_type(x)
    dtype = type_.dtype.numpy if isinstance(type_, TensorType) else np.dtype(np.float32)
    axes = np.array(node.attr("axes", (0, 2, 3)), np.int64)
    constants |= {f"{y}/epsilon": Constant(np.array(EPSILON, dtype)), f"{y}/axes": Constant(axes)}

    def op(op_type: str, inputs: tuple[str, ...], name: str) -> Node:
        return Node(op_type, inputs, (name,), name=f"{node.name}/{name.removeprefix(f'{y}/')}")

    def mean(of: str, name: str) -> Node:
        if opset >= AXES_ARE_INPUTS:
            return op("ReduceMean", (of, f"{y}/axes"), name)
        return replace(op("ReduceMean", (of,), name), attributes=read_attributes({"axes": axes.tolist()}))

    return [
        mean(x, f"{y}/mean"),
        op("Sub", (x, f"{y}/mean"), f"{y}/rest"),
        op("Mul", (f"{y}/rest", f"{y}/rest"), f"{y}/square"),
        mean(f"{y}/square", f"{y}/variance"),
        op("Sqrt", (f"{y}/variance",), f"{y}/deviation"),
        op("Add", (f"{y}/deviation", f"{y}/epsilon"), f"{y}/divisor"),
        replace(op("Div", (f"{y}/rest", f"{y}/divisor"), y), control=node.control, name=node.name),
    ]
