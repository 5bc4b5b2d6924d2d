"""What the openvino engine puts right in the library's own model, beside the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.engines.openvino_running import F32, function, node, run, tensor
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.engines.toy import Toy
from xrt.graph import DType, Function, Node, TensorType, Type

INTEGERS = [DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT64, DType.UINT32, DType.UINT64]


def reference(f: Function, *inputs: Any) -> Sequence[Any]:
    executable = Toy(native="off").compile(f, CompileContext())
    executable.prepare()
    return executable.run(inputs)


@pytest.mark.parametrize("known", ["", "b", "ab"], ids=["nothing", "divisor", "both"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("how", [node("Div", "a b", "y"), node("Mod", "a b", "y"), node("Mod", "a b", "y", fmod=1)], ids=str)
def test_integers_divide_towards_zero_and_by_nothing(how: Node, dtype: DType, known: str) -> None:
    a, b = np.array([-7, 7, -7, 7, 5, 0, -6, 100, 3, -3]), np.array([3, -3, -3, 3, 0, 0, 2, 7, 5, 5])
    values = {name: (array if dtype.text[0] == "i" else abs(array)).astype(dtype.numpy) for name, array in (("a", a), ("b", b))}
    types: dict[str, Type | None] = {name: tensor(10, dtype=dtype) for name in values if name not in known}
    f = function(types, {"y": tensor(10, dtype=dtype)}, [how], {name: values[name] for name in known})
    given = [values[name] for name in types]
    with np.errstate(all="ignore"):
        (want,) = reference(f, *given)
    np.testing.assert_array_equal(run(f, *given)[0], want)


@pytest.mark.parametrize("dtype", [F32, DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.INT32, DType.INT64], ids=str)
@pytest.mark.parametrize("ends", [(2, 10, 3), (2, 10, -3), (10, 2, -3), (10, 2, 3), (4, 4, 1)], ids=str)
def test_a_range_that_leads_away_from_its_limit_is_empty(ends: tuple[int, int, int], dtype: DType) -> None:
    f = function(
        dict.fromkeys("abc", tensor(dtype=dtype)), {"y": TensorType(dtype, (None,))}, [node("Range", "a b c", "y")], opset=28
    )
    (got,) = run(f, *(np.array(end).astype(dtype.numpy) for end in ends))
    assert got.astype(np.int64).tolist() == list(range(*ends))


@pytest.mark.slow
def test_what_the_frontend_numbers_by_a_range_is_computed() -> None:
    f = function({"x": tensor(2, "n", 3)}, {"y": tensor()}, [node("ReduceSum", "x", "y", keepdims=0)])
    assert run(f, np.ones((2, 5, 3), np.float32))[0] == 30
    f = function({"n": tensor(dtype=DType.INT64)}, {"y": tensor(None)}, [node("HannWindow", "n", "y")])
    assert run(f, np.array(4))[0].tolist() == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_boxes_that_overlap_by_just_the_threshold_stay(threshold: float) -> None:
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 6, (2, 12, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.integers(1, 4, (2, 12, 2))], -1).astype(np.float32)
    scores = rng.integers(0, 5, (2, 3, 12)).astype(np.float32) / 4
    f = function(
        {"b": tensor(2, 12, 4), "s": tensor(2, 3, 12), "t": tensor(1)},
        {"y": TensorType(DType.INT64, (None, 3))},
        [node("NonMaxSuppression", "b s m t", "y")],
        {"m": np.array([8])},
    )
    given = boxes, scores, np.array([threshold], np.float32)
    np.testing.assert_array_equal(run(f, *given)[0], reference(f, *given)[0])


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


@pytest.mark.parametrize("place", [1, 2], ids=["lower", "upper"])
def test_a_clip_bounded_by_nan_is_declined_before_it_is_compiled(place: int) -> None:
    clip = node("Clip", "x low high", "y")
    bounds = {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
    f = function({"x": tensor(3)}, {"y": tensor(3)}, [clip], bounds)
    assert OpenVino().why_not(clip, f) is None
    nan = function({"x": tensor(3)}, {"y": tensor(3)}, [clip], {**bounds, clip.inputs[place]: np.array(np.nan, np.float32)})
    assert "a bound that is not a number" in str(OpenVino().why_not(clip, nan))


@pytest.mark.parametrize("op", ["ReverseSequence", "Unique", "Einsum"])
def test_halves_go_by_way_of_float32(op: str) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]]).astype(DType.BFLOAT16.numpy)
    nodes = {
        "ReverseSequence": node("ReverseSequence", "x l", "y", batch_axis=0, time_axis=1),
        "Unique": node("Unique", "x", "y"),
        "Einsum": node("Einsum", "x", "y", equation="ij->ji"),
    }
    f = function(
        {"x": tensor(2, 3, dtype=DType.BFLOAT16)},
        {"y": TensorType(DType.BFLOAT16, {"ReverseSequence": (2, 3), "Unique": (None,), "Einsum": (3, 2)}[op])},
        [nodes[op]],
        {"l": np.array([2, 3])},
        opset=28,
    )
    np.testing.assert_array_equal(run(f, x)[0], reference(f, x)[0])
