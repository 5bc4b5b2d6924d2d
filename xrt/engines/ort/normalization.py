"""MeanVarianceNormalization of ONNX Runtime divides by zero where all elements are equal; other operators do not."""

from __future__ import annotations

from dataclasses import replace

from xrt.engines.toolkit.mean_variance import write_mean_variance
from xrt.engines.toolkit.node_writer import NodeWriter
from xrt.graph import Constant, Function, Node, TensorType

__all__ = ["decompose_normalization"]


def decompose_normalization(function: Function) -> Function:
    """Return the Function with each MeanVarianceNormalization of known type in other operators, in bodies too."""
    return _within(function, function.opsets.get("", 0))


def _within(function: Function, opset: int) -> Function:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for node in function.nodes:
        writer = NodeWriter(node, function)
        if node.op != "MeanVarianceNormalization" or not isinstance(function.get_type(writer.x), TensorType):
            nodes.append(node.map_bodies(lambda body: _within(body, opset)))
        elif write_mean_variance(writer, opset, node.outputs[0]) is None:
            nodes.append(node)
        else:
            nodes += [*writer.nodes[:-1], replace(writer.nodes[-1], name=node.name, control=node.control)]
            constants |= writer.constants
    unchanged = len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True))
    return function if unchanged else function.replace(nodes=tuple(nodes), constants={**function.constants, **constants})
