"""Integers that OpenVINO computes in int32 or in float32: what bounds keep from it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.openvino_running import compiled, function, node, run
from xrt.errors import RunFailed
from xrt.graph import DType, TensorType


@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT64])
@pytest.mark.parametrize("op", ["Equal", "Less", "GreaterOrEqual"])
def test_integers_are_compared_in_float32_and_are_bounded_for_it(op: str, dtype: DType) -> None:
    kind, flags = TensorType(dtype, (2,)), TensorType(DType.BOOL, (2,))
    executable = compiled(function({"x": kind, "z": kind}, {"y": flags}, [node(op, "x z", "y")]))
    assert executable._limits == ((0, 1 << 24), (1, 1 << 24))
    with pytest.raises(RunFailed, match="holds an integer beyond 16777216"):
        executable.run([np.array([2**24 + 1, 1], dtype.numpy), np.array([2**24, 1], dtype.numpy)])


def test_an_int32_is_clipped_to_small_numbers_only() -> None:
    kind = TensorType(DType.INT32, (2,))
    f = function({"x": kind}, {"y": kind}, [node("Clip", "x low high", "y")], {"low": np.int32(-3), "high": np.int32(7)})
    assert run(f, np.array([2**31 - 1, -(2**31)], np.int32))[0].tolist() == [7, -3]
    f = function({"x": kind}, {"y": kind}, [node("Clip", "x low", "y")], {"low": np.int32(-3)})
    with pytest.raises(RunFailed, match="holds an integer beyond 16777216"):
        run(f, np.array([2**31 - 1, 0], np.int32))


def test_the_lowest_int32_has_an_opposite_in_int64() -> None:
    narrow, wide = TensorType(DType.INT32, (2,)), TensorType(DType.INT64, (2,))
    f = function({"x": narrow}, {"y": wide}, [node("Cast", "x", "w", to=DType.INT64.onnx), node("Neg", "w", "y")])
    executable = compiled(f.replace(types={"w": wide}))
    assert executable.run([np.array([3, -(2**31) + 1], np.int32)])[0].tolist() == [-3, 2**31 - 1]
    with pytest.raises(RunFailed, match="holds an integer beyond 2147483647"):
        executable.run([np.array([3, -(2**31)], np.int32)])


def test_both_64_bit_integers_of_numpy_are_taken() -> None:
    kind = TensorType(DType.INT64, (2,))
    f = function({"x": kind}, {"y": TensorType(DType.BOOL, (2,))}, [node("Equal", "x two", "y")], {"two": np.array(2)})
    assert run(f, np.array([1, 2], np.longlong))[0].tolist() == [False, True]
