"""Recurrent layers written as a Scan over the sequence, through which the gradient goes back in time.

Werbos, *Backpropagation through time* (1990). The equations are those of ONNX's LSTM, GRU and RNN. The products with the inputs
are made for the whole sequence at once, before the Scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.passes.gradient.definitions import definition
from xrt.passes.gradient.tensors import extent, integers, number, transpose, zeros

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.passes.gradient.table import RuleContext

Gradients = Sequence["Tensor | None"]
_SIMPLE = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """One direction of a layer: its weights and activation functions."""

    hidden: int
    recurrent: Tensor
    """(hidden, gates * hidden)."""
    bias: Tensor | None
    """The bias of the recurrent product, where it is not added to the inputs."""
    peepholes: tuple[Tensor, ...]
    activations: tuple[Callable[[Tensor], Tensor], ...]
    options: dict[str, Any]


Advance = Callable[[_Cell, "Tensor", "Sequence[Tensor]"], "tuple[Tensor, ...]"]
"""Returns the next states from the inputs of a step and the states."""


def _split(x: Tensor, parts: int) -> Sequence[Tensor]:
    found: Any = apply("Split", (x,), {"axis": -1, "num_outputs": parts}, outputs=parts)
    return tuple(found)


def _advance_lstm(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    h, c = states
    f, g, k = cell.activations
    i_in, o_in, f_in, c_in = _split(x + emit("MatMul", h, cell.recurrent), 4)
    if cell.peepholes:
        i_in, f_in = i_in + cell.peepholes[0] * c, f_in + cell.peepholes[2] * c
    i = f(i_in)
    forget = 1 - i if cell.options.get("input_forget") else f(f_in)
    following = forget * c + i * g(c_in)
    o = f(o_in + cell.peepholes[1] * following if cell.peepholes else o_in)
    return o * k(following), following


def _advance_gru(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (h,) = states
    f, g = cell.activations
    size = integers(2 * cell.hidden)
    end = integers(3 * cell.hidden)
    gates, last = (emit("Slice", cell.recurrent, *ends, integers(1)) for ends in ((integers(0), size), (size, end)))
    z_in, r_in, h_in = _split(x, 3)
    z_part, r_part = _split(emit("MatMul", h, gates), 2)
    z, r = f(z_in + z_part), f(r_in + r_part)
    if cell.options.get("linear_before_reset"):
        inner = emit("MatMul", h, last)
        candidate = g(h_in + r * (inner if cell.bias is None else inner + cell.bias))
    else:
        candidate = g(h_in + emit("MatMul", r * h, last))
    return ((1 - z) * candidate + z * h,)


def _advance_rnn(cell: _Cell, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (cell.activations[0](x + emit("MatMul", states[0], cell.recurrent)),)


@definition("LSTM")
def define_lstm(at: RuleContext) -> Gradients:
    """Hochreiter and Schmidhuber (1997), with the peepholes of Gers and Schmidhuber (2000)."""
    return _define_layer(at, _advance_lstm, 4, ("Sigmoid", "Tanh", "Tanh"), states=2)


@definition("GRU")
def define_gru(at: RuleContext) -> Gradients:
    """Cho et al., arXiv:1406.1078."""
    return _define_layer(at, _advance_gru, 3, ("Sigmoid", "Tanh"), states=1)


@definition("RNN")
def define_rnn(at: RuleContext) -> Gradients:
    """Elman (1990)."""
    return _define_layer(at, _advance_rnn, 1, ("Tanh",), states=1)


def _define_layer(at: RuleContext, advance: Advance, gates: int, functions: Sequence[str], states: int) -> Gradients:
    by_batch = at.attr("layout", 0) == 1
    x = transpose(at.x, [1, 0, 2]) if by_batch else at.x
    hidden = at.attr("hidden_size") or at.input(2).shape[2]
    if not isinstance(hidden, int):
        at.refuse("its hidden size is not known")
    direction = at.attr("direction", "forward")
    ways = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}[direction]
    starts = [_start(at, x, at.optional(5 + k), hidden, len(ways), by_batch) for k in range(states)]
    sequences, ends = [], [list[Any]() for _ in range(states)]
    for place, way in enumerate(ways):
        cell, inputs = _make_cell(at, x, gates, hidden, functions, place)
        first = [_pick(start, place) for start in starts]
        *last, sequence = _scan(at, cell, advance, inputs, first, way)
        sequences.append(emit("Unsqueeze", sequence, integers(1)))
        for found, end in zip(ends, last, strict=True):
            found.append(emit("Unsqueeze", end, integers(0)))
    whole = sequences[0] if len(ways) == 1 else emit("Concat", *sequences, axis=1)
    finals = [found[0] if len(ways) == 1 else emit("Concat", *found, axis=0) for found in ends]
    if by_batch:
        return transpose(whole, [2, 0, 1, 3]), *(transpose(final, [1, 0, 2]) for final in finals)
    return whole, *finals


def _pick(x: Tensor, place: int) -> Tensor:
    """Return the part of one direction."""
    return emit("Gather", x, np.asarray(place, np.int64), axis=0)


def _start(at: RuleContext, x: Tensor, given: Tensor | None, hidden: int, ways: int, by_batch: bool) -> Tensor:
    """Return the initial states (directions, batch, hidden), zeros where none are given."""
    if given is not None:
        return transpose(given, [1, 0, 2]) if by_batch else given
    batch = extent(x, 1)
    if isinstance(batch, np.ndarray):
        return zeros(integers(ways, int(batch[0]), hidden), x.dtype)
    return zeros(emit("Concat", integers(ways), batch, integers(hidden), axis=0), x.dtype)


def _make_cell(at: RuleContext, x: Tensor, gates: int, hidden: int, functions: Sequence[str], place: int) -> tuple[_Cell, Tensor]:
    """Return the cell of one direction, and the products of the whole sequence with the weights, biases included."""
    weights, recurrent = (transpose(_pick(at.input(k), place), [1, 0]) for k in (1, 2))
    inputs, bias, rest = emit("MatMul", x, weights), at.optional(3), None
    if bias is not None:
        both = _pick(bias, place)
        own, other = _split(both, 2)
        if at.attr("linear_before_reset"):
            *early, rest = _split(other, gates)
            own = own + emit("Concat", *early, zeros(integers(hidden), x.dtype), axis=0)
        else:
            own = own + other
        inputs = inputs + own
    peepholes = at.optional(7)
    options = {name: at.attr(name) for name in ("input_forget", "linear_before_reset")}
    parts = () if peepholes is None else tuple(_split(_pick(peepholes, place), 3))
    names = at.attr("activations") or [*functions, *functions]
    chosen = names[place * len(functions) : (place + 1) * len(functions)]
    return _Cell(hidden, recurrent, rest, parts, tuple(_activation(at, name) for name in chosen), options), inputs


def _activation(at: RuleContext, name: str) -> Callable[[Tensor], Tensor]:
    known = {simple.lower(): simple for simple in _SIMPLE}
    if name.lower() not in known or at.attr("activation_alpha") or at.attr("activation_beta"):
        at.refuse(f"its activation {name!r} has parameters, or is not one of {', '.join(_SIMPLE)}")
    limit = at.attr("clip")

    def activate(x: Tensor) -> Tensor:
        clipped = x if not limit else emit("Clip", x, number(-limit, x), number(limit, x))
        return emit(known[name.lower()], clipped)

    return activate


def _scan(at: RuleContext, cell: _Cell, advance: Advance, inputs: Tensor, first: Sequence[Tensor], way: int) -> Sequence[Tensor]:
    """Return the last states and the sequence of the first one."""
    lengths, count = at.optional(4), len(first)

    def body(*values: Tensor) -> list[Tensor]:
        old, x = values[:count], values[count]
        new = advance(cell, x, old)
        if lengths is None:
            return [*new, emit("Identity", new[0])]
        alive = emit("Unsqueeze", emit("Less", values[count + 1], lengths.astype("int64")), integers(1))
        kept = [emit("Where", alive, after, before) for after, before in zip(new, old, strict=True)]
        return [*kept, emit("Where", alive, new[0], number(0, x))]

    rows: list[Tensor] = [inputs]
    if lengths is not None:
        is_empty = emit("Unsqueeze", emit("Equal", lengths, np.asarray(0, np.int32)), integers(1))
        first = [emit("Where", is_empty, number(0, state), state) for state in first]  # their last states are 0
        size = emit("Reshape", extent(inputs, 0), integers())
        rows.append(emit("Range", np.asarray(0, np.int64), size, np.asarray(1, np.int64)))
    found: Any = apply(
        "Scan",
        (*first, *rows),
        {
            "body": body,
            "num_scan_inputs": len(rows),
            "scan_input_directions": [way] * len(rows),
            "scan_output_directions": [way],
        },
        outputs=count + 1,
    )
    return tuple(found)
