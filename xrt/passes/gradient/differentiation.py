"""`xrt.gradient`: append the gradients of a value to the outputs of a Function, and expand Gradient nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.builder import record_function
from xrt.builder.record_op import emit
from xrt.errors import ModelError, did_you_mean
from xrt.graph import Function, Node
from xrt.graph.function import pause_gc
from xrt.passes.gradient import rules  # noqa: F401  # registers the rules
from xrt.passes.gradient.preparation import Sweep, continue_function, find_active, prepare
from xrt.passes.gradient.table import get_shape, may_have_gradient, zeros_like
from xrt.passes.simplification import drop_dead_nodes

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor


def gradient(
    function: Function,
    *,
    of: str | Sequence[str] | None = None,
    with_respect_to: str | Sequence[str] | None = None,
    seeds: bool = False,
) -> Function:
    """Append gradients to the outputs of a Function, by reverse-mode differentiation.

    ``of`` names the value to differentiate, usually the loss; the default is the only output. If it is a tensor, or several
    values, the sum of all elements is differentiated. ``with_respect_to`` names floating point inputs, constants (weights) or
    inner values; the default is all floating point inputs. For each name an output ``<name>_gradient`` is appended, with a
    numeric suffix on a name collision. The gradient of a value that ``of`` does not depend on is zero.

    With ``seeds=True`` the Function has an additional input ``<name>_seed`` per value of ``of``, and the result is the
    vector-Jacobian product with the seeds. Apply the pass twice for second derivatives.

    Operators without a rule are decomposed. The bodies of If, Loop and Scan are recomputed in the backward pass, for which Loop
    and Scan store the carried values of each iteration. At a kink the result is a one-sided derivative or a value between the
    two. Raises ModelError if an operator on the path has no gradient, and for names of unknown or non-float values. Linear time.
    """
    if not isinstance(function, Function):
        raise ModelError(f"xrt.gradient takes a Function, such as xrt.formats.onnx.load(PATH); got a {type(function).__name__}")
    targets = _as_names(of) or tuple(value.name for value in function.outputs)
    if of is None and len(targets) != 1:
        outputs = ", ".join(targets) or "none"
        first = next(iter(targets), "NAME")
        raise ModelError(f"function {function.name!r} has {len(targets)} outputs ({outputs}); name one: of={first!r}")
    sources = _as_names(with_respect_to) or tuple(
        value.name for value in function.inputs if value.type is not None and may_have_gradient(value.type)
    )
    # The many small objects of a large graph are all alive, so garbage collections would cost time and free nothing.
    with pause_gc(function.size):
        return _append_gradients(prepare(function, targets, sources), targets, sources, seeds)


def _as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _append_gradients(function: Function, targets: Sequence[str], sources: Sequence[str], seeds: bool) -> Function:
    """Differentiate a Function that `prepare` returned: append the gradients of `sources` to its outputs."""
    builder, tensors = continue_function(function)
    for option, names in (("of", targets), ("with_respect_to", sources)):
        for name in names:
            _check_differentiable(option, name, tensors.get(name), function)
    sweep = Sweep(builder, tensors, find_active(function.nodes, sources, tensors))
    with builder:
        for name in targets:
            sweep.add(name, _add_seed(builder, tensors[name], seeds))
        sweep.run(function.nodes)
        for value in function.outputs:
            builder.output(tensors[value.name])
        for name in sources:
            accumulated = sweep.sum(name)
            with builder.scope(f"{name}/gradient"):
                total = zeros_like(tensors[name]) if accumulated is None else accumulated
            builder.output(total, _free_name(builder, f"{name}_gradient"))
    return drop_dead_nodes(builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata))


def _check_differentiable(option: str, name: str, tensor: Tensor | None, function: Function) -> None:
    """Raise ModelError if a name passed as ``option`` is not a floating point value of the Function."""
    if tensor is None:
        names = list(function.value_names())
        raise ModelError(f"{option} names {name!r}, which is no value of function {function.name!r}.{did_you_mean(name, names)}")
    if tensor.type is None or not may_have_gradient(tensor.type):
        shown = "a value of unknown type" if tensor.type is None else str(tensor.type)
        raise ModelError(f"{option} names {name!r}, which is {shown}; only values of floating point have a gradient")


def _add_seed(builder: Builder, tensor: Tensor, is_input: bool) -> Tensor:
    """Create the gradient of a target, with which the sweep starts: a tensor of ones, or a new input of the Function."""
    if not is_input:
        with builder.scope(f"{tensor.name}/gradient"):
            return emit("ConstantOfShape", get_shape(tensor), value=np.ones(1, tensor.dtype.numpy))
    name = _free_name(builder, f"{tensor.name}_seed")
    return builder.input(name, tensor.type)


def _free_name(builder: Builder, base: str) -> str:
    """Find a name that no value has: `base`, with a numeric suffix if necessary. The name is not reserved."""
    name, count = base, 1
    while name in builder.names:
        count += 1
        name = f"{base}_{count}"
    return name


DOMAIN = "ai.onnx.preview.training"
GRADIENT = f"{DOMAIN}.Gradient"


def expand_gradient_nodes(function: Function) -> Function:
    """Replace each Gradient node of ai.onnx.preview.training; return `function` itself if there is none.

    The inputs of the node replace the values named by its attributes ``xs`` and ``zs``, from which ``y`` is recomputed; its
    outputs are the gradients of ``y`` with respect to ``xs``. Bodies are not searched. Raises ModelError for the reasons that
    `xrt.gradient` does.
    """
    # Replace one at a time, because a Gradient node may differentiate through the results of another one.
    while (node := next((node for node in function.nodes if node.op == GRADIENT), None)) is not None:
        function = _expand_node(function, node)
    return function


def _expand_node(function: Function, node: Node) -> Function:
    """Replace one Gradient node by the nodes that compute the gradients at its inputs."""
    sources, target = node.attr("xs", ()), node.attr("y")
    constants = node.attr("zs", ()) or ()
    # Recompute the subgraph from the inputs of the node.
    part = _extract_subgraph(function, (*sources, *constants), target)
    differentiated = gradient(part, of=target, with_respect_to=sources)
    backward = drop_dead_nodes(differentiated.replace(outputs=differentiated.outputs[1:]))
    nodes = tuple(other for other in function.nodes if other is not node)
    # The domain stays imported until its last node is replaced.
    needs_domain = any(other.domain == DOMAIN for other in nodes)
    opsets = {domain: version for domain, version in function.opsets.items() if domain != DOMAIN or needs_domain}
    remaining = function.replace(nodes=nodes, opsets=opsets)
    builder, tensors = continue_function(remaining)
    # The node has values for `xs` and `zs`. The other inputs of the subgraph are inputs of the Function.
    function_inputs = [value.name for value in part.inputs[len(node.inputs) :]]
    operands = [tensors[name] for name in (*node.inputs, *function_inputs)]
    with builder, builder.scope(node.name), builder.device(node.device):
        values = record_function(builder, backward, operands, tensors)
    for value, name in zip(backward.outputs, node.outputs, strict=True):
        if name:
            # Keep the output names of the replaced node.
            builder.nodes.append(Node("Identity", (values[value.name].name,), (name,), name=builder.fresh(f"{node.name}/{name}")))
    return remaining.replace(nodes=tuple(builder.nodes), constants=builder.constants, types={**builder.types, **remaining.types})


def _extract_subgraph(function: Function, starts: Collection[str], target: str) -> Function:
    """Extract the nodes that compute `target` from `starts` as a Function.

    Its inputs are `starts`, then the inputs of `function` that these nodes read too.
    """
    # Walk backward from the target and stop at the starts. A computed start is renamed, because the starts become inputs.
    needed: set[str] = set() if target in starts else {target}
    nodes = []
    for node in reversed(function.nodes):
        if not needed.isdisjoint(node.outputs):
            outputs = tuple(f"{name}/computed" if name in starts else name for name in node.outputs)
            nodes.append(replace(node, outputs=outputs))
            needed.update(name for name in node.uses if name not in starts)
    function_inputs = [value.name for value in function.inputs if value.name in needed]
    defined = {name for node in nodes for name in node.defined_names}
    return Function(
        inputs=tuple(function.value(name) for name in (*starts, *function_inputs)),
        outputs=(function.value(target),),
        nodes=tuple(reversed(nodes)),
        constants={name: constant for name, constant in function.constants.items() if name in needed},
        opsets=function.opsets,
        types={name: type_ for name, type_ in function.types.items() if name in defined and name != target},
        name=f"gradient of {target}",
    )
