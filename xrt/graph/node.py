"""One operator of a Function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xrt.graph.attributes import Attribute, AttrKind

if TYPE_CHECKING:
    from xrt.graph.function import Function

__all__ = ["Node"]

_GRAPH, _GRAPHS = AttrKind.GRAPH, AttrKind.GRAPHS


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: what it is, what it reads and what it defines.

    An input or output that is left out is the empty string. Nodes are compared by content.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    """Sorted by name; make them with `read_attributes`."""
    domain: str = ""
    """The empty string is ai.onnx."""
    name: str = ""
    """Unique in its Function, which fills it in from the first output where it is empty."""
    control: tuple[str, ...] = ()
    """Names of the nodes that must have run before this one, without a value passing."""
    device: str = ""
    """Where it must run (``"cpu"``, ``"cuda:1"``); empty where it does not matter."""

    @property
    def op(self) -> str:
        """The operator with its domain, unless that is ai.onnx: ``Conv``, ``com.microsoft.FusedConv``."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the attribute's value, or the default where the node does not carry it."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute.value
        return default

    @property
    def bodies(self) -> tuple[Function, ...]:
        """The Functions among the attributes: the branches of an If, the body of a Loop."""
        if not self.attributes:
            return ()  # most nodes: this is asked by every pass
        found: list[Function] = []
        for attribute in self.attributes:
            if attribute.kind is _GRAPH:
                found.append(attribute.value)
            elif attribute.kind is _GRAPHS:
                found += attribute.value
        return tuple(found)

    def map_bodies(self, change: Callable[[Function], Function]) -> Node:
        """Return the node with each body changed; the node itself where it has none, or where none changes."""
        if not self.bodies:
            return self
        attributes = tuple(attribute.map_bodies(change) for attribute in self.attributes)
        if all(new is old for new, old in zip(attributes, self.attributes, strict=True)):
            return self
        return replace(self, attributes=attributes)

    @property
    def captures(self) -> tuple[str, ...]:
        """The values that the bodies take from outside, each once, in order of first use."""
        bodies = self.bodies
        if not bodies:
            return ()
        return tuple(dict.fromkeys(name for body in bodies for name in body.captures))

    @property
    def uses(self) -> tuple[str, ...]:
        """Every value that the node reads: its inputs (a value used twice appears twice) and then its captures."""
        read = tuple(filter(None, self.inputs)) if "" in self.inputs else self.inputs
        for attribute in self.attributes:
            if attribute.kind is _GRAPH or attribute.kind is _GRAPHS:
                return read + self.captures
        return read

    @property
    def defines(self) -> Iterator[str]:
        """The values that the node defines, without the left-out ones."""
        return (name for name in self.outputs if name)

    def with_attributes(self, **changes: Any) -> Node:
        """Return the node with those attributes set; None removes one."""
        kept = {a.name: a for a in self.attributes if a.name not in changes}
        kept.update({name: Attribute.of(name, value) for name, value in changes.items() if value is not None})
        return replace(self, attributes=tuple(kept[name] for name in sorted(kept)))


def read_attributes(values: Mapping[str, Any]) -> tuple[Attribute, ...]:
    """Return attributes, sorted by name, from plain values; those that are already Attributes are kept.

    >>> read_attributes({"axis": 1})
    (Attribute(name='axis', kind=<AttrKind.INT: 2>, value=1),)
    """
    return tuple(
        values[name] if isinstance(values[name], Attribute) else Attribute.of(name, values[name]) for name in sorted(values)
    )
