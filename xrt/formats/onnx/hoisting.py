"""Large constants that lie deep inside of a Function, brought up to where they can be handed over by reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from xrt.formats.onnx.names import FreshNames
from xrt.graph import Constant, Function, Node
from xrt.graph.rename import rename_function

__all__ = ["hoist"]


def hoist(function: Function, is_large: Callable[[Constant], bool]) -> Function:
    """Return an equivalent Function that has the large constants of its bodies, and of Constant nodes, as its own.

    Bodies then capture them, under names that are new to the whole Function. What a body or the Function gives out, and a
    Constant node that takes part in a control edge, stay where they are. The function itself is returned where nothing moves.
    """
    hoist = _Hoist(is_large, FreshNames(function))
    nodes = tuple(node.map_bodies(hoist.body) for node in function.nodes)
    own = _constant_nodes(function, is_large)
    if not own and not hoist.found:
        return function
    types = {name: type_ for name, type_ in function.types.items() if name not in own}
    return function.replace(nodes=_others(nodes, own), constants={**function.constants, **own, **hoist.found}, types=types)


@dataclass(slots=True)
class _Hoist:
    is_large: Callable[[Constant], bool]
    fresh: FreshNames
    found: dict[str, Constant] = field(default_factory=dict)

    def body(self, function: Function) -> Function:
        """Return the body without the constants that are `found` in it and in the bodies inside of it."""
        nodes = tuple(node.map_bodies(self.body) for node in function.nodes)
        given = {value.name for value in function.outputs}
        large = {name: c for name, c in function.constants.items() if name not in given and self.is_large(c)}
        large.update(_constant_nodes(function, self.is_large))
        if not large and all(new is old for new, old in zip(nodes, function.nodes, strict=True)):
            return function
        names = {name: self.fresh.like(name) for name in large}
        self.found.update((names[name], constant) for name, constant in large.items())
        rest = {name: constant for name, constant in function.constants.items() if name not in large}
        types = {name: type_ for name, type_ in function.types.items() if name not in large}
        return rename_function(function.replace(nodes=_others(nodes, large), constants=rest, types=types), names, {})


def _constant_nodes(function: Function, is_large: Callable[[Constant], bool]) -> dict[str, Constant]:
    """Return, by the name of their output, the large values of Constant nodes that need not be nodes."""
    kept = {value.name for value in function.outputs}
    awaited = {name for node in function.nodes for name in node.control}
    found: dict[str, Constant] = {}
    for node in function.nodes:
        if node.op == "Constant" and not node.control and node.name not in awaited and node.outputs[0] not in kept:
            value = node.attr("value")
            if isinstance(value, Constant) and is_large(value):
                found[node.outputs[0]] = value
    return found


def _others(nodes: Sequence[Node], constants: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes that do not define one of those constants."""
    return tuple(node for node in nodes if not (node.op == "Constant" and node.outputs[0] in constants))
