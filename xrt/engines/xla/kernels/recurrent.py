"""Recurrent layers: RNN, GRU and LSTM, one scan over time for each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import widen
from xrt.engines.xla.kernels import elementwise as e
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []

Activation = Callable[[Operand], Operand]
States = tuple[Operand, ...]
Advance = Callable[[Operand, States], States]
"""One step of time: the input's part of the gates (batch, gates * hidden) and the states give the next states."""

# Name, function of (x, alpha, beta), default alpha, default beta.
ACTIVATIONS: dict[str, tuple[Callable[..., Operand], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: e.elu(x, a), 1.0, 0.0),
    "hardsigmoid": (e.hard_sigmoid, 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: e.leaky_relu(x, a), 0.01, 0.0),
    "relu": (lambda x, a, b: jnp.maximum(x, 0), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * jnp.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: e.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: e.softplus(x), 0.0, 0.0),
    "softsign": (lambda x, a, b: e.softsign(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: jnp.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: e.thresholded_relu(x, a), 1.0, 0.0),
}
TAKES_ALPHA = frozenset({"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"})
TAKES_BETA = frozenset({"affine", "hardsigmoid", "scaledtanh"})


def _activations(at: LoweringContext, default: tuple[str, ...], directions: int) -> list[list[Activation]]:
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


def _walked(gates: Operand, states: States, lengths: Operand, backwards: bool, advance: Advance) -> tuple[Operand, States]:
    """Walk through time: return the first state at each time (time, batch, hidden), zero beyond the ends, and the last states."""

    def step(states: States, now: tuple[Operand, Operand]) -> tuple[States, Operand]:
        time, part = now
        alive = (time < lengths)[:, None]
        following = advance(part, states)
        states = tuple(jnp.where(alive, new, old) for new, old in zip(following, states, strict=True))
        return states, jnp.where(alive, states[0], 0)

    last, history = jax.lax.scan(step, states, (jnp.arange(len(gates)), gates), reverse=backwards)
    return history, last


class _Layer:
    """What the three layers share: directions, layout, initial states, and how results are put together."""

    def __init__(self, at: LoweringContext, default: tuple[str, ...]) -> None:
        self._backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[at.attr("direction", "forward")]
        self.functions = _activations(at, default, len(self._backwards))
        self._bound = at.attr("clip")
        self._batch_first = bool(at.attr("layout", 0))

    def clip(self, x: Operand) -> Operand:
        """Hold what goes into an activation within the node's bound."""
        return x if self._bound is None else jnp.clip(x, -self._bound, self._bound)

    def __call__(
        self,
        x: Operand,
        w: Operand,
        bias: Operand,
        lengths: Operand,
        initial: Sequence[Operand],
        hidden: int,
        advance_of: Callable[[int], Advance],
    ) -> tuple[Operand, ...]:
        """Return Y and the last states; ``bias`` is what is added to the input's part of the gates, per direction."""
        dtype = x.dtype
        x = widen(jnp.swapaxes(x, 0, 1) if self._batch_first else x)
        ends = jnp.full(x.shape[1], len(x)) if lengths is None else lengths
        histories, lasts = [], []
        for d, backwards in enumerate(self._backwards):
            gates = jnp.matmul(x, widen(w[d]).T)
            gates = gates if bias is None else gates + bias[d]
            states = tuple(self._state(s, d, (x.shape[1], hidden), x.dtype) for s in initial)
            history, last = _walked(gates, states, ends, backwards, advance_of(d))
            histories.append(history)
            lasts.append(last)
        stacked = (jnp.stack(histories, axis=1), *(jnp.stack(column) for column in zip(*lasts, strict=True)))
        return tuple(value.astype(dtype) for value in self._laid_out(*stacked))

    def _laid_out(self, y: Operand, *last: Operand) -> tuple[Operand, ...]:
        if not self._batch_first:
            return y, *last
        return y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last)

    def _state(self, given: Operand, d: int, shape: tuple[int, int], dtype: jnp.dtype) -> Operand:
        if given is None:
            return jnp.zeros(shape, dtype)
        return jnp.asarray(given[:, d] if self._batch_first else given[d]).astype(dtype)


def _halves(bias: Operand) -> tuple[Operand, Operand]:
    """Return the biases of the input and of the recurrence, which come side by side."""
    if bias is None:
        return None, None
    half = bias.shape[-1] // 2
    return widen(bias[..., :half]), widen(bias[..., half:])


def _sum(bias: Operand) -> Operand:
    """Return both biases in one, where they are only ever added."""
    of_input, of_state = _halves(bias)
    return None if bias is None else of_input + of_state


@ops("RNN", since=7)
def rnn(
    at: LoweringContext, x: Operand, w: Operand, r: Operand, bias: Operand = None, lengths: Operand = None, h0: Operand = None
) -> tuple[Operand, ...]:
    layer = _Layer(at, ("Tanh",))

    def advance_of(d: int) -> Advance:
        (f,), recurrence = layer.functions[d], widen(r[d]).T
        return lambda gates, states: (f(layer.clip(gates + jnp.matmul(states[0], recurrence))),)

    return layer(x, w, _sum(bias), lengths, [h0], r.shape[-1], advance_of)


@ops("GRU", since=7)
def gru(
    at: LoweringContext, x: Operand, w: Operand, r: Operand, bias: Operand = None, lengths: Operand = None, h0: Operand = None
) -> tuple[Operand, ...]:
    """Gates are update, reset, hidden (z, r, h); ``linear_before_reset`` resets the product instead of the state."""
    layer, after, both = _Layer(at, ("Sigmoid", "Tanh")), bool(at.attr("linear_before_reset", 0)), 2 * r.shape[-1]
    of_input, of_state = _halves(bias)

    def advance_of(d: int) -> Advance:
        f, g = layer.functions[d]
        weights = widen(r[d]).T
        shift = jnp.zeros(weights.shape[1], weights.dtype) if of_state is None else of_state[d]

        def advance(gates: Operand, states: States) -> States:
            (h,) = states
            zr = f(layer.clip(gates[:, :both] + jnp.matmul(h, weights[:, :both]) + shift[:both]))
            z, reset = jnp.split(zr, 2, axis=1)
            if after:
                inner = reset * (jnp.matmul(h, weights[:, both:]) + shift[both:])
            else:
                inner = jnp.matmul(reset * h, weights[:, both:]) + shift[both:]
            return ((1 - z) * g(layer.clip(gates[:, both:] + inner)) + z * h,)

        return advance

    return layer(x, w, of_input, lengths, [h0], r.shape[-1], advance_of)


@ops("LSTM", since=7)
def lstm(
    at: LoweringContext,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand = None,
    lengths: Operand = None,
    h0: Operand = None,
    c0: Operand = None,
    peepholes: Operand = None,
) -> tuple[Operand, ...]:
    """Gates are input, output, forget, cell (i, o, f, c), with peepholes where given; ``input_forget`` couples i and f."""
    layer, coupled = _Layer(at, ("Sigmoid", "Tanh", "Tanh")), bool(at.attr("input_forget", 0))

    def advance_of(d: int) -> Advance:
        f, g, h_ = layer.functions[d]
        weights = widen(r[d]).T
        pi, po, pf = (0, 0, 0) if peepholes is None else jnp.split(widen(peepholes[d]), 3)

        def advance(gates: Operand, states: States) -> States:
            h, c = states
            i, o, forget, cell = jnp.split(gates + jnp.matmul(h, weights), 4, axis=-1)
            i = f(layer.clip(i + pi * c))
            forget = 1 - i if coupled else f(layer.clip(forget + pf * c))
            c = forget * c + i * g(layer.clip(cell))
            return f(layer.clip(o + po * c)) * h_(c), c

        return advance

    return layer(x, w, _sum(bias), lengths, [h0, c0], r.shape[-1], advance_of)
