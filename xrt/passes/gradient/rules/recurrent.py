"""Gradients of LSTM, GRU and RNN: a layer is decomposed into a Scan over time, which has a gradient rule. Equations as in ONNX.

A bidirectional layer is split into two layers of one direction. The inputs of all time steps are multiplied by their weights in
one MatMul before the Scan. With a hand-written backward Scan instead of this decomposition, a layer took 0.95 to 1.18 times as
long for batches of 32 and more (ort, one thread, 28 to 100 steps, 64 and 128 units), 0.87 for a batch of 8, and 0.4 for one of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.passes.gradient.preparation import DEFINITIONS
from xrt.passes.gradient.table import (
    Gradients,
    RuleContext,
    add_axes,
    count_up_to,
    get_extent,
    join_extents,
    make_vector,
    make_zeros,
    split,
    transpose,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

_SUPPORTED_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
_GATE_COUNTS = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STATE_COUNTS = {"LSTM": 2, "GRU": 1, "RNN": 1}
_DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_LENGTHS, _STATES, _PEEPHOLES = 4, 5, 7
"""Indices of the inputs: the sequence lengths, the first of the initial states, and the peephole weights."""


def define_layer(ctx: RuleContext) -> Gradients:
    """Decompose the layer into a Scan over time, and return the outputs of the node.

    A bidirectional or batch-first layer is first split into time-first layers of one direction.
    """
    if ctx.attr("layout", 0) or ctx.attr("direction", "forward") == "bidirectional":
        return _split_directions(ctx)
    return _define_direction(ctx)


DEFINITIONS.update(dict.fromkeys(_GATE_COUNTS, define_layer))


def _split_directions(ctx: RuleContext) -> Gradients:
    """Emit one time-first layer per direction, and join the outputs of these layers."""
    op, direction = ctx.node.op, ctx.attr("direction", "forward")
    is_batch_first = ctx.attr("layout", 0) == 1
    directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)

    def swap_if_batch_first(x: Tensor) -> Tensor:
        """Swap the first axes of a batch-first sequence (batch, time, features), or states (batch, directions, hidden)."""
        return transpose(x, [1, 0, 2]) if is_batch_first else x

    # For each input of the node, the input of each layer.
    layer_inputs: list[Sequence[Tensor | None]] = [[swap_if_batch_first(ctx.x)] * len(directions)]
    for index in range(1, len(ctx.node.inputs)):
        x = ctx.optional(index)
        if x is None or index == _LENGTHS:
            layer_inputs.append([x] * len(directions))
            continue
        # Initial states are (batch, directions, hidden) if the batch is first.
        if _STATES <= index < _PEEPHOLES:
            x = swap_if_batch_first(x)
        layer_inputs.append(split(x, make_vector(*[1] * len(directions)), 0, len(directions)))
    shared_attributes = {a.name: a.value for a in ctx.node.attributes if a.name not in ("layout", "direction", "activations")}
    activations = ctx.attr("activations")
    count = len(_DEFAULT_ACTIVATIONS[op])  # per direction
    layers: list[Any] = []
    for index, layer_direction in enumerate(directions):
        attributes = {**shared_attributes, "direction": layer_direction}
        if activations:
            attributes["activations"] = activations[index * count : (index + 1) * count]
        inputs = [operands[index] for operands in layer_inputs]
        layers.append(apply(op, inputs, attributes, outputs=1 + _STATE_COUNTS[op]))
    joined = []
    for index, parts in enumerate(zip(*layers, strict=True)):
        # The axis of the directions is 1 in the sequence of outputs (time, directions, batch, hidden), and 0 in the last states.
        axis = 1 if index == 0 else 0
        joined.append(parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis))
    sequence, *last_states = joined
    if is_batch_first:
        sequence = transpose(sequence, [2, 0, 1, 3])  # to (batch, time, directions, hidden)
    return sequence, *map(swap_if_batch_first, last_states)


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """The time step of one direction of a layer: weights and activations."""

    recurrent: Sequence[Tensor]
    """The recurrent weights (hidden, gates * hidden). A GRU has two: of the update and reset gates, and of the candidate."""
    candidate_bias: Tensor | None
    """The recurrent bias of a GRU's candidate, if the reset gate scales it, so that it cannot be added to the inputs."""
    peepholes: tuple[Tensor, ...]
    activations: tuple[Callable[[Tensor], Tensor], ...]
    is_coupled: bool
    is_linear_before_reset: bool


def _advance_lstm(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next h and c of an LSTM (Hochreiter and Schmidhuber 1997), with the peepholes of Gers and Schmidhuber (2000)."""
    h, c = states
    activate_gate, activate_candidate, activate_cell = cell.activations
    i, o, f, candidate = split(x + emit("MatMul", h, cell.recurrent[0]), None, -1, 4)
    if cell.peepholes:
        i, f = i + cell.peepholes[0] * c, f + cell.peepholes[2] * c
    i = activate_gate(i)
    f = 1 - i if cell.is_coupled else activate_gate(f)
    new_c = f * c + i * activate_candidate(candidate)
    # The peephole of the output gate reads the new cell state.
    o = activate_gate(o + cell.peepholes[1] * new_c if cell.peepholes else o)
    return o * activate_cell(new_c), new_c


def _advance_gru(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next state of a GRU; Cho et al., arXiv:1406.1078."""
    (h,) = states
    activate_gate, activate_candidate = cell.activations
    gate_weights, candidate_weights = cell.recurrent
    z_input, r_input, candidate_input = split(x, None, -1, 3)
    z_state, r_state = split(emit("MatMul", h, gate_weights), None, -1, 2)
    z, r = activate_gate(z_input + z_state), activate_gate(r_input + r_state)
    if cell.is_linear_before_reset:
        product = emit("MatMul", h, candidate_weights)
        product = r * (product if cell.candidate_bias is None else product + cell.candidate_bias)
    else:
        product = emit("MatMul", r * h, candidate_weights)
    return ((1 - z) * activate_candidate(candidate_input + product) + z * h,)


def _advance_rnn(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next state of an RNN; Elman (1990)."""
    return (cell.activations[0](x + emit("MatMul", states[0], cell.recurrent[0])),)


_ADVANCE = {"LSTM": _advance_lstm, "GRU": _advance_gru, "RNN": _advance_rnn}
"""Computes the next states from the inputs of a time step and the states."""


def _define_direction(ctx: RuleContext) -> Gradients:
    """Decompose a time-first layer of one direction into a Scan."""
    op, hidden, lengths = ctx.node.op, _read_hidden_size(ctx), ctx.optional(_LENGTHS)
    cell, inputs = _make_cell(ctx, hidden)
    zeros = make_zeros(join_extents(get_extent(ctx.x, 1), make_vector(hidden)), ctx.x.dtype)
    initial_states = [ctx.optional(_STATES + k) for k in range(_STATE_COUNTS[op])]
    states = [zeros if state is None else _squeeze(state) for state in initial_states]
    count = len(states)
    scanned = [inputs]
    if lengths is not None:
        # As ONNX defines it, an empty sequence ends with states of zero, not with its initial states.
        is_empty = emit("Unsqueeze", emit("Equal", lengths, np.asarray(0, np.int32)), make_vector(1))
        states = [emit("Where", is_empty, 0, state) for state in states]
        # The body also needs the index of the time step.
        scanned.append(count_up_to(emit("Reshape", get_extent(inputs, 0), make_vector())))

    def body(*values: Tensor) -> list[Tensor]:
        old, x = values[:count], values[count]
        new = _ADVANCE[op](cell, x, old)
        if lengths is None:
            return [*new, emit("Identity", new[0])]
        alive = emit("Unsqueeze", emit("Less", values[count + 1], lengths.astype("int64")), make_vector(1))
        # After its end a sequence keeps its states and outputs zeros.
        next_states = [emit("Where", alive, after, before) for after, before in zip(new, old, strict=True)]
        return [*next_states, emit("Where", alive, new[0], 0)]

    # The outputs of the steps are in the order of the sequence, also if the Scan runs backwards (direction 1).
    direction = 1 if ctx.attr("direction", "forward") == "reverse" else 0
    attributes = {
        "body": body,
        "num_scan_inputs": len(scanned),
        "scan_input_directions": [direction] * len(scanned),
        "scan_output_directions": [direction],
    }
    *last_states, sequence = apply("Scan", (*states, *scanned), attributes, outputs=count + 1)
    return add_axes(sequence, 1), *(add_axes(state, 0) for state in last_states)


def _make_cell(ctx: RuleContext, hidden: int) -> tuple[_Cell, Tensor]:
    """Make the cell of one direction, and compute its gates' inputs with biases as (time, batch, gates * hidden)."""
    weights, recurrent = (transpose(_squeeze(ctx.input(k)), [1, 0]) for k in (1, 2))
    inputs = emit("MatMul", ctx.x, weights)
    bias, peepholes = ctx.optional(3), ctx.optional(_PEEPHOLES)
    candidate_bias = None
    if bias is not None:
        input_bias, state_bias = split(_squeeze(bias), None, -1, 2)
        if ctx.attr("linear_before_reset"):
            # The reset gate scales the candidate's recurrent bias too, so each step adds it.
            *gate_biases, candidate_bias = split(state_bias, None, -1, _GATE_COUNTS[ctx.node.op])
            state_bias = emit("Concat", *gate_biases, make_zeros(make_vector(hidden), ctx.x.dtype), axis=0)
        inputs = inputs + (input_bias + state_bias)
    # The weights are split outside of the Scan, so that no step copies them.
    sizes = (2 * hidden, hidden) if ctx.node.op == "GRU" else (_GATE_COUNTS[ctx.node.op] * hidden,)
    recurrent_parts = split(recurrent, make_vector(*sizes), -1, len(sizes))
    names = ctx.attr("activations") or _DEFAULT_ACTIVATIONS[ctx.node.op]
    limit = ctx.attr("clip")
    # The last activation of an LSTM reads the cell state, which no engine clips: only sums of products are clipped.
    activations = [_make_activation(ctx, name, None if index == 2 else limit) for index, name in enumerate(names)]
    peephole_parts = () if peepholes is None else tuple(split(_squeeze(peepholes), None, -1, 3))
    is_coupled, is_linear = bool(ctx.attr("input_forget")), bool(ctx.attr("linear_before_reset"))
    return _Cell(recurrent_parts, candidate_bias, peephole_parts, tuple(activations), is_coupled, is_linear), inputs


def _make_activation(ctx: RuleContext, name: str, limit: float | None) -> Callable[[Tensor], Tensor]:
    """Make the function of an activation, whose input is clipped to [-limit, limit]. Refuses an unsupported activation."""
    # As in ONNX Runtime, the case of these names does not matter.
    supported = {simple.lower(): simple for simple in _SUPPORTED_ACTIVATIONS}
    if name.lower() not in supported or ctx.attr("activation_alpha") or ctx.attr("activation_beta"):
        ctx.refuse(f"its activation {name!r} has parameters, or is not one of {', '.join(_SUPPORTED_ACTIVATIONS)}")

    def activate(x: Tensor) -> Tensor:
        clipped = emit("Clip", x, -limit, limit) if limit else x
        return emit(supported[name.lower()], clipped)

    return activate


def _read_hidden_size(ctx: RuleContext) -> int:
    # The attribute is optional, because the recurrent weights (directions, gates * hidden, hidden) have the size too.
    hidden = ctx.attr("hidden_size") or (ctx.input(2).tensor_type.shape or (None,))[-1]
    if not isinstance(hidden, int):
        ctx.refuse("its hidden size is not known")
    return hidden


def _squeeze(x: Tensor) -> Tensor:
    """Drop the first axis, that of the directions. A layer of one direction has extent 1 there."""
    return emit("Squeeze", x, make_vector(0))
