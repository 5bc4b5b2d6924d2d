"""Convert operators to a newer opset with onnx's version converter, for engines that support only recent opsets."""

from __future__ import annotations

from xrt.errors import ModelError
from xrt.formats.onnx.opsets import convert_operator
from xrt.formats.onnx.writing import BOUNDS_ARE_INPUTS, add_clip_bounds
from xrt.graph import Function, Node, since_version
from xrt.graph.schemas import find_operator
from xrt.operators import inline_function


def upgrade_opset(function: Function, opset: int) -> Function:
    """Convert `function` to at least `opset` of ai.onnx; return it unchanged if it is new enough.

    Types must be inferred first. Raises ModelError, which names the node, if a node cannot be converted or has a body. Equal
    nodes are converted once.
    """
    if function.opset() >= opset:
        return function
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        newer = _convert_node(node, function, opset)
        nodes += [node] if newer is None else inline_function(newer, node, constants, types)
    return function.replace(nodes=tuple(nodes), constants=constants, types=types, opsets={**function.opsets, "": opset})


def why_not_upgradable(node: Node, function: Function, opset: int) -> str | None:
    """Explain why `node` cannot be converted to `opset`, or return None if it can or needs no conversion. Never raises."""
    if function.opset() >= opset:
        return None
    try:
        _convert_node(node, function, opset)
    except ModelError as error:
        return str(error)
    return None


def _convert_node(node: Node, function: Function, opset: int) -> Function | None:
    """Convert one node to a Function at `opset`; None if the operator did not change."""
    # An operator whose schema did not change in between needs no conversion.
    newest = find_operator(node.op_type, opset)
    if node.domain or (newest is not None and newest.since_version == since_version(node, function)):
        return None
    result, reason = (None, "it has a body") if node.bodies else convert_operator(_bound_clip(node, function), function, opset)
    if reason:
        raise ModelError(f"node {node.name!r} ({node.op}) cannot be brought from opset {function.opset()} to {opset}: {reason}")
    return result


def _bound_clip(node: Node, function: Function) -> Node:
    """Make implicit Clip bounds explicit, because onnx's converter drops their defaults."""
    return add_clip_bounds(node) if node.op == "Clip" and function.opset() < BOUNDS_ARE_INPUTS else node
