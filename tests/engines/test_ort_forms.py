"""Forms that ONNX Runtime computes quicker: products in place of convolutions with few results, and of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engines.ort_running import CONTEXT
from tests.engines.toy_running import ready
from xrt import ops
from xrt.builder.tracing import trace
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import session_function
from xrt.formats.onnx.inference import node_types
from xrt.graph import Function
from xrt.passes import infer_shapes

DRAW = np.random.default_rng(5)
Array = np.ndarray[Any, Any]


def f(*shape: int) -> Array:
    return DRAW.standard_normal(shape).astype("float32")


def make(build: Callable[..., Any], *inputs: Any) -> Function:
    return infer_shapes(trace(build, *inputs, inference=node_types))


def list_operators(function: Function) -> list[str]:
    return [node.op for node in session_function(function).nodes]


def assert_as_toy(function: Function, *inputs: Array) -> None:
    own = Ort().compile(function, CONTEXT).run(list(inputs))
    for mine, wanted in zip(own, ready(function).run(inputs), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- convolutions


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((3, 2, 6, 7), (4, 2, 5, 5), {}),
        ((3, 2, 6, 7), (4, 2, 5, 6), {"pads": [1, 0, 0, 1]}),
        ((3, 2, 8, 8), (4, 2, 4, 4), {"dilations": [2, 2], "pads": [0, 0, 1, 1]}),
        ((3, 2, 9, 9), (4, 2, 5, 5), {"strides": [2, 3]}),
        ((2, 3, 8), (5, 3, 8), {}),
        ((1, 1, 4, 4, 4), (2, 1, 3, 3, 3), {}),
    ],
)
def test_a_convolution_with_few_results_is_a_product(x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]) -> None:
    arrays = f(*x), f(*w)
    function = make(lambda a, b: ops.Conv(a, b, **options), *arrays)
    assert list_operators(function).count("Gemm") == 1
    assert "Conv" not in list_operators(function)
    assert_as_toy(function, *arrays)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 2, 8, 8), (4, 2, 3, 3), {}),
        ((1, 4, 6, 6), (4, 2, 5, 5), {"group": 2}),
        ((1, 2, 6, 6), (4, 2, 6, 6), {"auto_pad": "SAME_UPPER"}),
    ],
    ids=["many", "groups", "automatic"],
)
def test_other_convolutions_stay(x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]) -> None:
    arrays = f(*x), f(*w)
    function = make(lambda a, b: ops.Conv(a, b, **options), *arrays)
    assert list_operators(function) == ["Conv"]
    assert_as_toy(function, *arrays)


def test_a_convolution_with_constant_weights_stays() -> None:
    x, w = f(1, 2, 6, 6), f(3, 2, 5, 5)
    function = make(lambda a: ops.Conv(a, w), x)
    assert list_operators(function) == ["Conv"]
    assert_as_toy(function, x)


def test_a_convolution_with_dequantized_weights_stays() -> None:
    """In a convolution of bytes it took 276 us as a product, and 23 us as it was."""
    x, w = f(1, 2, 6, 6), DRAW.integers(-9, 9, (3, 2, 5, 5)).astype("int8")
    function = make(lambda a, b: ops.Conv(a, ops.DequantizeLinear(b, np.float32(0.5))), x, w)
    assert list_operators(function) == ["DequantizeLinear", "Conv"]


# ---------------------------------------------------------------------- sums


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("shape", "axes"), [((20, 3), [0]), ((4, 5, 3), [1, 0]), ((16, 3, 2), [-3]), ((2, 8, 1, 3), [0, 1, 2])])
def test_a_sum_over_leading_axes_is_a_product(shape: tuple[int, ...], axes: list[int], keepdims: int) -> None:
    x = f(*shape)
    function = make(lambda x: ops.ReduceSum(x, np.asarray(axes), keepdims=keepdims), x)
    assert "MatMul" in list_operators(function)
    assert "ReduceSum" not in list_operators(function)
    assert_as_toy(function, x)


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((20, 3), [1], "float32"),
        ((4, 5, 3), [0, 2], "float32"),
        ((20, 3), [0, 1], "float32"),
        ((15, 9), [0], "float32"),
        ((20, 3), [0], "int64"),
        ((0, 3), [0], "float32"),
    ],
)
def test_other_sums_stay(shape: tuple[int, ...], axes: list[int], dtype: str) -> None:
    x = f(*shape).astype(dtype)
    function = make(lambda x: ops.ReduceSum(x, np.asarray(axes)), x)
    assert list_operators(function) == ["ReduceSum"]
    assert_as_toy(function, x)
