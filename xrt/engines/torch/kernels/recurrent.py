"""Recurrent layers: RNN, GRU and LSTM, by PyTorch's own functions, or one loop over time for each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernel_context import Run, Tensor, find_known, ops
from xrt.engines.torch.kernels import arithmetic as e
from xrt.engines.torch.kernels.arithmetic import widen

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["LibraryLayer"]

# The gates of a library function in its own order, as places in ONNX's: i o f c, z r h.
_ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_TYPES = (torch.float32, torch.float64)


class LibraryLayer:
    """A node that a function of PyTorch may compute; each call decides, by the inputs that are given.

    Weights are put into the order of the library's gates: once where they are constant, else in each call.
    """

    def __init__(self, at: TorchKernelContext) -> None:
        self._op = at.node.op_type
        self._direction = at.attr("direction", "forward")
        self._batch_first = bool(at.attr("layout", 0))
        self._call = _find_function(at)
        given = len(at.node.inputs) > 3 and bool(at.node.inputs[3])
        self._is_constant = all(find_known(at.node, at.function, i) is not None for i in range(1, 4 if given else 3))
        self._packed = at.packed
        self._weights: list[Tensor] | None = None

    def accepts(self, x: Tensor, rest: Sequence[Tensor]) -> bool:
        """Whether the library serves a call: real numbers to compute, and none of lengths and peepholes, in ``rest``."""
        usual = self._call is not None and type(x) is torch.Tensor and x.dtype in _TYPES
        return usual and x.numel() > 0 and all(one is None for one in rest)

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, bias: Tensor, initial: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return Y and the last states, laid out as the node says."""
        x = x.transpose(0, 1) if self._batch_first else x
        backwards = self._direction == "reverse"
        x = x.flip(0) if backwards else x
        shape = (r.shape[0], x.shape[1], r.shape[-1])
        states = [x.new_zeros(shape) if one is None else self._swap(one).contiguous() for one in initial]
        both = self._direction == "bidirectional"
        states_given = states if self._op == "LSTM" else states[0]
        assert self._call is not None
        y, *last = self._call(x, states_given, self._order(w, r, bias), bias is not None, 1, 0.0, False, both, False)
        y = (y.flip(0) if backwards else y).unflatten(2, (shape[0], shape[2]))
        y = y.transpose(0, 1) if self._batch_first else y.transpose(1, 2)
        return y, *map(self._swap, last)

    def _swap(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1) if self._batch_first else state

    def _order(self, w: Tensor, r: Tensor, bias: Tensor) -> list[Tensor]:
        """Return the library's parameters: weights of input and state, then biases, for each direction."""
        if self._weights is not None:
            return self._weights
        order = _ORDERS[self._op]
        of_gates = [w, r] if bias is None else [w, r, *bias.chunk(2, 1)]
        parts = [value.unflatten(1, (len(order), r.shape[-1]))[:, list(order)].flatten(1, 2) for value in of_gates]
        weights = [value[d] for d in range(len(w)) for value in parts]
        if self._is_constant:  # two threads may both do it, and both are right
            self._packed.extend(parts)
            self._weights = weights
        return weights


def _find_function(at: TorchKernelContext) -> Callable[..., Any] | None:
    """Return the function that computes what the attributes say; None where PyTorch has none."""
    op = at.node.op_type
    names = {name.lower() for name in at.attr("activations") or ()}
    if at.attr("clip") is not None or at.attr("activation_alpha") or at.attr("activation_beta"):
        return None
    if op == "RNN":
        by_name: dict[str, Callable[..., Any]] = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}
        return by_name.get((names or {"tanh"}).pop()) if len(names) < 2 else None
    directions = 2 if at.attr("direction", "forward") == "bidirectional" else 1
    listed = [name.lower() for name in at.attr("activations") or _USUAL[op] * directions]
    if listed != _USUAL[op] * directions or at.attr("input_forget", 0):
        return None
    return torch.lstm if op == "LSTM" else torch.gru if at.attr("linear_before_reset", 0) else None


Activation = Callable[[Tensor], Tensor]
States = tuple[Tensor, ...]
Advance = Callable[[Tensor, States], States]
"""One step of time: the input's part of the gates (batch, gates * hidden) and the states give the next states."""
# Name, function of (x, alpha, beta), default alpha, default beta.
ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: e.elu(x, a), 1.0, 0.0),
    "hardsigmoid": (e.hard_sigmoid, 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: e.leaky_relu(x, a), 0.01, 0.0),
    "relu": (lambda x, a, b: torch.relu(x), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: torch.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: e.softplus(x), 0.0, 0.0),
    "softsign": (lambda x, a, b: e.softsign(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: torch.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: e.thresholded_relu(x, a), 1.0, 0.0),
}
TAKES_ALPHA = frozenset({"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"})
TAKES_BETA = frozenset({"affine", "hardsigmoid", "scaledtanh"})


def _activations(at: TorchKernelContext, default: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """Return the activation functions of each direction; alphas and betas go to those that take them, in order."""
    names = [name.lower() for name in (at.attr("activations") or default * directions)]
    alphas, betas = iter(at.attr("activation_alpha") or ()), iter(at.attr("activation_beta") or ())

    def bound(name: str) -> Activation:
        function, alpha, beta = ACTIVATIONS[name]
        a = next(alphas, alpha) if name in TAKES_ALPHA else alpha
        b = next(betas, beta) if name in TAKES_BETA else beta
        return lambda x: function(x, a, b)

    functions = [bound(name) for name in names]
    return [functions[i * len(default) : (i + 1) * len(default)] for i in range(directions)]


def _walk(gates: Tensor, states: States, lengths: Tensor, backwards: bool, advance: Advance) -> tuple[Tensor, States]:
    """Walk through time: return the first state at each time (time, batch, hidden), zero beyond the ends, and the last states."""
    history: list[Tensor] = []
    for time in reversed(range(len(gates))) if backwards else range(len(gates)):
        following = advance(gates[time], states)
        if lengths is None:
            states = following
            history.append(states[0])
        else:
            alive = (time < lengths)[:, None]
            states = tuple(torch.where(alive, new, old) for new, old in zip(following, states, strict=True))
            history.append(torch.where(alive, states[0], 0))
    if not history:
        return gates.new_zeros((0, *states[0].shape)), states
    return torch.stack(history[::-1] if backwards else history), states


class _Layer:
    """What the three layers share: directions, layout, initial states, and how results are put together."""

    def __init__(self, at: TorchKernelContext, default: tuple[str, ...]) -> None:
        self._backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[at.attr("direction", "forward")]
        self.functions = _activations(at, default, len(self._backwards))
        self._bound = at.attr("clip")
        self._batch_first = bool(at.attr("layout", 0))

    def clip(self, x: Tensor) -> Tensor:
        """Hold what goes into an activation within the node's bound."""
        return x if self._bound is None else x.clamp(-self._bound, self._bound)

    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor,
        lengths: Tensor,
        initial: Sequence[Tensor],
        hidden: int,
        advance_of: Callable[[int], Advance],
    ) -> tuple[Tensor, ...]:
        """Return Y and the last states; ``bias`` is what is added to the input's part of the gates, per direction."""
        dtype = x.dtype
        x = widen(x.transpose(0, 1) if self._batch_first else x)
        histories, lasts = [], []
        for d, backwards in enumerate(self._backwards):
            gates = torch.matmul(x, widen(w[d]).T)
            gates = gates if bias is None else gates + bias[d]
            states = tuple(self._state(s, d, (x.shape[1], hidden), x) for s in initial)
            if lengths is not None:  # the last states of an empty sequence are 0, as in ONNX Runtime and OpenVINO
                states = tuple(torch.where((lengths > 0)[:, None], s, 0) for s in states)
            history, last = _walk(gates, states, lengths, backwards, advance_of(d))
            histories.append(history)
            lasts.append(last)
        stacked = (torch.stack(histories, 1), *(torch.stack(column) for column in zip(*lasts, strict=True)))
        return tuple(value.to(dtype) for value in self._lay_out(*stacked))

    def _lay_out(self, y: Tensor, *last: Tensor) -> tuple[Tensor, ...]:
        if not self._batch_first:
            return y, *last
        return y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last)

    def _state(self, given: Tensor, d: int, shape: tuple[int, int], like: Tensor) -> Tensor:
        if given is None:
            return like.new_zeros(shape)
        return (given[:, d] if self._batch_first else given[d]).to(like.dtype)


def _halves(bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the biases of the input and of the recurrence, which come side by side."""
    if bias is None:
        return None, None
    half = bias.shape[-1] // 2
    return widen(bias[..., :half]), widen(bias[..., half:])


def _sum(bias: Tensor) -> Tensor:
    """Return both biases in one, where they are only ever added."""
    of_input, of_state = _halves(bias)
    return None if bias is None else of_input + of_state


@ops("RNN", since=7)
def rnn(at: TorchKernelContext) -> Run:
    layer, library = _Layer(at, ("Tanh",)), LibraryLayer(at)

    def run(
        x: Tensor, w: Tensor, r: Tensor, bias: Tensor = None, lengths: Tensor = None, h0: Tensor = None
    ) -> tuple[Tensor, ...]:
        if library.accepts(x, [lengths]):
            return library(x, w, r, bias, [h0])

        def advance_of(d: int) -> Advance:
            (f,), recurrence = layer.functions[d], widen(r[d]).T
            return lambda gates, states: (f(layer.clip(gates + torch.matmul(states[0], recurrence))),)

        return layer(x, w, _sum(bias), lengths, [h0], r.shape[-1], advance_of)

    return run


@ops("GRU", since=7)
def gru(at: TorchKernelContext) -> Run:
    """Gates are update, reset, hidden (z, r, h); ``linear_before_reset`` resets the product instead of the state."""
    layer, library = _Layer(at, ("Sigmoid", "Tanh")), LibraryLayer(at)
    after = bool(at.attr("linear_before_reset", 0))

    def run(
        x: Tensor, w: Tensor, r: Tensor, bias: Tensor = None, lengths: Tensor = None, h0: Tensor = None
    ) -> tuple[Tensor, ...]:
        if library.accepts(x, [lengths]):
            return library(x, w, r, bias, [h0])
        of_input, of_state = _halves(bias)
        both = 2 * r.shape[-1]

        def advance_of(d: int) -> Advance:
            f, g = layer.functions[d]
            weights = widen(r[d]).T
            shift = weights.new_zeros(weights.shape[1]) if of_state is None else of_state[d]

            def advance(gates: Tensor, states: States) -> States:
                (h,) = states
                zr = f(layer.clip(gates[:, :both] + torch.matmul(h, weights[:, :both]) + shift[:both]))
                z, reset = zr.chunk(2, 1)
                if after:
                    inner = reset * (torch.matmul(h, weights[:, both:]) + shift[both:])
                else:
                    inner = torch.matmul(reset * h, weights[:, both:]) + shift[both:]
                return ((1 - z) * g(layer.clip(gates[:, both:] + inner)) + z * h,)

            return advance

        return layer(x, w, of_input, lengths, [h0], r.shape[-1], advance_of)

    return run


@ops("LSTM", since=7)
def lstm(at: TorchKernelContext) -> Run:
    """Gates are input, output, forget, cell (i, o, f, c), with peepholes where given; ``input_forget`` couples i and f."""
    layer, library = _Layer(at, ("Sigmoid", "Tanh", "Tanh")), LibraryLayer(at)
    coupled = bool(at.attr("input_forget", 0))

    def run(
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor = None,
        lengths: Tensor = None,
        h0: Tensor = None,
        c0: Tensor = None,
        peepholes: Tensor = None,
    ) -> tuple[Tensor, ...]:
        if library.accepts(x, [lengths, peepholes]):
            return library(x, w, r, bias, [h0, c0])

        def advance_of(d: int) -> Advance:
            f, g, h_ = layer.functions[d]
            weights = widen(r[d]).T
            pi, po, pf = (0, 0, 0) if peepholes is None else widen(peepholes[d]).chunk(3)

            def advance(gates: Tensor, states: States) -> States:
                h, c = states
                i, o, forget, cell = (gates + torch.matmul(h, weights)).chunk(4, -1)
                i = f(layer.clip(i + pi * c))
                forget = 1 - i if coupled else f(layer.clip(forget + pf * c))
                c = forget * c + i * g(layer.clip(cell))
                return f(layer.clip(o + po * c)) * h_(c), c

            return advance

        return layer(x, w, _sum(bias), lengths, [h0, c0], r.shape[-1], advance_of)

    return run
