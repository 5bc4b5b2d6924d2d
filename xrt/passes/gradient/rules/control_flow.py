"""Gradients of If, Loop and Scan.

The gradient of an If is an If; that of a Loop or Scan runs over the iterations in reverse. Bodies are recomputed in the backward
body from their inputs, so the forward Loop or Scan also outputs the carried values of each iteration (checkpointing: Griewank
and Walther, 2008, chapter 12).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.builder import record_function
from xrt.builder.record_op import apply, current, emit
from xrt.graph import Function, Node, TensorType, Type, Value
from xrt.passes.gradient.preparation import Sweep, check_repeatable, expand_body, find_active
from xrt.passes.gradient.table import RuleContext, add_up, integers, may_have_gradient, rule, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _repeat_backward(
    at: RuleContext, body: Function, inputs: Sequence[Tensor], arriving: Sequence[Tensor | None], sources: Sequence[str]
) -> list[Tensor]:
    """Recompute a body in the current builder and differentiate it; return the gradients of `sources`.

    ``sources`` are names of inputs and captured values of the body. ``arriving`` has the gradient of each of its outputs, or
    None.
    """
    builder = current("the gradient of a body")
    start = len(builder.nodes)
    values = record_function(builder, body, inputs, at.tensors)
    nodes = builder.nodes[start:]
    tensors = ChainMap({tensor.name: tensor for tensor in values.values()}, at.tensors)
    active = find_active(nodes, {values[name].name for name in sources}, tensors)
    sweep = Sweep(builder, tensors, active)
    for value, gradient in zip(body.outputs, arriving, strict=True):
        if gradient is not None and values[value.name].name in active:
            sweep.add(values[value.name].name, gradient)
    sweep.run(nodes)
    sums = {name: sweep.sum(values[name].name) for name in sources}
    return [zeros_like(values[name]) if (total := sums[name]) is None else total for name in sources]


@rule("If")
def branch(at: RuleContext) -> Gradients:
    """Backpropagate through the taken branch, with respect to the captured values."""
    captured = [name for name in at.node.captures if name in at.active]
    arriving = at.gradients

    def backward(body: Function) -> Any:
        check_repeatable(at.node, body)
        prepared = expand_body(body)

        def write() -> list[Tensor]:
            read = [name for name in captured if name in prepared.captures]
            gradients = dict(zip(read, _repeat_backward(at, prepared, (), arriving, read), strict=True))
            return [gradients[name] if name in gradients else zeros_like(at.tensors[name]) for name in captured]

        return write

    results: Any = apply(
        "If",
        (at.input(0),),
        {name: backward(at.attr(name)) for name in ("then_branch", "else_branch")},
        outputs=len(captured),
    )
    at.captured.update(zip(captured, results, strict=True))
    return ()


# ---------------------------------------------------------------------- loop-carried values


def _find_carried(
    at: RuleContext,
    body: Function,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    carried: Sequence[str],
    rows: Sequence[str],
) -> list[int]:
    """Indices of the carried values that have a gradient, directly or through other carried values."""
    indices = {index for index, name in enumerate(carried) if name in at.active}
    captured = [name for name in body.captures if name in at.active]
    while True:
        active = {*(inputs[index].name for index in indices), *captured, *rows}
        for node in body.nodes:
            if not active.isdisjoint(node.uses):
                active.update(name for name in node.defines if may_have_gradient(body.get_type(name)))
        # Iterate to a fixed point, because carried values feed each other.
        reachable = indices | {index for index, value in enumerate(outputs) if value.name in active}
        if reachable == indices:
            return sorted(indices)
        indices = reachable


def _stack_carried(at: RuleContext, values: Sequence[Value]) -> list[Tensor]:
    """Add outputs to the node that stack the values of these body inputs over all iterations; return them.

    Refuses the node if one of them is not a tensor of known rank.
    """
    body: Function = at.attr("body")
    for value in values:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            at.refuse(f"{value.name!r} is {value.type or 'of unknown type'} in its body, and only a tensor of known rank is kept")
    if not values:
        return []
    # A body must not return an input directly: ONNX expects its outputs to be computed inside.
    copies = [at.builder.fresh(f"{value.name}_copy") for value in values]
    stacks = [at.builder.fresh(f"{value.name}_steps") for value in values]
    nodes = tuple(Node("Identity", (v.name,), (copy,), name=copy) for v, copy in zip(values, copies, strict=True))
    outputs = tuple(Value(copy, value.type) for value, copy in zip(values, copies, strict=True))
    changes: dict[str, Any] = {"body": body.replace(nodes=body.nodes + nodes, outputs=body.outputs + outputs)}
    for name in ("scan_output_axes", "scan_output_directions"):
        if at.attr(name) is not None:
            changes[name] = (*at.attr(name), *[0] * len(values))
    node = replace(at.node.with_attributes(**changes), outputs=(*at.node.outputs, *stacks))
    at.replace_node(node, {name: _stack_type(value.type) for name, value in zip(stacks, values, strict=True)})
    return [at.tensors[name] for name in stacks]


def _end_gradient(at: RuleContext, index: int, initial: str) -> Tensor:
    """The gradient of output ``index``, a carried value after the last iteration; zeros if none arrives.

    ``initial`` names the carried input, from which the zeros take their shape if the node omits the output.
    """
    gradient = at.gradients[index]
    return zeros_like(at.tensors[at.node.outputs[index] or initial]) if gradient is None else gradient


def _stack_type(type_: Type | None) -> Type | None:
    """Compute the type of values of this type that are stacked over an unknown number of iterations."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return type_.with_shape((None, *shape)) if isinstance(type_, TensorType) and shape is not None else type_


def _reshape_scalar(value: Value, scalar: Tensor) -> Tensor:
    """Reshape a scalar to the rank that the body declares: ONNX allows a scalar and a vector of one element."""
    rank = value.type.rank if isinstance(value.type, TensorType) else None
    return emit("Reshape", scalar, integers(*[1] * rank)) if rank else scalar


@rule("Loop")
def loop(at: RuleContext) -> Gradients:
    """Emit a Loop over the iterations in reverse. Its carried values are the gradients of the node's carried values."""
    original, carried = at.attr("body"), at.node.inputs[2:]
    check_repeatable(at.node, original)
    body = expand_body(original)
    indices = _find_carried(at, body, body.inputs[2:], body.outputs[1 : 1 + len(carried)], carried, ())
    captured = [name for name in at.node.captures if name in at.active]
    scans = at.gradients[len(carried) :]
    starts = [
        *(_end_gradient(at, index, carried[index]) for index in indices),
        *(zeros_like(at.tensors[name]) for name in captured),
    ]
    # The iteration number is stored too: its length is the trip count.
    stacks = _stack_carried(at, [original.inputs[0], *original.inputs[2:]])
    trip_count = emit("Squeeze", emit("Shape", stacks[0], start=0, end=1), [0])
    last = trip_count - 1
    sources = [*(body.inputs[2 + index].name for index in indices), *captured]

    def backward(iteration: Tensor, condition: Tensor, *gradients: Tensor) -> list[Tensor]:
        # The body has run in each of these iterations, so the condition that it received was true.
        place, true = last - iteration, current("a condition").symbol(np.asarray(True))
        operands = [_reshape_scalar(body.inputs[0], place), _reshape_scalar(body.inputs[1], true)]
        operands += [emit("Gather", stack, place) for stack in stacks[1:]]
        arriving: list[Tensor | None] = [None] * len(body.outputs)
        for index, gradient in zip(indices, gradients, strict=False):
            arriving[1 + index] = gradient
        for index, scan in enumerate(scans):
            arriving[1 + len(carried) + index] = None if scan is None else emit("Gather", scan, place)
        return [condition, *_differentiate_step(at, body, operands, arriving, sources, gradients[len(indices) :])]

    results: Any = apply("Loop", (trip_count, None, *starts), {"body": backward}, outputs=len(starts))
    at.captured.update(zip(captured, results[len(indices) :], strict=True))
    input_gradients: list[Tensor | None] = [None] * len(at.node.inputs)
    for index, result in zip(indices, results, strict=False):
        input_gradients[2 + index] = result
    return input_gradients


def _differentiate_step(
    at: RuleContext,
    body: Function,
    inputs: Sequence[Tensor],
    arriving: Sequence[Tensor | None],
    sources: Sequence[str],
    sums: Sequence[Tensor],
) -> list[Tensor]:
    """Differentiate one iteration: return the gradients of `sources`, those of captured values added to the running `sums`.

    The captured values are the last ``len(sums)`` of the sources.
    """
    gradients = _repeat_backward(at, body, inputs, arriving, sources)
    count = len(sources) - len(sums)
    return [*gradients[:count], *(add_up(pair) for pair in zip(sums, gradients[count:], strict=True))]


@rule("Scan")
def scan(at: RuleContext) -> Gradients:
    """Emit a Scan in the opposite direction. It carries gradients, and its outputs are the gradients of the scanned inputs."""
    original, count = at.attr("body"), at.attr("num_scan_inputs")
    check_repeatable(at.node, original)
    body = expand_body(original)
    states = len(at.node.inputs) - count
    row_indices = [index for index in range(count) if at.wants(states + index)]
    active_rows = [body.inputs[states + index].name for index in row_indices]
    carried = at.node.inputs[:states]
    active_states = _find_carried(at, body, body.inputs[:states], body.outputs[:states], carried, active_rows)
    captured = [name for name in at.node.captures if name in at.active]
    starts = [
        *(_end_gradient(at, index, carried[index]) for index in active_states),
        *(zeros_like(at.tensors[name]) for name in captured),
    ]
    arriving_scans = [(index, g) for index, g in enumerate(at.gradients[states:]) if g is not None]
    input_layout, output_layout = _read_layout(at, "input", count), _read_layout(at, "output", len(at.node.outputs) - states)
    stacks = _stack_carried(at, original.inputs[:states])
    sources = [*(body.inputs[index].name for index in active_states), *active_rows, *captured]

    def backward(*values: Tensor) -> list[Tensor]:
        gradients, sums, elements = values[: len(active_states)], values[len(active_states) : len(starts)], values[len(starts) :]
        arriving: list[Tensor | None] = [None] * len(body.outputs)
        for index, gradient in zip(active_states, gradients, strict=True):
            arriving[index] = gradient
        for (index, _), gradient in zip(arriving_scans, elements[states + count :], strict=True):
            arriving[states + index] = gradient
        computed = _differentiate_step(at, body, elements[: states + count], arriving, sources, sums)
        of_states, of_rows = computed[: len(active_states)], computed[len(active_states) : len(active_states) + len(row_indices)]
        return [*of_states, *computed[len(active_states) + len(row_indices) :], *of_rows]

    inputs = [*stacks, *(at.input(states + index) for index in range(count)), *(g for _, g in arriving_scans)]
    layout = [*[(0, 0)] * states, *input_layout, *(output_layout[index] for index, _ in arriving_scans)]
    attributes = {"body": backward, **_reverse_layout(layout, [input_layout[index] for index in row_indices])}
    results: Any = apply("Scan", (*starts, *inputs), attributes, outputs=len(starts) + len(row_indices))
    at.captured.update(zip(captured, results[len(active_states) : len(starts)], strict=True))
    input_gradients: list[Tensor | None] = [None] * len(at.node.inputs)
    input_positions = [*active_states, *(states + index for index in row_indices)]
    for position, result in zip(input_positions, [*results[: len(active_states)], *results[len(starts) :]], strict=True):
        input_gradients[position] = result
    return input_gradients


def _reverse_layout(inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Attributes of a Scan with all directions reversed."""
    attributes: dict[str, Any] = {"num_scan_inputs": len(inputs)}
    for kind, layout in (("input", inputs), ("output", outputs)):
        if layout:
            attributes[f"scan_{kind}_axes"] = [axis for axis, _ in layout]
            attributes[f"scan_{kind}_directions"] = [1 - direction for _, direction in layout]
    return attributes


def _read_layout(at: RuleContext, kind: str, count: int) -> list[tuple[int, int]]:
    """Axis and direction (0 forward, 1 backward) of each scanned value."""
    axes, directions = (at.attr(f"scan_{kind}_{name}") or [0] * count for name in ("axes", "directions"))
    return list(zip(axes, directions, strict=True))
