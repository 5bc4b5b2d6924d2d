"""Simplification before partitioning: inline each If with a constant condition, fold constants, remove dead nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value, since_version
from xrt.graph.function import pause_gc
from xrt.graph.node import FreshNames, list_definitions, rename_node
from xrt.graph.types import may_equal
from xrt.operators.rewriting import find_node_constant
from xrt.operators.traits import is_deterministic
from xrt.passes.shape_inference import Knowledge, infer_shapes

Evaluate = Callable[[Function, list[Any]], Sequence[Any]]
"""Runs a Function on positional inputs, and returns its outputs in order."""
MustStay = Callable[[Node, Function], bool]
"""Predicate of a DequantizeLinear node of constants and its Function: whether the node must not be folded."""


def optimize(function: Function, evaluate: Evaluate | None = None, must_stay: MustStay | None = None) -> Function:
    """Expand Gradient nodes, inline constant control flow, fold constants and remove dead nodes.

    The types of ``function`` must be inferred (`infer_shapes`). Without ``evaluate``, constants are not folded.
    """
    if "ai.onnx.preview.training" in function.opsets:
        from xrt.passes.gradient.differentiation import expand_gradient_nodes  # imported only if needed

        expanded = expand_gradient_nodes(function)
        function = function if expanded is function else infer_shapes(expanded)
    while True:
        if evaluate is None:
            folded = inline_constant_control_flow(function)
        else:
            folded = fold_constants(function, evaluate, must_stay)
        live = drop_dead_nodes(folded)
        # Without bodies and control edges, one round suffices. With bodies, types that are inferred after a round may allow
        # another. So may control edges of removed nodes: a node at which a control edge starts is not folded.
        has_bodies = any(node.bodies for node in function.nodes)
        inferred = infer_shapes(live) if folded is not function and has_bodies else live
        has_lost_edges = live is not folded and any(node.control for _, node in folded.walk())
        if inferred is live and not has_lost_edges:
            return live
        function = inferred


_ANY_TYPE_OPSET = 16
"""First opset in which Identity supports sequences and optionals."""


def inline_constant_control_flow(function: Function) -> Function:
    """Replace each If with a condition that is known before a call by its branch, in bodies too.

    Outputs keep their names; inlined values and nodes are renamed only on a collision. An If with control edges stays. Return
    ``function`` itself if nothing is inlined. Linear time.
    """
    # Most Functions have no bodies and need no tables.
    if not any(node.bodies for node in function.nodes):
        return function
    return _Folding(FreshNames.for_function(function), is_enabled=False).fold_function(function, None)


class Splice:
    """A Function that is rewritten node by node. An If can be replaced by the nodes of its branch.

    The caller pops each node from `pending`, and either appends it to `nodes`, replaces it (`inline`), or drops it because its
    outputs were added to `constants`.
    """

    def __init__(self, function: Function, names: FreshNames) -> None:
        self.function = function
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = {}  # of the values of inlined branches
        self.nodes: list[Node] = []  # of the result, in order
        self._names = names
        self.pending = list(reversed(function.nodes))
        """A stack of the nodes that are not rewritten yet. The nodes of an inlined branch are pushed onto it."""
        self.inlined_names: set[str] = set()  # of nodes
        self.control_predecessors = {name for node in function.nodes for name in node.control}
        """Names of nodes at which control edges start. These nodes cannot be replaced."""

    @cached_property
    def _node_names(self) -> FreshNames:
        return FreshNames((node.name for node in self.function.nodes), start=2)

    def inline(self, node: Node, branch: Function) -> bool:
        """Push the branch onto `pending` instead of ``node``, renamed on collisions; return False if that is impossible."""
        # (Name in the branch, name outside) of each result.
        results = [(value.name, name) for value, name in zip(branch.outputs, node.outputs, strict=True) if name]
        if node.control or node.name in self.control_predecessors or not _can_be_copied(branch, results, self.function):
            return False
        new_names = self._rename_values(node, branch, results)
        self._node_names.release(node.name)
        new_node_names = {inner.name: self._node_names.take(inner.name) for inner in branch.nodes}
        inlined = [rename_node(inner, new_names, new_node_names) for inner in branch.nodes]
        for result, name in results:
            # A result that no node of the branch computes, or that is returned twice, is copied.
            if branch.producer(result) is None or new_names[result] != name:
                source = new_names.get(result, result)
                inlined.append(Node("Identity", (source,), (name,), name=self._node_names.take(name)))
        result_names = {name for _, name in results}
        for name in branch.value_names():
            new_name, type_ = new_names.get(name, name), branch.get_type(name)
            if type_ is not None and new_name not in result_names and new_name not in self.constants:
                self.types[new_name] = type_
        self.pending += [replace(inner, device=inner.device or node.device) for inner in reversed(inlined)]
        self.inlined_names.update(inner.name for inner in inlined)
        self.control_predecessors.update(name for inner in inlined for name in inner.control)
        return True

    def _rename_values(self, node: Node, branch: Function, results: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Map the name of each value that the branch defines, nested bodies included, to the name outside of the branch."""
        for body in node.bodies:
            for name in list_definitions(body):
                self._names.release(name)
        new_names: dict[str, str] = {}
        for result, name in results:
            if branch.producer(result) is not None:
                # The node writes the name outside directly, which saves an Identity.
                new_names.setdefault(result, name)
        captured = frozenset(branch.captures)
        for name in dict.fromkeys(list_definitions(branch)):
            if name not in new_names and name not in captured:
                new_names[name] = self._names.take(name)
        self.constants.update((new_names[name], constant) for name, constant in branch.constants.items())
        return new_names

    def finish(self) -> Function:
        """Make the rewritten Function, without constants that nothing reads; the original if nothing changed."""
        function = self.function
        pairs = zip(self.nodes, function.nodes, strict=False)
        if len(self.nodes) == len(function.nodes) and all(new is old for new, old in pairs):
            return function
        nodes = tuple(self.nodes)
        outputs = {value.name for value in function.outputs}
        read_values = outputs.union(*(node.uses for node in nodes))
        types = {name: type_ for name, type_ in {**function.types, **self.types}.items() if name not in self.constants}
        return function.replace(
            nodes=nodes,
            outputs=tuple(Value(v.name, self.types.get(v.name, v.type)) for v in function.outputs),
            constants={name: constant for name, constant in self.constants.items() if name in read_values},
            types={name: type_ for name, type_ in types.items() if name not in outputs},
        )


def _can_be_copied(branch: Function, results: Sequence[tuple[str, str]], function: Function) -> bool:
    """Whether Identity supports the type of every result that `Splice.inline` must copy."""
    if function.opsets.get("", 0) >= _ANY_TYPE_OPSET:
        return True
    computed = [result for result, _ in results if branch.producer(result) is not None]
    copied = [name for result, name in results if result not in computed or computed.count(result) > 1]
    return all(isinstance(function.get_type(name), TensorType) for name in copied)


MAX_FOLDED_BYTES = 64 << 20
"""A node is folded only if each of its values, also in bodies, has at most this many bytes."""
MAX_DATA_SIZED_BYTES = 1 << 20
"""An operator of `_DATA_SIZED_OPERATORS` is folded only if its inputs together have at most this many bytes."""
MAX_ITERATIONS = 1000
"""A Loop is folded only if it is known to end after at most this many iterations."""
_DATA_SIZED_OPERATORS = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose output size depends on the data, but is bounded by a small multiple of the input size."""


def fold_constants(function: Function, evaluate: Evaluate | None = None, must_stay: MustStay | None = None) -> Function:
    """Replace the outputs of nodes that read only constants by constants of the same names. Infer types first.

    In one walk over the nodes, the types of each node are inferred from the values that were folded before, and an If whose
    condition became constant is inlined. A computed shape is folded if all its elements are known, even if the tensor with this
    shape is only computed at run time. Any other node to fold is passed to ``evaluate`` as a Function without inputs; without
    ``evaluate``, only Constant, ConstantOfShape and computed shapes are folded.

    A node is not folded if it is random, has no ONNX schema, has control edges, may compute more than `MAX_FOLDED_BYTES`, is a
    DequantizeLinear selected by ``must_stay``, or if its evaluation fails. A node with bodies is folded if all captured values
    are constants; otherwise the nodes in its bodies are folded. Constants without readers are removed. Return
    ``function`` itself if nothing is folded. Linear time.
    """
    has_bodies = any(node.bodies for node in function.nodes)
    names = FreshNames.for_function(function) if has_bodies else FreshNames()  # only branches are renamed
    with pause_gc(function.size):
        return _Folding(names, evaluate, must_stay).fold_function(function, None)


def _fill(node: Node, knowledge: Knowledge) -> Constant | None:
    """Evaluate a ConstantOfShape; None if its shape is unknown or invalid, or the result too large."""
    shape_constant, value = knowledge.find_constant(node.inputs[0]), node.attr("value")
    if shape_constant is None or shape_constant.dtype is not DType.INT64 or len(shape_constant.shape) != 1:
        return None
    element = np.zeros(1, np.float32) if value is None else value.array.reshape(-1)
    shape: list[int] = shape_constant.array.tolist()
    if element.size != 1 or min(shape, default=0) < 0 or math.prod(shape) * element.itemsize > MAX_FOLDED_BYTES:
        return None
    filled = Constant(np.full(shape, element[0], element.dtype))
    return filled if _fits(filled, knowledge.get_type(node.outputs[0])) else None


@dataclass(frozen=True, slots=True)
class _Folding:
    """Walks over a Function and its bodies: infers the types of each node, then folds, inlines or keeps the node."""

    names: FreshNames
    evaluate: Evaluate | None = None
    must_stay: MustStay | None = None
    is_enabled: bool = True
    """False to inline only."""

    def fold_function(self, function: Function, outer: Knowledge | None) -> Function:
        """Fold the nodes of a Function; ``outer`` is the Knowledge of the enclosing Function, or None."""
        splice = Splice(function, self.names)
        knowledge = Knowledge(function, outer, splice.constants, splice.types)
        while splice.pending:
            node = splice.pending.pop()
            branch = knowledge.find_taken_branch(node)
            if branch is not None and splice.inline(node, branch):
                continue
            # An inlined node may have a more precise type than the If, which has the common type of its branches.
            knowledge.infer(node, again=node.name in splice.inlined_names)
            results = None
            # A node with control edges orders effects, which a constant cannot.
            has_control = node.control or node.name in splice.control_predecessors
            if self.is_enabled and not has_control:
                results = knowledge.list_known_integers(node)
                if results is None and knowledge.reads_constants(node):
                    results = self.fold_node(node, knowledge)
            if results is None:
                if node.bodies:
                    node = knowledge.refine_bodies(node).map_bodies(lambda body: self.fold_function(body, knowledge))
                    knowledge.infer_from_bodies(node)
                splice.nodes.append(node)
            else:
                splice.constants.update(results)
                knowledge.learn_constants(results)
        return splice.finish()

    def fold_node(self, node: Node, knowledge: Knowledge) -> dict[str, Constant] | None:
        """Return the outputs of a node that reads only constants as constants, by name; None if it cannot be folded."""
        if node.op == "Constant" and (value := find_node_constant(node, knowledge.function)) is not None:
            return {node.outputs[0]: value}
        if node.op == "ConstantOfShape" and (filled := _fill(node, knowledge)) is not None:
            return {node.outputs[0]: filled}
        # A random operator must draw new numbers in each call; an operator without a schema may have side effects.
        if self.evaluate is None or not is_deterministic(node, knowledge.function):
            return None
        # Engines with integer kernels read the quantized weights.
        if node.op == "DequantizeLinear" and self.must_stay is not None and self.must_stay(node, knowledge.function):
            return None
        if node.bodies:
            isolated = infer_shapes(knowledge.isolate(node))
        else:
            knowledge.infer(node, again=True)
            isolated = knowledge.isolate(node)
        return _evaluate(isolated, self.evaluate) if _is_bounded(isolated) else None


def _evaluate(isolated: Function, evaluate: Evaluate) -> dict[str, Constant] | None:
    """Evaluate a Function without inputs; None if that fails or the results do not match the inferred types."""
    try:
        results = evaluate(isolated, [])
    except Exception:  # noqa: BLE001  # a node that cannot be evaluated is left to its engine
        return None
    if len(results) != len(isolated.outputs) or not all(isinstance(result, np.ndarray) for result in results):
        return None
    constants = {value.name: Constant(result) for value, result in zip(isolated.outputs, results, strict=True)}
    return constants if all(_fits(constants[value.name], value.type) for value in isolated.outputs) else None


def _is_bounded(isolated: Function) -> bool:
    """Whether a one-node Function terminates and all its values are known to be small."""
    node = isolated.nodes[0]
    if node.op in _DATA_SIZED_OPERATORS:
        return sum(constant.nbytes for constant in isolated.constants.values()) <= MAX_DATA_SIZED_BYTES
    return all(_are_small(holder, inner) for holder, inner in isolated.walk())


def _are_small(function: Function, node: Node) -> bool:
    # A Loop without a constant limit may never end, even if its results are small.
    if node.op == "Loop":
        trip_count = function.constants.get(node.inputs[0])
        if trip_count is None or int(trip_count.array.reshape(())) > MAX_ITERATIONS:
            return False
    return all(_count_bytes(function.get_type(name)) <= MAX_FOLDED_BYTES for name in node.defined_names)


def _count_bytes(type_: Type | None) -> float:
    """Count the bytes of a value; infinity if the size is unknown. A string counts as one pointer."""
    if not isinstance(type_, TensorType) or not type_.is_static:
        return math.inf
    if type_.nbytes is not None:
        return type_.nbytes
    return 8 * math.prod(dim for dim in type_.shape or () if isinstance(dim, int))


def _fits(constant: Constant, type_: Type | None) -> bool:
    """Whether a constant matches the inferred type and is not too large."""
    return constant.nbytes <= MAX_FOLDED_BYTES and (type_ is None or may_equal(type_, constant.type))


def drop_dead_nodes(function: Function) -> Function:
    """Remove nodes, constants and types on which no output depends, in nested bodies too.

    A node of an operator without an ONNX schema stays, because it may have side effects, and so do its inputs and control
    predecessors. Return ``function`` itself if nothing is removed. Linear time.
    """
    trimmed = [node.map_bodies(drop_dead_nodes) for node in function.nodes]
    nodes, read_values = _find_live(function, trimmed)
    constants = {name: constant for name, constant in function.constants.items() if name in read_values}
    live_values = {name for node in nodes for name in node.defined_names} | read_values
    types = {name: type_ for name, type_ in function.types.items() if name in live_values}
    has_all_nodes = len(nodes) == len(trimmed) and all(new is old for new, old in zip(trimmed, function.nodes, strict=True))
    if has_all_nodes and len(constants) == len(function.constants) and len(types) == len(function.types):
        return function
    return function.replace(nodes=nodes, constants=constants, types=types)


def _find_live(function: Function, nodes: Iterable[Node]) -> tuple[tuple[Node, ...], set[str]]:
    """Find the nodes to keep, in order, and the names of the values that these nodes read or the Function returns."""
    read_values = {value.name for value in function.outputs}
    control_predecessors: set[str] = set()
    live = []
    # The nodes are in topological order, so one backward sweep suffices.
    for node in reversed(list(nodes)):
        is_read = node.name in control_predecessors or not read_values.isdisjoint(node.outputs)
        if is_read or _may_have_effect(node, function):
            live.append(node)
            read_values.update(node.uses)
            control_predecessors.update(node.control)
    return tuple(reversed(live)), read_values


def _may_have_effect(node: Node, function: Function) -> bool:
    """Whether the node is, or contains, an operator without an ONNX schema."""
    if since_version(node, function) is None:
        return True
    return any(_may_have_effect(inner, body) for body in node.bodies for inner in body.nodes)
