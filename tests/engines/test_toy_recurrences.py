"""Toy's normalisations, recurrences and random numbers, beside their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.toy_running import Array, drawn, f32, one, same

# ---------------------------------------------------------------------- normalisations and recurrences


def test_local_response() -> None:
    x = f32([1, 2, 3, 4]).reshape(1, 4, 1)
    squares = f32([1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16]).reshape(1, 4, 1)
    same(one("LRN", x, size=3, alpha=0.3, beta=0.5, bias=2.0), x / np.sqrt(2 + 0.1 * squares))


def test_layer_normalisation_gives_its_statistics() -> None:
    x, scale, bias = drawn(2, 3, 4), drawn(3, 4), drawn(3, 4)
    y, mean, inverse = one("LayerNormalization", x, scale, bias, outputs=3, axis=1)
    flat = x.reshape(2, -1)
    same(mean, flat.mean(axis=1).reshape(2, 1, 1))
    same(inverse, (1 / np.sqrt(flat.var(axis=1) + 1e-5)).reshape(2, 1, 1))
    same(y, (x - mean) * inverse * scale + bias)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_lstm_step_by_step_with_peepholes_and_lengths() -> None:
    steps, batch, size, hidden = 3, 2, 4, 5
    x, w, r = drawn(steps, batch, size), drawn(1, 4 * hidden, size), drawn(1, 4 * hidden, hidden)
    b, p, lengths = drawn(1, 8 * hidden), drawn(1, 3 * hidden), np.array([3, 2], np.int32)
    y, h_last, c_last = one("LSTM", x, w, r, b, lengths, None, None, p, outputs=3, hidden_size=hidden)
    h, c = np.zeros((batch, hidden), np.float32), np.zeros((batch, hidden), np.float32)
    pi, po, pf = np.split(p[0], 3)
    for t in range(steps):
        i, o, f, g = np.split(x[t] @ w[0].T + h @ r[0].T + b[0, : 4 * hidden] + b[0, 4 * hidden :], 4, axis=1)
        new_c = sigmoid(f + pf * c) * c + sigmoid(i + pi * c) * np.tanh(g)
        new_h = sigmoid(o + po * new_c) * np.tanh(new_c)
        alive = (t < lengths)[:, None]
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        same(y[t, 0], np.where(alive, h, f32(0.0)))
    same(h_last[0], h)
    same(c_last[0], c)


@pytest.mark.parametrize("after", [0, 1])
def test_gru_in_both_directions(after: int) -> None:
    steps, batch, size, hidden = 3, 2, 4, 5
    x, w, r, b = drawn(steps, batch, size), drawn(2, 3 * hidden, size), drawn(2, 3 * hidden, hidden), drawn(2, 6 * hidden)
    y, last = one("GRU", x, w, r, b, outputs=2, hidden_size=hidden, direction="bidirectional", linear_before_reset=after)
    for d, order in enumerate((range(steps), range(steps - 1, -1, -1))):
        h = np.zeros((batch, hidden), np.float32)
        (wz, wr, wh), (rz, rr, rh) = np.split(w[d], 3), np.split(r[d], 3)
        bz, br, bh, sz, sr, sh = np.split(b[d], 6)
        for t in order:
            z, reset = sigmoid(x[t] @ wz.T + bz + h @ rz.T + sz), sigmoid(x[t] @ wr.T + br + h @ rr.T + sr)
            inner = reset * (h @ rh.T + sh) if after else (reset * h) @ rh.T + sh
            h = (1 - z) * np.tanh(x[t] @ wh.T + bh + inner) + z * h
            same(y[t, d], h)
        same(last[d], h)


def test_rnn_with_batch_first_and_other_activations() -> None:
    x, w, r = drawn(2, 3, 4), drawn(1, 5, 4), drawn(1, 5, 5)
    y, last = one(
        "RNN", x, w, r, outputs=2, hidden_size=5, layout=1, activations=["Affine"], activation_alpha=[0.5], activation_beta=[1.0]
    )
    h = np.zeros((2, 5), np.float32)
    for t in range(3):
        h = 0.5 * (x[:, t] @ w[0].T + h @ r[0].T) + 1
        same(y[:, t, 0], h)
    same(last[:, 0], h)


# ---------------------------------------------------------------------- random numbers


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    for op in ("RandomNormal", "RandomUniform"):
        seeded = [one(op, shape=[50], seed=1.5) for _ in range(2)]
        assert seeded[0].dtype == np.float32
        same(*seeded)
        assert not np.array_equal(one(op, shape=[50]), one(op, shape=[50]))
    same(one("RandomUniformLike", f32(1, 2), seed=2.0, dtype=11), one("RandomUniform", shape=[2], seed=2.0, dtype=11))


def test_random_numbers_are_of_their_distribution() -> None:
    x = one("RandomNormal", shape=[20000], seed=1.0, mean=3.0, scale=2.0)
    assert abs(x.mean() - 3) < 0.1
    assert abs(x.std() - 2) < 0.1
    assert abs(one("Bernoulli", np.full(20000, 0.25, np.float32), seed=1.0).mean() - 0.25) < 0.02
    logs = np.log(f32([[1, 3]]))
    assert abs(one("Multinomial", logs, sample_size=20000, seed=1.0).mean() - 0.75) < 0.02
