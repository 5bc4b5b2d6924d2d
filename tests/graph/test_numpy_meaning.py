"""Python's operators and indexing on tensors mean what NumPy means by them: the same numbers, and the same types."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from tests.graph.tracing import F32, compute, run, trace
from xrt.errors import ModelError
from xrt.graph import Constant, DType, TensorType

ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
BITS = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float32", "float64"]


def values(dtype: str) -> np.ndarray[Any, Any]:
    """Numbers that tell the meanings of the operators apart: both signs, the ends of the range, no zero."""
    if dtype == "bool":
        return np.array([True, False, True, True])
    if dtype.startswith("float"):
        return np.array([7.5, -7.5, 0.1, 1e6], dtype)
    info = np.iinfo(dtype)
    return np.array([7, max(info.min, -7), info.max, info.min or 1], dtype)


def divisors(dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bool":
        return np.array([True, True, True, True])
    return np.array([2, 3, 0.1, 7] if dtype.startswith("float") else [2, 3, 5, 7], dtype) * (1 if dtype.startswith("u") else -1)


def numpy(function: Callable[..., Any], *arrays: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*arrays)


def check(function: Callable[..., Any], *arrays: Any) -> None:
    """Compare with NumPy, which may refuse: then so must the trace."""
    try:
        expected = numpy(function, *arrays)
    except (TypeError, OverflowError):
        with pytest.raises(ModelError):
            trace(function, *arrays)
        return
    try:
        (actual,) = run(function, *arrays)
    except ModelError as error:  # ONNX may have no operator for the type that NumPy computes in; nothing else is excused
        assert " takes no tensor(" in str(error), error  # noqa: PT017  # which errors are excused is the point
        return
    assert actual.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("right", DTYPES)
@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("symbol", [*ARITHMETIC, *COMPARISONS])
def test_two_tensors(symbol: str, left: str, right: str) -> None:
    check({**ARITHMETIC, **COMPARISONS}[symbol], values(left), divisors(right))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 3, -3, 2.5], ids=repr)
@pytest.mark.parametrize("symbol", [*ARITHMETIC, *COMPARISONS])
def test_a_tensor_and_a_number(symbol: str, number: Any, dtype: str) -> None:
    function = {**ARITHMETIC, **COMPARISONS}[symbol]
    check(lambda x: function(x, number), values(dtype))
    check(lambda x: function(number, x), divisors(dtype))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64"])
@pytest.mark.parametrize("symbol", BITS)
def test_bits(symbol: str, dtype: str) -> None:
    check(BITS[symbol], values(dtype), divisors(dtype))
    check(lambda x: BITS[symbol](x, 1), values(dtype))
    check(operator.invert, values(dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_shifts(dtype: str) -> None:
    check(lambda x: x << 3, values(dtype))
    check(lambda x: x >> 3, values(dtype))
    check(operator.rshift, values(dtype), np.array([0, 1, 2, 7], dtype))
    check(lambda x: 1 << x, np.array([0, 1, 2, 6], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_operand(dtype: str) -> None:
    check(operator.neg, values(dtype))
    if dtype != "bool":
        check(operator.pos, values(dtype))
    check(abs, values(dtype)[:2])


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_powers(dtype: str) -> None:
    x = np.array([1, 2, 3, 4], dtype)
    check(lambda x: x**2, x)
    check(lambda x: 2**x, x)
    check(lambda x: x**0.5, x)
    check(operator.pow, x, x)


def test_an_integer_to_a_negative_power_is_refused() -> None:
    with pytest.raises(ModelError, match="integers to negative integer powers are not integers"):
        trace(lambda x: x**-1, np.arange(3))


def test_floor_division_of_floats_is_exact() -> None:
    pairs = np.array(
        [[1.0, 0.1], [-1.0, 0.1], [6.0, 2.0], [-0.5, 3.0], [1.0, 0.0], [-1.0, 0.0], [3.0, np.inf], [-3.0, np.inf]], "f4"
    )
    check(operator.floordiv, pairs[:, 0], pairs[:, 1])
    check(operator.mod, pairs[:4, 0], pairs[:4, 1])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_floor_division_of_integers_does_not_overflow(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, low + 1, low + 2, -1, 0, 1, high - 1, high], dtype)
    for divisor in (3, -3, 7, high, low):
        check(lambda x, d=divisor: x // d, x)
        check(lambda x, d=divisor: x % d, x)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (3,))])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64"), ("int32", "int64")])
def test_matmul(shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, str]) -> None:
    a, b = (np.arange(np.prod(s)).reshape(s).astype(d) for s, d in zip(shapes, dtypes, strict=True))
    check(operator.matmul, a, b)


def test_arrays_are_strong_and_numbers_weak() -> None:
    x = np.ones(3, np.float32)
    assert trace(lambda x: x * 2.5, x).outputs[0].type == TensorType(DType.FLOAT32, (3,))
    assert trace(lambda x: x * np.array(2.5), x).outputs[0].type == TensorType(DType.FLOAT64, (3,))
    assert trace(lambda x: x * np.float64(2.5), x).outputs[0].type == TensorType(DType.FLOAT64, (3,))
    assert trace(lambda x: np.float32(2.5) * x, x).outputs[0].type == TensorType(DType.FLOAT32, (3,))
    assert trace(lambda x: x * [1, 2, 3], x).outputs[0].type == TensorType(DType.FLOAT64, (3,))
    assert trace(lambda x: x + Constant(np.ones(3, np.float16)), x).outputs[0].type == TensorType(DType.FLOAT32, (3,))
    for build in (lambda x: x + 1, lambda x: 1.5 * x, lambda x: x / 3):
        assert trace(build, np.ones(3, ml_dtypes.bfloat16)).outputs[0].type == TensorType(DType.BFLOAT16, (3,))


def test_a_constant_is_converted_once_not_cast_at_run_time() -> None:
    function = trace(lambda x: x + np.ones(3, np.float16), np.ones(3, np.float32))
    assert [node.op for node in function.nodes] == ["Add"]


def test_strings_compare() -> None:
    x = np.array(["a", "b"], object)
    (equal,) = run(lambda x: x == "a", x)
    assert equal.tolist() == [True, False]
    with pytest.raises(ModelError, match=r"ONNX has no string \+ 'a' of strings"):
        trace(lambda x: x + "a", x)


def test_what_is_no_operand_is_left_to_the_other_side() -> None:
    class Other:
        def __radd__(self, value: Any) -> str:
            return "theirs"

    seen = []
    trace(lambda x: (seen.append(x + Other()), seen.append(x == None), x)[-1], F32)  # noqa: E711  # the comparison is what is tested
    assert seen == ["theirs", False]
    with pytest.raises(TypeError):
        trace(lambda x: x + object(), F32)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float32", "bool"])
@pytest.mark.parametrize("method", ["sum", "prod", "mean", "max", "min"])
def test_reductions(method: str, dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    for options in ({}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"axis": (0, 1)}, {"axis": ()}):
        check(lambda x, o=options: getattr(x, method)(**o), x)
    if method == "max" and dtype == "float32":  # before its axes were an input
        np.testing.assert_array_equal(run(lambda x: x.max(axis=1), x, opsets=13)[0], x.max(axis=1))


def test_shapes() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for build in (
        lambda x: x.T,
        lambda x: x.transpose(),
        lambda x: x.transpose(1, -1, 0),
        lambda x: x.transpose((1, 2, 0)),
        lambda x: x.reshape(6, -1),
        lambda x: x.reshape((4, 6)),
        lambda x: x.reshape(-1),
    ):
        check(build, x)
    check(lambda x: x.reshape(0, 5), np.ones((0, 3), np.float32))


def test_reshape_by_names_and_tensors() -> None:
    symbolic = TensorType(DType.FLOAT32, ("N", 3, "M"))
    assert trace(lambda x: x.reshape("N", -1), symbolic).outputs[0].type == TensorType(DType.FLOAT32, ("N", None))
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    function = trace(lambda x: x.reshape("M", -1), symbolic)
    np.testing.assert_array_equal(compute(function, x)[0], x.reshape(4, -1))
    function = trace(lambda x, n: x.reshape(n, -1), symbolic, TensorType(DType.INT64, ()))
    np.testing.assert_array_equal(compute(function, x, np.array(6))[0], x.reshape(6, -1))
    with pytest.raises(ModelError, match=r"an extent of reshape is .*; got 'K'"):
        trace(lambda x: x.reshape("K"), symbolic)


@pytest.mark.parametrize("like", ["int64", np.int64, np.dtype("int64"), int, DType.INT64], ids=repr)
def test_astype(like: Any) -> None:
    (actual,) = run(lambda x: x.astype(like), np.array([1.9, -1.9], np.float32))
    assert actual.dtype == np.int64
    assert actual.tolist() == [1, -1]


def test_astype_of_what_is_no_type() -> None:
    with pytest.raises(ModelError, match="'floaty' is no element type; pass an xrt DType"):
        trace(lambda x: x.astype("floaty"), F32)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: bool(x), "its truth value is used"),
        (lambda x: x if x > 0 else -x, "its truth value is used"),
        (lambda x: 1 in [x], "its truth value is used"),
        (lambda x: list(x), "it is iterated over"),
        (lambda x: float(x), "it is converted to a float"),
        (lambda x: int(x), "it is converted to an int"),
        (lambda x: [1, 2][x], "it is used as a Python integer"),
        (lambda x: np.asarray(x), "NumPy reads its numbers"),
    ],
)
def test_what_needs_the_numbers_is_refused(use: Callable[..., Any], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        trace(use, F32)


def test_operators_need_a_recent_opset() -> None:
    with pytest.raises(ModelError, match=r"the operator \+ on tensors needs opset 13 or newer; the graph is at 9"):
        trace(lambda x: x + 1, F32, opsets=9)


def test_length_is_the_first_extent() -> None:
    assert len(trace(lambda x: tuple(x[i] for i in range(len(x))), F32).outputs) == 2
    with pytest.raises(ModelError, match=r"len\(\) of x: float32\[N\] is not known"):
        trace(lambda x: x * len(x), TensorType(DType.FLOAT32, ("N",)))


CUBE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
MASK = CUBE % 3 == 0
KEYS = {
    "an ellipsis for no axis": (0, 1, ..., 2),
    "a list": [1, 0, 1],
    "an array on an inner axis": (slice(None), np.array([[0, 2], [1, -1]])),
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
        ((0, 0, 0), r"'x' is float32\[2,3\] and has 2 axes to index; got 3 indices"),
        ((..., 0, ...), "indexed with two '...'"),
        (True, "True and False cannot index a tensor"),
        (1.5, "cannot be indexed with float 1.5"),
        ("a", "cannot be indexed with str 'a'"),
        ([0.5], "cannot be indexed with an array of float64"),
        (slice(None, None, 0), "the step of a slice of 'x' is 0"),
        (slice(0.5), "the bounds of a slice of 'x' must be integers"),
        (([0, 1], [0, 1, 2]), r"the index arrays have shapes \(2,\), \(3,\), which do not broadcast"),
        (np.array(True), "a mask of rank 0"),
    ],
)
def test_keys_that_are_refused(key: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace(lambda x: x[key], F32)


def test_a_step_that_is_a_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match="the step of a slice of 'x' must be an integer, not a tensor"):
        trace(lambda x, n: x[::n], F32, TensorType(DType.INT64, ()))
