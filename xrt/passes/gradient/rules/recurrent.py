"""Gradients of LSTM, GRU and RNN by backpropagation through time; Werbos (1990). Equations as in ONNX.

Usual layers have a rule: a backward Scan that computes all products of the sequence in one matrix product. A step of 50 times
with 16 units takes 0.3 ms (LSTM) and 0.2 ms (GRU) on ort, and 0.9 and 1.4 ms with the definition. Layers with sequence lengths,
peepholes, clipping or other activations are decomposed into a Scan first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.graph import TensorType
from xrt.passes.gradient.preparation import definition
from xrt.passes.gradient.table import (
    RuleContext,
    add_axes,
    add_up,
    extent,
    integers,
    number,
    reduce_sum,
    rule,
    split,
    transpose,
    zeros,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.graph import Node

Gradients = Sequence["Tensor | None"]
_SIMPLE = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """One direction of a layer: weights and activations."""

    hidden: int
    recurrent: Tensor
    """(hidden, gates * hidden)."""
    bias: Tensor | None
    """Recurrent bias, if it cannot be added to the inputs."""
    peepholes: tuple[Tensor, ...]
    activations: tuple[Callable[[Tensor], Tensor], ...]
    options: dict[str, Any]


Advance = Callable[[_Cell, "Tensor", "Sequence[Tensor]"], "tuple[Tensor, ...]"]
"""Computes the next states from the inputs of a time step and the states."""


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
    x, hidden, ways = _by_time(at.x, by_batch), _read_hidden_size(at), _WAYS[at.attr("direction", "forward")]
    starts = [_states(at.optional(5 + k), x, hidden, len(ways), by_batch) for k in range(states)]
    sequences, ends = [], [list[Any]() for _ in range(states)]
    for place, way in enumerate(ways):
        cell, inputs = _make_cell(at, x, gates, hidden, functions, place)
        *last, sequence = _scan(at, cell, advance, inputs, [_pick(start, place) for start in starts], way)
        sequences.append(add_axes(sequence, 1))
        for found, end in zip(ends, last, strict=True):
            found.append(add_axes(end, 0))
    whole, *finals = (_concatenate(parts, axis) for parts, axis in ((sequences, 1), *((found, 0) for found in ends)))
    if by_batch:
        return transpose(whole, [2, 0, 1, 3]), *(transpose(final, [1, 0, 2]) for final in finals)
    return whole, *finals


def _make_cell(at: RuleContext, x: Tensor, gates: int, hidden: int, functions: Sequence[str], place: int) -> tuple[_Cell, Tensor]:
    """The cell of one direction, and the input products of the whole sequence, biases included."""
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
    """Run the cell over the sequence; return the last states and the sequence of hidden states."""
    lengths, count = at.optional(4), len(first)

    def body(*values: Tensor) -> list[Tensor]:
        old, x = values[:count], values[count]
        new = advance(cell, x, old)
        if lengths is None:
            return [*new, emit("Identity", new[0])]
        alive = emit("Unsqueeze", emit("Less", values[count + 1], lengths.astype("int64")), integers(1))
        # Behind its length a sequence keeps its state and outputs zeros.
        kept = [emit("Where", alive, after, before) for after, before in zip(new, old, strict=True)]
        return [*kept, emit("Where", alive, new[0], number(0, x))]

    rows: list[Tensor] = [inputs]
    if lengths is not None:
        # ONNX: an empty sequence ends in zero states, not in its initial states.
        is_empty = emit("Unsqueeze", emit("Equal", lengths, np.asarray(0, np.int32)), integers(1))
        first = [emit("Where", is_empty, number(0, state), state) for state in first]  # the final states of empty sequences are 0
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


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS: dict[str, Sequence[tuple[str, ...]]] = {
    "LSTM": [("sigmoid", "tanh", "tanh")],
    "GRU": [("sigmoid", "tanh")],
    "RNN": [("tanh",), ("relu",)],
}
_WAYS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
_LENGTHS, _PEEPHOLES = 4, 7
"""Input positions."""


def is_usual(node: Node) -> bool:
    """Whether a layer has default activations and no sequence lengths, peepholes, clipping or coupled gates.

    A GRU must use ``linear_before_reset=1``, as PyTorch and cuDNN do.
    """
    unusual = any(place < len(node.inputs) and node.inputs[place] for place in (_LENGTHS, _PEEPHOLES))
    if unusual or any(node.attr(name) for name in ("clip", "input_forget", "activation_alpha", "activation_beta")):
        return False
    if node.op == "GRU" and not node.attr("linear_before_reset"):
        return False
    names, known = [name.lower() for name in node.attr("activations") or ()], _FUNCTIONS[node.op]
    size = len(known[0])
    return all(tuple(names[start : start + size]) in known for start in range(0, len(names), size))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One direction of a layer: T steps, batch B, G gates, hidden size H."""

    x: Tensor
    """(T, B, inputs)."""
    y: Tensor
    """(T, B, H)."""
    before: Tensor
    """Hidden state before each step, (T, B, H)."""
    starts: tuple[Tensor, ...]
    """Initial states, (B, H)."""
    w: Tensor
    """(G * H, inputs)."""
    r: Tensor
    """(G * H, H)."""
    biases: Sequence[Tensor]
    """Input bias and recurrent bias, (G * H) each; empty if the layer has none."""
    size: int
    """H."""
    way: int
    """0 forward, 1 backward."""
    function: str
    """The activation of RNN."""
    arriving: Tensor | None
    """Gradient of y."""
    ends: tuple[Tensor, ...]
    """Gradients of the last states, (B, H)."""

    def multiply(self) -> list[Tensor]:
        """Products of all inputs and all hidden states with their weights, (T, B, G * H)."""
        return [emit("MatMul", x, transpose(by, [1, 0])) for x, by in ((self.x, self.w), (self.before, self.r))]

    def scan(self, body: Callable[..., list[Tensor]], states: Sequence[Tensor], rows: Sequence[Tensor], *, back: bool) -> Any:
        """Scan over the sequence; return the last states and the per-step outputs of the body in sequence order."""
        way = 1 - self.way if back else self.way
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(rows), "scan_input_directions": [way] * len(rows)}
        attributes["scan_output_directions"] = [way]
        return apply("Scan", (*states, *rows), attributes, outputs=len(states) + 1)

    def go_back(self, advance: Callable[..., list[Tensor]], rows: Sequence[Tensor]) -> Any:
        """Scan backward; return the gradients of the initial states and the per-step outputs of ``advance``.

        ``advance`` receives the state gradients after a step, including the gradient of that step's output, and the rows.
        """
        count, arriving = len(self.ends), self.arriving
        if arriving is None:
            return self.scan(lambda *values: advance(values[:count], *values[count:]), self.ends, rows, back=True)

        def body(*values: Tensor) -> list[Tensor]:
            after = (values[0] + values[count], *values[1:count])
            return advance(after, *values[count + 1 :])

        return self.scan(body, self.ends, (arriving, *rows), back=True)


Found = tuple["Tensor", "Tensor", Sequence["Tensor"]]
"""Gradients of the input products and recurrent products, (T, B, G * H), and of the initial states, (B, H)."""
# ---------------------------------------------------------------------- layers


@rule("LSTM", when=is_usual)
def differentiate_lstm(at: RuleContext) -> Gradients:
    """With gates i, o, f, g: dc' = f (dc + dh o (1 - tanh(c)^2)), and dh' is the product of the gates' gradients with R."""
    return _differentiate(at, _go_back_lstm, states=2)


def _go_back_lstm(layer: _Layer) -> Found:
    gates, size = add_up(layer.multiply()), layer.size
    gates = gates + (layer.biases[0] + layer.biases[1]) if layer.biases else gates
    inner, outer = split(gates, integers(3 * size, size), -1, 2)
    opened, g = emit("Sigmoid", inner), emit("Tanh", outer)
    i, o, f = split(opened, integers(*[size] * 3), -1, 3)
    slopes = split(opened * (1 - opened), integers(*[size] * 3), -1, 3)
    added = i * g

    def advance(c: Tensor, kept: Tensor, new: Tensor) -> list[Tensor]:
        return [kept * c + new, emit("Identity", c)]

    _, before = layer.scan(advance, layer.starts[1:], (f, added), back=False)
    ended = emit("Tanh", f * before + added)
    to_cell = o * (1 - ended * ended)
    factors = emit("Concat", g * slopes[0], ended * slopes[1], before * slopes[2], i * (1 - g * g), axis=-1)

    def back(states: Sequence[Tensor], kept: Tensor, cell: Tensor, each: Tensor) -> list[Tensor]:
        dh, dc = states[0], states[1] + states[0] * cell
        gates = emit("Concat", dc, dh, dc, dc, axis=-1) * each
        return [emit("MatMul", gates, layer.r), dc * kept, gates]

    *starts, found = layer.go_back(back, (f, to_cell, factors))
    return found, found, starts


@rule("GRU", when=is_usual)
def differentiate_gru(at: RuleContext) -> Gradients:
    """With gates z, r and the candidate n: dh' = dh z, and the product of the gates' gradients with R."""
    return _differentiate(at, _go_back_gru, states=1)


def _go_back_gru(layer: _Layer) -> Found:
    products, size = layer.multiply(), layer.size
    of_inputs, of_states = (x + bias for x, bias in zip(products, layer.biases, strict=True)) if layer.biases else products
    sizes = integers(2 * size, size)
    (first, last), (inner, reset) = (split(x, sizes, -1, 2) for x in (of_inputs, of_states))
    z, r = split(emit("Sigmoid", first + inner), integers(size, size), -1, 2)
    n = emit("Tanh", last + r * reset)
    by_n = (1 - z) * (1 - n * n)
    by_z, by_r = (layer.before - n) * (z * (1 - z)), by_n * reset * (r * (1 - r))
    factors = emit("Concat", by_z, by_r, by_n * r, axis=-1)

    def back(states: Sequence[Tensor], kept: Tensor, each: Tensor) -> list[Tensor]:
        (dh,) = states
        gates = emit("Concat", dh, dh, dh, axis=-1) * each
        return [emit("MatMul", gates, layer.r) + dh * kept, emit("Identity", dh)]

    start, dh = layer.go_back(back, (z, factors))
    repeated = emit("Concat", dh, dh, dh, axis=-1)
    return repeated * emit("Concat", by_z, by_r, by_n, axis=-1), repeated * factors, [start]


@rule("RNN", when=is_usual)
def differentiate_rnn(at: RuleContext) -> Gradients:
    """The slope of tanh is 1 - y^2; of relu, 1 where y is positive."""
    return _differentiate(at, _go_back_rnn, states=1)


def _go_back_rnn(layer: _Layer) -> Found:
    y = layer.y
    slopes = 1 - y * y if layer.function == "tanh" else emit("Greater", y, number(0, y)).astype(y.dtype)

    def back(states: Sequence[Tensor], each: Tensor) -> list[Tensor]:
        inner = states[0] * each
        return [emit("MatMul", inner, layer.r), inner]

    start, found = layer.go_back(back, (slopes,))
    return found, found, [start]


def _differentiate(at: RuleContext, go_back: Callable[[_Layer], Found], states: int) -> Gradients:
    by_batch, ways, hidden = at.attr("layout", 0) == 1, _WAYS[at.attr("direction", "forward")], _read_hidden_size(at)
    x = _by_time(at.x, by_batch)
    # The rule needs all hidden states, so the forward layer must return them.
    y = at.output(0, _result_type(at, len(ways), hidden))
    arriving = _get(at.gradients, 0)
    if by_batch:
        y, arriving = transpose(y, [1, 2, 0, 3]), None if arriving is None else transpose(arriving, [1, 2, 0, 3])
    starts = [_states(at.optional(5 + k), x, hidden, len(ways), by_batch) for k in range(states)]
    ends = [_states(_get(at.gradients, 1 + k), x, hidden, len(ways), by_batch) for k in range(states)]
    names = [name.lower() for name in at.attr("activations") or ["tanh"] * len(ways)]
    found: list[list[Tensor]] = [[] for _ in range(4 + states)]
    for place, way in enumerate(ways):
        bias = at.optional(3)
        both = integers(*[_GATES[at.node.op] * hidden] * 2)
        own, mine = _pick(y, place, 1), tuple(_pick(start, place) for start in starts)
        layer = _Layer(
            x=x,
            y=own,
            size=hidden,
            before=_shift(own, mine[0], way),
            starts=mine,
            w=_pick(at.input(1), place),
            r=_pick(at.input(2), place),
            biases=() if bias is None else split(_pick(bias, place), both, 0, 2),
            way=way,
            function=names[place] if at.node.op == "RNN" else "",
            arriving=None if arriving is None else _pick(arriving, place, 1),
            ends=tuple(_pick(end, place) for end in ends),
        )
        _collect(at, layer, go_back(layer), found)
    # Both directions read the same input, so their gradients add up.
    whole = add_up(found[0]) if found[0] else None
    joined = [_concatenate(parts) if parts else None for parts in found[1:]]
    if by_batch:
        whole = None if whole is None else transpose(whole, [1, 0, 2])
        joined[3:] = [None if one is None else transpose(one, [1, 0, 2]) for one in joined[3:]]
    return whole, *joined[:3], None, *joined[3:]


def _collect(at: RuleContext, layer: _Layer, found: Found, into: Sequence[list[Tensor]]) -> None:
    """Append the wanted gradients of one direction: X, W, R, B and initial states."""
    of_inputs, of_states, starts = found
    rows = [_as_rows(one) for one in (of_inputs, of_states)]
    if at.wants(0):
        into[0].append(emit("MatMul", of_inputs, layer.w))
    for place, left, right in ((1, rows[0], layer.x), (2, rows[1], layer.before)):
        if at.wants(place):
            into[place].append(add_axes(emit("Gemm", left, _as_rows(right), transA=1), 0))
    if at.wants(3):
        sums = [reduce_sum(rows[0], [0])]
        # LSTM and RNN add both biases, so their gradients are equal.
        sums.append(sums[0] if of_inputs is of_states else reduce_sum(rows[1], [0]))
        into[3].append(add_axes(emit("Concat", *sums, axis=0), 0))
    for place, start in enumerate(starts):
        if at.wants(5 + place):
            into[4 + place].append(add_axes(start, 0))


def _read_hidden_size(at: RuleContext) -> int:
    """The attribute is optional: the recurrent weights have the size, too."""
    hidden = at.attr("hidden_size") or (at.input(2).tensor_type.shape or (None,))[-1]
    if not isinstance(hidden, int):
        at.refuse("its hidden size is not known")
    return hidden


def _concatenate(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenate the directions."""
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis)


def _by_time(x: Tensor, by_batch: bool) -> Tensor:
    return transpose(x, [1, 0, 2]) if by_batch else x


def _result_type(at: RuleContext, ways: int, hidden: int) -> TensorType:
    """Type of the first output."""
    shape = at.x.tensor_type.shape or (None, None, None)
    sizes = (shape[0], shape[1], ways, hidden) if at.attr("layout", 0) == 1 else (shape[0], ways, shape[1], hidden)
    return TensorType(at.x.dtype, sizes)


def _get(gradients: Sequence[Tensor | None], place: int) -> Tensor | None:
    return gradients[place] if place < len(gradients) else None


def _states(given: Tensor | None, x: Tensor, hidden: int, ways: int, by_batch: bool) -> Tensor:
    """Transpose the given states to (directions, batch, hidden); zeros by default."""
    if given is not None:
        return _by_time(given, by_batch)
    batch = extent(x, 1)
    if isinstance(batch, np.ndarray):
        return zeros(integers(ways, int(batch[0]), hidden), x.dtype)
    return zeros(emit("Concat", integers(ways), batch, integers(hidden), axis=0), x.dtype)


def _pick(x: Tensor, place: int, axis: int = 0) -> Tensor:
    """Select one direction."""
    shape = x.tensor_type.shape
    if shape is not None and shape[axis] == 1:
        return emit("Squeeze", x, integers(axis))
    return emit("Gather", x, np.asarray(place, np.int64), axis=axis)


def _shift(y: Tensor, start: Tensor, way: int) -> Tensor:
    """The state before each step; for the backward direction that is the state at the next position."""
    first = add_axes(start, 0)
    whole = emit("Concat", *((y, first) if way else (first, y)), axis=0)
    begin, end = (1, np.iinfo(np.int64).max) if way else (0, -1)
    return emit("Slice", whole, integers(begin), integers(end), integers(0))


def _as_rows(x: Tensor) -> Tensor:
    """Reshape (T, B, N) to (T * B, N)."""
    size = extent(x, 2)
    known = isinstance(size, np.ndarray)
    return emit("Reshape", x, integers(-1, *size.tolist()) if known else emit("Concat", integers(-1), size, axis=0))
