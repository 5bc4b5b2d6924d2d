"""Operators brought to a newer opset, by onnx's version converter, for engines that know no older ones."""

from __future__ import annotations

from xrt.errors import ModelError
from xrt.formats.onnx.names import FreshNames
from xrt.formats.onnx.opsets import ConversionScope, as_function, convert, splice
from xrt.formats.onnx.versions import BOUNDS_ARE_INPUTS, add_clip_bounds
from xrt.graph import Function, Node, since_version
from xrt.graph.schemas import find_operator

__all__ = ["upgrade_opset", "why_not_upgradable"]


def upgrade_opset(function: Function, opset: int) -> Function:
    """Return an equivalent Function that declares at least that opset of ai.onnx; the function itself where it does already.

    Types must be known: infer shapes first. Raises ModelError, naming the operator, where one cannot be converted, or has
    bodies. A conversion is made once for each kind of node.
    """
    if function.opset() >= opset:
        return function
    fresh, scope = FreshNames(function), ConversionScope((function,))
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        newer = _newer(node, function, scope, opset)
        if newer is None:
            nodes.append(node)
        else:
            own = splice(newer, node, fresh)
            nodes += own.nodes
            constants.update(own.constants)
    return function.replace(nodes=tuple(nodes), constants=constants, opsets={**function.opsets, "": opset})


def why_not_upgradable(node: Node, function: Function, opset: int) -> str | None:
    """Return why the node cannot be brought to that opset of ai.onnx; None when it can, or needs not. Never raises."""
    if function.opset() >= opset:
        return None
    try:
        _newer(node, function, ConversionScope((function,)), opset)
    except ModelError as error:
        return str(error)
    return None


def _newer(node: Node, function: Function, scope: ConversionScope, opset: int) -> Function | None:
    """Return a Function that does at the opset what the node does; None where the node means the same there."""
    newest = find_operator(node.op_type, opset)
    if node.domain or (newest is not None and newest.since_version == since_version(node, function)):
        return None
    result, reason = (None, "it has a body") if node.bodies else convert(as_function(_whole(node, function), scope), opset)
    if reason:
        raise ModelError(f"node {node.name!r} ({node.op}) cannot be brought from opset {function.opset()} to {opset}: {reason}")
    return result


def _whole(node: Node, function: Function) -> Node:
    """Return the node with attributes that the converter forgets where they are left out, though they have a meaning."""
    return add_clip_bounds(node) if node.op == "Clip" and function.opset() < BOUNDS_ARE_INPUTS else node
