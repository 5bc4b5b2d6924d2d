"""The order of updates: an array that is updated is written after whatever else reads it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from xrt.errors import ModelError
from xrt.graph import Function, Node

__all__ = ["order_updates"]


def order_updates(function: Function, views: Collection[str] = ()) -> Function:
    """Return the Function with control edges from the nodes that read an aliased input to the one that writes its output.

    A result of an operator among ``views`` may be the input's memory: what reads it reads the input. A node that reads what is
    written keeps its place; the output is then a copy. Linear where the Function's own order is such.
    """
    wanted = {edge for given, result in function.aliases for edge in _edges(function, given, result, views)}
    if not wanted:
        return function
    before: dict[str, list[str]] = {}
    for reader, writer in sorted(wanted):
        before.setdefault(writer, []).append(reader)
    nodes = [
        replace(node, control=tuple(dict.fromkeys((*node.control, *before[node.name])))) if node.name in before else node
        for node in function.nodes
    ]
    try:
        return function.replace(nodes=tuple(nodes))
    except ModelError:  # two updates that wait for each other
        return function


def _edges(function: Function, given: str, result: str, views: Collection[str]) -> set[tuple[str, str]]:
    writer, place = function.producer(result), function.position(result)
    if writer is None or place is None:
        return set()
    index = {node.name: number for number, node in enumerate(function.nodes)}
    readers = _find_readers(function, given, views) - {writer.name, *writer.control}
    late = max((index[name] for name in readers), default=-1)
    return {(name, writer.name) for name in readers - _followers(function, writer, place, late)}


def _find_readers(function: Function, given: str, views: Collection[str]) -> set[str]:
    """Return the names of the nodes that read a value or a view of it."""
    found: set[str] = set()
    names = [given]
    for name in names:
        for use in function.users(name):
            if use.node.name not in found and use.node.op in views:
                names += filter(None, use.node.outputs)
            found.add(use.node.name)
    return found


def _followers(function: Function, writer: Node, place: int, end: int) -> set[str]:
    """Return the names of nodes up to a place that depend on the writer."""
    found, made = {writer.name}, set(writer.defines)
    for node in function.nodes[place + 1 : end + 1]:
        if not made.isdisjoint(node.uses) or not found.isdisjoint(node.control):
            found.add(node.name)
            made.update(node.defines)
    return found
