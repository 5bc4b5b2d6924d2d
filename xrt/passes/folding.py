"""Compute once what depends on constants alone."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.graph import Constant, Function, Node, TensorType, Type, is_deterministic
from xrt.passes.shapes import infer_shapes

__all__ = ["LARGEST_BYTES", "Evaluate", "fold_constants", "known_value"]

Evaluate = Callable[[Function, list[Any]], Sequence[Any]]
"""Runs a Function on inputs, in order, and returns its outputs, in order."""

LARGEST_BYTES = 64 << 20
"""No value larger than this is computed, neither as a result nor inside of a body."""

LARGEST_UNKNOWN_BYTES = 1 << 20
"""Operators whose output is as large as the data decide are computed on constants of at most this size."""

MOST_TRIPS = 1000
"""A Loop is computed only where it is known to end after at most so many iterations."""

_DATA_SIZED = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose output sizes depend on the data, but are at most a small multiple of the input's."""


def fold_constants(function: Function, evaluate: Evaluate) -> Function:
    """Return the Function with the outputs of nodes that read constants only as constants, under the same names.

    The Shape of a value whose extents are all numbers is a constant too, whatever its value.
    Each such node is handed to ``evaluate`` as a Function without inputs. A node stays where it is random, of a domain
    that onnx does not describe, part of a control edge, not known beforehand to give tensors of at most `LARGEST_BYTES`,
    or where the evaluation fails. Nodes with bodies are folded where all they capture is constant; otherwise the
    bodies are folded inside. Constants that only folded nodes have read are dropped. The function itself is
    returned where nothing is folded. Infer shapes first: it says how large the results are.
    """
    return _Folding(evaluate).function(function, {})


def known_value(node: Node, function: Function) -> Constant | None:
    """Return what the node gives where that needs no computing, None elsewhere: a Constant, or the Shape of a static value."""
    if node.op == "Constant":
        return _constant(node)
    type_ = function.type_of(node.inputs[0]) if node.op == "Shape" else None
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    extents = (type_.shape or ())[node.attr("start", 0) : node.attr("end")]
    return Constant(np.array(extents, np.int64))


_PLAIN_VALUES = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
"""Element types of what Constant says without a tensor."""


def _constant(node: Node) -> Constant | None:
    for name, dtype in _PLAIN_VALUES.items():
        if (value := node.attr(name)) is not None:
            return Constant(np.array(value, dtype))
    value = node.attr("value")
    return value if isinstance(value, Constant) else None


@dataclass(frozen=True, slots=True)
class _Folding:
    evaluate: Evaluate

    def function(self, function: Function, outer: Mapping[str, Constant]) -> Function:
        """Return the Function folded; ``outer`` are the constants around a body."""
        constants: dict[str, Constant] = dict(function.constants)
        scope = ChainMap(constants, outer)  # type: ignore[arg-type]  # only the first map is ever written to
        needed = {name for node in function.nodes for name in node.control}
        nodes = []
        for node in function.nodes:
            results = None if node.control or node.name in needed else self.node(node, function, scope)
            if results is None:
                nodes.append(node.map_bodies(lambda body: self.function(body, scope)))
            else:
                constants.update(results)
        if all(new is old for new, old in zip(nodes, function.nodes, strict=False)) and len(nodes) == len(function.nodes):
            return function
        unread = _read(function.nodes, function) - _read(nodes, function)
        types = {name: type_ for name, type_ in function.types.items() if name not in constants}
        kept = {name: constant for name, constant in constants.items() if name not in unread}
        return function.replace(nodes=tuple(nodes), constants=kept, types=types)

    def node(self, node: Node, function: Function, scope: Mapping[str, Constant]) -> dict[str, Constant] | None:
        """Return the node's outputs as constants, None where it has to stay."""
        if (value := known_value(node, function)) is not None:
            return {node.outputs[0]: value}
        if not all(name in scope for name in node.uses) or not is_deterministic(node, function):
            return None
        alone = infer_shapes(_alone(node, function, scope))
        return self.computed(alone) if _is_bounded(alone) else None

    def computed(self, alone: Function) -> dict[str, Constant] | None:
        """Return the outputs of a Function without inputs; None where they cannot be had, or are no tensors as announced."""
        try:
            results = self.evaluate(alone, [])
        except Exception:  # noqa: BLE001  # whatever an evaluator cannot do is left to the engine that will run the node
            return None
        if len(results) != len(alone.outputs) or not all(isinstance(result, np.ndarray) for result in results):
            return None
        found = {value.name: Constant(result) for value, result in zip(alone.outputs, results, strict=True)}
        return found if all(_fits(found[value.name], value.type) for value in alone.outputs) else None


def _read(nodes: Sequence[Node], function: Function) -> set[str]:
    """Return every value that the nodes read or define, or the function returns."""
    values = {name for node in nodes for name in (*node.uses, *node.outputs)}
    return values.union(value.name for value in function.outputs)


def _alone(node: Node, function: Function, scope: Mapping[str, Constant]) -> Function:
    """Return the node as a Function without inputs."""
    return Function(
        inputs=(),
        outputs=tuple(function.value(name) for name in dict.fromkeys(node.defines)),
        nodes=(node,),
        constants={name: scope[name] for name in dict.fromkeys(node.uses)},
        opsets=function.opsets,
        name=node.name,
    )


def _is_bounded(alone: Function) -> bool:
    """Whether a one-node Function is known to make no value that is too large, and to end."""
    node = alone.nodes[0]
    if node.op in _DATA_SIZED:
        return sum(constant.nbytes for constant in alone.constants.values()) <= LARGEST_UNKNOWN_BYTES
    return all(_are_small(holder, inner) for holder, inner in alone.walk())


def _are_small(function: Function, node: Node) -> bool:
    if node.op == "Loop" and not _trips(node, function) <= MOST_TRIPS:
        return False
    return all(_nbytes(function.type_of(name)) <= LARGEST_BYTES for name in node.defines)


def _trips(node: Node, function: Function) -> float:
    """Return the most iterations that a Loop can take, infinity where no constant of the Function limits it."""
    limit = function.constants.get(node.inputs[0])
    return math.inf if limit is None else int(limit.array.reshape(()))


def _nbytes(type_: Type | None) -> float:
    """Return the bytes that a value takes, infinity where that is not known; a string counts as a pointer."""
    if not isinstance(type_, TensorType) or not type_.is_static:
        return math.inf
    size = type_.nbytes
    return size if size is not None else 8 * math.prod(d for d in type_.shape or () if isinstance(d, int))


def _fits(constant: Constant, type_: Type | None) -> bool:
    """Whether a result is of the type that was announced, as far as one was."""
    if constant.nbytes > LARGEST_BYTES:
        return False
    if not isinstance(type_, TensorType):
        return type_ is None
    if type_.dtype is not constant.dtype or type_.shape is None:
        return type_.dtype is constant.dtype
    return len(type_.shape) == len(constant.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(type_.shape, constant.shape, strict=True)
    )
