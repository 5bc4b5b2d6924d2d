"""What the openvino engine says by other operators: definitions of ONNX, and spellings of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engines.openvino_running import F32, compiled, function, node, run, tensor
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.support import Terms, decompose_if_supported
from xrt.graph import DType, Function, Type

BYTES = [DType.INT8, DType.UINT8]
NARROW = [*BYTES, DType.INT16, DType.UINT16, DType.INT32]


def all_of(dtype: DType) -> np.ndarray[Any, Any]:
    ends = np.iinfo(dtype.numpy)
    return np.arange(ends.min, ends.max + 1).astype(dtype.numpy)


def said(f: Function) -> list[str]:
    return [n.op for n in decompose_if_supported(f, Terms()).nodes]


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize(("op", "rule"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_bytes_wrap_around(op: str, rule: Any, dtype: DType) -> None:
    a, b = all_of(dtype).reshape(256, 1), all_of(dtype).reshape(1, 256)
    f = function(
        {"a": tensor(256, 1, dtype=dtype), "b": tensor(1, 256, dtype=dtype)},
        {"y": tensor(256, 256, dtype=dtype)},
        [node(op, "a b", "y")],
    )
    np.testing.assert_array_equal(run(f, a, b)[0], rule(a, b))


def shifted(x: np.ndarray[Any, Any], by: np.ndarray[Any, Any], direction: str) -> np.ndarray[Any, Any]:
    wide, places = x.astype(np.int64), by.astype(np.int64)
    inside = (places >= 0) & (places < 8 * x.itemsize)
    few = np.where(inside, places, 0)
    beyond = -1 * ((direction == "RIGHT") & (wide < 0))
    return np.where(inside, wide << few if direction == "LEFT" else wide >> few, beyond).astype(x.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_any_number_of_places(direction: str, dtype: DType) -> None:
    ends = np.iinfo(dtype.numpy)
    x = np.array([ends.min, ends.min + 1, -3 % (ends.max + 1), 0, 1, 77, ends.max - 1, ends.max], dtype.numpy).reshape(-1, 1)
    by = np.arange(-2 if ends.min else 0, ends.bits + 3).astype(dtype.numpy).reshape(1, -1)
    types: dict[str, Type | None] = {"x": tensor(*x.shape, dtype=dtype), "by": tensor(*by.shape, dtype=dtype)}
    shift = node("BitShift", "x by", "y", direction=direction)
    f = function(types, {"y": tensor(x.size, by.size, dtype=dtype)}, [shift], opset=28)
    np.testing.assert_array_equal(run(f, x, by)[0], shifted(x, by, direction))


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("scale", [0.5, 0.1, 3e-5, 7.3])
def test_quantised_numbers_round_to_even_next_to_the_middle_too(scale: float, dtype: DType) -> None:
    step, zero = np.float32(scale), np.array(3, dtype.numpy)
    middles = (np.float64(step) * (np.arange(-300, 300) + 0.5)).astype(np.float32)
    x = np.concatenate([middles, np.nextafter(middles, np.float32(9e9)), np.nextafter(middles, np.float32(-9e9))])
    types: dict[str, Type | None] = {"x": tensor(x.size), "s": tensor(), "z": tensor(dtype=dtype)}
    f = function(types, {"y": tensor(x.size, dtype=dtype)}, [node("QuantizeLinear", "x s z", "y")])
    ends = np.iinfo(dtype.numpy)
    expected = np.clip(np.rint(x / step) + zero.astype(np.float32), ends.min, ends.max).astype(dtype.numpy)
    np.testing.assert_array_equal(run(f, x, np.array(step), zero)[0], expected)


@pytest.mark.slow
def test_blocks_have_scales_and_zeros_of_their_own() -> None:
    x, scales = np.arange(24, dtype=np.float32).reshape(2, 12), np.array([[1, 2, 4], [0.5, 1, 2]], np.float32)
    zeros = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    f = function(
        {"x": tensor(2, 12), "s": tensor(2, 3), "z": tensor(2, 3, dtype=DType.UINT8)},
        {"y": tensor(2, 12, dtype=DType.UINT8)},
        [node("QuantizeLinear", "x s z", "y", axis=1, block_size=4)],
    )
    expected = np.rint(x / scales.repeat(4, 1)) + zeros.repeat(4, 1)
    np.testing.assert_array_equal(run(f, x, scales, zeros)[0], expected.astype(np.uint8))


@pytest.mark.slow
def test_the_scales_of_an_axis_lie_along_it() -> None:
    x, scales = np.array([[1, 3, 5], [1, 3, 5]], np.float32), np.array([2, 1, 0.5], np.float32)
    f = function(
        {"x": tensor(2, 3), "s": tensor(3)}, {"y": tensor(2, 3, dtype=DType.UINT8)}, [node("QuantizeLinear", "x s", "y", axis=1)]
    )
    np.testing.assert_array_equal(run(f, x, scales)[0], np.array([[0, 3, 10]] * 2, np.uint8))


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


def test_each_place_of_a_definition_has_names_of_its_own() -> None:
    assert "Celu" not in said(celu_twice())
    x = np.array([-1, 0, 2], np.float16)
    once = np.where(x > 0, x, np.expm1(x))
    np.testing.assert_allclose(run(celu_twice(), x)[0], np.where(once > 0, once, np.expm1(once)), rtol=1e-2)


def test_what_is_taken_stays_as_it_is() -> None:
    f = function({"x": tensor(3)}, {"y": tensor(3)}, [node("Gelu", "x", "y")])
    assert decompose_if_supported(f, Terms()) is f


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
@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_batches_may_come_first_in_recurrent_operators(op: str) -> None:
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.normal(size=(1, gates * 4, 5)).astype(np.float32),
        "r": rng.normal(size=(1, gates * 4, 4)).astype(np.float32),
    }
    x = rng.normal(size=(2, 3, 5)).astype(np.float32)
    first = function(
        {"x": tensor(2, 3, 5)},
        {"y": tensor(2, 3, 1, 4), "h": tensor(2, 1, 4)},
        [node(op, "x w r", "y h", hidden_size=4, layout=1)],
        weights,
    )
    plain = function(
        {"x": tensor(3, 2, 5)},
        {"y": tensor(3, 1, 2, 4), "h": tensor(1, 2, 4)},
        [node(op, "x w r", "y h", hidden_size=4)],
        weights,
    )
    y, h = run(plain, np.ascontiguousarray(x.transpose(1, 0, 2)))
    got = run(first, x)
    np.testing.assert_allclose(got[0], y.transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], h.transpose(1, 0, 2), rtol=1e-5, atol=1e-6)


def test_places_of_onehot_may_be_floating_point_numbers() -> None:
    f = function(
        {"x": tensor(3)},
        {"y": tensor(3, 4)},
        [node("OneHot", "x d v", "y")],
        {"d": np.array(4), "v": np.array([0, 1], F32.numpy)},
    )
    np.testing.assert_array_equal(run(f, np.array([1, 3, 0], np.float32))[0], np.eye(4, dtype=np.float32)[[1, 3, 0]])


@pytest.mark.slow
def test_others_may_run_after_what_is_said_by_others() -> None:
    after = replace(node("Relu", "x", "z"), control=("it",))
    quantise = replace(node("QuantizeLinear", "x s", "y"), name="it")
    f = function({"x": tensor(2), "s": tensor()}, {"y": tensor(2, dtype=DType.UINT8), "z": tensor(2)}, [quantise, after])
    y, z = run(f, np.array([2, -1], np.float32), np.array(1, np.float32))
    assert (y.tolist(), z.tolist()) == ([2, 0], [2, 0])
