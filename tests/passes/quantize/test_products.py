"""Products in integers without calibration: by DynamicQuantizeLinear, and by MatMulNBits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.passes.quantize import QuantizationOptions, pack_weights, quantize_dynamically, scale_channels

RANDOM = np.random.default_rng(0)
INNER, COLUMNS = 80, 24
"""The last block of 32 rows has 16."""
X = RANDOM.normal(size=(5, INNER)).astype("float32")


def make_product(op: str, *, is_turned: bool = False, bias: bool = False, inner: int = INNER) -> Function:
    weight = (RANDOM.normal(size=(inner, COLUMNS)) / inner**0.5).astype("float32")
    constants = {"w": Constant(np.ascontiguousarray(weight.T) if is_turned else weight)}
    node = Node(op, ("x", "w"), ("y",), name="product")
    if bias:
        constants["b"] = Constant(RANDOM.normal(size=COLUMNS).astype("float32"))
        node = Node(op, ("x", "w", "b"), ("y",), name="product")
    node = node.with_attributes(transB=1) if is_turned else node
    inputs = (Value("x", TensorType(DType.FLOAT32, (5, inner))),)
    return infer_shapes(Function(inputs, (Value("y"),), nodes=(node,), constants=constants, opsets={"": 17}, name="product"))


FORMS = [
    make_product("MatMul"),
    make_product("Gemm"),
    make_product("Gemm", is_turned=True),
    make_product("Gemm", bias=True),
    make_product("Gemm", is_turned=True, bias=True),
]

NAMES = ["MatMul", "Gemm", "turned", "bias", "turned with bias"]


def measure(exact: Any, near: Any) -> float:
    return float(np.linalg.norm(near - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("function", FORMS, ids=NAMES)
def test_a_dynamic_product_rounds_operands_by_the_ranges_of_the_call(function: Function) -> None:
    made = infer_shapes(quantize_dynamically(function))
    assert [node.op for node in made.nodes if "Quantize" in node.op or "Integer" in node.op] == [
        "DynamicQuantizeLinear",
        "MatMulInteger",
    ]
    (exact,), (near,) = evaluate(function, [X]), evaluate(made, [X])
    assert 1e-4 < measure(exact, near) < 0.02
    (scaled,) = evaluate(made, [X * np.float32(1000)])
    bias = function.constants["b"].array if "b" in function.constants else 0.0
    assert measure(1000 * (exact - bias), scaled - bias) < 0.02
    with xrt.XRTModule(made, engine="ort", strict=True) as module:
        assert measure(near, module(X)) < 1e-3


@pytest.mark.parametrize("function", FORMS, ids=NAMES)
def test_a_packed_product_computes_with_the_weights_that_are_stored(function: Function) -> None:
    packed = infer_shapes(pack_weights(function))
    assert [node.op for node in packed.nodes] == ["com.microsoft.MatMulNBits"]
    (exact,) = evaluate(function, [X])
    with xrt.XRTModule(packed, engine="ort", strict=True) as module:
        assert measure(exact, module(X)) < 0.015


def test_what_is_no_product_by_a_matrix_stays() -> None:
    product = make_product("MatMul")
    scaled = product.replace(nodes=(Node("Gemm", ("x", "w"), ("y",), name="product").with_attributes(alpha=2.0),))
    for function in (scaled, product.replace(constants={"w": Constant(np.zeros((INNER, COLUMNS)))})):
        assert quantize_dynamically(function) is function
        assert pack_weights(function) is function
    excluded = QuantizationOptions(exclude=("name:product",))
    assert quantize_dynamically(product, excluded) is product and pack_weights(product, excluded) is product


def test_matrices_and_operands_are_stored_once() -> None:
    product = make_product("MatMul")
    twice = infer_shapes(
        product.replace(
            nodes=(*product.nodes, Node("MatMul", ("x", "w"), ("z",), name="other")), outputs=(Value("y"), Value("z"))
        )
    )
    dynamic, packed = quantize_dynamically(twice), pack_weights(twice)
    assert [node.op for node in dynamic.nodes].count("DynamicQuantizeLinear") == 1
    assert len(dynamic.constants) == 3 and len(packed.constants) == 2


def test_factors_of_powers_of_two_change_no_digit() -> None:
    scale, bias = (RANDOM.normal(size=INNER).astype("float32") for _ in range(2))
    norm = Node("LayerNormalization", ("x", "s", "n"), ("h",), name="norm").with_attributes(axis=-1)
    product = make_product("MatMul")
    nodes = (norm, Node("MatMul", ("h", "w"), ("y",), name="product"))
    function = infer_shapes(
        product.replace(nodes=nodes, constants={**product.constants, "s": Constant(scale), "n": Constant(bias)})
    )
    made = scale_channels(function, {"h": np.exp2(RANDOM.integers(-5, 6, INNER)).astype("float32")})
    assert made.fingerprint != function.fingerprint
    (exact,), (same,) = evaluate(function, [X]), evaluate(made, [X])
    np.testing.assert_array_equal(exact, same)
