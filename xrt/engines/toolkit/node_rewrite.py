"""A node said by others: the node as a Function of its own, and what it means put in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from xrt.graph import Constant, Function, Node, Type, Value
from xrt.graph.rename import rename_node

__all__ = ["Meaning", "as_function", "insert_nodes", "rewrite_nodes"]

Meaning: TypeAlias = Callable[[Node, Function], Function | None]
"""Gives a Function that computes what a node does, on the names of `alone`; None where the node is to stay."""

SMALL = 64
"""Elements up to which a constant is an axis, a shape or a scale, which a meaning may depend on."""


def as_function(node: Node, function: Function) -> Function:
    """Return the node as a Function under names that do not depend on the node's position.

    Its inputs are named i0, i1 ... in the order of the values the node reads, and its outputs o0, o1 ... in the node's order.
    """
    names = _names(node)
    read = dict.fromkeys(filter(None, node.inputs))
    small = {names[name]: c for name in read if (c := function.constants.get(name)) is not None and c.array.size <= SMALL}
    return Function(
        inputs=tuple(Value(names[name], function.get_type(name)) for name in read if names[name] not in small),
        outputs=tuple(Value(names[name], function.get_type(name)) for name in node.outputs if name),
        nodes=(
            replace(node, inputs=tuple(names[n] for n in node.inputs), outputs=tuple(names[n] for n in node.outputs), name="it"),
        ),
        constants=small,
        opsets=function.opsets,
    )


def _names(node: Node) -> dict[str, str]:
    read = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    return read | {name: f"o{k}" for k, name in enumerate(node.outputs) if name} | {"": ""}


def rewrite_nodes(function: Function, meaning: Meaning) -> Function:
    """Return the Function with each node that has a meaning in the words of it; the meaning's own nodes are treated likewise."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        found = meaning(node, function)
        nodes += [node] if found is None else insert_nodes(rewrite_nodes(found, meaning), node, constants, types)
    if len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=tuple(nodes), constants=constants, types=types)


def insert_nodes(meaning: Function, node: Node, constants: dict[str, Constant], types: dict[str, Type]) -> list[Node]:
    """Return the nodes of ``meaning`` under names valid where ``node`` is; constants and types are added.

    The producer of the node's first result gets its name, so that later nodes may be ordered after it.
    """
    names = {new: old for old, new in _names(node).items()}

    def here(name: str) -> str:
        return names.setdefault(name, f"{next(iter(node.defines))}/meaning/{name}")

    known = set(names)
    constants |= {here(name): constant for name, constant in meaning.constants.items() if name not in known}
    types |= {here(name): type_ for name, type_ in meaning.types.items() if name not in known}
    parts = [rename_part(part, here) for part in meaning.nodes]
    first = next(iter(node.defines))
    return [replace(part, name=node.name) if first in part.outputs else part for part in parts]


def rename_part(part: Node, here: Callable[[str], str]) -> Node:
    """Return the node on values of other names, those that its bodies capture too; it has no name of its own."""
    names = {name: here(name) for name in (*part.uses, *part.defines)}
    return replace(rename_node(part, names, {}), name="", control=())
