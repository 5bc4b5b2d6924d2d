"""Inline control flow that constants decide, and remove dead nodes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from xrt.graph import Constant, Function, Node, TensorType, Value, read_attributes, since_version
from xrt.graph.node import FreshNames
from xrt.passes.splicing import BodyNames, Splice, SplicedBody

__all__ = ["drop_dead_nodes", "find_decided_body", "inline_constant_control_flow"]

Lookup = Callable[[str], Constant | None]
"""Returns the constant of that name, or None if the value is only known at run time."""
_AXES_ARE_AN_INPUT = 13
"""First opset in which Unsqueeze reads its axes from an input."""


def inline_constant_control_flow(function: Function) -> Function:
    """Replace each If with a constant condition, and each Loop of at most one iteration, by its body.

    Nested bodies are processed too. Outputs keep their names; inlined values and nodes are renamed only on a collision. A
    control edge to an inlined node becomes an edge to its last nodes, and its control inputs move to its first ones. Return
    `function` itself if nothing is inlined. Linear time.
    """
    return _inlined(function, {}, BodyNames(function))


def _inlined(function: Function, outer: Mapping[str, Constant], names: BodyNames) -> Function:
    # Most Functions have no bodies and need no tables.
    if not any(node.bodies for node in function.nodes):
        return function
    splice = Splice(function, names)
    given: dict[str, Constant] = {}  # values of Constant nodes, which are kept
    # Constant nodes are collected too: a condition may come from one.
    scope: ChainMap[str, Constant] = ChainMap(given, splice.constants, outer)  # type: ignore[arg-type]  # only the first map is written
    for node in splice.iter_pending():
        body = find_decided_body(node, scope.get, function.opsets.get("", 0))
        if body is None or not splice.inline(node, body):
            splice.nodes.append(node.map_bodies(lambda inner: _inlined(inner, scope, names)))
            if node.op == "Constant" and isinstance(value := node.attr("value"), Constant):
                given[node.outputs[0]] = value
    return splice.result()


def find_decided_body(node: Node, lookup: Lookup, opset: int) -> SplicedBody | None:
    """The body that runs in place of an If or Loop that constants decide; None for any other node."""
    if node.op == "If":
        taken = _flag(lookup(node.inputs[0]))
        return None if taken is None else _branch(node, taken)
    return _turns(node, lookup, opset) if node.op == "Loop" else None


def _flag(constant: Constant | None) -> bool | None:
    return None if constant is None or constant.array.size != 1 else bool(constant.array.reshape(()))


def _branch(node: Node, taken: bool) -> SplicedBody | None:
    branch = node.attr("then_branch" if taken else "else_branch")
    if not isinstance(branch, Function) or len(branch.outputs) != len(node.outputs):
        return None
    return SplicedBody(branch, _pairs(branch.outputs, node.outputs))


def _pairs(results: Sequence[Value], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((value.name, name) for value, name in zip(results, names, strict=True) if name)


def _turns(node: Node, lookup: Lookup, opset: int) -> SplicedBody | None:
    """The body of a Loop that runs at most once, or None."""
    body, carried = node.attr("body"), node.inputs[2:]
    limit, condition = (*node.inputs, "", "")[:2]
    flag = lookup(condition) if condition else Constant(np.array(True))
    count = _count(lookup(limit)) if limit else None
    fits = isinstance(body, Function) and (len(body.inputs), len(body.outputs)) == (len(carried) + 2, len(node.outputs) + 1)
    if not fits or not all(carried):
        return None
    if _flag(flag) is False or (count is not None and count <= 0):
        # Scan outputs of a Loop without iterations have a shape that only the declared type knows.
        stacked = any(node.outputs[len(carried) :])
        # Without an iteration the carried values pass through unchanged.
        ends = body.inputs[2:]
        return (
            None
            if stacked
            else SplicedBody(Function(ends, ends), _pairs(ends, node.outputs[: len(carried)]), _given(ends, carried))
        )
    if flag is None or _flag(flag) is None or count != 1:
        return None
    closed = _one_turn(body, flag, len(carried), opset)
    return SplicedBody(closed, _pairs(closed.outputs, node.outputs), _given(closed.inputs, carried))


def _count(constant: Constant | None) -> int | None:
    return None if constant is None or constant.array.size != 1 else int(constant.array.reshape(()))


def _given(inputs: Sequence[Value], names: Sequence[str]) -> dict[str, str]:
    return {value.name: name for value, name in zip(inputs, names, strict=True)}


def _one_turn(body: Function, flag: Constant, carried: int, opset: int) -> Function:
    """Close the body over the first iteration; scan outputs get a leading axis of 1."""
    # The first iteration has number 0, and its condition is the loop's.
    step, go = (value.name for value in body.inputs[:2])
    constants = {**body.constants, step: Constant(np.array(0)), go: _shaped_like(flag, body.inputs[1])}
    names = FreshNames.of(body)
    nodes, outputs = list(body.nodes), list(body.outputs[1 : carried + 1])
    for value in body.outputs[carried + 1 :]:
        name, axes = (names.take(f"{value.name}_{what}") for what in ("stacked", "axes"))
        if opset < _AXES_ARE_AN_INPUT:
            nodes.append(Node("Unsqueeze", (value.name,), (name,), read_attributes({"axes": (0,)})))
        else:
            constants[axes] = Constant(np.array([0]))
            nodes.append(Node("Unsqueeze", (value.name, axes), (name,)))
        outputs.append(Value(name))
    return body.replace(inputs=body.inputs[2:], outputs=tuple(outputs), nodes=tuple(nodes), constants=constants)


def _shaped_like(flag: Constant, value: Value) -> Constant:
    """Reshape the condition to the rank that the body declares: ONNX allows a scalar and a tensor of one element."""
    rank = value.type.rank if isinstance(value.type, TensorType) else None
    return flag if rank is None or rank == len(flag.shape) else Constant(flag.array.reshape((1,) * rank))


def drop_dead_nodes(function: Function) -> Function:
    """Remove nodes, constants and types that no output depends on, in nested bodies too.

    ONNX operators have no side effects, random ones included. An operator of a custom domain may have one, so such a node stays,
    together with its inputs and control predecessors. Function inputs and outputs stay. Return `function` itself if nothing is
    removed. Linear time.
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
    """The live nodes in order, and the values that they and the outputs read."""
    values = {value.name for value in function.outputs}
    names: set[str] = set()
    kept = []
    for node in reversed(list(nodes)):  # topological order: one backward sweep suffices
        if node.name in names or not values.isdisjoint(node.outputs) or _may_have_effect(node, function):
            kept.append(node)
            values.update(node.uses)
            names.update(node.control)
    return tuple(reversed(kept)), values


def _may_have_effect(node: Node, function: Function) -> bool:
    """Whether the node is, or contains, an operator without an ONNX schema."""
    if since_version(node, function) is None:
        return True
    return any(_may_have_effect(inner, body) for body in node.bodies for inner in body.nodes)
