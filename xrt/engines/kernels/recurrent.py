"""Recurrent layers: RNN, GRU and LSTM, step by step over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.kernels.arrays import widen
from xrt.engines.kernels.elementwise import ACTIVATIONS
from xrt.engines.kernels.table import Advance, Array, Run, States, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

Activation = Callable[[Array], Array]
_ACTIVATIONS: Mapping[str, tuple[Callable[..., Array], Mapping[str, float]]] = {
    **{name.lower(): entry for name, entry in ACTIVATIONS.items() if entry[1].keys() <= {"alpha", "beta"}},
    "affine": (lambda xp, x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "relu": (lambda xp, x: xp.maximum(x, 0), {}),
    "scaledtanh": (lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x), {"alpha": 1.0, "beta": 1.0}),
    "tanh": (lambda xp, x: xp.tanh(x), {}),
}


def _activations(node: Node, xp: Any, default: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """The activation functions of each direction; alphas and betas are assigned in order to the functions that use them."""
    names = [name.lower() for name in (node.attr("activations") or default * directions)]
    values = {name: iter(node.attr(f"activation_{name}") or ()) for name in ("alpha", "beta")}

    def bound(name: str) -> Activation:
        compute, defaults = _ACTIVATIONS[name]
        attributes = [next(values[attribute], value) for attribute, value in defaults.items()]
        return lambda x: compute(xp, x, *attributes)

    functions = [bound(name) for name in names]
    return [functions[i * len(default) : (i + 1) * len(default)] for i in range(directions)]


def _clipped(node: Node, xp: Any) -> Activation:
    bound = node.attr("clip")
    return (lambda x: x) if bound is None else (lambda x: xp.clip(x, -bound, bound))


class _Layer:
    """Common parts of the three layers: directions, layout, initial states, and assembly of the outputs."""

    def __init__(self, node: Node, env: NodeContext, default: tuple[str, ...], n_states: int) -> None:
        self.xp = env.xp
        direction = node.attr("direction", "forward")
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.functions = _activations(node, env.xp, default, len(self.backwards))
        self.clip = _clipped(node, env.xp)
        self.batch_first = bool(node.attr("layout", 0))
        self.n_states = n_states

    def __call__(
        self,
        x: Array,
        w: Array,
        bias: Array | None,
        lengths: Array | None,
        initial: Sequence[Array | None],
        hidden: int,
        advance_of: Callable[[int], Advance],
    ) -> tuple[Array, ...]:
        """Run the layer; return Y and the last states. ``bias`` is added to the input's part of the gates, per direction."""
        xp, dtype = self.xp, x.dtype
        x = widen(xp, xp.swapaxes(x, 0, 1) if self.batch_first else x)
        batch = x.shape[1]
        results = []
        for d, backwards in enumerate(self.backwards):
            gates = self.xp.matmul(x, xp.transpose(widen(xp, w[d])))
            gates = gates if bias is None else gates + widen(xp, bias[d])
            states = tuple(self._state(s, d, batch, hidden, x.dtype) for s in initial)
            if lengths is not None:  # the last states of an empty sequence are 0, as in ONNX Runtime and OpenVINO
                states = tuple(xp.where((lengths > 0)[:, None], s, xp.zeros_like(s)) for s in states)
            results.append(self.xp.walk(gates, states, lengths, backwards, advance_of(d)))
        y = xp.stack([history for history, _ in results], axis=1)
        last = [xp.stack([states[i] for _, states in results]) for i in range(self.n_states)]
        if self.batch_first:
            y, last = xp.transpose(y, (2, 0, 1, 3)), [xp.swapaxes(s, 0, 1) for s in last]
        return tuple(xp.astype(value, dtype) for value in (y, *last))

    def _state(self, given: Array | None, d: int, batch: int, hidden: int, dtype: Any) -> Array:
        if given is None:
            return self.xp.zeros((batch, hidden), dtype=dtype)
        return self.xp.astype(given[:, d] if self.batch_first else given[d], dtype)


def _halves(xp: Any, bias: Array | None) -> tuple[Array | None, Array | None]:
    """Split the bias into those of the input and of the recurrence, which are concatenated."""
    return (None, None) if bias is None else tuple(xp.split(bias, 2, axis=-1))


@ops("RNN")
def rnn(node: Node, env: NodeContext) -> Run:
    layer = _Layer(node, env, ("Tanh",), 1)
    xp, matmul = env.xp, env.xp.matmul

    def run(
        x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h0: Array | None = None
    ) -> tuple[Array, ...]:
        both = None if bias is None else sum(_halves(xp, widen(xp, bias)))  # type: ignore[arg-type]  # two arrays

        def advance_of(d: int) -> Advance:
            (f,), recurrence = layer.functions[d], xp.transpose(widen(xp, r[d]))
            return lambda gates, states: (f(layer.clip(gates + matmul(states[0], recurrence))),)

        return layer(x, w, both, lengths, [h0], r.shape[-1], advance_of)

    return run


@ops("GRU")
def gru(node: Node, env: NodeContext) -> Run:
    """Gates: update, reset, hidden (z, r, h). ``linear_before_reset`` applies the reset gate to the product, not the state."""
    layer, after = _Layer(node, env, ("Sigmoid", "Tanh"), 1), bool(node.attr("linear_before_reset", 0))
    xp, matmul = env.xp, env.xp.matmul

    def run(
        x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h0: Array | None = None
    ) -> tuple[Array, ...]:
        hidden = r.shape[-1]
        of_input, of_state = _halves(xp, None if bias is None else widen(xp, bias))

        def advance_of(d: int) -> Advance:
            f, g = layer.functions[d]
            weights = xp.transpose(widen(xp, r[d]))
            shift = 0 if of_state is None else of_state[d]

            def advance(gates: Array, states: States) -> States:
                (h,) = states
                zr = f(layer.clip(gates[:, : 2 * hidden] + matmul(h, weights[:, : 2 * hidden]) + _first(shift, 2 * hidden)))
                z, reset = zr[:, :hidden], zr[:, hidden:]
                if after:
                    inner = reset * (matmul(h, weights[:, 2 * hidden :]) + _rest(shift, 2 * hidden))
                else:
                    inner = matmul(reset * h, weights[:, 2 * hidden :]) + _rest(shift, 2 * hidden)
                candidate = g(layer.clip(gates[:, 2 * hidden :] + inner))
                return ((1 - z) * candidate + z * h,)

            return advance

        return layer(x, w, of_input, lengths, [h0], hidden, advance_of)

    return run


def _first(shift: Any, n: int) -> Any:
    return shift if isinstance(shift, int) else shift[:n]


def _rest(shift: Any, n: int) -> Any:
    return shift if isinstance(shift, int) else shift[n:]


@ops("LSTM")
def lstm(node: Node, env: NodeContext) -> Run:
    """Gates: input, output, forget, cell (i, o, f, c), with optional peepholes; ``input_forget`` couples i and f."""
    layer, coupled = _Layer(node, env, ("Sigmoid", "Tanh", "Tanh"), 2), bool(node.attr("input_forget", 0))
    xp, matmul = env.xp, env.xp.matmul

    def run(
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        h0: Array | None = None,
        c0: Array | None = None,
        peepholes: Array | None = None,
    ) -> tuple[Array, ...]:
        both = None if bias is None else sum(_halves(xp, widen(xp, bias)))  # type: ignore[arg-type]  # two arrays

        def advance_of(d: int) -> Advance:
            f, g, h_ = layer.functions[d]
            weights = xp.transpose(widen(xp, r[d]))
            pi, po, pf = (0, 0, 0) if peepholes is None else xp.split(widen(xp, peepholes[d]), 3)

            def advance(gates: Array, states: States) -> States:
                h, c = states
                i, o, forget, cell = xp.split(gates + matmul(h, weights), 4, axis=-1)
                i = f(layer.clip(i + pi * c))
                forget = 1 - i if coupled else f(layer.clip(forget + pf * c))
                c = forget * c + i * g(layer.clip(cell))
                o = f(layer.clip(o + po * c))
                return o * h_(c), c

            return advance

        return layer(x, w, both, lengths, [h0, c0], r.shape[-1], advance_of)

    return run
