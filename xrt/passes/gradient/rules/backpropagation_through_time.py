"""The gradient of a usual recurrent layer from its results, with products over the whole sequence outside of the recurrence.

Werbos, *Backpropagation through time* (1990). The forward node stays as it is. Gates are computed again for all steps at once,
from the inputs and the states that the layer gave; the gradient of a state is a linear function of the next one's, whose factors
are known for all steps before. So what goes back in time is a product with the recurrent weights and few operators by element.
The gradients of weights are one product each, instead of a sum over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.graph import TensorType
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import add_axes, add_up, extent, integers, number, reduce_sum, split, transpose, zeros

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.graph import Node

Gradients = Sequence["Tensor | None"]
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS: dict[str, Sequence[tuple[str, ...]]] = {
    "LSTM": [("sigmoid", "tanh", "tanh")],
    "GRU": [("sigmoid", "tanh")],
    "RNN": [("tanh",), ("relu",)],
}
_WAYS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
_LENGTHS, _PEEPHOLES = 4, 7
"""Places of inputs."""


def is_usual(node: Node) -> bool:
    """Whether a layer has the usual functions, and neither lengths, peepholes, bounds nor coupled gates.

    Of GRU, it resets the product with the state and not the state (``linear_before_reset=1``), as PyTorch and cuDNN do.
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
    """One direction of a layer; T steps, B elements of a batch, G gates of H."""

    x: Tensor
    """(T, B, inputs)."""
    y: Tensor
    """(T, B, H)."""
    before: Tensor
    """The state of the step before each, (T, B, H)."""
    starts: tuple[Tensor, ...]
    """Initial states, (B, H)."""
    w: Tensor
    """(G * H, inputs)."""
    r: Tensor
    """(G * H, H)."""
    biases: Sequence[Tensor]
    """Of the product with the inputs and of that with the states, (G * H); none where the layer has none."""
    size: int
    """H."""
    way: int
    """0 forward, 1 backward."""
    function: str
    """The activation of RNN."""
    arriving: Tensor | None
    """The gradient of y."""
    ends: tuple[Tensor, ...]
    """The gradients of the last states, (B, H)."""

    def multiply(self) -> list[Tensor]:
        """Return the products of the inputs and of the states of all steps with their weights, (T, B, G * H)."""
        return [emit("MatMul", x, transpose(by, [1, 0])) for x, by in ((self.x, self.w), (self.before, self.r))]

    def scan(self, body: Callable[..., list[Tensor]], states: Sequence[Tensor], rows: Sequence[Tensor], *, back: bool) -> Any:
        """Return the last states and what the body gives besides, by steps in the order of the sequence."""
        way = 1 - self.way if back else self.way
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(rows), "scan_input_directions": [way] * len(rows)}
        attributes["scan_output_directions"] = [way]
        return apply("Scan", (*states, *rows), attributes, outputs=len(states) + 1)

    def go_back(self, advance: Callable[..., list[Tensor]], rows: Sequence[Tensor]) -> Any:
        """Return the gradients of the initial states, and what ``advance`` gives for each step besides.

        It takes the gradients of the states after a step, where what arrives at the result of the step is in, and the rows.
        """
        count, arriving = len(self.ends), self.arriving
        if arriving is None:
            return self.scan(lambda *values: advance(values[:count], *values[count:]), self.ends, rows, back=True)

        def body(*values: Tensor) -> list[Tensor]:
            after = (values[0] + values[count], *values[1:count])
            return advance(after, *values[count + 1 :])

        return self.scan(body, self.ends, (arriving, *rows), back=True)


Found = tuple["Tensor", "Tensor", Sequence["Tensor"]]
"""The gradients of the products with the inputs and with the states, (T, B, G * H), and of the initial states, (B, H)."""


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


# ---------------------------------------------------------------------- what they share


def _differentiate(at: RuleContext, go_back: Callable[[_Layer], Found], states: int) -> Gradients:
    by_batch, ways = at.attr("layout", 0) == 1, _WAYS[at.attr("direction", "forward")]
    hidden = at.attr("hidden_size") or (at.input(2).tensor_type.shape or (None,))[-1]
    if not isinstance(hidden, int):
        at.refuse("its hidden size is not known")
    x = _by_time(at.x, by_batch)
    y = at.output(0, _result_type(at, len(ways), hidden))
    arriving = _get(at.gradients, 0)
    if by_batch:
        y, arriving = transpose(y, [1, 2, 0, 3]), None if arriving is None else transpose(arriving, [1, 2, 0, 3])
    starts = [_states(at.optional(5 + k), at, x, hidden, len(ways), by_batch) for k in range(states)]
    ends = [_states(_get(at.gradients, 1 + k), at, x, hidden, len(ways), by_batch) for k in range(states)]
    names = [name.lower() for name in at.attr("activations") or ["tanh"] * len(ways)]
    found: list[list[Tensor]] = [[] for _ in range(4 + states)]
    for place, way in enumerate(ways):
        bias = at.optional(3)
        both = integers(*[_GATES[at.node.op] * hidden] * 2)
        own, mine = _take(y, place, 1, ways), tuple(_take(start, place, 0, ways) for start in starts)
        layer = _Layer(
            x=x,
            y=own,
            size=hidden,
            before=_shift(own, mine[0], way),
            starts=mine,
            w=_take(at.input(1), place, 0, ways),
            r=_take(at.input(2), place, 0, ways),
            biases=() if bias is None else split(_take(bias, place, 0, ways), both, 0, 2),
            way=way,
            function=names[place] if at.node.op == "RNN" else "",
            arriving=None if arriving is None else _take(arriving, place, 1, ways),
            ends=tuple(_take(end, place, 0, ways) for end in ends),
        )
        _collect(at, layer, go_back(layer), found)
    whole = add_up(found[0]) if found[0] else None
    joined = [_join(parts) for parts in found[1:]]
    if by_batch:
        whole = None if whole is None else transpose(whole, [1, 0, 2])
        joined[3:] = [None if one is None else transpose(one, [1, 0, 2]) for one in joined[3:]]
    return whole, *joined[:3], None, *joined[3:]


def _collect(at: RuleContext, layer: _Layer, found: Found, into: Sequence[list[Tensor]]) -> None:
    """Add the gradients of one direction: those of X, W, R, B and the initial states, each if it is wanted."""
    of_inputs, of_states, starts = found
    rows = [_as_rows(one) for one in (of_inputs, of_states)]
    if at.wants(0):
        into[0].append(emit("MatMul", of_inputs, layer.w))
    for place, left, right in ((1, rows[0], layer.x), (2, rows[1], layer.before)):
        if at.wants(place):
            into[place].append(add_axes(emit("Gemm", left, _as_rows(right), transA=1), 0))
    if at.wants(3):
        sums = [reduce_sum(rows[0], [0])]
        sums.append(sums[0] if of_inputs is of_states else reduce_sum(rows[1], [0]))
        into[3].append(add_axes(emit("Concat", *sums, axis=0), 0))
    for place, start in enumerate(starts):
        if at.wants(5 + place):
            into[4 + place].append(add_axes(start, 0))


def _join(parts: Sequence[Tensor]) -> Tensor | None:
    """Return what all directions have of a gradient; None where it is not wanted."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return emit("Concat", *parts, axis=0)


def _by_time(x: Tensor, by_batch: bool) -> Tensor:
    return transpose(x, [1, 0, 2]) if by_batch else x


def _result_type(at: RuleContext, ways: int, hidden: int) -> TensorType:
    """Return the type of the layer's first output."""
    shape = at.x.tensor_type.shape or (None, None, None)
    sizes = (shape[0], shape[1], ways, hidden) if at.attr("layout", 0) == 1 else (shape[0], ways, shape[1], hidden)
    return TensorType(at.x.dtype, sizes)


def _get(gradients: Sequence[Tensor | None], place: int) -> Tensor | None:
    return gradients[place] if place < len(gradients) else None


def _states(given: Tensor | None, at: RuleContext, x: Tensor, hidden: int, ways: int, by_batch: bool) -> Tensor:
    """Return states (directions, batch, hidden), zeros where none are given."""
    if given is not None:
        return _by_time(given, by_batch)
    batch = extent(x, 1)
    if isinstance(batch, np.ndarray):
        return zeros(integers(ways, int(batch[0]), hidden), x.dtype)
    return zeros(emit("Concat", integers(ways), batch, integers(hidden), axis=0), x.dtype)


def _take(x: Tensor, place: int, axis: int, ways: Sequence[int]) -> Tensor:
    """Return the part of one direction."""
    if len(ways) == 1:
        return emit("Squeeze", x, integers(axis))
    return emit("Gather", x, np.asarray(place, np.int64), axis=axis)


def _shift(y: Tensor, start: Tensor, way: int) -> Tensor:
    """Return for each step the state of the one before, which comes after it in a layer that goes backward."""
    first = add_axes(start, 0)
    whole = emit("Concat", *((y, first) if way else (first, y)), axis=0)
    begin, end = (1, np.iinfo(np.int64).max) if way else (0, -1)
    return emit("Slice", whole, integers(begin), integers(end), integers(0))


def _as_rows(x: Tensor) -> Tensor:
    """Return (T, B, N) as (T * B, N)."""
    size = extent(x, 2)
    known = isinstance(size, np.ndarray)
    return emit("Reshape", x, integers(-1, *size.tolist()) if known else emit("Concat", integers(-1), size, axis=0))
