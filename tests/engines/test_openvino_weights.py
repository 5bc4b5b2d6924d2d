"""Weights on the openvino engine: handed over where they lie, and saved with the model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.engines.openvino_running import CONTEXT, F32, SQUARE, compiled, function, node, relu, tensor
from tests.engines.resident import resident
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.export import HEAVY
from xrt.graph import DType


@pytest.mark.slow
def test_large_constants_are_not_copied() -> None:
    compiled(relu())
    weights = np.random.default_rng(0).standard_normal((1024, 16384), np.float32)
    f = function({"i": tensor(1, dtype=DType.INT64)}, {"y": tensor(1, 16384)}, [node("Gather", "w i", "y")], {"w": weights})
    before = resident()
    executable = compiled(f)
    (y,) = executable.run([np.array([3])])
    assert np.array_equal(y[0], weights[3])
    assert resident() - before < weights.nbytes / 4
    assert weights.nbytes > 4 * HEAVY


def test_a_large_constant_may_be_mapped_or_lie_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(60000, dtype=np.float32).reshape(20000, 3))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    turned = np.arange(60000, dtype=np.float32).reshape(3, 20000).T
    small = np.ones(50000, ml_dtypes.bfloat16)
    f = function(
        {"x": tensor(2, 3)},
        {"a": tensor(2, 20000), "b": tensor(3, 20000), "c": tensor(50000)},
        [
            node("Gemm", "x m", "a", transB=1),
            node("Transpose", "t", "b"),
            node("Cast", "s", "c", to=F32.onnx),
        ],
        {"m": mapped, "t": turned, "s": small},
    )
    executable = compiled(f)
    a, b, c = executable.run([SQUARE])
    assert np.allclose(a, SQUARE @ mapped.T, rtol=1e-5)
    assert np.array_equal(b, turned.T)
    assert np.array_equal(c, np.ones(50000, np.float32))
    assert {use.name: use.nbytes for use in executable.memory()}["copied weights"] == turned.nbytes
    assert [use.name for use in executable.memory()] == ["copied weights", "model", "workspace"]


def test_a_saved_model_runs_the_same(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((300, 100)).astype(np.float32)
    f = function(
        {"like": tensor(1), "x": tensor(2, 300)},
        {"y": tensor(2, 100), "x": tensor(2, 300)},
        [node("MatMul", "x w", "p"), node("CastLike", "p like", "q"), node("Relu", "q", "y")],
        {"w": weights},
    )
    engine = OpenVino()
    executable = engine.compile(f, CONTEXT)
    x = np.random.default_rng(1).standard_normal((2, 300)).astype(np.float32)
    inputs = [np.ones(1, np.float32), x]
    expected = executable.run(inputs)
    data = bytes(engine.save(executable, CONTEXT))
    executable.close()
    loaded = engine.load(memoryview(data), f, CONTEXT)
    for got, want in zip(loaded.run(inputs), expected, strict=True):
        assert np.array_equal(got, want)
    assert bytes(engine.save(loaded, CONTEXT)) == data
