"""Weights on the ort engine: handed over where they lie, and not copied."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.engines.ort_running import F32, SQUARE, compiled, function, node, relu, run
from tests.engines.resident import resident
from xrt.engines.ort.export import export_model
from xrt.graph import Constant, DType, Function, TensorType, Value


@pytest.mark.slow
def test_large_constants_are_not_copied() -> None:
    compiled(relu())
    weights = np.random.default_rng(0).standard_normal((1024, 16384), np.float32)
    f = function({"i": TensorType(DType.INT64, ("N",))}, ["y"], [node("Gather", "w i", "y")], {"w": weights})
    before = resident()
    executable = compiled(f)
    (y,) = executable.run([np.array([3])])
    assert np.array_equal(y[0], weights[3])
    assert resident() - before < weights.nbytes / 4


def test_a_large_constant_may_be_folded_mapped_or_lie_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(3000, dtype=np.float32).reshape(1000, 3))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    turned = np.arange(3000, dtype=np.float64).reshape(3, 1000).T
    small = np.ones(1000, ml_dtypes.bfloat16)
    f = function(
        {"x": TensorType(F32, (2, 3))},
        ["a", "b", "c"],
        [
            node("Neg", "m", "n"),
            node("Gemm", "x n", "a", transB=1),
            node("Transpose", "t", "b"),
            node("Cast", "s", "c", to=F32.onnx),
        ],
        {"m": mapped, "t": turned, "s": small},
    )
    a, b, c = run(f, SQUARE)
    assert np.allclose(a, SQUARE @ -mapped.T)
    assert np.array_equal(b, turned.T)
    assert np.array_equal(c, np.ones(1000, np.float32))


def test_large_constants_of_bodies_and_packed_ones_are_handed_over_outside_of_the_model() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
    packed = (np.arange(4096) % 16 - 8).astype(ml_dtypes.int4)
    value = TensorType(F32, (2, 64))
    bodies = [
        Function((), (Value(f"y{i}", value),), (node("MatMul", "x w", f"y{i}"),), {"w": Constant(w)}, {"": 21}, name=f"b{i}")
        for i, w in enumerate(weights)
    ]
    f = function(
        {"x": value, "c": TensorType(DType.BOOL, ()), "scale": TensorType(F32, ())},
        ["y", "z"],
        [
            node("If", "c", "y").with_attributes(then_branch=bodies[0], else_branch=bodies[1]),
            node("DequantizeLinear", "q scale", "z"),
        ],
        {"q": packed},
    )
    handed = export_model(f)
    assert len(handed.model) < 2000
    assert sorted(content.nbytes for content in handed.files.values()) == [2048, 64 * 64 * 4, 64 * 64 * 4]
    assert handed.copied == 2048
    executable = compiled(f)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    for choice, w in zip((True, False), weights, strict=True):
        y, z = executable.run([x, np.array(choice), np.array(1, np.float32)])
        assert np.allclose(y, x @ w, atol=1e-4)
        assert np.array_equal(z, packed.astype(np.float32))
    assert [use.name for use in executable.memory() or ()] == ["copied weights", "session", "workspace"]


def test_the_library_is_not_given_the_shapes_of_inner_values() -> None:
    value = TensorType(F32, (2, 3))
    f = function({"x": value}, ["y"], [node("Neg", "x", "n"), node("Abs", "n", "y")]).replace(types={"n": value})
    (inner,) = onnx.load_from_string(export_model(f).model).graph.value_info
    assert inner.name == "n" and inner.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert not inner.type.tensor_type.HasField("shape")
