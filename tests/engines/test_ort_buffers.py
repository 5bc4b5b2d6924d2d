"""Buffers of the caller's: what an executable of ort fills, and what it refuses to."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.engines.ort_running import CONTEXT, F32, SQUARE, compiled, function, node
from xrt.engines import RunOptions
from xrt.engines.ort import Ort
from xrt.graph import DType, Node, TensorType


def test_buffers_serve_every_kind_of_output() -> None:
    f = function(
        {"x": TensorType(DType.INT4, (3,))},
        ["x", "c", "y", "y"],
        [node("Cast", "x", "wide", to=F32.onnx), node("Cast", "wide", "y", to=DType.INT4.onnx)],
        {"c": SQUARE},
        opset=25,
    )
    x = np.array([1, -2, 3], ml_dtypes.int4)
    out = [np.zeros(3, ml_dtypes.int4), np.zeros((2, 3), np.float32), None, np.zeros(3, ml_dtypes.int4)]
    results = compiled(f).run([x], RunOptions(out=out))
    assert [result is buffer for result, buffer in zip(results, out, strict=True)] == [True, True, False, True]
    assert [results[i].tolist() for i in (0, 2, 3)] == [x.tolist()] * 3
    assert np.array_equal(results[1], SQUARE)


def test_calls_into_fixed_buffers_take_any_strides_and_go_the_public_way_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = Ort().compile(function({"x": TensorType(F32, (2, 3))}, ["y"], [Node("Relu", ("x",), ("y",))]), CONTEXT)
    given, frozen = np.arange(-3, 3, dtype="float32").reshape(3, 2), SQUARE.copy()
    frozen.flags.writeable = False
    for private in (True, False):
        if not private:
            monkeypatch.setattr("xrt.engines.ort.executable.getattr", lambda *_: None, raising=False)
        buffer = np.empty((2, 3), "float32")
        into, bound = executable.bind_outputs([buffer]), executable.bind([frozen], [buffer])
        into(given.T)
        np.testing.assert_array_equal(buffer, np.maximum(given.T, 0))
        bound()
        np.testing.assert_array_equal(buffer, np.maximum(SQUARE, 0))
