"""Operators that OpenVINO lacks or computes otherwise, said by others: as ONNX defines them, or as `spelling` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from xrt import passes
from xrt.engines.openvino.spelling import spelled
from xrt.errors import ModelError
from xrt.formats.onnx import expanded
from xrt.graph import Constant, Function, Node, Type, Value
from xrt.graph.builder.names import renamed_node

__all__ = ["alone", "meaning_of", "placed", "said_by_others"]

REMEMBERED = 1024
"""Meanings that are kept, so that equal nodes are looked up once."""
SMALL = 64
"""Elements up to which a constant is an axis, a shape or a scale, which a meaning may depend on."""


def meaning_of(node: Node, function: Function) -> Function | None:
    """Return a Function that computes what the node does with other operators, its constant parts computed; None without one.

    Its inputs are called i0, i1 ... after what the node reads, and its outputs o0, o1 ... after the node's.
    """
    return None if node.bodies or node.control else _meaning(alone(node, function))


def said_by_others(function: Function, is_said: Callable[[Node, Function], bool]) -> Function:
    """Return the Function with each node that is to be said so in the words of its meaning.

    The meaning's own nodes are treated likewise.
    """
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        meaning = meaning_of(node, function) if is_said(node, function) else None
        nodes += [node] if meaning is None else placed(said_by_others(meaning, is_said), node, constants, types)
    if len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=tuple(nodes), constants=constants, types=types)


@lru_cache(maxsize=REMEMBERED)
def _meaning(one: Function) -> Function | None:
    try:
        meaning = spelled(one) or expanded(one)
        if meaning is None or meaning.opset() != one.opset():
            return None
        folded = passes.fold_constants(passes.infer_shapes(meaning), passes.evaluated)
    except ModelError:
        return None
    return _with_constants_passed_on(passes.drop_dead_nodes(passes.infer_shapes(folded)))


def _with_constants_passed_on(meaning: Function) -> Function:
    """Return the meaning with an Identity for each result all of which was computed, so that its type counts as a node's does."""
    computed = [value.name for value in meaning.outputs if value.name in meaning.constants]
    if not computed:
        return meaning
    names = {name: f"{name}/constant" for name in computed}
    nodes = tuple(_renamed(node, lambda name: names.get(name, name)) for node in meaning.nodes)
    passed = (Node("Identity", (constant,), (name,)) for name, constant in names.items())
    constants = {names.get(name, name): constant for name, constant in meaning.constants.items()}
    return meaning.replace(nodes=(*nodes, *passed), constants=constants)


def alone(node: Node, function: Function) -> Function:
    """Return the node as a Function under names that do not depend on where it stands."""
    names = _names(node)
    read = dict.fromkeys(filter(None, node.inputs))
    small = {names[name]: c for name in read if (c := function.constants.get(name)) is not None and c.array.size <= SMALL}
    return Function(
        inputs=tuple(Value(names[name], function.type_of(name)) for name in read if names[name] not in small),
        outputs=tuple(Value(names[name], function.type_of(name)) for name in node.outputs if name),
        nodes=(
            replace(node, inputs=tuple(names[n] for n in node.inputs), outputs=tuple(names[n] for n in node.outputs), name="it"),
        ),
        constants=small,
        opsets=function.opsets,
    )


def _names(node: Node) -> dict[str, str]:
    read = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    return read | {name: f"o{k}" for k, name in enumerate(node.outputs) if name} | {"": ""}


def placed(meaning: Function, node: Node, constants: dict[str, Constant], types: dict[str, Type]) -> list[Node]:
    """Return the meaning's nodes under the names of the place where the node stands; constants and types are added.

    The one that gives the node's first result has its name, so that others may run after it.
    """
    names = {new: old for old, new in _names(node).items()}

    def here(name: str) -> str:
        return names.setdefault(name, f"{next(iter(node.defines))}/meaning/{name}")

    known = set(names)
    constants |= {here(name): constant for name, constant in meaning.constants.items() if name not in known}
    types |= {here(name): type_ for name, type_ in meaning.types.items() if name not in known}
    parts = [_renamed(part, here) for part in meaning.nodes]
    first = next(iter(node.defines))
    return [replace(part, name=node.name) if first in part.outputs else part for part in parts]


def _renamed(part: Node, here: Callable[[str], str]) -> Node:
    """Return the node on values of other names, those that its bodies capture too; it has no name of its own."""
    names = {name: here(name) for name in (*part.uses, *part.defines)}
    return replace(renamed_node(part, names, {}), name="", control=())
