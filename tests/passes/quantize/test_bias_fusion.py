"""Biases in the products before them, and the integer kernels that ONNX Runtime then has for quantized models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import xrt
from tests.passes.quantize.models import count_ops, draw, make_function, prepare
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx import to_model
from xrt.graph import Node
from xrt.models import load, sample_inputs
from xrt.passes.quantize import fuse_biases, quantize

WEIGHTS = {"w": draw(1, 6, 5), "b": draw(2, 5)}
FUSED: dict[str, tuple[tuple[Any, ...], tuple[int, ...], dict[str, int]]] = {
    "a matrix": ((3, 6), (3, 6), {"Gemm": 1}),
    "a stack": ((2, 3, 6), (2, 3, 6), {"Gemm": 1, "Reshape": 2}),
    "a stack of unknown height": (("n", 3, 6), (2, 3, 6), {"Gemm": 1, "Reshape": 2}),
    "two unknown extents": (("n", "m", 6), (2, 3, 6), {"MatMul": 1, "Add": 1}),
    "a vector": ((6,), (6,), {"MatMul": 1, "Add": 1}),
    "nothing": ((0, 3, 6), (0, 3, 6), {"MatMul": 1, "Add": 1}),
}


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_product_and_its_bias_become_a_gemm(case: str, order: tuple[str, str]) -> None:
    declared, shape, operators = FUSED[case]
    function = make_function([Node("MatMul", ("x", "w"), ("a",)), Node("Add", order, ("y",))], WEIGHTS, declared)
    made, x = fuse_biases(function), draw(3, *shape)
    assert count_ops(made) == operators
    assert np.allclose(evaluate(made, [x])[0], evaluate(function, [x])[0], rtol=1e-5, atol=1e-5)
    assert (made is function) is ("Add" in operators)


def test_products_of_one_value_share_its_rows() -> None:
    nodes = [Node("MatMul", ("x", name), (f"{name}a",)) for name in "wv"]
    nodes += [Node("Add", (f"{name}a", "b"), (f"{name}b",)) for name in "wv"]
    nodes.append(Node("Sum", ("wb", "vb"), ("y",)))
    function = make_function(nodes, {**WEIGHTS, "v": draw(4, 6, 5)}, (2, 3, 6))
    made, x = fuse_biases(function), draw(3, 2, 3, 6)
    assert count_ops(made) == {"Reshape": 3, "Gemm": 2, "Add": 1}
    assert np.allclose(evaluate(made, [x])[0], evaluate(function, [x])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", ["one number", "a row for each", "also an output"])
def test_other_sums_stay(bias: str) -> None:
    constants = {**WEIGHTS, "b": {"one number": draw(2, 1), "a row for each": draw(2, 3, 5), "also an output": draw(2, 5)}[bias]}
    outputs = ("y", "a") if bias == "also an output" else ("y",)
    function = make_function([Node("MatMul", ("x", "w"), ("a",)), Node("Add", ("a", "b"), ("y",))], constants, (3, 6), *outputs)
    assert fuse_biases(function) is function


MODELS = {
    "mobilenet": ({"image": 32, "width": 25, "classes": 4}, {"QLinearConv": 52, "QLinearAdd": 11, "QGemm": 1}),
    "bert": ({"layers": 1, "hidden": 32, "heads": 2, "tokens": 8, "vocabulary": 50}, {"QGemm": 7}),
    "mlp": ({"features": 16, "hidden": 32, "classes": 4}, {"QGemm": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_has_integer_kernels_for_all(name: str, tmp_path: Path) -> None:
    sizes, kernels = MODELS[name]
    function = prepare(load(name, **sizes))
    batches = [sample_inputs(function, seed) for seed in range(2)]
    made = quantize(function, xrt.calibrate(function, batches, engine="ort"))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    onnxruntime.InferenceSession(to_model(made).SerializeToString(), options)
    found: dict[str, int] = {}
    for node in onnx.load(tmp_path / "optimized.onnx").graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    assert {op: count for op, count in found.items() if op in ("QLinearConv", "QLinearAdd", "QGemm")} == kernels
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm"} & set(found)
