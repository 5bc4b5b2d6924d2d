"""Constant folding: evaluate nodes that depend on constants only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Type
from xrt.graph.function import pause_gc
from xrt.graph.schemas import may_equal
from xrt.operators.rewriting import find_constant
from xrt.operators.traits import is_deterministic
from xrt.passes.inlining import BodyNames, Splice, find_taken_branch
from xrt.passes.shape_inference import Knowledge, infer_shapes

Evaluate = Callable[[Function, list[Any]], Sequence[Any]]
"""Runs a Function on positional inputs and returns its outputs in order."""

MustStay = Callable[[Node, Function], bool]
"""Whether a DequantizeLinear of constants must stay in the Function that contains it."""

LARGEST_BYTES = 64 << 20
"""Limit in bytes for each folded value, including values inside bodies."""

LARGEST_UNKNOWN_BYTES = 1 << 20
"""Limit in bytes for the constant inputs of operators with data-dependent output sizes."""

MOST_TRIPS = 1000
"""A Loop is folded only if it is known to end after at most this many iterations."""

_DATA_SIZED = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose output size depends on the data, but is bounded by a small multiple of the input size."""


def fold_constants(function: Function, evaluate: Evaluate, must_stay: MustStay | None = None) -> Function:
    """Replace the outputs of nodes that read only constants by constants of the same names.

    The pass is one walk over the nodes. Each node's types are inferred from the values folded before it, and an If whose
    condition is constant by then is inlined. A computed shape is a constant as soon as all its elements are known, even if the
    tensor whose shape it is remains unknown. Every other candidate is passed to ``evaluate`` as a Function without inputs.

    A node is not folded if it is random, has no ONNX schema, has control edges, may produce more than `LARGEST_BYTES`, is a
    DequantizeLinear that ``must_stay``, or if its evaluation fails. A node with bodies is folded if all captured values
    are constants; otherwise its bodies are folded. Constants without remaining readers are removed. Call `infer_shapes` first,
    because sizes decide what is folded. Return `function` itself if nothing is folded. Linear time.
    """
    with pause_gc(function.size):
        return _Folding(evaluate, BodyNames(function), must_stay).function(function, None)


def _fill(node: Node, knowledge: Knowledge) -> Constant | None:
    """Evaluate a ConstantOfShape; None if its shape is unknown or invalid or the result too large."""
    shape_constant, value = knowledge.find_constant(node.inputs[0]), node.attr("value")
    if shape_constant is None or shape_constant.dtype is not DType.INT64 or len(shape_constant.shape) != 1:
        return None
    element = np.zeros(1, np.float32) if value is None else value.array.reshape(-1)
    shape: list[int] = shape_constant.array.tolist()
    if element.size != 1 or min(shape, default=0) < 0 or math.prod(shape) * element.itemsize > LARGEST_BYTES:
        return None
    filled = Constant(np.full(shape, element[0], element.dtype))
    return filled if _fits(filled, knowledge.get_type(node.outputs[0])) else None


@dataclass(frozen=True, slots=True)
class _Folding:
    """One walk over a Function and its bodies: infer each node's types, then fold, inline or keep it."""

    evaluate: Evaluate
    names: BodyNames
    must_stay: MustStay | None

    def function(self, function: Function, outer: Knowledge | None) -> Function:
        """Fold a Function; `outer` has the values that a body can capture."""
        splice = Splice(function, self.names)
        knowledge = Knowledge(function, outer, splice.constants, splice.types)
        inlined_names = set[str]()
        while splice.pending:
            node = splice.pending.pop()
            branch = find_taken_branch(node, knowledge.find_constant) if node.bodies else None
            if branch is not None and splice.inline(node, branch):
                inlined_names.update(inner.name for inner in splice.inlined)
                continue
            knowledge.infer(node, again=node.name in inlined_names)  # an If has only the common type of its branches
            results = None
            # A node with control edges orders effects, which a constant cannot.
            if not node.control and node.name not in splice.awaited:
                results = knowledge.list_known_integers(node)
                if results is None and knowledge.reads_constants(node):
                    results = self.node(node, knowledge)
            if results is None:
                splice.nodes.append(self.inside(node, knowledge) if node.bodies else node)
            else:
                splice.constants.update(results)
                knowledge.add_news(results)
        return splice.result()

    def inside(self, node: Node, knowledge: Knowledge) -> Node:
        """Fold the bodies of a node."""
        node = knowledge.refine_bodies(node).map_bodies(lambda body: self.function(body, knowledge))
        knowledge.infer_from_bodies(node)
        return node

    def node(self, node: Node, knowledge: Knowledge) -> dict[str, Constant] | None:
        """The outputs of a node that reads only constants, as constants; None if it cannot be folded."""
        if node.op == "Constant" and (value := find_constant(node, knowledge.function)) is not None:
            return {node.outputs[0]: value}
        if node.op == "ConstantOfShape" and (filled := _fill(node, knowledge)) is not None:
            return {node.outputs[0]: filled}
        # A random operator must draw in each call; one without a schema may have side effects.
        if not is_deterministic(node, knowledge.function):
            return None
        # Engines with integer kernels read the quantized weights.
        if node.op == "DequantizeLinear" and self.must_stay is not None and self.must_stay(node, knowledge.function):
            return None
        if node.bodies:
            isolated = infer_shapes(knowledge.isolate(node))
        else:
            knowledge.infer(node, again=True)
            isolated = knowledge.isolate(node)
        return self.evaluate_isolated(isolated) if _is_bounded(isolated) else None

    def evaluate_isolated(self, isolated: Function) -> dict[str, Constant] | None:
        """Evaluate a Function without inputs; None if that fails or the results do not match the inferred types."""
        try:
            results = self.evaluate(isolated, [])
        except Exception:  # noqa: BLE001  # a node that cannot be evaluated is left to its engine
            return None
        if len(results) != len(isolated.outputs) or not all(isinstance(result, np.ndarray) for result in results):
            return None
        constants = {value.name: Constant(result) for value, result in zip(isolated.outputs, results, strict=True)}
        return constants if all(_fits(constants[value.name], value.type) for value in isolated.outputs) else None


def _is_bounded(isolated: Function) -> bool:
    """Whether a one-node Function terminates and all its values are known to be small."""
    node = isolated.nodes[0]
    if node.op in _DATA_SIZED:
        return sum(constant.nbytes for constant in isolated.constants.values()) <= LARGEST_UNKNOWN_BYTES
    return all(_are_small(holder, inner) for holder, inner in isolated.walk())


def _are_small(function: Function, node: Node) -> bool:
    # A Loop without a constant limit may run for any time, even if its results are small.
    if node.op == "Loop":
        trips = function.constants.get(node.inputs[0])
        if trips is None or int(trips.array.reshape(())) > MOST_TRIPS:
            return False
    return all(_count_bytes(function.get_type(name)) <= LARGEST_BYTES for name in node.defines)


def _count_bytes(type_: Type | None) -> float:
    """Size of a value in bytes, infinity if unknown; a string counts as one pointer."""
    if not isinstance(type_, TensorType) or not type_.is_static:
        return math.inf
    size = type_.nbytes
    return size if size is not None else 8 * math.prod(d for d in type_.shape or () if isinstance(d, int))


def _fits(constant: Constant, type_: Type | None) -> bool:
    """Whether a constant matches the inferred type and is not too large."""
    return constant.nbytes <= LARGEST_BYTES and (type_ is None or may_equal(type_, constant.type))
