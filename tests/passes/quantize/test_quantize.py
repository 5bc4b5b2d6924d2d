"""Quantization: results against exact integer arithmetic, and the form of the Function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st

from tests.passes.quantize.models import count_ops, draw, make_function, make_table
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import CalibrationError, OptionError
from xrt.formats.onnx import to_model
from xrt.graph import DType, Function, Node, NodePattern, hash_values
from xrt.passes.quantize import (
    QuantizationOptions,
    fold_batch_normalization,
    list_calibrated_values,
    quantize,
    quantize_weights,
    why_not_quantized,
)
from xrt.passes.quantize.weights import find_limits, fit_activation, fit_weight, round_to_integers
from xrt.precision.byte_sums import needs_reduced_range
from xrt.testing.generate import rename_values

Array = np.ndarray[Any, Any]
CONV = [Node("Conv", ("x", "w", "b"), ("c",)), Node("Relu", ("c",), ("r",)), Node("Conv", ("r", "v"), ("y",))]


def two_convolutions() -> Function:
    constants = {"w": draw(1, 4, 3, 3, 3), "b": draw(2, 4), "v": draw(3, 2, 4, 1, 1)}
    return make_function(CONV, constants, (2, 3, 8, 8))


PRODUCTS = {
    "MatMul": ([Node("MatMul", ("x", "w"), ("y",))], {"w": draw(1, 6, 5)}),
    "Gemm": ([Node("Gemm", ("x", "w", "b"), ("y",))], {"w": draw(1, 6, 5), "b": draw(2, 5)}),
    "Gemm of a transposed matrix": (
        [Node("Gemm", ("x", "w", "b"), ("y",)).with_attributes(transB=1)],
        {"w": draw(1, 5, 6), "b": draw(2, 5)},
    ),
}
OPTIONS = {
    "uint8": QuantizationOptions(),
    "int8": QuantizationOptions(activations="int8", symmetric_activations=True),
    "one scale": QuantizationOptions(per_channel=False),
    "any zero point": QuantizationOptions(weights="uint8", symmetric_weights=False),
    "7 bits": QuantizationOptions(reduce_range=True),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_equals_integer_arithmetic(product: str, options: str) -> None:
    nodes, constants = PRODUCTS[product]
    x = draw(7, 9, 6)
    function = make_function(nodes, constants, x.shape)
    made = quantize(function, make_table(function, {"x": x}), OPTIONS[options])
    terms = {name: constant.array for name, constant in made.constants.items()}
    scale, zero = terms["x_scale"], int(terms["x_zero_point"])
    integers = np.clip(np.rint(x / scale) + zero, *find_limits(DType.of(terms["x_zero_point"]))).astype(np.int64) - zero
    is_turned = bool(nodes[0].attr("transB", 0))
    weights, w_scale, w_zero = terms["w_quantized"], terms["w_scale"], terms["w_zero_point"]
    if w_scale.ndim and is_turned:
        w_scale, w_zero = w_scale[:, None], w_zero[:, None]
    whole = weights.astype(np.int64) - w_zero.astype(np.int64)
    total = integers @ (whole.T if is_turned else whole)
    if "b" in constants:
        assert terms["b_quantized"].dtype == np.int32
        total = total + terms["b_quantized"].astype(np.int64)
    factor = scale.astype(np.float64) * (w_scale.T if is_turned and w_scale.ndim else w_scale).astype(np.float64)
    assert np.allclose(evaluate(made, [x])[0], total * factor, rtol=1e-5, atol=1e-5)


def test_a_convolution_in_bytes_equals_integer_arithmetic_up_to_ties() -> None:
    function, x = two_convolutions(), draw(5, 2, 3, 8, 8)
    made = quantize(function, make_table(function, {"x": x}))
    terms = {name: constant.array for name, constant in made.constants.items()}
    codes = made.replace(outputs=tuple(made.value(f"{name}_quantized") for name in ("x", "r")))
    found, result = (array.astype(np.int64) for array in evaluate(codes, [x]))
    centered = np.pad(found - int(terms["x_zero_point"]), ((0, 0), (0, 0), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(centered, (3, 3), axis=(2, 3))
    total = np.einsum("nchwij,ocij->nohw", windows, terms["w_quantized"].astype(np.int64))
    total = total + terms["b_quantized"].astype(np.int64)[:, None, None]
    factor = terms["x_scale"].astype(np.float64) * terms["w_scale"].astype(np.float64) / terms["r_scale"].astype(np.float64)
    exact = np.clip(total * factor[:, None, None], 0, 255)  # the zero point of what a Relu gives is 0
    assert int(terms["r_zero_point"]) == 0
    off = result != np.rint(exact)
    assert np.all(np.abs(np.abs(exact - np.floor(exact))[off] - 0.5) < 1e-3) and off.mean() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "openvino"])
@pytest.mark.parametrize("options", ["uint8", "int8"])
def test_engines_agree_with_the_reference(engine: str, options: str) -> None:
    import xrt

    function, x = two_convolutions(), draw(5, 2, 3, 8, 8)
    # Without VNNI, kernels for uint8 by int8 saturate unless weights have 7 bits.
    reduce_range = needs_reduced_range([registry.create(engine)])
    made = quantize(function, make_table(function, {"x": x}), replace(OPTIONS[options], reduce_range=reduce_range))
    expected = evaluate(made, [x])[0]
    with xrt.XRTModule(made, engine=engine) as module:
        found = module(x)
    step = float(made.constants["r_scale"].array) * np.abs(function.constants["v"].array).sum(axis=1).max()
    assert np.abs(found - expected).max() <= step + 1e-4  # one step of the middle value: a tie that is rounded the other way


def test_the_result_of_the_last_convolution_is_not_quantized() -> None:
    function, x = two_convolutions(), draw(5, 2, 3, 8, 8)
    made = quantize(function, make_table(function, {"x": x}))
    assert count_ops(made) == {"QuantizeLinear": 2, "DequantizeLinear": 5, "Conv": 2, "Relu": 1}
    onnx.checker.check_model(to_model(made), full_check=True)


def test_values_and_weights_with_several_readers_are_quantized_once() -> None:
    nodes = [
        Node("MatMul", ("x", "w"), ("a",)),
        Node("Add", ("x", "a"), ("s",)),
        Node("MatMul", ("s", "w"), ("p",)),
        Node("MatMul", ("s", "v"), ("q",)),
        Node("Concat", ("p", "q"), ("y",)).with_attributes(axis=1),
    ]
    function = make_function(nodes, {"w": draw(1, 6, 6), "v": draw(2, 6, 6)}, (4, 6))
    made = quantize(function, make_table(function, {"x": draw(3, 4, 6)}))
    assert count_ops(made) == {"QuantizeLinear": 2, "DequantizeLinear": 4, "MatMul": 3, "Add": 1, "Concat": 1}
    assert [node.inputs for node in made.nodes if node.op == "Add"] == [("x", "a")]  # computed in floats: it reads floats


def test_a_sum_between_convolutions_reads_and_gives_bytes() -> None:
    nodes = [
        Node("Conv", ("x", "w"), ("a",)).with_attributes(pads=[1, 1, 1, 1]),
        Node("Conv", ("a", "w"), ("b",)).with_attributes(pads=[1, 1, 1, 1]),
        Node("Add", ("a", "b"), ("s",)),
        Node("MaxPool", ("s",), ("m",)).with_attributes(kernel_shape=[2, 2]),
        Node("Conv", ("m", "w"), ("y",)),
    ]
    function = make_function(nodes, {"w": draw(1, 3, 3, 3, 3)}, (1, 3, 8, 8))
    table = make_table(function, {"x": draw(3, 1, 3, 8, 8)})
    made = quantize(function, table)
    (add,) = (node for node in made.nodes if node.op == "Add")
    assert add.inputs == ("a_dequantized", "b_dequantized")
    assert made.constants["m_scale"] == made.constants["s_scale"] if "s_scale" in made.constants else True
    assert {found.name for found in table.ranges} == {"x", "a", "b", "s"}


def test_patterns_select_nodes() -> None:
    function, table = two_convolutions(), make_table(two_convolutions(), {"x": draw(5, 2, 3, 8, 8)})
    made = quantize(function, table, QuantizationOptions(exclude=("name:y",)))  # type: ignore[arg-type]
    assert [name for name in made.constants if name.endswith("_quantized")] == ["w_quantized", "b_quantized"]
    assert quantize(function, table, QuantizationOptions(include=("MatMul",))) is function  # type: ignore[arg-type]
    assert NodePattern.parse(" name: /a/* | b").matches(Node("Conv", ("x",), ("y",), name="/a/c"))
    assert str(NodePattern.parse("Conv|Ge*")) == "Conv|Ge*"


REASONS = {
    "Relu": (Node("Relu", ("x",), ("y",)), "its operator has no quantized form here"),
    "excluded": (Node("ConvTranspose", ("x", "w"), ("y",)), "no pattern selects it"),
    "computed weights": (Node("Conv", ("x", "x"), ("y",)), "its weights are computed"),
    "two computed": (Node("MatMul", ("x", "x"), ("y",)), "both operands are computed"),
    "constant first": (Node("MatMul", ("w", "x"), ("y",)), "its first operand is constant"),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_node_that_stays_has_a_reason(case: str) -> None:
    node, reason = REASONS[case]
    function = make_function([node], {"w": draw(1, 3, 3, 3, 3)}, (3, 3, 3, 3))
    assert why_not_quantized(function.nodes[0], function, QuantizationOptions()) == reason


def test_a_product_of_two_computed_values_is_quantized_where_asked() -> None:
    function = make_function([Node("MatMul", ("x", "x"), ("y",))], {}, (4, 4))
    table = make_table(function, {"x": draw(1, 4, 4)})
    made = quantize(function, table, QuantizationOptions(activation_products=True))
    assert count_ops(made) == {"QuantizeLinear": 1, "DequantizeLinear": 1, "MatMul": 1}


def test_an_older_opset_is_raised_and_a_too_small_range_is_not_used() -> None:
    function = make_function([Node("MatMul", ("x", "w"), ("y",))], {"w": draw(1, 6, 5)}, (3, 6), opset=9)
    table = make_table(function, {"x": draw(1, 3, 6)})
    made = quantize(function, table)
    assert made.opset() == 13
    onnx.checker.check_model(to_model(made), full_check=True)
    tiny = make_table(function, {"x": draw(1, 3, 6, scale=1e-32)})
    assert count_ops(quantize(function, tiny)) == {"MatMul": 1}


def test_weights_of_channels_that_are_all_but_zero_keep_the_bias() -> None:
    weight = draw(1, 6, 5)
    weight[:, 2], weight[:, 3] = 0, weight[:, 3] * np.float32(1e-12)
    function = make_function([Node("Gemm", ("x", "w", "b"), ("y",))], {"w": weight, "b": np.ones(5, np.float32)}, (3, 6))
    x = draw(2, 3, 6)
    made = quantize(function, make_table(function, {"x": x}))
    assert count_ops(made)["DequantizeLinear"] == 3
    assert np.allclose(evaluate(made, [x])[0][:, 2:4], 1, atol=1e-3)


def test_tables_of_other_models_are_errors() -> None:
    function = two_convolutions()
    other = make_function([Node("MatMul", ("x", "w"), ("y",))], {"w": draw(1, 6, 5)}, (3, 6))
    nodes = [Node("Exp", ("x",), ("e",)), Node("MatMul", ("e", "w"), ("y",))]
    inner = make_function(nodes, {"w": draw(1, 6, 5)}, (3, 6))
    known = make_table(inner, {"x": draw(1, 3, 6)})
    with pytest.raises(CalibrationError, match="it was made of another model, or the weights have changed since"):
        quantize(other, known)
    own = make_table(function, {"x": draw(5, 2, 3, 8, 8)})
    part = type(own)(method="minmax", ranges=own.ranges[:1])
    with pytest.raises(CalibrationError, match=r"no range for 1 of the values to quantize: 'r'\. Calibrate this model"):
        quantize(function, part)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int16"}, "weights must be one of int8, uint8; got 'int16'"),
        ({"activations": "float"}, "activations must be one of uint8, int8; got 'float'"),
        ({"per_channel": 1}, "per_channel must be True or False; got 1"),
        ({"include": ["!Conv"]}, "'!Conv' is no operator"),
        ({"exclude": ["Conv||Gemm"]}, "'Conv||Gemm' is not a pattern of nodes"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        QuantizationOptions(**options)
    assert message in str(caught.value)


# ---------------------------------------------------------------------- weights alone


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_stored_weights_are_near_and_engines_agree(weights: Any, symmetric: bool, engine: str) -> None:
    import xrt

    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node("Gemm", ("a", "v", "b"), ("y",)).with_attributes(transB=1)]
    function = make_function(nodes, {"w": draw(1, 80, 24), "v": draw(2, 7, 24), "b": draw(3, 7)}, (5, 80))
    options = QuantizationOptions(weights=weights, symmetric_weights=symmetric)
    made = quantize_weights(function, options)
    onnx.checker.check_model(to_model(made), full_check=True)
    x = draw(4, 5, 80)
    exact, near = evaluate(function, [x])[0], evaluate(made, [x])[0]
    assert np.linalg.norm(near - exact) / np.linalg.norm(exact) < 0.02
    with xrt.XRTModule(made, engine=engine) as module:
        assert np.allclose(module(x), near, rtol=1e-3, atol=1e-2)


# ---------------------------------------------------------------------- BatchNormalization, parameters, keys


def test_batch_normalization_is_folded_into_the_convolution() -> None:
    nodes = [Node("Conv", ("x", "w"), ("c",)), Node("BatchNormalization", ("c", "s", "t", "m", "d"), ("y",))]
    constants = {"w": draw(1, 4, 3, 3, 3), "s": draw(2, 4), "t": draw(3, 4), "m": draw(4, 4), "d": np.abs(draw(5, 4))}
    function, x = make_function(nodes, constants, (1, 3, 6, 6)), draw(6, 1, 3, 6, 6)
    made = fold_batch_normalization(function)
    assert count_ops(made) == {"Conv": 1}
    assert np.allclose(evaluate(made, [x])[0], evaluate(function, [x])[0], rtol=1e-4, atol=1e-4)
    kept = function.replace(outputs=(*function.outputs, function.value("c")))
    assert fold_batch_normalization(kept) is kept


RANGES = st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2).map(sorted)


@pytest.mark.slow
@given(RANGES, st.sampled_from(["uint8", "int8"]), st.booleans())
def test_parameters_of_any_range_have_zero_and_reach_both_ends(range_: list[float], text: str, symmetric: bool) -> None:
    found = fit_activation(*range_, DType.parse(text), symmetric=symmetric)
    if found is None:
        assert max(map(abs, range_)) < 1e-27
        return
    ends = np.array([*range_, 0], np.float32)
    back = (round_to_integers(ends, found, DType.parse(text)).astype(np.float64) - int(found.zero_point)) * float(found.scale)
    assert back[2] == 0 and np.all(np.abs(back - ends) <= float(found.scale) * 1.01)


@pytest.mark.slow
@given(RANGES, st.sampled_from(["uint8", "int8"]), st.booleans())
def test_weights_of_any_range_are_within_half_a_step(range_: list[float], text: str, symmetric: bool) -> None:
    low, high = np.array(range_[:1]), np.array(range_[1:])
    found = fit_weight(low, high, DType.parse(text), symmetric=symmetric)
    ends = np.array([*range_, 0], np.float32)
    back = (round_to_integers(ends, found, DType.parse(text)).astype(np.float64) - found.zero_point.astype(int)) * found.scale
    assert back[2] == 0 and np.all(np.abs(back - ends) <= found.scale * 1.01)


def test_keys_outlast_a_renaming_and_not_a_change() -> None:
    function = two_convolutions()
    names = {name: f"other_{name}" for name in ("x", "c", "r", "w", "b", "v")}
    renamed = rename_values(function, names)
    keys, other = hash_values(function), hash_values(renamed)
    assert {names.get(name, f"{name}'"): key for name, key in keys.items()} == other
    assert len(set(keys.values())) == len(keys)
    changed = function.replace(constants={**function.constants, "w": type(function.constants["w"])(draw(9, 4, 3, 3, 3))})
    assert [name for name, key in hash_values(changed).items() if key == keys[name]] == ["x", "b", "v"]
    assert list_calibrated_values(function) == ["x", "r"]
