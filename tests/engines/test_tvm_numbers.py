"""The tvm engine's numbers where TVM by itself is unsafe, wrong at the edges, or inexact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm

from tests.engines.tvm_running import run
from tests.engines.written import function, one, tensor
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.export import import_function
from xrt.engines.tvm.pipeline import FUSION, legalize
from xrt.engines.tvm.tables import positions_read_at_import
from xrt.engines.tvm.target import make_target
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, read_attributes
from xrt.placement.reference import evaluate
from xrt.testing.cases import ConformanceCase, node_cases
from xrt.verify.execution import run_alone

INT64 = DType.INT64


# ---------------------------------------------------------------------- indices outside of their axis


@pytest.mark.slow
@pytest.mark.parametrize("index", [7, 10**6, 10**12, -(10**6), -(10**12)])
def test_gather_stays_inside(index: int) -> None:
    x = np.arange(4, dtype=np.float32)
    f = one("Gather", tensor(4), tensor(1, dtype=INT64), output=tensor(1))
    assert run(f, x, np.array([index]))[0].tolist() == [3.0 if index > 0 else 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("index", [10**9, -(10**9)])
def test_gather_nd_and_scatter_stay_inside(index: int) -> None:
    x, place = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1, index]])
    last = 2 if index > 0 else 0
    f = one("GatherND", tensor(2, 3), tensor(1, 2, dtype=INT64), output=tensor(1))
    assert run(f, x, place)[0].tolist() == [x[1, last]]
    f = one("ScatterND", tensor(2, 3), tensor(1, 2, dtype=INT64), tensor(1), output=tensor(2, 3))
    expected = x.copy()
    expected[1, last] = 9
    assert np.array_equal(run(f, x, place, np.array([9], np.float32))[0], expected)
    f = one("ScatterElements", tensor(2, 3), tensor(1, 2, dtype=INT64), tensor(1, 2), output=tensor(2, 3), axis=1)
    expected = x.copy()
    expected[0, 1], expected[0, last] = 8, 9
    assert np.array_equal(run(f, x, place, np.array([[8, 9]], np.float32))[0], expected)


@pytest.mark.slow
def test_boxes_stay_inside() -> None:
    x = np.full((1, 1, 8, 8), 3, np.float32)
    box = np.array([[0, 0, 4, 4], [np.nan, np.nan, np.inf, np.inf]], np.float32)
    f = one("RoiAlign", tensor(1, 1, 8, 8), tensor(2, 4), tensor(2, dtype=INT64), output=tensor(2, 1, 1, 1), sampling_ratio=2)
    (y,) = run(f, x, box, np.array([10**9, -(10**9)]))
    assert y[0, 0, 0, 0] == 3 and y[1, 0, 0, 0] in (0, 3)
    boxes = np.array([[1e9, 0, 0, 4, 4], [np.nan, 0, 0, 4, 4]], np.float32)
    f = one("MaxRoiPool", tensor(1, 1, 8, 8), tensor(2, 5), output=tensor(2, 1, 2, 2), pooled_shape=[2, 2])
    assert np.array_equal(run(f, x, boxes)[0], np.full((2, 1, 2, 2), 3, np.float32))


# ---------------------------------------------------------------------- edges


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("number", [0.1, 1e6 / 3, -7e-6])
def test_what_does_not_vary_is_normalised_to_nothing(number: float, opset: int) -> None:
    f = one("MeanVarianceNormalization", tensor(1, 2, 7, 9), output=tensor(1, 2, 7, 9), opset=opset)
    (y,) = run(f, np.full((1, 2, 7, 9), number, np.float32))
    assert np.abs(y).max() < 1e-2


@pytest.mark.parametrize("kept", [("y", "mean", "inverse"), ("y", "", "inverse"), ("y", "mean")], ids=str)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.FLOAT64])
@pytest.mark.parametrize(("axis", "opset"), [(-1, 17), (1, 18), (0, 20)])
def test_statistics_of_a_normalization(axis: int, opset: int, dtype: DType, kept: tuple[str, ...]) -> None:
    """TVM's importer leaves them out; they are float32 by default, whatever is normalized."""
    shape = (2, 3, 8)
    own, statistics = tensor(*shape[axis:], dtype=dtype), tensor(*(shape[:axis] if axis else ()), *[1] * len(shape[axis:]))
    node = Node("LayerNormalization", ("x", "scale", "bias"), kept, read_attributes({"axis": axis}))
    types = {"y": tensor(*shape, dtype=dtype), "mean": statistics, "inverse": statistics}
    f = function(
        node,
        inputs={"x": tensor(*shape, dtype=dtype), "scale": own, "bias": own},
        outputs={name: types[name] for name in kept if name},
        opset=opset,
    )
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(value.type.shape).astype(dtype.numpy) for value in f.inputs]
    for got, want in zip(run(f, *arrays), evaluate(f, arrays), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        tolerance = 1e-2 if dtype is DType.FLOAT16 else 1e-5
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_shifts_by_the_width_and_more() -> None:
    type_ = tensor(6, dtype=DType.INT32)
    value, amount = np.array([-8, -8, 8, 8, 8, -8], np.int32), np.array([1, 99, 1, 32, -1, -1], np.int32)
    left = run(one("BitShift", type_, type_, output=type_, opset=28, direction="LEFT"), value, amount)[0]
    right = run(one("BitShift", type_, type_, output=type_, opset=28, direction="RIGHT"), value, amount)[0]
    assert left.tolist() == [-16, 0, 16, 0, 0, 0]
    assert right.tolist() == [-4, -1, 4, 0, 0, -1]


@pytest.mark.slow
def test_the_remainder_of_floats() -> None:
    a = np.array([5, -5, 5, -5, 0], np.float32)
    b = np.array([3, 3, -3, -3, 3], np.float32)
    (y,) = run(one("Mod", tensor(5), tensor(5), output=tensor(5), opset=28), a, b)
    assert y.tolist() == [2, 1, -1, -2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_narrow_floats_are_summed_in_float32(dtype: DType) -> None:
    x = np.full((1, 4096), 1 / 64, np.float32).astype(dtype.numpy)
    ones = np.ones((4096, 1), dtype.numpy)
    f = one("MatMul", tensor(1, 4096, dtype=dtype), tensor(4096, 1, dtype=dtype), output=tensor(1, 1, dtype=dtype))
    (y,) = run(f, x, ones)
    assert y.dtype == dtype.numpy and float(y[0, 0]) == 64


def test_a_power_by_another_type() -> None:
    f = one("Pow", tensor(3), tensor(3, dtype=INT64), output=tensor(3))
    assert run(f, np.array([2, 3, 4], np.float32), np.array([3, 2, 0]))[0].tolist() == [8, 9, 1]


# ---------------------------------------------------------------------- exactness

SPREAD = np.concatenate([np.logspace(-7, 1.9, 4000), -np.logspace(-7, 1.9, 4000)]).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("Exp", np.exp),
        ("Tanh", np.tanh),
        ("Erf", np.vectorize(math.erf)),
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_exponentials_are_right_to_a_millionth(op: str, exact: Any) -> None:
    (y,) = run(one(op, tensor(8000), output=tensor(8000)), SPREAD)
    expected = exact(SPREAD.astype(np.float64))
    normal = np.abs(expected) > 2e-38
    assert np.max(np.abs(y - expected)[normal] / np.abs(expected)[normal]) < 1e-6


def test_exp_reaches_to_the_end_of_float32() -> None:
    x = np.array([88.3, 88.5, 88.72], np.float32)
    assert np.allclose(run(one("Exp", tensor(3), output=tensor(3)), x)[0], np.exp(x.astype(np.float64)), rtol=1e-5)


# ---------------------------------------------------------------------- the node tests, what TVM reads at import as constants


def with_constants(case: ConformanceCase) -> tuple[Function, list[Any]] | None:
    """Return the case's Function with those inputs made constants, and the inputs that remain; None where it has none."""
    values = dict(zip((v.name for v in case.function.inputs), case.inputs, strict=True))
    read = {
        node.inputs[place]
        for node in case.function.nodes
        for place in positions_read_at_import(node.op_type)
        if place < len(node.inputs) and node.inputs[place] in values
    }
    if not read:
        return None
    constants = {name: Constant(np.asarray(values[name])) for name in read}
    rest = tuple(v for v in case.function.inputs if v.name not in read)
    made = case.function.replace(inputs=rest, constants={**case.function.constants, **constants})
    return made, [values[v.name] for v in rest]


@pytest.mark.full
@pytest.mark.slow
def test_node_tests_with_constants() -> None:
    """A model has its shapes, axes and pads as constants, where the node tests feed them and TVM declines."""
    passed, failed = 0, []
    for case in node_cases():
        made = with_constants(case)
        if made is None:
            continue
        try:
            verdict = case.judge(run_alone(Tvm(), *made))
        except CompileRefused:
            continue
        passed += bool(verdict)
        failed += [] if verdict else [f"{case.name}: {verdict.message}"]
    assert failed == []
    assert passed >= 170


def test_relu_is_still_one_loop_with_what_comes_before() -> None:
    f = function(
        Node("Conv", ("x", "w"), ("c",)),
        Node("Relu", ("c",), ("r",)),
        Node("HardSigmoid", ("r",), ("y",)),
        inputs={"x": tensor(1, 3, 8, 8), "w": tensor(4, 3, 3, 3)},
        outputs={"y": None},
        types={"c": tensor(1, 4, 6, 6), "r": tensor(1, 4, 6, 6)},
    )
    target = make_target(None, 3)
    with target, tvm.transform.PassContext(opt_level=3):
        fused = tvm.transform.Sequential(FUSION)(legalize(import_function(f).module, target))
    names = [gvar.name_hint for gvar in fused.get_global_vars() if gvar.name_hint != "main"]
    assert names == ["fused_conv2d_relu_multiply_add_tir_clip"]
