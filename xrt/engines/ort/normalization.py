"""MeanVarianceNormalization of ONNX Runtime divides by zero where all elements are equal; other operators do not."""

from __future__ import annotations

from xrt.engines.toolkit.mean_variance import write_mean_variance
from xrt.engines.toolkit.node_writer import NodeWriter, write_nodes
from xrt.graph import Function, TensorType

__all__ = ["decompose_normalization"]


def decompose_normalization(function: Function) -> Function:
    """Return the Function with each MeanVarianceNormalization of known type in other operators, in bodies too."""
    return _within(function, function.opsets.get("", 0))


def _within(function: Function, opset: int) -> Function:
    nodes = tuple(node.map_bodies(lambda body: _within(body, opset)) for node in function.nodes)
    if any(new is not old for new, old in zip(nodes, function.nodes, strict=True)):
        function = function.replace(nodes=nodes)
    return write_nodes(function, lambda writer: _write(writer, opset))


def _write(writer: NodeWriter, opset: int) -> bool:
    node = writer.node
    if node.op != "MeanVarianceNormalization" or not isinstance(writer.function.get_type(writer.x), TensorType):
        return False
    return write_mean_variance(writer, opset, node.outputs[0]) is not None
