"""What `xrt.comparison` calls equal, what it calls different, and what it says then."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from xrt.comparison import BIT_EQUAL, EXACT, IndexAmbiguity, StepAmbiguity, Tolerance, compare, compare_all, tolerance_for
from xrt.errors import InputError

F32 = np.float32


def floats(*values: float) -> np.ndarray:
    return np.array(values, F32)


def test_one_tolerance_is_declared_for_operators_and_one_for_networks():
    operator, network = tolerance_for("float32"), tolerance_for(np.float32, "network")
    assert (operator.rtol, operator.peak) == (1e-4, 1e-5)
    assert (network.rtol, network.peak) == (1e-3, 1e-4)
    for dtype in ("float16", "bfloat16", "float64", "complex64", "complex128"):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        operator, network = tolerance_for(kind), tolerance_for(kind, "network")
        assert 0 < operator.rtol < network.rtol
        assert 0 < operator.peak < network.peak
    for exact in (np.int8, np.bool_, np.object_, ml_dtypes.int4, ml_dtypes.float8_e4m3fn):
        assert tolerance_for(exact) == EXACT
    with pytest.raises(InputError, match=r"^a tolerance is declared for the scope 'operator' or 'network'; got 'model'$"):
        tolerance_for("float32", "model")  # type: ignore[arg-type]


BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
COMPLEX = np.array([1 + 2j, 3 - 1j], np.complex64)
EQUAL: dict[str, tuple[Any, Any, Any]] = {
    "a small number beside a large one": (floats(1e4, 0.05), floats(1e4, 0.0), Tolerance(peak=1e-5)),
    "NaN and infinities": (floats(np.nan, np.inf, -np.inf), floats(np.nan, np.inf, -np.inf), None),
    "zeros of two signs": (floats(-0.0), floats(0.0), EXACT),
    "NaNs of two signs, to the bit": (floats(np.nan, 1), -floats(np.nan, -1), BIT_EQUAL),
    "another byte order": (floats(1).astype(">f4"), floats(1), None),
    "an array where a scalar was expected": (np.array(1.0, F32), np.float32(1.0), None),
    "floats of a byte": (np.array([1.0, -448]).astype(F8), np.array([1.0, -448]).astype(F8), None),
    "bfloat16, two roundings away": (np.array([1.0078125]).astype(BF16), np.array([1.0]).astype(BF16), None),
    "complex numbers": (COMPLEX * np.complex64(1 + 1e-6), COMPLEX, None),
    "empty tensors": (np.zeros((0, 3), F32), np.zeros((0, 3), F32), None),
    "text as objects": (np.array(["a", "bc"], object), np.array(["a", "bc"]), None),
    "lists": ([floats(1), floats(2)], [floats(1), floats(2)], None),
    "empty lists": ([], [], None),
    "absent values": (None, None, None),
    "dictionaries": ({"a": floats(1)}, {"a": floats(1)}, None),
}


@pytest.mark.parametrize(("actual", "expected", "tolerance"), EQUAL.values(), ids=EQUAL)
def test_what_is_equal(actual: Any, expected: Any, tolerance: Any) -> None:
    assert compare(actual, expected, tolerance)


DIFFERENT: dict[str, tuple[Any, Any, Any, str]] = {
    "a small number beside a small one": (floats(1.0, 0.05), floats(1.0, 0.0), Tolerance(peak=1e-5), ""),
    "a number beside an infinity": (floats(np.inf, 1.5), floats(np.inf, 1.0), Tolerance(peak=1e-5), ""),
    "a wrong number": (
        np.zeros((2, 2), F32),
        np.array([[0, 0], [0.5, 0]], F32),
        Tolerance(rtol=0.1),
        (
            "y differs in 1 of 4 elements; at worst y[1,0] is 0.0, 0.5 was expected "
            "(absolute difference 0.5, relative 1; beyond rtol 0.1)"
        ),
    ),
    "zeros of two signs, to the bit": (floats(-0.0), floats(0.0), BIT_EQUAL, "; beyond equality of bits)"),
    "another type": (floats(1).astype(np.float64), floats(1), None, "y is of type float64; float32 was expected"),
    "another shape": (floats(1).reshape(1, 1), floats(1), None, "y has shape (1, 1); (1,) was expected"),
    "another empty shape": (np.zeros((0, 3), F32), np.zeros((3, 0), F32), None, ""),
    "a scalar": (np.float32(1.0), np.float32(1.0), None, "y is a float32; it must be an array"),
    "floats of a byte": (np.array([1.0]).astype(F8), np.array([1.125]).astype(F8), None, ""),
    "bfloat16": (np.array([1.1]).astype(BF16), np.array([1.0]).astype(BF16), None, ""),
    "a part of a complex number": (np.array([1 + 2j, 3 + 1j], np.complex64), COMPLEX, None, "1 of 4"),
    "text": (
        np.array(["a", "b"], object),
        np.array(["a", "bc"]),
        None,
        "y differs in 1 of 2 elements; y[1] is 'b', 'bc' was expected",
    ),
    "a shorter list": ([floats(1)], [floats(1), floats(2)], None, "y has 1 elements; 2 were expected"),
    "no list": (floats(1), [floats(1)], None, "y is a ndarray; it must be a list"),
    "an element of a list": ([floats(1), floats(3)], [floats(1), floats(2)], None, "y[1] differs in 1 of 1 elements"),
    "an absent value": (None, floats(1), None, "y is absent; a ndarray was expected"),
    "a value where none was expected": ([floats(1)], None, None, "y is a list; it must be absent"),
    "other keys": ({"a": floats(1)}, {"b": floats(1)}, None, "y has the keys ['a']; ['b'] were expected"),
    "a value of a dictionary": (
        [{"a": 1.0}],
        [{"a": 1.5}],
        None,
        "y[0]['a'] differs in 1 of 1 elements; at worst y[0]['a'] is 1.0, 1.5 was expected",
    ),
    "no dictionary": ([], {}, None, "y is a list; it must be a dictionary"),
}


@pytest.mark.parametrize(("actual", "expected", "tolerance", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_different_and_what_is_said_of_it(actual: Any, expected: Any, tolerance: Any, message: str) -> None:
    result = compare(actual, expected, tolerance, name="y")
    assert not result
    assert message in result.message


def test_differences_are_reported_even_when_they_are_admitted():
    result = compare(floats(1.0, 2.00001), floats(1.0, 2.0), name="y")
    assert result
    assert result.where == "y[1]"
    assert result.absolute == pytest.approx(1e-5, rel=0.1)
    assert result.relative == pytest.approx(5e-6, rel=0.1)


@pytest.mark.parametrize(
    ("actual", "expected"), [(np.inf, -np.inf), (np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, np.inf), (np.nan, np.inf)]
)
def test_no_tolerance_admits_what_is_not_finite(actual, expected):
    result = compare(floats(actual), floats(expected), Tolerance(rtol=1.0, atol=1e30))
    assert not result
    assert result.absolute == np.inf


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.bool_, ml_dtypes.int4, ml_dtypes.uint2])
def test_integers_are_exact(dtype):
    first, zero = np.array([1, 1]).astype(dtype), np.array([1, 0]).astype(dtype)
    assert compare(first, first, Tolerance(rtol=9.0))
    assert not compare(first, zero, Tolerance(rtol=9.0))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_the_gap_of_the_extremes_does_not_overflow(dtype):
    limits = np.iinfo(dtype)
    result = compare(np.array([limits.max], dtype), np.array([limits.min], dtype))
    assert result.absolute == pytest.approx(2.0**64)


def test_outputs_are_compared_under_their_names():
    good, bad = floats(1), floats(2)
    result = compare_all([good, bad], [good, good], names=["a", "b"])
    assert result.message.startswith("b differs")
    assert result.where == "b[0]"
    assert compare_all([good], [good, good]).message == "there are 1 outputs; 2 were expected"
    assert compare_all([], [])


def test_a_rounding_may_step_only_where_what_it_read_is_on_an_edge():
    read = floats(0.5, 0.9, 1.5000001)
    ties = StepAmbiguity.from_rounding(read, "halves")
    expected = np.array([0, 1, 2])
    assert compare(np.array([1, 1, 1]), expected, ties=ties)
    assert not compare(np.array([0, 0, 2]), expected, ties=ties), "0.9 is nowhere near an edge"
    assert not compare(np.array([2, 1, 2]), expected, ties=ties), "two steps are too many"


def test_a_rounding_may_give_floats():
    ties = StepAmbiguity.from_rounding(floats(0.5, 0.9), "halves")
    assert compare(floats(1, 1), floats(0, 1), ties=ties)
    assert not compare(floats(0, 0), floats(0, 1), ties=ties)


def test_the_edges_of_a_cast_are_the_integers():
    ties = StepAmbiguity.from_rounding(floats(2.9999999, 2.5), "integers")
    assert compare(np.array([2, 2]), np.array([3, 2]), ties=ties)
    assert not compare(np.array([3, 3]), np.array([3, 2]), ties=ties)


def test_a_threshold_may_flip_where_both_sides_are_as_good_as_equal():
    ties = StepAmbiguity.from_threshold(floats(1.0, 1.0), floats(1.0000001, 2.0))
    assert compare(np.array([False, True]), np.array([True, True]), ties=ties)
    result = compare(np.array([True, False]), np.array([True, True]), ties=ties)
    assert result.message.endswith("the difference is no tie)")


def test_evidence_of_another_shape_is_an_error():
    with pytest.raises(InputError, match=r"^the ties are for shape \(2,\), but the result has shape \(1,\)$"):
        compare(np.array([1]), np.array([2]), ties=StepAmbiguity(np.array([True, True])))


@pytest.mark.parametrize("keepdims", [True, False])
def test_another_index_is_as_good_where_its_value_is(keepdims):
    values = np.array([[1.0, 3.0, 3.0], [5.0, 4.0, 0.0]], F32)
    expected = np.argmax(values, axis=1, keepdims=keepdims)
    ties = IndexAmbiguity(values, axis=1)
    other = expected.copy()
    other.reshape(-1)[0] = 2
    assert compare(other, expected, ties=ties)
    other.reshape(-1)[1] = 1
    assert not compare(other, expected, ties=ties)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_the_axis_is_no_tie(index):
    values = np.ones(3, F32)
    assert not compare(np.array([index]), np.array([0]), ties=IndexAmbiguity(values, axis=0))


def test_the_same_place_twice_is_no_tie():
    ties = IndexAmbiguity(np.ones(3, F32), axis=0)
    assert compare(np.array([1, 0]), np.array([0, 1]), ties=ties)
    assert not compare(np.array([1, 1]), np.array([0, 1]), ties=ties)


ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.int16, np.bool_, np.complex64]), hnp.array_shapes(min_dims=0, min_side=0)
)


@pytest.mark.slow
@given(ARRAYS)
def test_everything_equals_itself_to_the_bit(array):
    result = compare(array.copy(), array, BIT_EQUAL)
    assert result
    assert (result.absolute, result.relative, result.where) == (0.0, 0.0, "")


@pytest.mark.slow
@given(ARRAYS.filter(lambda a: a.size and a.dtype.kind in "fib"), st.data())
def test_one_changed_element_is_found_where_it_is(array, data):
    at = tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)
    changed = array.copy()
    changed[at] = not array[at] if array.dtype.kind == "b" else 1 if array[at] == 0 or np.isnan(array[at]) else 0
    result = compare(changed, array, EXACT)
    assert not result
    assert result.where == "result" + (f"[{','.join(map(str, at))}]" if at else "")
