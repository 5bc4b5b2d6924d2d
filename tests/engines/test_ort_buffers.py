"""Buffers of the caller's: what an executable of ort fills, and what it refuses to."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines.ort_running import CONTEXT, F32, SQUARE, compiled, function, node, relu, two_outputs
from xrt.engines import RunOptions
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import BIND_FROM
from xrt.errors import InputError
from xrt.graph import DType, Node, TensorType


@pytest.mark.parametrize("columns", [3, BIND_FROM], ids=["copied", "bound"])
def test_a_buffer_holds_the_output_and_is_returned(columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
    out = np.empty_like(x)
    y, z = compiled(two_outputs(columns)).run([x], RunOptions(out=[None, out]))
    assert z is out
    assert np.array_equal(out, -x)
    assert np.array_equal(y, np.maximum(x, 0))


def test_a_buffer_may_be_an_inputs_own() -> None:
    x = np.random.default_rng(0).standard_normal((2, BIND_FROM)).astype(np.float32)
    buffer = x.copy()
    y, z = compiled(two_outputs(BIND_FROM)).run([buffer], RunOptions(out=[None, buffer]))
    assert z is buffer
    assert np.array_equal(z, -x)
    assert np.array_equal(y, np.maximum(x, 0))


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


@pytest.mark.parametrize("buffer", [np.empty((2, 3)), np.empty((1, 3), np.float32), np.empty(6, np.float32)])
def test_a_buffer_of_another_type_or_shape_is_refused(buffer: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError) as error:
        compiled(relu()).run([SQUARE], RunOptions(out=[buffer]))
    assert str(error.value) == (
        f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is float32[2, 3]; "
        "give one just like it, or None"
    )


def test_calls_into_fixed_buffers_take_any_strides_and_go_the_public_way_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = Ort().compile(function({"x": TensorType(F32, (2, 3))}, ["y"], [Node("Relu", ("x",), ("y",))]), CONTEXT)
    given, frozen = np.arange(-3, 3, dtype="float32").reshape(3, 2), SQUARE.copy()
    frozen.flags.writeable = False
    for private in (True, False):
        if not private:
            monkeypatch.setattr("xrt.engines.ort.calls.getattr", lambda *_: None, raising=False)
        buffer = np.empty((2, 3), "float32")
        into, bound = executable.into([buffer]), executable.bind([frozen], [buffer])
        into(given.T)
        np.testing.assert_array_equal(buffer, np.maximum(given.T, 0))
        bound()
        np.testing.assert_array_equal(buffer, np.maximum(SQUARE, 0))
