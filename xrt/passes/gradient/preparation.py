"""The two steps of differentiation: prepare the nodes (types, opset, decompositions), then sweep from the last to the first.

The gradient of a value is the sum of the contributions of the nodes that read it: Griewank and Walther, *Evaluating Derivatives*
(2008), chapter 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace

from xrt.builder.builder import Builder
from xrt.builder.tensor import Tensor
from xrt.errors import ModelError
from xrt.formats.onnx import upgrade_opset
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Function, Node
from xrt.graph.node import list_names
from xrt.operators import Trait, as_function, decompose_nodes, is_deterministic, list_operators
from xrt.passes.decomposition import find_decomposition
from xrt.passes.gradient.table import RULES, Rule, RuleContext, may_have_gradient, refuse, sum_tensors
from xrt.passes.shape_inference import infer_shapes
from xrt.passes.simplification import drop_dead_nodes, fold_constants


def new_builder(function: Function) -> Builder:
    """Create an empty builder with the opsets of the Function."""
    return Builder(function.name, opsets=dict(function.opsets), inference=infer_node_types)


def continue_function(function: Function) -> tuple[Builder, dict[str, Tensor]]:
    """Create a builder that contains the nodes of the Function. Also return a tensor of the builder per value, by name."""
    builder = new_builder(function)
    for name in list_names(function):
        builder.names.reserve(name)
    builder.nodes = list(function.nodes)
    builder.constants = dict(function.constants)
    builder.types = {name: type_ for node in function.nodes for name in node.defined_names if (type_ := function.get_type(name))}
    builder.inputs = [Tensor(builder, value.name, value.type) for value in function.inputs]
    return builder, {name: Tensor(builder, name, function.get_type(name)) for name in function.value_names()}


DEFINITIONS: dict[str, Rule] = {}
"""Decompositions of operators that ONNX defines only in prose. They return the outputs of the node, not gradients."""


def decompose_by_definition(isolated: Function) -> Function:
    """Decompose a one-node Function by its entry in `DEFINITIONS`. Raises ModelError for an output that it does not compute."""
    (node,) = isolated.nodes
    builder = new_builder(isolated)
    with builder:
        tensors = {value.name: builder.input(value.name, value.type) for value in isolated.inputs}
        tensors.update((name, builder.constant(constant)) for name, constant in isolated.constants.items())
        # The node has no outputs here, because there are no tensors for them yet.
        ctx = RuleContext(replace(node, outputs=()), tensors, (), frozenset(), builder)
        results = dict(zip(node.outputs, DEFINITIONS[node.op](ctx), strict=False))
        for name in node.defined_names:
            value = results.get(name)
            if value is None:
                ctx.refuse(f"its output {name!r} is not defined by other operators")
            builder.output(value, name)
    return builder.function()


WITHOUT_GRADIENT: Mapping[str, str] = {
    **dict.fromkeys(list_operators(Trait.DISCONTINUOUS), "it is constant between its steps"),
    **dict.fromkeys(list_operators(Trait.RANDOM), "its random numbers do not depend on its input"),
    **dict.fromkeys(list_operators(Trait.READS_SHAPE), "it reads shapes and types only"),
}
"""Operators with zero gradient, each with the reason. Integers and booleans have no gradient either, whatever their operator."""
MISSING: Mapping[str, str] = {
    "CumProd": "its gradient is a quotient by elements that may be 0",
    "Det": "its gradient is the inverse of the matrix, which no operator of ONNX computes",
    "DynamicQuantizeLinear": "its results are integers, or scales that depend on the largest element",
    "LinearAttention": "its definition is a Scan inside of which ranks are not known",
    **dict.fromkeys(
        ("Col2Im", "DFT", "DeformConv", "DequantizeLinear", "GridSample", "MaxRoiPool", "RoiAlign", "STFT"),
        "its rule is not written yet",
    ),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceMap"),
            *("SplitToSequence", "Optional", "OptionalGetElement"),
        ),
        "gradients of sequences are not computed; Split and Concat do the same with tensors",
    ),
}
"""Operators with neither a rule nor a decomposition that can be differentiated, each with the reason."""


OPSET = 18
"""Lowest opset that the rules emit: reductions take axes as inputs, and scatters have reduction="add"."""


def prepare(function: Function, targets: Collection[str], sources: Collection[str]) -> Function:
    """Convert a Function to `OPSET`, and decompose the nodes without a rule on the paths from `sources` to `targets`.

    Raises ModelError if the conversion fails.
    """
    # The converter needs types, and some values that it returns have none: infer before and after.
    prepared = fold_constants(infer_shapes(upgrade_opset(infer_shapes(function), OPSET)))
    path = _find_path(prepared, targets, sources)
    # By identity, because the nodes of a decomposition are decomposed too, whatever their names.
    skipped = {id(node) for node in prepared.nodes if node.name not in path}
    prepared = fold_constants(decompose_nodes(prepared, lambda node, fn: None if id(node) in skipped else _decompose(node, fn)))
    # Folding drops constants without readers. Restore those of `sources`: their gradients are zeros.
    weights = {name: function.constants[name] for name in sources if name in function.constants}
    return prepared.replace(constants={**weights, **prepared.constants})


def prepare_body(node: Node, body: Function) -> Function:
    """Decompose the nodes of a body that have floating point results and no rule.

    Raises ModelError for a random operator in the body, because recomputing the body would draw other numbers.
    """
    for inner in body.nodes:
        if not is_deterministic(inner, body):
            refuse(node, f"its body has {inner.name!r} ({inner.op}), which computes other numbers when it runs again")
    return fold_constants(decompose_nodes(fold_constants(body), _decompose))


def _find_path(function: Function, targets: Collection[str], sources: Collection[str]) -> set[str]:
    """Find the names of the nodes on the differentiable paths from `sources` to `targets`."""
    active, needed = set(sources), set(targets)
    dependent_nodes = []
    for node in function.nodes:
        if not active.isdisjoint(node.uses):
            dependent_nodes.append(node)
            active.update(name for name in node.defined_names if may_have_gradient(function.get_type(name)))
    path = set()
    for node in reversed(dependent_nodes):
        if not needed.isdisjoint(node.outputs):
            path.add(node.name)
            needed.update(name for name in node.uses if name in active)
    return path


def _decompose(node: Node, function: Function) -> Function | None:
    """Decompose one node. None if it has a rule, needs no gradient, or has no decomposition that can be differentiated."""
    if node.control or node.op in RULES or node.op in WITHOUT_GRADIENT or node.op in MISSING:
        return None
    if not any(may_have_gradient(function.get_type(name)) for name in node.defined_names):
        return None
    if node.op in DEFINITIONS:
        return infer_shapes(decompose_by_definition(as_function(node, function)))
    body = find_decomposition(node, function)
    # Nodes of a newer opset cannot be inserted into the Function.
    if body is None or body.opset() > function.opset():
        return None
    try:
        # Folding computed shapes replaces an If in the decomposition by its branch.
        folded = fold_constants(infer_shapes(upgrade_opset(body, function.opset())))
        return drop_dead_nodes(infer_shapes(folded))
    except ModelError:
        return None  # the sweep reports the missing rule


def find_active(nodes: Iterable[Node], starts: Collection[str], tensors: MutableMapping[str, Tensor]) -> frozenset[str]:
    """Find the values that have a gradient with respect to `starts`, and `starts` themselves. `nodes` is in topological order."""
    active = set(starts)
    for node in nodes:
        if node.op not in WITHOUT_GRADIENT and not active.isdisjoint(node.uses):
            active.update(name for name in node.defined_names if may_have_gradient(tensors[name].type))
    return frozenset(active)


class Sweep:
    """The reverse sweep: collects the contributions to the gradient of each value, and propagates them through nodes."""

    def __init__(self, builder: Builder, tensors: MutableMapping[str, Tensor], active: frozenset[str]) -> None:
        self.builder = builder
        self.tensors = tensors
        self.active = active
        self._contributions: dict[str, list[Tensor]] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        self._contributions.setdefault(name, []).append(gradient)

    def sum(self, name: str) -> Tensor | None:
        """Sum the contributions to the gradient of a value; None if there are none."""
        contributions = self._contributions.get(name)
        if not contributions:
            return None
        if len(contributions) > 1:
            with self.builder.scope(f"{name}/gradient"):
                # Store the sum, so that the next call does not add the contributions again.
                contributions[:] = [sum_tensors(contributions)]
        return contributions[0]

    def run(self, nodes: Sequence[Node]) -> None:
        """Backpropagate through topologically ordered nodes; raises ModelError for a node without a gradient."""
        # In reverse order, all readers of a value have contributed before the node that computes it is visited.
        for node in reversed(nodes):
            if not self.active.isdisjoint(node.uses) and any(name in self._contributions for name in node.outputs):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        """Apply the rule of a node, and add the results to the gradients of its inputs and captured values."""
        if node.op in WITHOUT_GRADIENT:
            return
        rule = RULES.get(node.op)
        if rule is None:
            refuse(node, MISSING.get(node.op, "there is no rule for it, and ONNX does not define it by other operators"))
        gradients = [self.sum(name) if name else None for name in node.outputs]
        ctx = RuleContext(node, self.tensors, gradients, self.active, self.builder)
        with self.builder.scope(f"{node.name}/gradient"), self.builder.device(node.device):
            results = rule(ctx)
        for name, result in [*zip(node.inputs, results, strict=False), *ctx.captured.items()]:
            if result is not None and name in self.active:
                self.add(name, result)
