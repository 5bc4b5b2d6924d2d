"""Gradients of LSTM, GRU and RNN: each layer is first decomposed into a Scan over time. Equations as in ONNX.

Layers of two directions, or with the batch first, are split into layers of one direction. The product of the inputs with their
weights is one product for all steps. The same layer with a hand-written backward Scan took 0.95 to 1.18 times as long for batches
of 32 and more (ort, one thread, 28 to 100 steps, 64 and 128 units), 0.87 for a batch of 8, and 0.4 for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.passes.gradient.preparation import DEFINITIONS
from xrt.passes.gradient.table import (
    RuleContext,
    add_axes,
    extent,
    integers,
    join,
    number,
    split,
    transpose,
    zeros,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.graph import Node

Outputs = Sequence["Tensor | None"]
_SIMPLE = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_LENGTHS, _STATES, _PEEPHOLES = 4, 5, 7
"""Positions of these among the inputs of a layer."""


def _count_states(node: Node) -> int:
    return 2 if node.op == "LSTM" else 1


# ---------------------------------------------------------------------- definitions


def define_layer(at: RuleContext) -> Outputs:
    """Decompose the layer into a Scan over time, and return the outputs of the node.

    A bidirectional or batch-first layer is first split into time-first layers of one direction.
    """
    is_plain = not at.attr("layout", 0) and at.attr("direction", "forward") != "bidirectional"
    return _define_direction(at) if is_plain else _split_directions(at)


DEFINITIONS.update(dict.fromkeys(_GATES, define_layer))


def _split_directions(at: RuleContext) -> Outputs:
    """Emit one layer per direction, with the time first, and join their outputs."""
    op, by_batch, count = at.node.op, at.attr("layout", 0) == 1, len(at.node.inputs)
    passes = ("forward", "reverse") if at.attr("direction", "forward") == "bidirectional" else (at.attr("direction", "forward"),)

    def turn(x: Tensor) -> Tensor:
        return transpose(x, [1, 0, 2]) if by_batch else x

    inputs: list[Sequence[Tensor | None]] = [[turn(at.x)] * len(passes)]
    for place in range(1, count):
        x = at.optional(place)
        if x is None or place == _LENGTHS:
            inputs.append([x] * len(passes))
        else:
            x = turn(x) if _STATES <= place < _PEEPHOLES else x
            inputs.append(split(x, integers(*[1] * len(passes)), 0, len(passes)))
    size, names = len(_ACTIVATIONS[op]), at.attr("activations")
    attributes = {a.name: a.value for a in at.node.attributes if a.name not in ("layout", "direction", "activations")}
    layers: list[Any] = []
    for place, (direction, operands) in enumerate(zip(passes, zip(*inputs, strict=True), strict=True)):
        chosen = {"direction": direction, "activations": names[place * size : (place + 1) * size] if names else None}
        layers.append(apply(op, operands, {**attributes, **chosen}, outputs=1 + _count_states(at.node)))
    whole, *ends = (
        parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=0 if index else 1)
        for index, parts in enumerate(zip(*layers, strict=True))
    )
    return transpose(whole, [2, 0, 1, 3]) if by_batch else whole, *map(turn, ends)


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """One direction of a layer: weights and activations."""

    recurrent: Sequence[Tensor]
    """(hidden, gates * hidden); for GRU the parts of the gates and of the candidate."""
    bias: Tensor | None
    """Recurrent bias, if it cannot be added to the inputs."""
    peepholes: tuple[Tensor, ...]
    activations: tuple[Callable[[Tensor], Tensor], ...]
    is_coupled: bool
    is_linear_before_reset: bool


def _split(x: Tensor, parts: int) -> Sequence[Tensor]:
    """Split the last axis into equal parts."""
    pieces: Any = apply("Split", (x,), {"axis": -1, "num_outputs": parts}, outputs=parts)
    return tuple(pieces)


def _advance_lstm(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next h and c of an LSTM (Hochreiter and Schmidhuber 1997), with the peepholes of Gers and Schmidhuber (2000)."""
    h, c = states
    f, g, k = cell.activations
    i_in, o_in, f_in, c_in = _split(x + emit("MatMul", h, cell.recurrent[0]), 4)
    if cell.peepholes:
        i_in, f_in = i_in + cell.peepholes[0] * c, f_in + cell.peepholes[2] * c
    i = f(i_in)
    forget = 1 - i if cell.is_coupled else f(f_in)
    following = forget * c + i * g(c_in)
    o = f(o_in + cell.peepholes[1] * following if cell.peepholes else o_in)
    return o * k(following), following


def _advance_gru(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next state of a GRU; Cho et al., arXiv:1406.1078."""
    (h,) = states
    f, g = cell.activations
    gates, last = cell.recurrent
    z_in, r_in, h_in = _split(x, 3)
    z_part, r_part = _split(emit("MatMul", h, gates), 2)
    z, r = f(z_in + z_part), f(r_in + r_part)
    if cell.is_linear_before_reset:
        inner = emit("MatMul", h, last)
        candidate = g(h_in + r * (inner if cell.bias is None else inner + cell.bias))
    else:
        candidate = g(h_in + emit("MatMul", r * h, last))
    return ((1 - z) * candidate + z * h,)


def _advance_rnn(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next state of an RNN; Elman (1990)."""
    return (cell.activations[0](x + emit("MatMul", states[0], cell.recurrent[0])),)


_ADVANCE = {"LSTM": _advance_lstm, "GRU": _advance_gru, "RNN": _advance_rnn}
"""Computes the next states from the inputs of a time step and the states."""


def _define_direction(at: RuleContext) -> Outputs:
    """Define a layer of one direction, with the time first, by a Scan."""
    op, hidden, lengths = at.node.op, _read_hidden_size(at), at.optional(_LENGTHS)
    cell, inputs = _make_cell(at, hidden)
    states = [_read_state(at.optional(_STATES + k), at.x, hidden) for k in range(_count_states(at.node))]
    count, rows = len(states), [inputs]
    if lengths is not None:
        # ONNX: an empty sequence ends in zero states, not in its initial states.
        is_empty = emit("Unsqueeze", emit("Equal", lengths, np.asarray(0, np.int32)), integers(1))
        states = [emit("Where", is_empty, number(0, state), state) for state in states]
        size = emit("Reshape", extent(inputs, 0), integers())
        rows.append(emit("Range", np.asarray(0, np.int64), size, np.asarray(1, np.int64)))

    def body(*values: Tensor) -> list[Tensor]:
        old, x = values[:count], values[count]
        new = _ADVANCE[op](cell, x, old)
        if lengths is None:
            return [*new, emit("Identity", new[0])]
        alive = emit("Unsqueeze", emit("Less", values[count + 1], lengths.astype("int64")), integers(1))
        # Beyond its length a sequence keeps its state and outputs zeros.
        next_states = [emit("Where", alive, after, before) for after, before in zip(new, old, strict=True)]
        return [*next_states, emit("Where", alive, new[0], number(0, x))]

    # Outputs per step are in the order of the sequence, also for a backward scan (1).
    direction = int(at.attr("direction", "forward") == "reverse")
    attributes = {"body": body, "num_scan_inputs": len(rows)}
    attributes |= {"scan_input_directions": [direction] * len(rows), "scan_output_directions": [direction]}
    *ends, sequence = apply("Scan", (*states, *rows), attributes, outputs=count + 1)
    return add_axes(sequence, 1), *(add_axes(end, 0) for end in ends)


def _make_cell(at: RuleContext, hidden: int) -> tuple[_Cell, Tensor]:
    """Make the cell of one direction, and the products of the whole sequence with the input weights, biases added.

    The products are (time, batch, gates * hidden).
    """
    weights, recurrent = (transpose(_squeeze(at.input(k)), [1, 0]) for k in (1, 2))
    inputs, bias, peepholes, candidate_bias = emit("MatMul", at.x, weights), at.optional(3), at.optional(_PEEPHOLES), None
    if bias is not None:
        input_bias, state_bias = _split(_squeeze(bias), 2)
        if at.attr("linear_before_reset"):
            # The reset gate scales the candidate's recurrent bias too, so this one is added in each step.
            *early, candidate_bias = _split(state_bias, _GATES[at.node.op])
            state_bias = emit("Concat", *early, zeros(integers(hidden), at.x.dtype), axis=0)
        inputs = inputs + (input_bias + state_bias)
    # Outside of the Scan, so that no step copies the weights.
    sizes = (2 * hidden, hidden) if at.node.op == "GRU" else (_GATES[at.node.op] * hidden,)
    products = split(recurrent, integers(*sizes), -1, len(sizes))
    names, limit = at.attr("activations") or _ACTIVATIONS[at.node.op], at.attr("clip")
    # The last activation of an LSTM reads the cell, which no engine clips: only sums of products are clipped.
    activations = [_make_activation(at, name, None if place == 2 else limit) for place, name in enumerate(names)]
    parts = () if peepholes is None else tuple(_split(_squeeze(peepholes), 3))
    flags = bool(at.attr("input_forget")), bool(at.attr("linear_before_reset"))
    return _Cell(products, candidate_bias, parts, tuple(activations), *flags), inputs


def _make_activation(at: RuleContext, name: str, limit: float | None) -> Callable[[Tensor], Tensor]:
    """Make the function of an activation, with clipping of its input to ``limit``; refuses the node for other activations."""
    # As in ONNX Runtime, the case of these names does not matter.
    supported = {simple.lower(): simple for simple in _SIMPLE}
    if name.lower() not in supported or at.attr("activation_alpha") or at.attr("activation_beta"):
        at.refuse(f"its activation {name!r} has parameters, or is not one of {', '.join(_SIMPLE)}")

    def activate(x: Tensor) -> Tensor:
        clipped = x if not limit else emit("Clip", x, number(-limit, x), number(limit, x))
        return emit(supported[name.lower()], clipped)

    return activate


def _read_hidden_size(at: RuleContext) -> int:
    """The attribute is optional: the recurrent weights have the size, too."""
    hidden = at.attr("hidden_size") or (at.input(2).tensor_type.shape or (None,))[-1]
    if not isinstance(hidden, int):
        at.refuse("its hidden size is not known")
    return hidden


def _squeeze(x: Tensor, axis: int = 0) -> Tensor:
    """Drop the axis of directions, which has extent 1."""
    return emit("Squeeze", x, integers(axis))


def _read_state(state: Tensor | None, x: Tensor, hidden: int) -> Tensor:
    """An initial state as (batch, hidden); zeros if the layer has none."""
    if state is not None:
        return _squeeze(state)
    return zeros(join(extent(x, 1), integers(hidden)), x.dtype)
