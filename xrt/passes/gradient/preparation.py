"""Differentiation of a list of nodes: prepare them (types, opset, decompositions), then sweep from the last node to the first.

Griewank and Walther, *Evaluating Derivatives* (2008), chapter 3: the gradient of a value is the sum of the contributions of its
readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.builder.builder import Builder
from xrt.errors import ModelError
from xrt.formats.onnx import upgrade_opset
from xrt.formats.onnx.inference import node_types
from xrt.graph import Function, Node
from xrt.graph.node import list_names
from xrt.operators import Trait, as_function, decompose_nodes, is_deterministic, list_operators
from xrt.passes.decomposition import find_decomposition
from xrt.passes.gradient.table import RULES, Rule, RuleContext, add_up, may_have_gradient, refuse
from xrt.passes.shape_inference import infer_shapes
from xrt.passes.simplification import drop_dead_nodes, fold_constants

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def new_builder(function: Function) -> Builder:
    """Create an empty builder with the opsets of the Function."""
    return Builder(function.name, opsets=dict(function.opsets), inference=node_types)


def continue_function(function: Function) -> tuple[Builder, dict[str, Tensor]]:
    """Create a builder that contains the nodes of the Function; return it and its tensors of the Function's values, by name."""
    builder = new_builder(function)
    for name in list_names(function):
        builder.names.reserve(name)
    builder.nodes = list(function.nodes)
    builder.constants = dict(function.constants)
    builder.types = {name: type_ for node in function.nodes for name in node.defines if (type_ := function.get_type(name))}
    builder.inputs = [builder.tensor(value.name, value.type) for value in function.inputs]
    return builder, {name: builder.tensor(name, function.get_type(name)) for name in function.value_names()}


DEFINITIONS: dict[str, Rule] = {}
"""Decompositions of operators that ONNX defines only in prose; each returns the outputs of the node in order."""


def define(isolated: Function) -> Function:
    """Decompose a one-node Function by its entry in `DEFINITIONS`; raises ModelError for an output that it does not define."""
    (node,) = isolated.nodes
    builder = new_builder(isolated)
    with builder:
        tensors = {value.name: builder.input(value.name, value.type) for value in isolated.inputs}
        tensors.update((name, builder.constant(constant)) for name, constant in isolated.constants.items())
        # Without outputs: a definition computes them, so there are no tensors for them yet.
        context = RuleContext(replace(node, outputs=()), tensors, (), frozenset(), builder)
        results = dict(zip(node.outputs, DEFINITIONS[node.op](context), strict=False))
        for name in node.defines:
            value = results.get(name)
            if value is None:
                context.refuse(f"its output {name!r} is not defined by other operators")
            builder.output(value, name)
    return builder.function()


_STEP = "it is constant between its steps"
_DRAWN = "what it draws does not depend on its input"
_SHAPE = "it reads shapes and types only"
WITHOUT_GRADIENT: Mapping[str, str] = {
    **dict.fromkeys(list_operators(Trait.DISCONTINUOUS), _STEP),
    **dict.fromkeys(list_operators(Trait.RANDOM), _DRAWN),
    **dict.fromkeys(list_operators(Trait.READS_SHAPE), _SHAPE),
}
"""Operators with zero gradient, each with the reason. Integers and booleans have no gradient either, whatever their operator."""
_SEQUENCES = "gradients of sequences are not computed; Split and Concat do the same with tensors"
_QUANTIZED = "its results are integers, or scales that depend on the largest element"
_NO_RULE_YET = "its rule is not written yet"
MISSING: Mapping[str, str] = {
    "CumProd": "its gradient is a quotient by elements that may be 0",
    "Det": "its gradient is the inverse of the matrix, which no operator of ONNX computes",
    "DFT": _NO_RULE_YET,
    "STFT": _NO_RULE_YET,
    "Col2Im": _NO_RULE_YET,
    "DeformConv": _NO_RULE_YET,
    "GridSample": _NO_RULE_YET,
    "LinearAttention": "its definition is a Scan inside of which ranks are not known",
    "MaxRoiPool": _NO_RULE_YET,
    "RoiAlign": _NO_RULE_YET,
    "DynamicQuantizeLinear": _QUANTIZED,
    "DequantizeLinear": _NO_RULE_YET,
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceMap"),
            *("SplitToSequence", "Optional", "OptionalGetElement"),
        ),
        _SEQUENCES,
    ),
}
"""Operators with neither a rule nor a decomposition that can be differentiated, each with the reason."""


def describe_missing(node: Node) -> str:
    """Explain why a node has no gradient."""
    return MISSING.get(node.op, "there is no rule for it, and ONNX does not define it by other operators")


OPSET = 18
"""Lowest opset that the rules emit: reductions take axes as inputs, and scatters have reduction="add"."""


def prepare(function: Function, targets: Collection[str], sources: Collection[str]) -> Function:
    """Convert a Function to `OPSET`, and decompose the nodes without a rule on the paths from `sources` to `targets`.

    Raises ModelError if the conversion fails.
    """
    # The converter needs types, and some values that it returns have none: infer before and after.
    prepared = _fold(infer_shapes(upgrade_opset(infer_shapes(function), OPSET)))
    path = _find_path(prepared, targets, sources)
    skipped = {id(node) for node in prepared.nodes if node.name not in path}
    prepared = _fold(decompose_nodes(prepared, lambda node, fn: None if id(node) in skipped else _decompose_floating(node, fn)))
    # Folding drops constants without readers. Restore those of `sources`: their gradients are zeros.
    weights = {name: function.constants[name] for name in sources if name in function.constants}
    return prepared.replace(constants={**weights, **prepared.constants})


def expand_body(body: Function) -> Function:
    """Decompose the nodes of a body that have floating point results and no rule."""
    return _fold(decompose_nodes(_fold(body), _decompose_floating))


def _decompose_floating(node: Node, function: Function) -> Function | None:
    is_floating = any(may_have_gradient(function.get_type(name)) for name in node.defines)
    return _decompose(node, function) if is_floating else None


def _find_path(function: Function, targets: Collection[str], sources: Collection[str]) -> set[str]:
    """Find the names of the nodes on a differentiable path from `sources` to `targets`."""
    active, needed = set(sources), set(targets)
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


def _decompose(node: Node, function: Function) -> Function | None:
    """Decompose one node; return None if it has a rule, or no decomposition that can be differentiated."""
    if node.control or node.op in RULES or node.op in WITHOUT_GRADIENT or node.op in MISSING:
        return None
    if node.op in DEFINITIONS:
        return infer_shapes(define(as_function(node, function)))
    body = find_decomposition(node, function)
    # Nodes of a newer opset cannot be inserted into the Function.
    if body is None or body.opset() > function.opset():
        return None
    try:
        return drop_dead_nodes(infer_shapes(_fold(infer_shapes(upgrade_opset(body, function.opset())))))
    except ModelError:
        return None  # the sweep reports the missing rule


def _fold(function: Function) -> Function:
    """Fold Constant nodes and integer arithmetic on known shapes, so that an If in a decomposition is replaced by its branch.

    Other nodes are not evaluated.
    """
    return fold_constants(function, _refuse_evaluation)


def _refuse_evaluation(function: Function, inputs: list[Any]) -> Sequence[Any]:
    raise ModelError(f"{function.name!r} is not computed here")


# ---------------------------------------------------------------------- the reverse sweep


def find_active(nodes: Iterable[Node], starts: Collection[str], tensors: MutableMapping[str, Tensor]) -> frozenset[str]:
    """Find the values that depend differentiably on `starts`, and `starts` themselves. `nodes` is in topological order."""
    active = set(starts)
    for node in nodes:
        if node.op not in WITHOUT_GRADIENT and not active.isdisjoint(node.uses):
            active.update(name for name in node.defines if may_have_gradient(tensors[name].type))
    return frozenset(active)


def check_repeatable(node: Node, body: Function) -> None:
    """Raise ModelError for a node with a random operator in its body: recomputing the body would draw other numbers."""
    for inner in body.nodes:
        if not is_deterministic(inner, body):
            refuse(node, f"its body holds {inner.name!r} ({inner.op}), which does not give the same numbers again")


class Sweep:
    """The reverse sweep: collects the contributions to the gradient of each value, and propagates them through nodes."""

    def __init__(self, builder: Builder, tensors: MutableMapping[str, Tensor], active: frozenset[str]) -> None:
        self.builder = builder
        self.tensors = tensors
        self.active = active
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Add a contribution to the gradient of a value."""
        self._parts.setdefault(name, []).append(gradient)

    def sum(self, name: str) -> Tensor | None:
        """The accumulated gradient of a value, or None if there is none."""
        parts = self._parts.get(name)
        if not parts:
            return None
        if len(parts) > 1:
            with self.builder.scope(f"{name}/gradient"):
                # Store the sum, so that a second reader does not add the parts again.
                parts[:] = [add_up(parts)]
        return parts[0]

    def run(self, nodes: Sequence[Node]) -> None:
        """Backpropagate through topologically ordered nodes; raises ModelError for a node without a gradient."""
        # In reverse order, all readers of a value have contributed before the node that computes it is visited.
        for node in reversed(nodes):
            if not self.active.isdisjoint(node.uses) and any(name in self._parts for name in node.outputs):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        """Apply the rule of a node, and add the results to the gradients of its inputs and captured values."""
        if node.op in WITHOUT_GRADIENT:
            return
        rule = RULES.get(node.op)
        if rule is None:
            refuse(node, describe_missing(node))
        gradients = [self.sum(name) if name else None for name in node.outputs]
        context = RuleContext(node, self.tensors, gradients, self.active, self.builder)
        with self.builder.scope(f"{node.name}/gradient"), self.builder.device(node.device):
            results = rule(context)
        for name, result in [*zip(node.inputs, results, strict=False), *context.captured.items()]:
            if result is not None and name in self.active:
                self.add(name, result)
