"""Recurrent layers: RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.kernels.arrays import widen
from xrt.engines.kernels.elementwise import ACTIVATIONS
from xrt.engines.kernels.table import Advance, Array, NodeContext, Run, States, ops

if TYPE_CHECKING:
    from xrt.graph import Node

Activation = Callable[[Array], Array]
MakeAdvance = Callable[..., Advance]
"""``f(activations, weights, bias, *peepholes)`` makes the function of one time step, for one direction. The weights
(hidden, gates * hidden) and the bias are the recurrent ones."""
_ACTIVATIONS: Mapping[str, tuple[Callable[..., Array], Mapping[str, float]]] = {
    **{name.lower(): entry for name, entry in ACTIVATIONS.items() if entry[1].keys() <= {"alpha", "beta"}},
    "affine": (lambda xp, x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "relu": (lambda xp, x: xp.maximum(x, 0), {}),
    "scaledtanh": (lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x), {"alpha": 1.0, "beta": 1.0}),
    "tanh": (lambda xp, x: xp.tanh(x), {}),
}


def _read_activations(node: Node, xp: Any, default: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """List the activation functions of each direction.

    The lists ``activation_alpha`` and ``activation_beta`` have values only for the functions with this parameter, in order.
    """
    names = [name.lower() for name in (node.attr("activations") or default * directions)]
    parameters = {name: list(node.attr(f"activation_{name}") or ()) for name in ("alpha", "beta")}

    def make_activation(name: str) -> Activation:
        compute, defaults = _ACTIVATIONS[name]
        values = []
        for parameter, value in defaults.items():
            listed = parameters[parameter]
            values.append(listed.pop(0) if listed else value)
        return lambda x: compute(xp, x, *values)

    functions = [make_activation(name) for name in names]  # in order: each function consumes its parameters
    per_direction = len(default)
    return [functions[i * per_direction : (i + 1) * per_direction] for i in range(directions)]


def _make_clip(node: Node, xp: Any) -> Activation:
    bound = node.attr("clip")
    return (lambda x: x) if bound is None else (lambda x: xp.clip(x, -bound, bound))


class _Layer:
    """The kernel of a recurrent layer, except for the time step, which ``make_advance`` makes."""

    def __init__(self, node: Node, ctx: NodeContext, default: tuple[str, ...], make_advance: MakeAdvance, n_states: int) -> None:
        self.xp = ctx.xp
        self.make_advance = make_advance
        self.n_states = n_states
        direction = node.attr("direction", "forward")
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.functions = _read_activations(node, ctx.xp, default, len(self.backwards))
        self.batch_first = bool(node.attr("layout", 0))
        # A GRU multiplies the recurrent bias of its hidden gate by the reset gate, so this bias cannot be added to the inputs.
        self.adds_recurrent_bias = node.op_type != "GRU"

    def __call__(
        self, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, *optional: Array | None
    ) -> tuple[Array, ...]:
        """Compute Y and the last states. ``optional`` has the initial states, then the peepholes; None if absent."""
        xp, dtype, hidden = self.xp, x.dtype, r.shape[-1]
        initial = [*optional, *[None] * self.n_states][: self.n_states]  # None for those that are absent at the end
        x = widen(xp, xp.swapaxes(x, 0, 1) if self.batch_first else x)  # (time, batch, features)
        results = []
        for d, backwards in enumerate(self.backwards):
            input_bias, state_bias = (0, 0) if bias is None else xp.split(widen(xp, bias[d]), 2)  # W's, then R's
            gate_bias = input_bias + state_bias if self.adds_recurrent_bias else input_bias
            gates = xp.matmul(x, xp.transpose(widen(xp, w[d]))) + gate_bias
            states = tuple(self._read_state(s, d, x.shape[1], hidden, x.dtype) for s in initial)
            if lengths is not None:  # an empty sequence ends with states of 0, as in ONNX Runtime and OpenVINO
                states = tuple(xp.where((lengths > 0)[:, None], s, xp.zeros_like(s)) for s in states)
            peepholes = [None if p is None else widen(xp, p[d]) for p in optional[self.n_states :]]
            advance = self.make_advance(self.functions[d], xp.transpose(widen(xp, r[d])), state_bias, *peepholes)
            results.append(xp.scan_time(gates, states, lengths, backwards, advance))
        y = xp.stack([history for history, _ in results], axis=1)  # (time, directions, batch, hidden)
        last = [xp.stack([states[i] for _, states in results]) for i in range(self.n_states)]  # (directions, batch, hidden)
        if self.batch_first:
            y = xp.transpose(y, (2, 0, 1, 3))  # (batch, time, directions, hidden)
            last = [xp.swapaxes(s, 0, 1) for s in last]
        return tuple(xp.astype(value, dtype) for value in (y, *last))

    def _read_state(self, initial: Array | None, d: int, batch: int, hidden: int, dtype: Any) -> Array:
        if initial is None:
            return self.xp.zeros((batch, hidden), dtype=dtype)
        return self.xp.astype(initial[:, d] if self.batch_first else initial[d], dtype)


@ops("RNN")
def rnn(node: Node, ctx: NodeContext) -> Run:
    matmul, clip = ctx.xp.matmul, _make_clip(node, ctx.xp)

    def make_advance(functions: Sequence[Activation], weights: Array, bias: Any) -> Advance:
        return lambda gates, states: (functions[0](clip(gates + matmul(states[0], weights))),)

    return _Layer(node, ctx, ("Tanh",), make_advance, 1)


@ops("GRU")
def gru(node: Node, ctx: NodeContext) -> Run:
    """The gates are update, reset and hidden (z, r, h). With ``linear_before_reset`` the reset gate is applied to the product."""
    xp = ctx.xp
    clip = _make_clip(node, xp)
    resets_after_matmul = bool(node.attr("linear_before_reset", 0))

    def make_advance(functions: Sequence[Activation], weights: Array, bias: Any) -> Advance:
        f, g = functions
        hidden = weights.shape[0]
        # One product for the update and reset gates. The hidden gate needs the result of the reset gate.
        zr_weights, h_weights = weights[:, : 2 * hidden], weights[:, 2 * hidden :]
        # The bias 0 of a layer without biases has no parts.
        zr_bias, h_bias = (0, 0) if isinstance(bias, int) else (bias[: 2 * hidden], bias[2 * hidden :])

        def advance(gates: Array, states: States) -> States:
            (h,) = states
            zr = f(clip(gates[:, : 2 * hidden] + xp.matmul(h, zr_weights) + zr_bias))
            z, reset = zr[:, :hidden], zr[:, hidden:]
            if resets_after_matmul:
                recurrent = reset * (xp.matmul(h, h_weights) + h_bias)
            else:
                recurrent = xp.matmul(reset * h, h_weights) + h_bias
            return ((1 - z) * g(clip(gates[:, 2 * hidden :] + recurrent)) + z * h,)

        return advance

    return _Layer(node, ctx, ("Sigmoid", "Tanh"), make_advance, 1)


@ops("LSTM")
def lstm(node: Node, ctx: NodeContext) -> Run:
    """The gates are input, output, forget and cell (i, o, f, c). With ``input_forget`` f is 1 - i."""
    xp = ctx.xp
    clip = _make_clip(node, xp)
    is_coupled = bool(node.attr("input_forget", 0))

    def make_advance(functions: Sequence[Activation], weights: Array, bias: Any, peepholes: Array | None = None) -> Advance:
        f, g, output_activation = functions
        i_peephole, o_peephole, f_peephole = (0, 0, 0) if peepholes is None else xp.split(peepholes, 3)

        def advance(gates: Array, states: States) -> States:
            h, c = states
            i, o, forget, cell = xp.split(gates + xp.matmul(h, weights), 4, axis=-1)
            i = f(clip(i + i_peephole * c))
            forget = 1 - i if is_coupled else f(clip(forget + f_peephole * c))
            c = forget * c + i * g(clip(cell))
            # The peephole of the output gate reads the new cell state, those of the other gates read the old one.
            return f(clip(o + o_peephole * c)) * output_activation(c), c

        return advance

    return _Layer(node, ctx, ("Sigmoid", "Tanh", "Tanh"), make_advance, 2)
