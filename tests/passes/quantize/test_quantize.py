"""Quantizing a model: scales, balancing, biases, products, and generated models."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.laws.test_laws import living
from tests.passes.quantize.models import count_ops, draw, make_function, make_table, prepare
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import CalibrationError, OptionError
from xrt.formats.onnx import to_model
from xrt.graph import Constant, DType, Function, Node, NodePattern, TensorType, hash_values
from xrt.graph.verify import verify, verify_types
from xrt.models import load, sample_inputs
from xrt.passes import infer_shapes
from xrt.passes.quantize import (
    QuantizationOptions,
    find_channel_factors,
    fold_batch_normalization,
    fuse_biases,
    list_balanced_values,
    list_calibrated_values,
    pack_weights,
    quantize,
    quantize_dynamically,
    quantize_weights,
    scale_channels,
    why_not_quantized,
)
from xrt.passes.quantize.weights import fit_activation, fit_weight, get_integer_range, round_to_integers
from xrt.precision.byte_sums import needs_reduced_range
from xrt.testing.corpus.entry import node
from xrt.testing.generate import make_seeded_function, rename_values
from xrt.testing.strategies import Form, make_random_inputs

CONV = [node("Conv", "x w b", "c"), node("Relu", "c", "r"), node("Conv", "r v", "y")]


def two_convolutions() -> Function:
    constants = {"w": draw(1, 4, 3, 3, 3), "b": draw(2, 4), "v": draw(3, 2, 4, 1, 1)}
    return make_function(CONV, constants, (2, 3, 8, 8))


OPTIONS = {
    "uint8": QuantizationOptions(),
    "int8": QuantizationOptions(activations="int8", symmetric_activations=True),
    "one scale": QuantizationOptions(per_channel=False),
    "7 bits": QuantizationOptions(reduce_range=True),
}
INNER, COLUMNS = 80, 24
"""The last block of 32 rows has 16."""
X = draw(0, 5, INNER)
WEIGHT, BIAS = draw(1, INNER, COLUMNS, scale=INNER**-0.5), draw(2, COLUMNS)
PRODUCTS = {
    "MatMul": make_function([node("MatMul", "x w", "y")], {"w": WEIGHT}, X.shape),
    "Gemm": make_function([node("Gemm", "x w", "y")], {"w": WEIGHT}, X.shape),
    "turned": make_function([node("Gemm", "x w", "y", transB=1)], {"w": WEIGHT.T.copy()}, X.shape),
    "bias": make_function([node("Gemm", "x w b", "y")], {"w": WEIGHT, "b": BIAS}, X.shape),
    "turned with bias": make_function([node("Gemm", "x w b", "y", transB=1)], {"w": WEIGHT.T.copy(), "b": BIAS}, X.shape),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_equals_integer_arithmetic(product: str, options: str) -> None:
    function = PRODUCTS[product]
    quantized = quantize(function, make_table(function, {"x": X}), OPTIONS[options])
    arrays = {name: constant.array for name, constant in quantized.constants.items()}
    scale, zero = arrays["x_scale"], int(arrays["x_zero_point"])
    integers = (
        np.clip(np.rint(X / scale) + zero, *get_integer_range(DType.from_array(arrays["x_zero_point"]))).astype(np.int64) - zero
    )
    weights, w_scale, w_zero = (np.atleast_2d(arrays[f"w_{part}"]) for part in ("quantized", "scale", "zero_point"))
    if product.startswith("turned"):
        weights = weights.T
    total = integers @ (weights.astype(np.int64) - w_zero.astype(np.int64))
    if "b_quantized" in arrays:
        assert arrays["b_quantized"].dtype == np.int32
        total = total + arrays["b_quantized"].astype(np.int64)
    factor = scale.astype(np.float64) * w_scale.astype(np.float64)
    assert np.allclose(evaluate(quantized, [X])[0], total * factor, rtol=1e-5, atol=1e-5)


def test_a_convolution_in_bytes_equals_integer_arithmetic_up_to_ties() -> None:
    function, x = two_convolutions(), draw(5, 2, 3, 8, 8)
    quantized = quantize(function, make_table(function, {"x": x}))
    constants = {name: constant.array for name, constant in quantized.constants.items()}
    codes = quantized.replace(outputs=tuple(quantized.value(f"{name}_quantized") for name in ("x", "r")))
    actual, result = (array.astype(np.int64) for array in evaluate(codes, [x]))
    centered = actual - int(constants["x_zero_point"])
    windows = np.lib.stride_tricks.sliding_window_view(centered, (3, 3), axis=(2, 3))
    total = np.einsum("nchwij,ocij->nohw", windows, constants["w_quantized"].astype(np.int64))
    total = total + constants["b_quantized"].astype(np.int64)[:, None, None]
    x_scale, w_scale, r_scale = (constants[f"{name}_scale"].astype(np.float64) for name in "xwr")
    factor = x_scale * w_scale / r_scale
    exact = np.clip(total * factor[:, None, None], 0, 255)  # the zero point of what a Relu gives is 0
    assert int(constants["r_zero_point"]) == 0
    off = result != np.rint(exact)
    assert np.all(np.abs(np.abs(exact - np.floor(exact))[off] - 0.5) < 1e-3) and off.mean() < 0.01


def test_the_result_of_the_last_convolution_is_not_quantized() -> None:
    function, x = two_convolutions(), draw(5, 2, 3, 8, 8)
    quantized = quantize(function, make_table(function, {"x": x}))
    assert count_ops(quantized) == {"QuantizeLinear": 2, "DequantizeLinear": 5, "Conv": 2, "Relu": 1}
    onnx.checker.check_model(to_model(quantized), full_check=True)


def test_values_and_weights_with_several_readers_are_quantized_once() -> None:
    nodes = [
        *(node("MatMul", "x w", "a"), node("Add", "x a", "s"), node("MatMul", "s w", "p"), node("MatMul", "s v", "q")),
        node("Concat", "p q", "y", axis=1),
    ]
    function = make_function(nodes, {"w": draw(1, 6, 6), "v": draw(2, 6, 6)}, (4, 6))
    quantized = quantize(function, make_table(function, {"x": draw(3, 4, 6)}))
    assert count_ops(quantized) == {"QuantizeLinear": 2, "DequantizeLinear": 4, "MatMul": 3, "Add": 1, "Concat": 1}
    assert [node.inputs for node in quantized.nodes if node.op == "Add"] == [("x", "a")]  # computed in floats: it reads floats


def test_a_sum_between_convolutions_reads_and_gives_bytes() -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Conv", "a w", "b", pads=[1, 1, 1, 1]),
        *(node("Add", "a b", "s"), node("MaxPool", "s", "m", kernel_shape=[2, 2]), node("Conv", "m w", "y")),
    ]
    function = make_function(nodes, {"w": draw(1, 3, 3, 3, 3)}, (1, 3, 8, 8))
    table = make_table(function, {"x": draw(3, 1, 3, 8, 8)})
    quantized = quantize(function, table)
    (add,) = (node for node in quantized.nodes if node.op == "Add")
    assert add.inputs == ("a_dequantized", "b_dequantized")
    assert {key.name for key in table.ranges} == {"x", "a", "b", "s"}


def test_patterns_select_nodes() -> None:
    function, table = two_convolutions(), make_table(two_convolutions(), {"x": draw(5, 2, 3, 8, 8)})
    quantized = quantize(function, table, QuantizationOptions(exclude=("name:y",)))  # type: ignore[arg-type]
    assert [name for name in quantized.constants if name.endswith("_quantized")] == ["w_quantized", "b_quantized"]
    assert quantize(function, table, QuantizationOptions(include=("MatMul",))) is function  # type: ignore[arg-type]
    assert NodePattern.parse(" name: /a/* | b").matches(node("Conv", "x", "y", name="/a/c"))
    assert str(NodePattern.parse("Conv|Ge*")) == "Conv|Ge*"


REASONS = {
    "Relu": (node("Relu", "x", "y"), "its operator is not a convolution or matrix product"),
    "excluded": (node("ConvTranspose", "x w", "y"), "no pattern selects it"),
    "computed weights": (node("Conv", "x x", "y"), "its weights are computed"),
    "two computed": (node("MatMul", "x x", "y"), "both operands are computed"),
    "constant first": (node("MatMul", "w x", "y"), "its first operand is constant"),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_node_that_stays_has_a_reason(case: str) -> None:
    reader, reason = REASONS[case]
    function = make_function([reader], {"w": draw(1, 3, 3, 3, 3)}, (3, 3, 3, 3))
    assert why_not_quantized(function.nodes[0], function, QuantizationOptions()) == reason


def test_a_product_of_two_computed_values_is_quantized_where_asked() -> None:
    function = make_function([node("MatMul", "x x", "y")], {}, (4, 4))
    table = make_table(function, {"x": draw(1, 4, 4)})
    quantized = quantize(function, table, QuantizationOptions(activation_products=True))
    assert count_ops(quantized) == {"QuantizeLinear": 1, "DequantizeLinear": 1, "MatMul": 1}


def test_an_older_opset_is_raised_and_a_too_small_range_is_not_used() -> None:
    function = make_function([node("MatMul", "x w", "y")], {"w": draw(1, 6, 5)}, (3, 6), opset=9)
    table = make_table(function, {"x": draw(1, 3, 6)})
    quantized = quantize(function, table)
    assert quantized.opset() == 13
    onnx.checker.check_model(to_model(quantized), full_check=True)
    tiny = make_table(function, {"x": draw(1, 3, 6, scale=1e-32)})
    assert count_ops(quantize(function, tiny)) == {"MatMul": 1}


def test_weights_of_channels_that_are_all_but_zero_keep_the_bias() -> None:
    weight = draw(1, 6, 5)
    weight[:, 2], weight[:, 3] = 0, weight[:, 3] * np.float32(1e-12)
    function = make_function([node("Gemm", "x w b", "y")], {"w": weight, "b": np.ones(5, np.float32)}, (3, 6))
    x = draw(2, 3, 6)
    quantized = quantize(function, make_table(function, {"x": x}))
    assert count_ops(quantized)["DequantizeLinear"] == 3
    assert np.allclose(evaluate(quantized, [x])[0][:, 2:4], 1, atol=1e-3)


def test_tables_of_other_models_are_errors() -> None:
    function = two_convolutions()
    other = make_function([node("MatMul", "x w", "y")], {"w": draw(1, 6, 5)}, (3, 6))
    inner = make_function([node("Exp", "x", "e"), node("MatMul", "e w", "y")], {"w": draw(1, 6, 5)}, (3, 6))
    with pytest.raises(CalibrationError, match="it was made of another model, or the weights have changed since"):
        quantize(other, make_table(inner, {"x": draw(1, 3, 6)}))
    table = make_table(function, {"x": draw(5, 2, 3, 8, 8)})
    part = type(table)(method="minmax", ranges=table.ranges[:1])
    with pytest.raises(CalibrationError, match=r"no range for 1 of the values to quantize: 'r'\. Calibrate this model"):
        quantize(function, part)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "float"}, "activations must be one of uint8, int8; got 'float'"),
        ({"per_channel": 1}, "per_channel must be True or False; got 1"),
        ({"include": ["!Conv"]}, "'!Conv' is no operator"),
        ({"exclude": ["Conv||Gemm"]}, "'Conv||Gemm' is not a pattern of nodes"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        QuantizationOptions(**options)


# ---------------------------------------------------------------------- weights alone


def measure(exact: Any, near: Any) -> float:
    return float(np.linalg.norm(near - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
def test_stored_weights_are_near_and_engines_agree(engine: str) -> None:
    nodes = [node("MatMul", "x w", "a"), node("Gemm", "a v b", "y", transB=1)]
    function = make_function(nodes, {"w": draw(1, 80, 24), "v": draw(2, 7, 24), "b": draw(3, 7)}, (5, 80))
    quantized = quantize_weights(function)
    onnx.checker.check_model(to_model(quantized), full_check=True)
    x = draw(4, 5, 80)
    exact, near = evaluate(function, [x])[0], evaluate(quantized, [x])[0]
    assert measure(exact, near) < 0.02
    with xrt.XRTModule(quantized, engine=engine) as module:
        assert np.allclose(module(x), near, rtol=1e-3, atol=1e-2)


# ---------------------------------------------------------------------- BatchNormalization, parameters, keys


def test_batch_normalization_is_folded_into_the_convolution() -> None:
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c s t m d", "y")]
    constants = {"w": draw(1, 4, 3, 3, 3), "s": draw(2, 4), "t": draw(3, 4), "m": draw(4, 4), "d": np.abs(draw(5, 4))}
    function, x = make_function(nodes, constants, (1, 3, 6, 6)), draw(6, 1, 3, 6, 6)
    result = fold_batch_normalization(function)
    assert count_ops(result) == {"Conv": 1}
    assert np.allclose(evaluate(result, [x])[0], evaluate(function, [x])[0], rtol=1e-4, atol=1e-4)
    read = function.replace(outputs=(*function.outputs, function.value("c")))
    assert fold_batch_normalization(read) is read


RANGES = st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2).map(sorted)


@pytest.mark.slow
@given(RANGES, st.sampled_from(["uint8", "int8"]), st.booleans(), st.booleans())
def test_parameters_of_any_range_have_zero_and_reach_both_ends(
    range_: list[float], text: str, symmetric: bool, of_weight: bool
) -> None:
    dtype, ends = DType.parse(text), np.array([*range_, 0], np.float32)
    if of_weight:
        result = fit_weight(np.array(range_[:1]), np.array(range_[1:]), dtype)
    else:
        result = fit_activation(*range_, dtype, symmetric=symmetric)
    if result is None:
        assert not of_weight and max(map(abs, range_)) < 1e-27
        return
    back = (round_to_integers(ends, result, dtype).astype(np.float64) - np.asarray(result.zero_point, int)) * result.scale
    assert back[2] == 0 and np.all(np.abs(back - ends) <= result.scale * 1.01)


def test_keys_outlast_a_renaming_and_not_a_change() -> None:
    function = two_convolutions()
    names = {name: f"other_{name}" for name in ("x", "c", "r", "w", "b", "v")}
    renamed = rename_values(function, names)
    keys, other = hash_values(function), hash_values(renamed)
    assert {names.get(name, f"{name}'"): key for name, key in keys.items()} == other
    assert len(set(keys.values())) == len(keys)
    changed = function.replace(constants={**function.constants, "w": Constant(draw(9, 4, 3, 3, 3))})
    assert [name for name, key in hash_values(changed).items() if key == keys[name]] == ["x", "b", "v"]
    assert list_calibrated_values(function) == ["x", "r"]


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
@pytest.mark.parametrize("order", ["a b", "b a"])
def test_a_product_and_its_bias_become_a_gemm(case: str, order: str) -> None:
    declared, shape, operators = FUSED[case]
    function = make_function([node("MatMul", "x w", "a"), node("Add", order, "y")], WEIGHTS, declared)
    result, x = fuse_biases(function), draw(3, *shape)
    assert count_ops(result) == operators
    assert np.allclose(evaluate(result, [x])[0], evaluate(function, [x])[0], rtol=1e-5, atol=1e-5)
    assert (result is function) is ("Add" in operators)


def test_products_of_one_value_share_its_rows() -> None:
    nodes = [node("MatMul", f"x {name}", f"{name}a") for name in "wv"]
    nodes += [*(node("Add", f"{name}a b", f"{name}b") for name in "wv"), node("Sum", "wb vb", "y")]
    function = make_function(nodes, {**WEIGHTS, "v": draw(4, 6, 5)}, (2, 3, 6))
    result, x = fuse_biases(function), draw(3, 2, 3, 6)
    assert count_ops(result) == {"Reshape": 3, "Gemm": 2, "Add": 1}
    assert np.allclose(evaluate(result, [x])[0], evaluate(function, [x])[0], rtol=1e-5, atol=1e-5)


OTHER_SUMS = {"one number": (draw(2, 1), ()), "a row for each": (draw(2, 3, 5), ()), "also an output": (draw(2, 5), ("a",))}


@pytest.mark.parametrize("bias", OTHER_SUMS)
def test_other_sums_stay(bias: str) -> None:
    array, outputs = OTHER_SUMS[bias]
    nodes = node("MatMul", "x w", "a"), node("Add", "a b", "y")
    function = make_function(nodes, {**WEIGHTS, "b": array}, (3, 6), "y", *outputs)
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
    quantized = quantize(function, xrt.calibrate(function, batches, engine="ort"))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    onnxruntime.InferenceSession(to_model(quantized).SerializeToString(), options)
    results = Counter(each.op_type for each in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert {op: count for op, count in results.items() if op in ("QLinearConv", "QLinearAdd", "QGemm")} == kernels
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm"} & set(results)


HIDDEN = 64
FACTORS = np.where(np.arange(HIDDEN) % 11 == 0, np.float32(40), np.float32(1))


def make_hard(function: Function) -> Function:
    """Return the same function with six channels of each normalization 40 times as large, and their weights 40 times smaller."""
    constants = dict(function.constants)
    normalized = {*list_balanced_values(function)}
    for each in function.nodes:
        if each.outputs[0] in normalized:
            constants |= {name: Constant(function.constants[name].array * FACTORS) for name in each.inputs[1:]}
        elif each.op == "Reshape" and each.inputs[0] in normalized:
            normalized.add(each.outputs[0])
        elif each.op in ("Gemm", "MatMul") and each.inputs[0] in normalized:
            constants[each.inputs[1]] = Constant(function.constants[each.inputs[1]].array / FACTORS[:, None])
    return function.replace(constants=constants)


NORMALIZED, PRODUCT = node("LayerNormalization", "x s t", "n"), node("MatMul", "n w", "y")
OTHERS: dict[str, tuple[list[Node], tuple[str, ...]]] = {
    "an output": ([NORMALIZED, PRODUCT], ("y", "n")),
    "a residual sum": ([NORMALIZED, PRODUCT, node("Add", "n x", "z")], ("y", "z")),
    "a second operand": ([NORMALIZED, node("MatMul", "w n", "y")], ("y",)),
    "a computed scale": ([node("Exp", "s", "e"), node("LayerNormalization", "x e t", "n"), PRODUCT], ("y",)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_reads_the_value_keeps_it_as_it_is(case: str) -> None:
    nodes, outputs = OTHERS[case]
    function = make_function(nodes, {"s": draw(1, 6), "t": draw(2, 6), "w": draw(3, 6, 6)}, (6, 6), *outputs)
    assert list_balanced_values(function) == []
    assert find_channel_factors(function, {"n": np.ones(6)}) == {}


def test_channels_of_zeros_are_left_alone() -> None:
    function = make_function([NORMALIZED, PRODUCT], {"s": draw(1, 6), "t": draw(2, 6), "w": draw(3, 6, 5)}, (6, 6))
    result = scale_channels(function, find_channel_factors(function, {"n": np.array([0, 1, 1e9, 1, 1e-9, 1])}))
    x = draw(4, 6, 6)
    assert np.allclose(evaluate(result, [x])[0], evaluate(function, [x])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_dynamic_product_rounds_operands_by_the_ranges_of_the_call(product: str) -> None:
    function = PRODUCTS[product]
    result = infer_shapes(quantize_dynamically(function))
    quantizing = [each.op for each in result.nodes if "Quantize" in each.op or "Integer" in each.op]
    assert quantizing == ["DynamicQuantizeLinear", "MatMulInteger"]
    (exact,), (near,) = evaluate(function, [X]), evaluate(result, [X])
    assert 1e-4 < measure(exact, near) < 0.02
    (scaled,) = evaluate(result, [X * np.float32(1000)])
    bias = BIAS if "b" in function.constants else 0.0
    assert measure(1000 * (exact - bias), scaled - bias) < 0.02
    with xrt.XRTModule(result, engine="ort", strict=True) as module:
        assert measure(near, module(X)) < 1e-3


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_packed_product_computes_with_the_weights_that_are_stored(product: str) -> None:
    packed = infer_shapes(pack_weights(PRODUCTS[product]))
    assert [each.op for each in packed.nodes] == ["com.microsoft.MatMulNBits"]
    (exact,) = evaluate(PRODUCTS[product], [X])
    with xrt.XRTModule(packed, engine="ort", strict=True) as module:
        assert measure(exact, module(X)) < 0.015


def test_what_is_no_product_by_a_matrix_stays() -> None:
    product = PRODUCTS["MatMul"]
    scaled = product.replace(nodes=(node("Gemm", "x w", "y", alpha=2.0),))
    for function in (scaled, product.replace(constants={"w": Constant(np.zeros((INNER, COLUMNS)))})):
        assert quantize_dynamically(function) is function
        assert pack_weights(function) is function
    excluded = QuantizationOptions(exclude=("name:y",))
    assert quantize_dynamically(product, excluded) is product and pack_weights(product, excluded) is product


def test_matrices_and_operands_are_stored_once() -> None:
    nodes = node("MatMul", "x w", "y"), node("MatMul", "x w", "z")
    twice = make_function(nodes, {"w": WEIGHT}, X.shape, "y", "z")
    dynamic, packed = quantize_dynamically(twice), pack_weights(twice)
    assert count_ops(dynamic)["DynamicQuantizeLinear"] == 1
    assert len(dynamic.constants) == 3 and len(packed.constants) == 2


def test_factors_of_powers_of_two_change_no_digit() -> None:
    nodes = node("LayerNormalization", "x s n", "h", axis=-1), node("MatMul", "h w", "y")
    function = make_function(nodes, {"w": WEIGHT, "s": draw(3, INNER), "n": draw(4, INNER)}, X.shape)
    powers = np.exp2(np.random.default_rng(0).integers(-5, 6, INNER)).astype("float32")
    result = scale_channels(function, {"h": powers})
    assert result.fingerprint != function.fingerprint
    (exact,), (same,) = evaluate(function, [X]), evaluate(result, [X])
    np.testing.assert_array_equal(exact, same)


FORM = Form(families=("product", "window", "elementwise"), aliases=False, symbolic=False, empty=False)
ALL_PRODUCTS = QuantizationOptions(activation_products=True, include=("*",))  # type: ignore[arg-type]  # texts are read


def is_near(actual: list[Any], expected: list[Any]) -> bool:
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True) for a, b in zip(actual, expected, strict=True))


@pytest.mark.slow
@given(living(FORM), st.integers(0, 9))
def test_passes_before_quantization_change_no_result(function: Function, seed: int) -> None:
    function = infer_shapes(function)
    values = make_random_inputs(function, seed)
    result = fuse_biases(fold_batch_normalization(function))
    verify(result)
    verify_types(infer_shapes(result))
    assert is_near(evaluate(result, values), evaluate(function, values))


def test_nodes_that_others_wait_for_stay() -> None:
    nodes = node("MatMul", "x w", "a"), node("Add", "a b", "y", name="add"), node("Relu", "x", "z", control=("add",))
    function = make_function(nodes, WEIGHTS, (3, 6), "y", "z")
    assert fuse_biases(function) is function
    nodes = (
        *(node("Conv", "x v", "c"), node("BatchNormalization", "c s s s s", "y", name="norm")),
        node("Relu", "x", "z", control=("norm",)),
    )
    function = make_function(nodes, {"v": draw(1, 2, 3, 1, 1), "s": np.ones(2, np.float32)}, (1, 3, 4, 4), "y", "z")
    assert fold_batch_normalization(function) is function


def quantize_by(function: Function, values: list[Any], options: QuantizationOptions = ALL_PRODUCTS) -> Function | None:
    """Return the Function quantized by the ranges of one call; None where a value is not finite or nothing can be quantized."""
    try:
        table = make_table(function, dict(zip((v.name for v in function.inputs), values, strict=True)))
    except CalibrationError:  # a range needs finite numbers
        return None
    return quantize(function, table, options)


@pytest.mark.slow
@given(living(FORM), st.integers(0, 9))
def test_a_quantized_graph_is_valid_and_runs(function: Function, seed: int) -> None:
    function = infer_shapes(function)
    values = make_random_inputs(function, seed)
    for item in (quantize_by(function, values), quantize_weights(function)):
        if item is not None:
            verify(item)
            verify_types(infer_shapes(item))
            for tensor, value in zip(evaluate(item, values), function.outputs, strict=True):
                assert isinstance(value.type, TensorType) and tensor.dtype == value.type.dtype.numpy


# OpenVINO gives a quantized product of a vector another shape; the product then runs on toy.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_engines_agree_on_quantized_graphs(engine: str) -> None:
    """Where a rounding step is between, a value may be one step off; what is compared is how far results are from each other."""
    # Without VNNI, kernels for uint8 by int8 saturate unless weights have 7 bits.
    options = replace(ALL_PRODUCTS, reduce_range=needs_reduced_range([registry.create(engine)]))
    attempts = 0
    for seed in range(120):
        function = infer_shapes(make_seeded_function(seed, FORM))
        values = make_random_inputs(function, seed)
        quantized = quantize_by(function, values, options)
        if quantized is None or "QuantizeLinear" not in count_ops(quantized):
            continue
        attempts += 1
        exact, near = evaluate(function, values), evaluate(quantized, values)
        with xrt.XRTModule(quantized, engine=[engine, "toy"]) as module:
            results = module(*values)
        items = list(results) if len(quantized.outputs) > 1 else [results]
        for a, b, c in zip(items, near, exact, strict=True):
            if b.dtype.kind == "f":
                step = np.abs(b.astype(np.float64) - c).max(initial=0.0) + np.abs(c).max(initial=0.0) / 64
                assert np.abs(a.astype(np.float64) - b).max(initial=0.0) <= step, seed
    assert attempts >= 10
