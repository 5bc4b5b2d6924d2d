"""A Function before the sweep: types known, at an opset that the rules write, operators without a rule by their definition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from xrt.errors import ModelError
from xrt.formats.onnx.operator_definitions import expand
from xrt.graph import Constant, Function, Node, Type
from xrt.graph.rename import Names, rename_node
from xrt.passes.constant_folding import fold_constants
from xrt.passes.dead_code_elimination import drop_dead_nodes
from xrt.passes.gradient.definitions import DEFINITIONS, define
from xrt.passes.gradient.reasons import MISSING, WITHOUT_GRADIENT
from xrt.passes.gradient.recording import lift_constants, list_names
from xrt.passes.gradient.table import find_rule, may_have_gradient
from xrt.passes.opset_upgrade import upgrade_opset
from xrt.passes.shape_inference import infer_shapes

__all__ = ["OPSET", "expand_body", "prepare"]

OPSET = 18
"""The least opset that the rules write: axes of reductions are inputs, and scatters add."""

SMALL = 64
"""Elements up to which a constant input may decide how an operator is defined."""

DEPTH = 8
"""How often operators are replaced by their definitions; no definition of ONNX's needs more."""


def prepare(function: Function, targets: Collection[str], wanted: Collection[str]) -> Function:
    """Return an equivalent Function in which every node between the wanted values and the targets has a rule, if it can have one.

    Raises ModelError where the Function cannot be brought to `OPSET`.
    """
    prepared = lift_constants(infer_shapes(upgrade_opset(infer_shapes(function), OPSET)))
    for _ in range(DEPTH):
        expanded = _expanded(prepared, _find_path(prepared, targets, wanted))
        if expanded is prepared:
            break
        prepared = lift_constants(expanded)
    return prepared


def expand_body(body: Function) -> Function:
    """Return a body in which nodes with results of floating point are written by operators with rules, as far as they can be."""
    body = lift_constants(body)
    for _ in range(DEPTH):
        floating = {node.name for node in body.nodes if any(may_have_gradient(body.get_type(name)) for name in node.defines)}
        expanded = _expanded(body, floating)
        if expanded is body:
            break
        body = lift_constants(expanded)
    return body


def _find_path(function: Function, targets: Collection[str], wanted: Collection[str]) -> set[str]:
    """Return the names of the nodes by which the targets depend on the wanted values."""
    active, needed = set(wanted), set(targets)
    forward = []
    for node in function.nodes:
        if not active.isdisjoint(node.uses):
            forward.append(node)
            active.update(name for name in node.defines if may_have_gradient(function.get_type(name)))
    path = set()
    for node in reversed(forward):
        if not needed.isdisjoint(node.outputs):
            path.add(node.name)
            needed.update(name for name in node.uses if name in active)
    return path


def _expanded(function: Function, chosen: Collection[str]) -> Function:
    """Return the Function with those of its nodes that have no rule in the words of their definition, once."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    names: Names | None = None
    for node in function.nodes:
        meaning = _find_definition(node, function) if node.name in chosen and not node.control else None
        if meaning is None:
            nodes.append(node)
            continue
        if names is None:
            names = Names()
            for name in list_names(function):
                names.take(name)
        nodes += _spliced(meaning, node, names, constants, types)
    return function if names is None else function.replace(nodes=tuple(nodes), constants=constants, types=types)


def _find_definition(node: Node, function: Function) -> Function | None:
    """Return a node in other operators; None where it has a rule, or no definition."""
    if find_rule(node) or node.op in WITHOUT_GRADIENT or node.op in MISSING:
        return None
    alone = _alone(node, function)
    if node.op in DEFINITIONS:
        return infer_shapes(define(alone))
    try:
        meaning = expand(alone)
        if meaning is None or meaning.opset() > function.opset():
            return None
        newer = upgrade_opset(infer_shapes(_with_constants(meaning, function)), function.opset())
        return drop_dead_nodes(infer_shapes(fold_constants(infer_shapes(newer), _evaluate_nothing)))
    except ModelError:
        return None  # the sweep says that there is no rule


def _evaluate_nothing(function: Function, inputs: list[Any]) -> Sequence[Any]:
    """Leave folding to what is known of shapes, which decides the branches of definitions."""
    raise ModelError(f"{function.name!r} is not computed here")


def _alone(node: Node, function: Function) -> Function:
    """Return the node as a Function of its own, under its own names."""
    return Function(
        inputs=tuple(map(function.value, dict.fromkeys(filter(None, node.inputs)))),
        outputs=tuple(map(function.value, node.defines)),
        nodes=(replace(node, device=""),),
        opsets=function.opsets,
    )


def _with_constants(meaning: Function, function: Function) -> Function:
    """Return the definition with its small constant inputs as constants, from which shapes follow."""
    found = {value.name: constant for value in meaning.inputs if (constant := function.constants.get(value.name)) is not None}
    small = {name: constant for name, constant in found.items() if constant.array.size <= SMALL}
    inputs = tuple(value for value in meaning.inputs if value.name not in small)
    return meaning.replace(inputs=inputs, constants={**meaning.constants, **small}) if small else meaning


def _spliced(
    meaning: Function, node: Node, names: Names, constants: dict[str, Constant], types: dict[str, Type]
) -> Iterator[Node]:
    """Yield the nodes of a definition under names that are free; its constants and types are added to the others.

    The node that makes the first result gets the name of the one that is defined.
    """
    ends = {*filter(None, node.inputs), *node.defines}
    values = {name: names.plain(f"{node.name}/{name}") for name in dict.fromkeys(list_names(meaning)) if name not in ends}
    for name, new in values.items():
        if (constant := meaning.constants.get(name)) is not None:
            constants[new] = constant
        elif (type_ := meaning.get_type(name)) is not None:
            types[new] = type_
    results = [value.name for value in meaning.outputs if not meaning.computes(value.name)]
    passed = [Node("Identity", (values.get(name, name),), (name,)) for name in results]
    first = next(iter(node.defines))
    for inner in (*meaning.nodes, *passed):
        name = node.name if first in inner.outputs else ""
        yield replace(rename_node(inner, values, {}), name=name, control=(), device=node.device)
