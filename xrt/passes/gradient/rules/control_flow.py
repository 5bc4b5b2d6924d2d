"""Gradients of If, Loop and Scan.

The gradient of an If is an If. The gradient of a Loop or Scan is a Loop or Scan that runs over the iterations in reverse. Its
body recomputes the forward body from the values that this carried, so the forward node stores the carried values of each
iteration as additional outputs (checkpointing: Griewank and Walther, 2008, chapter 12).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.builder import record_function
from xrt.builder.record_op import apply, emit, get_builder
from xrt.graph import Function, Node, TensorType, Value
from xrt.passes.gradient.preparation import Sweep, find_active, prepare_body
from xrt.passes.gradient.table import Gradients, RuleContext, make_vector, may_have_gradient, rule, sum_tensors, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def _repeat_backward(
    ctx: RuleContext,
    body: Function,
    inputs: Sequence[Tensor],
    output_gradients: Sequence[Tensor | None],
    sources: Sequence[str],
) -> list[Tensor]:
    """Record a body again in the current builder, and its backward pass; return the gradients of ``sources``.

    ``sources`` are names of inputs and captured values of the body. ``output_gradients`` has None for an output without one.
    """
    builder = get_builder("the gradient of a body")
    start = len(builder.nodes)
    values = record_function(builder, body, inputs, ctx.tensors)
    nodes = builder.nodes[start:]
    tensors = ChainMap({tensor.name: tensor for tensor in values.values()}, ctx.tensors)
    active = find_active(nodes, {values[name].name for name in sources}, tensors)
    sweep = Sweep(builder, tensors, active)
    for value, gradient in zip(body.outputs, output_gradients, strict=True):
        if gradient is not None and values[value.name].name in active:
            sweep.add(values[value.name].name, gradient)
    sweep.run(nodes)
    totals = [sweep.sum(values[name].name) for name in sources]
    return [zeros_like(values[name]) if total is None else total for name, total in zip(sources, totals, strict=True)]


@rule("If")
def branch(ctx: RuleContext) -> Gradients:
    """Backpropagate through the taken branch, with respect to the captured values."""
    captured = [name for name in ctx.node.captures if name in ctx.active]

    def make_backward_branch(body: Function) -> Callable[[], list[Tensor]]:
        prepared = prepare_body(ctx.node, body)

        def write_branch() -> list[Tensor]:
            sources = [name for name in captured if name in prepared.captures]
            gradients = dict(zip(sources, _repeat_backward(ctx, prepared, (), ctx.gradients, sources), strict=True))
            # Both branches must return a gradient of each value, also of one that only the other branch reads.
            return [gradients[name] if name in gradients else zeros_like(ctx.tensors[name]) for name in captured]

        return write_branch

    branches = {name: make_backward_branch(ctx.attr(name)) for name in ("then_branch", "else_branch")}
    results: Any = apply("If", (ctx.input(0),), branches, outputs=len(captured))
    ctx.captured.update(zip(captured, results, strict=True))
    return ()


def _find_carried(
    ctx: RuleContext,
    body: Function,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    initial: Sequence[str],
    scanned: Sequence[str],
) -> list[int]:
    """Find the indices of the carried values that have a gradient, directly or through other carried values.

    ``inputs`` and ``outputs`` of the body are the carried values before and after an iteration, ``initial`` the names of the
    node's inputs with the first ones, and ``scanned`` the names of the body's other inputs that have a gradient.
    """
    indices = {index for index, name in enumerate(initial) if name in ctx.active}
    captured = [name for name in body.captures if name in ctx.active]
    while True:
        active = {*(inputs[index].name for index in indices), *captured, *scanned}
        for node in body.nodes:
            if not active.isdisjoint(node.uses):
                active.update(name for name in node.defined_names if may_have_gradient(body.get_type(name)))
        # An iteration may compute a carried value from another one, so repeat until no index is added.
        reachable = indices | {index for index, value in enumerate(outputs) if value.name in active}
        if reachable == indices:
            return sorted(indices)
        indices = reachable


def _stack_carried(ctx: RuleContext, values: Sequence[Value]) -> list[Tensor]:
    """Add outputs to the node that stack the values of these body inputs over all iterations, and return the outputs.

    Refuses the node if a value is not a tensor of known rank.
    """
    body: Function = ctx.attr("body")
    if not values:
        return []
    stacked_types = []
    for value in values:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            ctx.refuse(f"{value.name!r} is {value.type or 'of unknown type'} in its body; it must be a tensor of known rank")
        # The number of iterations is not known.
        stacked_types.append(value.type.with_shape((None, *value.type.shape)))
    # A body must not return an input directly: ONNX expects its outputs to be computed inside.
    copies = [ctx.builder.fresh(f"{value.name}_copy") for value in values]
    stacks = [ctx.builder.fresh(f"{value.name}_steps") for value in values]
    nodes = tuple(Node("Identity", (v.name,), (copy,), name=copy) for v, copy in zip(values, copies, strict=True))
    outputs = tuple(Value(copy, value.type) for value, copy in zip(values, copies, strict=True))
    changes: dict[str, Any] = {"body": body.replace(nodes=body.nodes + nodes, outputs=body.outputs + outputs)}
    for name in ("scan_output_axes", "scan_output_directions"):
        if ctx.attr(name) is not None:
            changes[name] = (*ctx.attr(name), *[0] * len(values))
    node = replace(ctx.node.with_attributes(**changes), outputs=(*ctx.node.outputs, *stacks))
    ctx.replace_node(node, dict(zip(stacks, stacked_types, strict=True)))
    return [ctx.tensors[name] for name in stacks]


def _get_end_gradient(ctx: RuleContext, index: int, initial: str) -> Tensor:
    """Get the gradient of output ``index``, a carried value after the last iteration. If it has none, create zeros.

    If the node omits the output, the zeros have the shape of ``initial``, the carried value before the first iteration.
    """
    gradient = ctx.gradients[index]
    return zeros_like(ctx.tensors[ctx.node.outputs[index] or initial]) if gradient is None else gradient


def _reshape_scalar(value: Value, scalar: Tensor) -> Tensor:
    """Reshape a scalar to the rank that the body declares: ONNX allows a scalar and a vector of one element."""
    rank = value.type.rank if isinstance(value.type, TensorType) else None
    return emit("Reshape", scalar, make_vector(*[1] * rank)) if rank else scalar


@rule("Loop")
def loop(ctx: RuleContext) -> Gradients:
    """Emit a Loop over the iterations in reverse. Its carried values are the gradients of the node's carried values."""
    original: Function = ctx.attr("body")
    initial = ctx.node.inputs[2:]
    body = prepare_body(ctx.node, original)
    indices = _find_carried(ctx, body, body.inputs[2:], body.outputs[1 : 1 + len(initial)], initial, ())
    captured = [name for name in ctx.node.captures if name in ctx.active]
    scan_gradients = ctx.gradients[len(initial) :]
    starts = [
        *(_get_end_gradient(ctx, index, initial[index]) for index in indices),
        *(zeros_like(ctx.tensors[name]) for name in captured),
    ]
    # The iteration number is stacked too, because the length of the stack is the trip count.
    stacks = _stack_carried(ctx, [original.inputs[0], *original.inputs[2:]])
    trip_count = emit("Squeeze", emit("Shape", stacks[0], start=0, end=1), [0])
    last = trip_count - 1
    sources = [*(body.inputs[2 + index].name for index in indices), *captured]

    def backward(iteration: Tensor, condition: Tensor, *gradients: Tensor) -> list[Tensor]:
        # The body has run in each of these iterations, so the condition that it received was true.
        true = get_builder("a condition").symbol(np.asarray(True))
        forward_iteration = last - iteration
        # The body reads (iteration, condition, carried values). stacks[0] has the iterations, the others the carried values.
        operands = [_reshape_scalar(body.inputs[0], forward_iteration), _reshape_scalar(body.inputs[1], true)]
        operands += [emit("Gather", stack, forward_iteration) for stack in stacks[1:]]
        # The body returns (condition, carried values, scan outputs). The gradients of the carried values come first in
        # `gradients`, followed by sums of the gradients of captured values.
        output_gradients: list[Tensor | None] = [None] * len(body.outputs)
        for index, gradient in zip(indices, gradients, strict=False):
            output_gradients[1 + index] = gradient
        for index, scan_gradient in enumerate(scan_gradients):
            if scan_gradient is not None:
                output_gradients[1 + len(initial) + index] = emit("Gather", scan_gradient, forward_iteration)
        return [condition, *_differentiate_step(ctx, body, operands, output_gradients, sources, gradients[len(indices) :])]

    results: Any = apply("Loop", (trip_count, None, *starts), {"body": backward}, outputs=len(starts))
    ctx.captured.update(zip(captured, results[len(indices) :], strict=True))
    input_gradients: list[Tensor | None] = [None] * len(ctx.node.inputs)
    for index, result in zip(indices, results, strict=False):
        input_gradients[2 + index] = result
    return input_gradients


def _differentiate_step(
    ctx: RuleContext,
    body: Function,
    inputs: Sequence[Tensor],
    output_gradients: Sequence[Tensor | None],
    sources: Sequence[str],
    sums: Sequence[Tensor],
) -> list[Tensor]:
    """Differentiate one iteration and return the gradients of `sources`.

    The last ``len(sums)`` sources are captured values, which all iterations read, so their gradients are added to `sums`.
    """
    gradients = _repeat_backward(ctx, body, inputs, output_gradients, sources)
    count = len(sources) - len(sums)
    return [*gradients[:count], *(sum_tensors(pair) for pair in zip(sums, gradients[count:], strict=True))]


@rule("Scan")
def scan(ctx: RuleContext) -> Gradients:
    """Emit a Scan in the opposite direction. It carries gradients, and its outputs are the gradients of the scanned inputs."""
    original, scanned_count = ctx.attr("body"), ctx.attr("num_scan_inputs")
    body = prepare_body(ctx.node, original)
    state_count = len(ctx.node.inputs) - scanned_count
    initial = ctx.node.inputs[:state_count]
    captured = [name for name in ctx.node.captures if name in ctx.active]
    # The inputs that need a gradient, as indices of the node's and the body's inputs.
    scanned_indices = [index for index in range(state_count, len(ctx.node.inputs)) if ctx.wants(index)]
    scanned_names = [body.inputs[index].name for index in scanned_indices]
    state_indices = _find_carried(ctx, body, body.inputs[:state_count], body.outputs[:state_count], initial, scanned_names)
    # The backward Scan carries the gradients of states, then the sums of the gradients of captured values.
    starts = [
        *(_get_end_gradient(ctx, index, initial[index]) for index in state_indices),
        *(zeros_like(ctx.tensors[name]) for name in captured),
    ]
    scan_gradients = [(index, g) for index, g in enumerate(ctx.gradients[state_count:]) if g is not None]
    input_layout = _read_layout(ctx, "input", scanned_count)
    output_layout = _read_layout(ctx, "output", len(ctx.node.outputs) - state_count)
    stacks = _stack_carried(ctx, original.inputs[:state_count])
    sources = [*(body.inputs[index].name for index in state_indices), *scanned_names, *captured]
    n_states = len(state_indices)
    captured_start = n_states + len(scanned_indices)

    def backward(*values: Tensor) -> list[Tensor]:
        state_gradients, sums, elements = values[:n_states], values[n_states : len(starts)], values[len(starts) :]
        output_gradients: list[Tensor | None] = [None] * len(body.outputs)
        for index, gradient in zip(state_indices, state_gradients, strict=True):
            output_gradients[index] = gradient
        # Each step scans the inputs of the forward body (states, then scanned inputs), and the gradients of the scan outputs.
        forward_inputs, scanned_gradients = elements[: len(body.inputs)], elements[len(body.inputs) :]
        for (index, _), gradient in zip(scan_gradients, scanned_gradients, strict=True):
            output_gradients[state_count + index] = gradient
        gradients = _differentiate_step(ctx, body, forward_inputs, output_gradients, sources, sums)
        # Of states and captured values, which are carried, then of scanned inputs.
        return [*gradients[:n_states], *gradients[captured_start:], *gradients[n_states:captured_start]]

    inputs = [*stacks, *(ctx.input(state_count + index) for index in range(scanned_count)), *(g for _, g in scan_gradients)]
    layout = [*[(0, 0)] * state_count, *input_layout, *(output_layout[index] for index, _ in scan_gradients)]
    result_layout = [input_layout[index - state_count] for index in scanned_indices]
    attributes = {"body": backward, **_reverse_layout(layout, result_layout)}
    results: Any = apply("Scan", (*starts, *inputs), attributes, outputs=len(starts) + len(scanned_indices))
    ctx.captured.update(zip(captured, results[n_states : len(starts)], strict=True))
    input_gradients: list[Tensor | None] = [None] * len(ctx.node.inputs)
    of_inputs = [*results[:n_states], *results[len(starts) :]]
    for index, result in zip([*state_indices, *scanned_indices], of_inputs, strict=True):
        input_gradients[index] = result
    return input_gradients


def _reverse_layout(inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Make the attributes of a Scan whose inputs and outputs have these axes and the opposite directions."""
    attributes: dict[str, Any] = {"num_scan_inputs": len(inputs)}
    for kind, layout in (("input", inputs), ("output", outputs)):
        if layout:
            attributes[f"scan_{kind}_axes"] = [axis for axis, _ in layout]
            attributes[f"scan_{kind}_directions"] = [1 - direction for _, direction in layout]
    return attributes


def _read_layout(ctx: RuleContext, kind: str, count: int) -> list[tuple[int, int]]:
    """Read the (axis, direction) of each scanned input or output of a Scan. Direction 0 is forward, 1 is backward."""
    axes, directions = (ctx.attr(f"scan_{kind}_{name}") or [0] * count for name in ("axes", "directions"))
    return list(zip(axes, directions, strict=True))
