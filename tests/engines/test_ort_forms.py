"""Forms that ONNX Runtime computes quicker: steps in place of a Scan, products in place of convolutions with few results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engines.ort_running import CONTEXT
from tests.engines.toy_running import ready
from xrt import ops
from xrt.builder.record_op import apply
from xrt.builder.tracing import trace
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import MOST_UNROLLED, session_function
from xrt.formats.onnx.node_inference import node_types
from xrt.graph import DType, Function, TensorType
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


# ---------------------------------------------------------------------- Scan


def scan(body: Callable[..., list[Any]], *inputs: Any, rows: int = 1, outputs: int = 2, **options: Any) -> Any:
    return apply("Scan", inputs, {"body": body, "num_scan_inputs": rows, **options}, outputs=outputs)


def accumulate(state: Any, row: Any) -> list[Any]:
    return [state + row, state * row]


def only_state(x: Any, start: Any) -> Any:
    return scan(lambda s, row: [s * 0.5 + row], start, x, outputs=1)


def backward(x: Any, start: Any) -> Any:
    return scan(accumulate, start, x, scan_input_directions=[1], scan_output_directions=[1])


def other_axis(x: Any, start: Any) -> Any:
    return scan(accumulate, start, ops.Transpose(x, perm=[1, 2, 0]), scan_input_axes=[-1])


def captured(x: Any, start: Any) -> Any:
    factor = ops.Relu(start)
    return scan(lambda s, row: [s + row * factor, ops.Identity(row)], start, x)


def passed_on(x: Any, start: Any) -> Any:
    """What is carried and stacked is what comes in."""
    return scan(lambda s, row: [ops.Identity(s), ops.Identity(s) + row], start, x)


def numbers(x: Any, start: Any) -> Any:
    """A stack of scalars, of two inputs."""
    first = ops.ReduceSum(start, keepdims=0)
    means = ops.ReduceMean(x, np.asarray([1, 2]), keepdims=0)
    return scan(lambda s, a, b: [s + a, s * b], first, means, means * 2, rows=2)


@pytest.mark.parametrize("build", [only_state, backward, other_axis, captured, passed_on, numbers])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_steps_of_a_scan_are_written_out(build: Callable[..., Any], steps: int) -> None:
    x, start = f(steps, 2, 3), f(2, 3)
    function = make(build, x, start)
    assert "Scan" in [node.op for node in function.nodes]
    assert "Scan" not in list_operators(function)
    assert_as_toy(function, x, start)


def branching(x: Any, start: Any) -> Any:
    def body(state: Any, row: Any) -> list[Any]:
        flag = ops.ReduceSum(row, keepdims=0) > 0
        return [apply("If", (flag,), {"then_branch": lambda: [state + row], "else_branch": lambda: [state - row]}, outputs=1)[0]]

    return scan(body, start, x, outputs=1)


def other_stack(x: Any, start: Any) -> Any:
    return scan(accumulate, start, x, scan_output_axes=[1])


@pytest.mark.parametrize(
    ("build", "steps"), [(branching, 3), (other_stack, 3), (backward, MOST_UNROLLED // 3 + 1)], ids=["bodies", "axis", "long"]
)
def test_other_scans_stay(build: Callable[..., Any], steps: int) -> None:
    x, start = f(steps, 2, 3), f(2, 3)
    function = make(build, x, start)
    assert "Scan" in list_operators(function)
    assert_as_toy(function, x, start)


def test_a_scan_of_open_length_stays() -> None:
    function = make(backward, TensorType(DType.FLOAT32, ("T", 2, 3)), f(2, 3))
    assert "Scan" in list_operators(function)


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
