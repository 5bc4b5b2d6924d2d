"""Names while a graph is traced: every value of a trace, bodies included, has one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.types import Value

if TYPE_CHECKING:
    from xrt.graph.function import Function
    from xrt.graph.node import Node

__all__ = ["Names", "rename_function", "rename_node"]


class Names:
    """The names that are taken. A trace and the traces of its bodies share one, so no body hides an outer value."""

    def __init__(self) -> None:
        self._taken: dict[str, None] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        """Take a name that the caller knows to be free."""
        self._taken[name] = None
        return name

    def plain(self, name: str) -> str:
        """Take the name as it is, or numbered where it is taken."""
        return self.make_numbered(name) if name in self._taken else self.take(name)

    def make_numbered(self, base: str) -> str:
        """Take the first free one of ``base_1``, ``base_2``, ..."""
        count = self._counts.get(base, 0) + 1
        while f"{base}_{count}" in self._taken:
            count += 1
        self._counts[base] = count
        return self.take(f"{base}_{count}")

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return a mark to `rewind` to."""
        return len(self._taken), dict(self._counts)

    def rewind(self, mark: tuple[int, dict[str, int]]) -> None:
        """Free every name taken since the mark."""
        size, self._counts = mark
        while len(self._taken) > size:
            self._taken.popitem()


def rename_node(node: Node, values: Mapping[str, str], nodes: Mapping[str, str]) -> Node:
    """Return the node with its values, its own name and its control predecessors renamed, inside its bodies too."""
    return replace(
        node,
        inputs=tuple(values.get(n, n) for n in node.inputs),
        outputs=tuple(values.get(n, n) for n in node.outputs),
        attributes=tuple(_renamed_attribute(a, values, nodes) for a in node.attributes),
        name=nodes.get(node.name, node.name),
        control=tuple(nodes.get(n, n) for n in node.control),
    )


def _renamed_attribute(attribute: Attribute, values: Mapping[str, str], nodes: Mapping[str, str]) -> Attribute:
    if attribute.kind is AttrKind.GRAPH:
        return replace(attribute, value=rename_function(attribute.value, values, nodes))
    if attribute.kind is AttrKind.GRAPHS:
        return replace(attribute, value=tuple(rename_function(f, values, nodes) for f in attribute.value))
    return attribute


def rename_function(function: Function, values: Mapping[str, str], nodes: Mapping[str, str]) -> Function:
    """Return the Function with those values and nodes renamed wherever they stand, inside bodies too.

    The new names must be free everywhere in it. Linear.
    """

    def new(value: Value) -> Value:
        return Value(values.get(value.name, value.name), value.type)

    return function.replace(
        inputs=tuple(map(new, function.inputs)),
        outputs=tuple(map(new, function.outputs)),
        nodes=tuple(rename_node(node, values, nodes) for node in function.nodes),
        constants={values.get(n, n): c for n, c in function.constants.items()},
        types={values.get(n, n): t for n, t in function.types.items()},
        aliases=tuple((values.get(i, i), values.get(o, o)) for i, o in function.aliases),
    )
