"""Toy's kernels on the inputs that are easy to get wrong; what is expected was computed by hand or by the definition."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines.toy_running import f32, i64, one, same
from xrt.graph import DType

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
    np.testing.assert_allclose(one("Erf", x), expected, rtol=1e-13 if dtype is np.float64 else 1e-7)
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


def test_equal_elements_are_distinguished_by_position() -> None:
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
