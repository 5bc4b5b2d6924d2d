"""ONNX's own Gradient operator, which names values of the graph around it, written by the operators of the gradient."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from xrt.graph import Function, Node
from xrt.passes.dead_code_elimination import drop_dead_nodes
from xrt.passes.gradient.differentiation import gradient
from xrt.passes.gradient.recording import continue_function, record_function

__all__ = ["expand_gradient_nodes"]

DOMAIN = "ai.onnx.preview.training"
GRADIENT = f"{DOMAIN}.Gradient"


def expand_gradient_nodes(function: Function) -> Function:
    """Return the Function with each Gradient node in other operators; itself where it holds none. Bodies are left as they are.

    The node reads values in the place of those that ``xs`` and ``zs`` name, and gives the gradients of ``y`` with respect to
    ``xs`` as they are then. What is between them is computed again for it. Raises ModelError as `xrt.gradient` does.
    """
    while (node := next((node for node in function.nodes if node.op == GRADIENT), None)) is not None:
        function = _expanded(function, node)
    return function


def _expanded(function: Function, node: Node) -> Function:
    wanted, fixed, target = node.attr("xs", ()), node.attr("zs", ()) or (), node.attr("y")
    part = _cut(function, (*wanted, *fixed), target)
    found = gradient(part, of=target, with_respect_to=wanted)
    bare = drop_dead_nodes(found.replace(outputs=found.outputs[1:]))
    opsets = {name: version for name, version in function.opsets.items() if name != DOMAIN or _has_others(function, node)}
    rest = function.replace(nodes=tuple(other for other in function.nodes if other is not node), opsets=opsets)
    builder, tensors = continue_function(rest)
    given = [tensors[name] for name in (*node.inputs, *(value.name for value in part.inputs[len(node.inputs) :]))]
    with builder, builder.scope(node.name), builder.device(node.device):
        values = record_function(builder, bare, given, tensors)
    for value, name in zip(bare.outputs, node.outputs, strict=True):
        if name:
            builder.nodes.append(Node("Identity", (values[value.name].name,), (name,), name=builder.fresh(f"{node.name}/{name}")))
    return rest.replace(nodes=tuple(builder.nodes), constants=builder.constants, types={**builder.types, **rest.types})


def _has_others(function: Function, node: Node) -> bool:
    return any(other.domain == DOMAIN for other in function.nodes if other is not node)


def _cut(function: Function, starts: Collection[str], target: str) -> Function:
    """Return the part of the Function between values and another one; what it reads otherwise is an input too."""
    needed: set[str] = set() if target in starts else {target}
    nodes = []
    for node in reversed(function.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(replace(node, outputs=tuple(f"{name}/computed" if name in starts else name for name in node.outputs)))
            needed.update(name for name in node.uses if name not in starts)
    more = [value.name for value in function.inputs if value.name in needed]
    made = {name for node in nodes for name in node.defines}
    return Function(
        inputs=tuple(function.value(name) for name in (*starts, *more)),
        outputs=(function.value(target),),
        nodes=tuple(reversed(nodes)),
        constants={name: constant for name, constant in function.constants.items() if name in needed},
        opsets=function.opsets,
        types={name: type_ for name, type_ in function.types.items() if name in made and name != target},
        name=f"gradient of {target}",
    )
