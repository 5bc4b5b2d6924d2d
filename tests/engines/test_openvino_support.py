"""What the openvino engine supports, lowers and declines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.engines.evidence import unknown_evidence
from tests.engines.openvino_running import compiled, function, node, run, tensor
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.support import lower
from xrt.engines.openvino.tables import ISSUES, OPEN_ISSUES
from xrt.engines.toy import Toy
from xrt.graph import DType, Function, Node, Type
from xrt.passes import infer_shapes


def reference(f: Function, *inputs: Any) -> Sequence[Any]:
    executable = Toy(native="off").compile(f, CompileContext())
    executable.prepare()
    return executable.run(inputs)


def test_every_issue_names_its_evidence() -> None:
    assert unknown_evidence([*ISSUES, *OPEN_ISSUES]) == []


@pytest.mark.parametrize("largest", [0, 1])
def test_equal_elements_of_topk_stand_in_order(largest: int) -> None:
    x = np.random.default_rng(0).integers(0, 5, (20, 40)).astype(np.float32)
    outputs: dict[str, Type | None] = {"v": tensor(20, 9), "i": tensor(20, 9, dtype=DType.INT64)}
    f = function({"x": tensor(20, 40)}, outputs, [node("TopK", "x k", "v i", largest=largest)], {"k": np.array([9])})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :9]
    values, places = run(f, x)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("divisor", [2, 3, -7, 12345])
def test_wide_integers_divide_towards_zero(divisor: int) -> None:
    x = np.array([-(1 << 24), -100, -7, -1, 0, 1, 7, 100, 1 << 24])
    wide = tensor(x.size, dtype=DType.INT64)
    f = function({"x": wide}, {"y": wide}, [node("Div", "x c", "y")], {"c": np.array(divisor)})
    np.testing.assert_array_equal(run(f, x)[0], np.trunc(x / divisor).astype(np.int64))


def celu_twice() -> Function:
    half = tensor(3, dtype=DType.FLOAT16)
    f = function({"x": half}, {"z": half}, [node("Celu", "x", "y", alpha=1.0), node("Celu", "y", "z", alpha=1.0)], opset=28)
    return f.replace(types={"y": half})


def list_operators(f: Function) -> list[str]:
    return [n.op for n in lower(f).nodes]


def test_each_place_of_a_definition_has_names_of_its_own() -> None:
    assert "Celu" not in list_operators(celu_twice())
    x = np.array([-1, 0, 2], np.float16)
    once = np.where(x > 0, x, np.expm1(x))
    np.testing.assert_allclose(run(celu_twice(), x)[0], np.where(once > 0, once, np.expm1(once)), rtol=1e-2)


def test_what_is_taken_stays_as_it_is() -> None:
    f = function({"x": tensor(3)}, {"y": tensor(3)}, [node("Gelu", "x", "y")])
    assert lower(f) is f


def test_what_its_meaning_does_not_help_keeps_its_own_reason() -> None:
    wide = tensor(3, dtype=DType.FLOAT64)
    f = function({"x": wide}, {"y": wide}, [node("HardSwish", "x", "y")])
    assert "float64 in float32" in str(OpenVino().why_not(f.nodes[0], f))


def test_a_saved_model_of_a_meaning_runs_again() -> None:
    context, engine, x = CompileContext(threads=1), OpenVino(), np.array([-1, 0, 2], np.float16)
    executable = compiled(celu_twice(), engine)
    loaded = engine.load(memoryview(engine.save(executable, context)), celu_twice(), context)
    results: Sequence[Any] = loaded.run([x])
    np.testing.assert_array_equal(results[0], executable.run([x])[0])


@pytest.mark.slow
def test_what_the_frontend_numbers_by_a_range_is_computed() -> None:
    f = function({"x": tensor(2, "n", 3)}, {"y": tensor()}, [node("ReduceSum", "x", "y", keepdims=0)])
    assert run(f, np.ones((2, 5, 3), np.float32))[0] == 30
    f = function({"n": tensor(dtype=DType.INT64)}, {"y": tensor(None)}, [node("HannWindow", "n", "y")])
    assert run(f, np.array(4))[0].tolist() == pytest.approx([0, 0.5, 1, 0.5])


POOLINGS = [
    node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    node("AveragePool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1),
]


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_sizes_of_poolings_may_be_rounded_up(pooling: Node) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 7)).astype(np.float32)
    f = function({"x": tensor(1, 2, 7, 7)}, {"y": tensor(1, 2, None, None)}, [pooling], opset=22)
    np.testing.assert_allclose(run(f, x)[0], reference(f, x)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "extents", "text"),
    [
        (node("MaxPool", "x", "y", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1), (2, 3), "lies in the padding alone"),
        (node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1), ("h", 7), "lies in the padding alone"),
        (node("LpPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), (7, 7), "behind the padding"),
    ],
    ids=["in padding", "of an unknown size", "behind padding"],
)
def test_poolings_whose_windows_reach_too_far_are_declined(pooling: Node, extents: tuple[int | str, ...], text: str) -> None:
    f = function({"x": tensor(1, 2, *extents)}, {"y": tensor(1, 2, None, None)}, [pooling], opset=22)
    assert text in str(OpenVino().why_not(pooling, f))


QUANTIZED_PRODUCT = [
    *(node("QuantizeLinear", "x step zero", "q"), node("DequantizeLinear", "q step zero", "d")),
    *(node("DequantizeLinear", "w steps", "e", axis=1), node("Relu", "e", "r"), node("MatMul", "d r", "y")),
]
STEPS: dict[str, Any] = {"step": np.array(0.1, "f4"), "zero": np.array(0, "i1"), "steps": np.array([0.1, 0.2, 0.3], "f4")}
WEIGHTS: dict[str, Any] = {"w": np.ones((4, 3), np.int8)}
DECLINED = {
    "a quantized vector by weights with several scales": (
        infer_shapes(function({"x": tensor(4)}, {"y": tensor(3)}, QUANTIZED_PRODUCT, STEPS | WEIGHTS)),
        "one axis too many",
    ),
    "quotients of constants": (
        function({}, {"y": tensor(2, dtype=DType.INT64)}, [node("Div", "a a", "y")], {"a": np.array([-7, 7])}),
        "rounds the quotient of constant integers down",
    ),
    "a range that leads away": (
        function({}, {"y": tensor("n", dtype=DType.INT64)}, [node("Range", "a b b", "y")], {"a": np.array(5), "b": np.array(1)}),
        "counts the steps of a Range that lead away from its limit",
    ),
    "sums of bytes": (
        function({"x": tensor(2, dtype=DType.UINT8)}, {"y": tensor(2, dtype=DType.UINT8)}, [node("Add", "x x", "y")]),
        "computes Add in bfloat16, float16, float32, int32, int64, uint32, uint64, and 'x' is uint8",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_ordinary_values_that_come_out_wrong_are_declined(case: str) -> None:
    f, reason = DECLINED[case]
    assert reason in str(OpenVino().why_not(f.nodes[-1], f))


def test_other_products_of_weights_with_several_scales_are_supported() -> None:
    f = infer_shapes(function({"x": tensor(1, 4)}, {"y": tensor(1, 3)}, QUANTIZED_PRODUCT, STEPS | WEIGHTS))
    np.testing.assert_allclose(run(f, np.ones((1, 4), np.float32))[0], 4 * STEPS["steps"][None], rtol=1e-4)


def test_a_maximum_of_int32_and_a_product_of_sizes_are_supported() -> None:
    maximum = node("ReduceMax", "x a", "y", keepdims=0)
    f = function({"x": tensor(2, 3, dtype=DType.INT32)}, {"y": tensor(2, dtype=DType.INT32)}, [maximum], {"a": np.array([1])})
    assert run(f, np.array([[1, 5, 2], [-3, -4, -9]], np.int32))[0].tolist() == [5, -3]
    nodes = [node("Shape", "x", "s"), node("ReduceProd", "s", "y", keepdims=0)]
    sizes = function({"x": tensor("n", "m")}, {"y": tensor(dtype=DType.INT64)}, nodes)
    sizes = sizes.replace(types={"s": tensor(2, dtype=DType.INT64)})
    assert OpenVino().why_not_dynamic(sizes) is None
    assert int(compiled(sizes).run([np.zeros((3, 5), np.float32)])[0]) == 15
