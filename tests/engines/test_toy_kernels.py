"""Toy's kernels on the inputs that are easy to get wrong; what is expected was computed by hand or by the definition."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines.toy_running import Array, f32, function, i64, node, one, run, same
from xrt.graph import DType

SEED = np.random.default_rng(3)


def drawn(*shape: int) -> Array:
    return SEED.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------- element by element


def test_integers_divide_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, -3], np.int32)
    same(one("Div", a, b), np.array([3, -3, -3, 3, -2], np.int32))
    same(one("Div", np.array([2**64 - 1], np.uint64), np.array([2], np.uint64)), np.array([2**63 - 1], np.uint64))


def test_remainders_follow_the_divisor_or_the_dividend() -> None:
    a, b = i64(7, -7, 7, -7), i64(3, 3, -3, -3)
    same(one("Mod", a, b), i64(1, 2, -2, -1))
    same(one("Mod", a, b, fmod=1), i64(1, -1, 1, -1))


def test_powers_keep_the_base_type() -> None:
    same(one("Pow", i64(2, 3), f32(2, 0.5)), i64(4, 1))
    same(one("Pow", f32(2, 3), i64(2, -1)), f32(4, 1 / 3))
    same(one("Pow", i64(2, 1), i64(-1, -2)), i64(0, 1))


def test_rounding_prefers_even() -> None:
    same(one("Round", f32(0.5, 1.5, 2.5, -0.5, -2.5)), f32(0, 2, 2, -0.0, -2))


def test_the_upper_bound_wins() -> None:
    same(one("Clip", f32(0, 5, 9), f32(6.0), f32(4.0)), f32(4, 4, 4))


def test_nan_goes_through() -> None:
    x = f32(np.nan, 1)
    for op in ("Relu", "Clip", "LeakyRelu", "Selu", "Sign"):
        assert np.isnan(one(op, x)[0]), op
    assert np.isnan(one("Max", x, f32(2, 2))[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf(dtype: Any) -> None:
    x = np.concatenate([np.linspace(-8, 8, 4001), [1e-300, -1e-8, 0.999999, 1.0, 6.0, np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erf(v) for v in x], dtype)
    np.testing.assert_allclose(one("Erf", x), expected, rtol=1e-14 if dtype is np.float64 else 1e-7)
    assert np.isnan(one("Erf", np.array([np.nan], dtype))[0])


def test_activations_do_not_overflow() -> None:
    x = f32(-1000, -100, 0, 100, 1000)
    same(one("Sigmoid", x), f32(0, 0, 0.5, 1, 1))
    same(one("Softplus", x), f32(0, 0, math.log(2), 100, 1000))
    same(one("Softmax", x), f32(0, 0, 0, 0, 1))
    same(one("Mish", x), f32(0, 0, 0, 100, 1000))


def test_activations() -> None:
    x = f32(-2, 0, 3)
    same(one("Elu", x, alpha=2.0), f32(2 * math.expm1(-2), 0, 3))
    same(one("Celu", x, alpha=2.0), f32(2 * math.expm1(-1), 0, 3))
    same(one("HardSigmoid", x), f32(0.1, 0.5, 1))
    same(one("HardSwish", x), f32(-1 / 3, 0, 3))
    same(one("ThresholdedRelu", x, alpha=2.0), f32(0, 0, 3))
    same(one("Shrink", x, lambd=1.0, bias=0.5), f32(-1.5, 0, 2.5))
    same(one("Softsign", x), f32(-2 / 3, 0, 0.75))
    same(one("Gelu", x), f32(*(v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in (-2, 0, 3))))


def test_infinities_by_sign() -> None:
    x = f32(np.inf, -np.inf, 1, np.nan)
    assert one("IsInf", x).tolist() == [True, True, False, False]
    assert one("IsInf", x, detect_negative=0).tolist() == [True, False, False, False]
    assert one("IsInf", x, detect_positive=0).tolist() == [False, True, False, False]


def test_strings_compare() -> None:
    a, b = (np.array(v, dtype=object) for v in (["a", "b"], ["a", "c"]))
    y = one("Equal", a, b, opset=19)
    assert (y.dtype, y.tolist()) == (np.bool_, [True, False])


# ---------------------------------------------------------------------- narrow types


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "GlobalAveragePool", "LayerNormalization", "Softmax", "MatMul"])
def test_bfloat16_is_summed_in_float32(op: str) -> None:
    x = np.ones((1, 1, 1000), np.float32)
    wide, narrow = x, x.astype(ml_dtypes.bfloat16)
    more: list[Any] = {"LayerNormalization": [x[0, 0]], "MatMul": [x.reshape(1, 1000, 1)]}.get(op, [])
    expected = one(op, wide, *more)
    got = one(op, narrow, *(m.astype(ml_dtypes.bfloat16) for m in more))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_casts_to_small_floats_saturate_or_not() -> None:
    to = DType.FLOAT8E4M3FN
    x = f32(1000, -1000, 0.3)
    saturated = one("Cast", x, to=to.onnx).astype(np.float32)
    same(saturated, f32(448, -448, 0.3125))
    open_ = one("Cast", x, to=to.onnx, saturate=0).astype(np.float32)
    assert np.isnan(open_[:2]).all()


def test_casts_of_text() -> None:
    text = np.array(["1.5", "-2", "nan"], dtype=object)
    same(one("Cast", text, to=1), f32(1.5, -2, np.nan))
    same(one("Cast", text[1:2], to=7), i64([-2]))
    assert one("Cast", f32(1.5, 3), to=8).tolist() == ["1.5", "3.0"]
    assert all(type(s) is str for s in one("Cast", f32(1.5), to=8).flat)


def test_quantisation_rounds_and_saturates() -> None:
    x = f32(-300, -1.5, 0.5, 1.5, 300)
    same(one("QuantizeLinear", x, f32(1.0), np.uint8(3).reshape(())), np.array([0, 1, 3, 5, 255], np.uint8))
    same(one("QuantizeLinear", x, f32(1.0), np.int8(0).reshape(())), np.array([-128, -2, 0, 2, 127], np.int8))
    blocks = one("QuantizeLinear", f32([[1, 2, 3, 4, 5]]), f32([[1, 2, 5]]), axis=1, block_size=2, output_dtype=DType.INT8.onnx)
    same(blocks, np.array([[1, 2, 2, 2, 1]], np.int8))


def test_integer_products_are_exact() -> None:
    a = np.full((1, 5000), 255, np.uint8)
    same(one("MatMulInteger", a, a.T), np.array([[5000 * 255 * 255]], np.int32))
    same(one("MatMulInteger", a[:, :2], a.T[:2], np.array(254, np.uint8)), np.array([[510]], np.int32))


# ---------------------------------------------------------------------- reductions and order


def test_reductions_of_nothing() -> None:
    nothing = np.empty((2, 0), np.float32)
    same(one("ReduceMax", nothing, i64([1]), keepdims=0), f32(-np.inf, -np.inf))
    same(one("ReduceMin", nothing.astype(np.int32), i64([1]), keepdims=0), np.array([2**31 - 1] * 2, np.int32))
    same(one("ReduceLogSumExp", nothing, i64([1]), keepdims=0), f32(-np.inf, -np.inf))
    same(one("ReduceSum", nothing, i64([1]), keepdims=0), f32(0, 0))


def test_a_logarithm_of_a_sum_does_not_overflow() -> None:
    same(one("ReduceLogSumExp", f32(1000, 1000), i64([0])), f32([1000 + math.log(2)]))


def test_equal_elements_are_told_by_place() -> None:
    x = f32(3, 1, 3, 2)
    assert int(one("ArgMax", x, axis=0, keepdims=0)) == 0
    assert int(one("ArgMax", x, axis=0, keepdims=0, select_last_index=1)) == 2
    values, places = one("TopK", x, i64([3]), outputs=2)
    same(values, f32(3, 3, 2))
    same(places, i64(0, 2, 3))
    values, places = one("TopK", np.array([0, 2**64 - 1, 5], np.uint64), i64([2]), outputs=2, largest=0)
    same(values, np.array([0, 5], np.uint64))
    same(places, i64(0, 2))


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"), [(0, 0, [1, 3, 6]), (1, 0, [0, 1, 3]), (0, 1, [6, 5, 3]), (1, 1, [5, 3, 0])]
)
def test_running_sums(exclusive: int, reverse: int, expected: list[float]) -> None:
    same(one("CumSum", f32(1, 2, 3), i64(0), exclusive=exclusive, reverse=reverse), f32(expected))


# ---------------------------------------------------------------------- places


def test_slices_backwards() -> None:
    x = np.arange(5, dtype=np.float32)
    for start, end, step, expected in [(-1, -99, -1, x[::-1]), (3, 0, -2, x[3:0:-2]), (9, 1, -1, x[:1:-1]), (1, 99, 2, x[1::2])]:
        same(one("Slice", x, i64([start]), i64([end]), i64([0]), i64([step])), expected)


def test_gather_counts_from_the_end() -> None:
    x = drawn(3, 4)
    same(one("Gather", x, i64([[-1, 0]]), axis=1), x[:, [[-1, 0]]])
    same(one("GatherElements", x, i64([[0, -1]]), axis=1), x[:1, [0, -1]])
    same(one("GatherND", x, i64([[2, -1], [0, 1]])), x[[2, 0], [-1, 1]])


def test_scatter_meets_a_place_twice() -> None:
    x, places, new = f32(1, 1, 1), i64(0, 0, -1), f32(5, 7, 3)
    same(one("ScatterElements", x, places, new, reduction="add"), f32(13, 1, 4))
    same(one("ScatterElements", x, places, new, reduction="max"), f32(7, 1, 3))
    same(one("ScatterElements", x, places, new), f32(7, 1, 3))
    same(one("ScatterND", x, places[:, None], new, reduction="mul"), f32(35, 1, 3))


def test_one_hot_outside_is_off() -> None:
    same(one("OneHot", i64(0, -1, 5), i64(3), f32(2, 9)), f32([[9, 2, 2], [2, 2, 9], [2, 2, 2]]))
    same(one("OneHot", i64(1), i64([2]), i64(0, 1), axis=0), i64(0, 1))


def test_unique_in_order_of_appearance_along_an_axis() -> None:
    x = f32([[2, 1, 2], [0, 3, 0]])
    y, first, inverse, counts = one("Unique", x, outputs=4, sorted=0, axis=1)
    same(y, f32([[2, 1], [0, 3]]))
    assert [first.tolist(), inverse.tolist(), counts.tolist()] == [[0, 1], [0, 1, 0], [2, 1]]
    same(one("Unique", i64([[3, 1], [3, 2]]), sorted=0), i64(3, 1, 2))


def test_padding_that_crops() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same(one("Pad", x, i64([0, -1, 1, 1])), f32([[1, 2, 0], [4, 5, 0], [0, 0, 0]]))
    same(one("Pad", x, i64([1, 1]), f32(9.0), i64([-1])), f32([[9, 0, 1, 2, 9], [9, 3, 4, 5, 9]]))
    text = np.array(["a"], dtype=object)
    assert one("Pad", text, i64([1, 0]), opset=25).tolist() == ["", "a"]


def test_reverse_sequence_both_ways() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same(one("ReverseSequence", x, i64(3, 2), batch_axis=0, time_axis=1), f32([[2, 1, 0], [4, 3, 5]]))
    same(one("ReverseSequence", x.T, i64(3, 2), batch_axis=1, time_axis=0), f32([[2, 1, 0], [4, 3, 5]]).T)


def test_no_elements_at_all() -> None:
    nothing = np.empty((0, 3), np.float32)
    assert one("NonZero", nothing).shape == (2, 0)
    assert one("NonZero", np.array(5)).shape == (0, 1)
    same(one("Concat", nothing, f32([[1, 2, 3]]), axis=0), f32([[1, 2, 3]]))
    assert one("Softmax", nothing).shape == (0, 3)


def test_range_does_not_accumulate_errors() -> None:
    same(one("Range", f32(0.0), f32(1.0), f32(0.1)), (np.arange(10, dtype=np.float32) * np.float32(0.1)))
    same(one("Range", i64(10), i64(4), i64(-3)), i64(10, 7))
    same(one("Range", i64(1), i64(1), i64(1)), i64([]))


# ---------------------------------------------------------------------- interpolation


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1.5, 2, 2.5, 3]),
        ({"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, [1, 1.6, 2.2, 2.8, 3]),
        ({"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}, [1, 1, 2, 2, 3]),
        ({"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}, [1, 2, 3, 3, 3]),
    ],
)
def test_resize(attributes: dict[str, Any], expected: list[float]) -> None:
    same(one("Resize", f32(1, 2, 3), None, None, i64([5]), **attributes), f32(expected))


def test_a_straight_line_stays_one() -> None:
    line = np.arange(8, dtype=np.float64)
    for mode in ("linear", "cubic"):
        y = one("Resize", line, None, f32([2.0]), mode=mode, cubic_coeff_a=-0.5)
        np.testing.assert_allclose(np.diff(y[5:-5]), 0.5, atol=1e-6)
    shrunk = one("Resize", line, None, f32([0.5]), mode="linear", antialias=1)
    np.testing.assert_allclose(np.diff(shrunk[1:-1]), 2)


def test_resize_of_integers_rounds_and_saturates() -> None:
    x = np.array([0, 0, 255, 255], np.uint8)
    y = one("Resize", x, None, f32([2.0]), mode="cubic")
    assert (y.dtype, y.max(), y.min()) == (np.uint8, 255, 0)


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


# ---------------------------------------------------------------------- control flow and sequences


def test_branches_read_values_from_outside() -> None:
    then = function("", "y", node("Add", "x k", "y"))
    otherwise = function("", "x")
    f = function("c x", "y", node("If", "c", "y", then_branch=then, else_branch=otherwise), constants={"k": f32(10.0)})
    same(run(f, np.array(True), f32(1, 2))[0], f32(11, 12))
    x = f32(1, 2)
    (y,) = run(f, np.array([False]), x)
    same(y, x)
    assert not np.shares_memory(y, x)


def loop(body: Any, *carried: str, opset: int = 21) -> Any:
    outputs = [f"out{i}" for i in range(len(body.outputs) - 1)]
    names = f"trips go {' '.join(carried)}".strip()
    return function(f"{names} k", " ".join(outputs), node("Loop", names, " ".join(outputs), body=body), opset=opset)


def test_a_loop_carries_scans_and_stops() -> None:
    body = function(
        "i go a",
        "more b seen",
        node("Add", "a k", "b"),
        node("Less", "b top", "more"),
        node("Mul", "b b", "seen"),
        constants={"top": f32(5.0)},
    )
    f = loop(body, "a")
    last, seen = run(f, i64(10), np.array(True), f32(0.0), f32(2.0))
    same(last, f32(6.0))
    same(seen, f32(4, 16, 36))
    last, seen = run(f, i64(2), np.array(True), f32(0.0), f32(2.0))
    same(last, f32(4.0))
    same(seen, f32(4, 16))


def test_a_loop_that_never_runs() -> None:
    body = function("i go a", "go b", node("Add", "a k", "b"))
    (last,) = run(loop(body, "a"), i64(0), np.array(True), f32(7.0), f32(2.0))
    same(last, f32(7.0))


def test_bodies_within_bodies_read_through() -> None:
    inner = function("", "y", node("Mul", "a k", "y"))
    body = function("i go a", "go b", node("If", "go", "b", then_branch=inner, else_branch=inner))
    (last,) = run(loop(body, "a"), i64(3), np.array(True), f32(1.0), f32(2.0))
    same(last, f32(8.0))


def test_scan_along_other_axes_and_backwards() -> None:
    body = function("s x", "t y", node("Add", "s x", "t"), node("Identity", "t", "y"))
    scan = node(
        "Scan", "s x", "t y", body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1], scan_output_directions=[1],
    )  # fmt: skip
    last, seen = run(function("s x", "t y", scan), f32(0, 0), f32([[1, 2, 3], [10, 20, 30]]))
    same(last, f32(6, 60))
    same(seen, f32([[6, 5, 3], [60, 50, 30]]))


def test_sequences_are_not_changed_in_place() -> None:
    f = function(
        "s x",
        "s a b n",
        node("SequenceInsert", "s x i", "a"),
        node("SequenceErase", "a i", "b"),
        node("SequenceLength", "a", "n"),
        constants={"i": i64(0)},
    )
    given_ = [f32(1.0), f32(2.0)]
    s, a, b, n = run(f, given_, f32(9.0))
    assert len(given_) == 2
    assert [[float(v) for v in values] for values in (s, a, b)] == [[1, 2], [9, 1, 2], [1, 2]]
    same(n, i64(3))


def test_a_place_outside_of_a_sequence_says_so() -> None:
    from xrt.errors import RunFailed

    f = function("s i", "y", node("SequenceAt", "s i", "y"))
    with pytest.raises(RunFailed, match=r"IndexError: position 2 is outside of a sequence of 2; it must be from -2 to 1"):
        run(f, [f32(1.0), f32(2.0)], i64(2))


def test_optionals() -> None:
    f = function(
        "x", "h g", node("Optional", "x", "o"), node("OptionalHasElement", "o", "h"), node("OptionalGetElement", "o", "g")
    )
    h, g = run(f, f32(1, 2))
    same(h, np.array(True))
    same(g, f32(1, 2))
    assert not run(function("o", "h", node("OptionalHasElement", "o", "h")), None)[0]


# ---------------------------------------------------------------------- borrowed operators


def test_a_borrowed_operator_gives_what_the_reference_gives() -> None:
    y = one("StringConcat", np.array(["a", "b"], dtype=object), np.array(["c", "d"], dtype=object))
    assert (y.dtype, y.tolist()) == (object, ["ac", "bd"])
    assert all(type(s) is str for s in y)
    q = drawn(1, 2, 3, 4)
    scores = exponentials(q @ q.swapaxes(2, 3) / 2)
    same(one("Attention", q, q, q), scores @ q)


def exponentials(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_a_borrowed_operator_with_a_left_out_output() -> None:
    f = function("q", "y k", node("Attention", "q q q _ p p", "y k _"), constants={"p": np.zeros((1, 2, 0, 4), np.float32)})
    q = drawn(1, 2, 3, 4)
    y, k = run(f, q)
    same(k, q)
    assert y.shape == q.shape
