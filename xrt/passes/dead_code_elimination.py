"""Drop what no output needs."""

from __future__ import annotations

from collections.abc import Iterable

from xrt.graph import Function, Node, since_version

__all__ = ["drop_dead_nodes"]


def drop_dead_nodes(function: Function) -> Function:
    """Return the Function without the nodes, constants and types that no output needs, in bodies too.

    Operators that onnx describes have no effect but their outputs, random ones included. An operator of another domain
    may have one, so a node that is or holds such an operator stays, with all that it reads; so does a node that a
    staying one must run after. Inputs and outputs stay. The function itself is returned where nothing is dropped. Linear.
    """
    trimmed = [node.map_bodies(drop_dead_nodes) for node in function.nodes]
    nodes, needed = _needed(function, trimmed)
    constants = {name: constant for name, constant in function.constants.items() if name in needed}
    known = {name for node in nodes for name in node.defines} | needed
    types = {name: type_ for name, type_ in function.types.items() if name in known}
    same_nodes = len(nodes) == len(trimmed) and all(new is old for new, old in zip(trimmed, function.nodes, strict=True))
    if same_nodes and len(constants) == len(function.constants) and len(types) == len(function.types):
        return function
    return function.replace(nodes=nodes, constants=constants, types=types)


def _needed(function: Function, nodes: Iterable[Node]) -> tuple[tuple[Node, ...], set[str]]:
    """Return the nodes that stay, and the values that they and the outputs read."""
    values = {value.name for value in function.outputs}
    names: set[str] = set()
    kept = []
    for node in reversed(list(nodes)):  # users come after what they use, so one sweep from the end sees every need in time
        if node.name in names or not values.isdisjoint(node.outputs) or _may_have_effect(node, function):
            kept.append(node)
            values.update(node.uses)
            names.update(node.control)
    return tuple(reversed(kept)), values


def _may_have_effect(node: Node, function: Function) -> bool:
    """Whether the node is, or holds, an operator that onnx does not describe."""
    if since_version(node, function) is None:
        return True
    return any(_may_have_effect(inner, body) for body in node.bodies for inner in body.nodes)
