"""Operators that IREE has no rules for, or wrong ones, replaced by what ONNX defines them by."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from xrt.engines.iree.constants import INLINE, find_node_constant
from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Constant, Function, Node, Value

__all__ = ["REPLACED", "expand_bodies"]

REPLACED = frozenset({"Attention", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def expand_bodies(function: Function) -> Function:
    """Return the Function with the operators of `REPLACED` replaced, where ONNX's definition can be had for these types."""
    if not any(node.op in REPLACED for node in function.nodes):
        return function
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        body = _body(_alone(node, function)) if node.op in REPLACED else None
        if body is None:
            nodes.append(node)
        else:
            nodes += _inside(body, node, constants)
    return function.replace(nodes=tuple(nodes), constants=constants)


def _alone(node: Node, function: Function) -> Function:
    """Return the node as a Function under names that do not depend on its position."""
    names = {name: f"i{k}" for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    made = {name: f"o{k}" for k, name in enumerate(node.outputs) if name}
    small = {
        new: c for old, new in names.items() if (c := find_node_constant(old, function)) is not None and c.array.size <= INLINE
    }
    given, taken = (tuple(known.get(n, "") for n in of) for known, of in ((made, node.outputs), (names, node.inputs)))
    return Function(
        inputs=tuple(Value(new, function.get_type(old)) for old, new in names.items() if new not in small),
        outputs=tuple(Value(new, function.get_type(old)) for old, new in made.items()),
        nodes=(Node(node.op_type, taken, given, node.attributes, name="node"),),
        constants=small,
        opsets={"": function.opset()},
    )


@lru_cache(maxsize=256)
def _body(function: Function) -> Function | None:
    try:
        body = expand(function)
    except ModelError:
        return None
    return None if body is None or body.opsets.get("") != function.opsets.get("") else body


def _inside(body: Function, node: Node, constants: dict[str, Constant]) -> list[Node]:
    """Return the body's nodes under the names of the Function around the node; its own constants are added."""
    names = {f"i{k}": name for k, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    names |= {f"o{k}": name for k, name in enumerate(node.outputs) if name} | {"": ""}

    def here(name: str) -> str:
        return names.setdefault(name, f"{node.outputs[0]}/body/{name}")

    constants |= {here(name): constant for name, constant in body.constants.items() if name not in names}
    return [
        replace(part, inputs=tuple(map(here, part.inputs)), outputs=tuple(map(here, part.outputs)), name="", control=())
        for part in body.nodes
    ]
