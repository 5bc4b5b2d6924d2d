"""``x[...]`` on tensors means what NumPy means by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from tests.graph.tracing import F32, compute, run, trace
from xrt.errors import ModelError
from xrt.graph import DType, TensorType

CUBE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
MASK = CUBE % 3 == 0

KEYS = {
    "an integer": 1,
    "from the end": -1,
    "integers": (1, -2),
    "all integers": (1, 2, 3),
    "a slice": slice(1, None),
    "a step": (slice(None), slice(None, None, 2)),
    "backwards": (slice(None, None, -1), slice(2, 0, -1)),
    "backwards to the start": (slice(None), slice(1, None, -2)),
    "out of range slices": (slice(-10, 10), slice(5, 9)),
    "nothing": (slice(0, 0),),
    "everything": (),
    "an ellipsis": (..., 1),
    "an ellipsis in the middle": (0, ..., slice(1, 3)),
    "an ellipsis for no axis": (0, 1, ..., 2),
    "new axes": (None, slice(1), None, ..., None),
    "a new axis beside an integer": (0, None, slice(1, 3)),
    "a list": [1, 0, 1],
    "an array on an inner axis": (slice(None), np.array([[0, 2], [1, -1]])),
    "an array and slices": (slice(1), np.array([0, 2]), slice(None, None, -1)),
    "two arrays": (np.array([0, 1, 1]), np.array([2, 1, 0])),
    "arrays that broadcast": (np.array([[0], [1]]), np.array([2, 1, 0])),
    "adjacent arrays after a slice": (slice(None), np.array([0, 2]), np.array([1, 3])),
    "separated arrays": (np.array([0, 1]), slice(None), np.array([1, 3])),
    "an integer and an array, separated": (0, slice(None), np.array([1, 3])),
    "an integer and an array, adjacent": (slice(None), 1, np.array([[1, 3]])),
    "a new axis between arrays": (np.array([0, 1]), None, np.array([1, 2])),
    "a new axis before an array": (None, slice(None), np.array([0, 2])),
    "an array of no axes": np.array(1),
    "an empty array": [],
    "small integers": np.array([1, 0], np.uint8),
    "a mask of all axes": MASK,
    "a mask of the first axis": np.array([False, True]),
    "a mask of two axes": MASK[:, :, 0],
    "a mask of an inner axis": (slice(None), np.array([True, False, True])),
    "a mask and an integer": (MASK[:, 0, 0], 1),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_constant_keys(key: Any) -> None:
    (actual,) = run(lambda x: x[key], CUBE)
    np.testing.assert_array_equal(actual, CUBE[key])
    assert np.shape(actual) == CUBE[key].shape


@pytest.mark.parametrize("rank", ["known", "unknown"])
def test_keys_of_tensors(rank: str) -> None:
    def build(x: Any, i: Any, rows: Any, mask: Any) -> Any:
        return x[i], x[rows], x[:, rows], x[rows, 1], x[mask], x[rows, rows, i], x[:, i:, 0], x[:, :i], x[i, None, ..., 1:]

    i, rows, mask = np.array(1), np.array([1, 0, 1]), MASK[:, :, 0]
    x = TensorType(DType.FLOAT32, ("A", "B", "C") if rank == "known" else (None, None, None))
    function = trace(build, x, TensorType(DType.INT64, ()), TensorType(DType.INT64, ("K",)), TensorType(DType.BOOL, ("A", "B")))
    for actual, expected in zip(compute(function, CUBE, i, rows, mask), build(CUBE, i, rows, mask), strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert np.shape(actual) == np.shape(expected)


def test_a_tensor_of_unknown_rank_is_indexed_from_the_front() -> None:
    function = trace(lambda x: (x[0], x[1:, None], x[:, 1, ...]), TensorType(DType.FLOAT32))
    for actual, expected in zip(compute(function, CUBE), (CUBE[0], CUBE[1:, None], CUBE[:, 1, ...]), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_masking_by_a_comparison() -> None:
    (actual,) = run(lambda x: x[x > 5], CUBE)
    np.testing.assert_array_equal(actual, CUBE[CUBE > 5])


def test_slices_are_one_node() -> None:
    function = trace(lambda x: x[0, 1:, ::-1], CUBE)
    assert [node.op for node in function.nodes] == ["Slice", "Squeeze"]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_basic_key(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=4))
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=5))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (actual,) = run(lambda x: x[key], x)
    np.testing.assert_array_equal(actual, x[key])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_integer_arrays(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    arrays = data.draw(
        hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3), dtype=np.dtype(np.int64))
    )
    key = tuple(data.draw(st.sampled_from([array, array, slice(None)])) for array in arrays)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (actual,) = run(lambda x: x[key], x)
    np.testing.assert_array_equal(actual, x[key])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, r"index 2 is out of bounds for axis 0 of 'x', which is float32\[2,3\]"),
        ((0, -4), r"index -4 is out of bounds for axis 1 of 'x'"),
        ((slice(None), [0, 3]), r"index 0 to 3 is out of bounds for axis 1"),
        ((0, 0, 0), r"'x' is float32\[2,3\] and takes 2 indices; got 3"),
        ((..., 0, ...), "indexed with two '...'"),
        (True, "True and False are no indices"),
        (1.5, "cannot be indexed with float 1.5"),
        ("a", "cannot be indexed with str 'a'"),
        ([0.5], "cannot be indexed with an array of float64"),
        (slice(None, None, 0), "the step of a slice of 'x' is 0"),
        (slice(0.5), "the bounds of a slice of 'x' must be integers"),
        (([0, 1], [0, 1, 2]), r"the index arrays have shapes \(2,\), \(3,\), which do not broadcast"),
        (np.array(True), "a mask of no axes"),
    ],
)
def test_keys_that_are_refused(key: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace(lambda x: x[key], F32)


def test_a_step_that_is_a_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match="the step of a slice of 'x' must be an integer, not a tensor"):
        trace(lambda x, n: x[::n], F32, TensorType(DType.INT64, ()))
