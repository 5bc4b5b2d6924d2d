"""Generated graphs: passes before quantization change no result, and engines agree on a quantized graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.laws.laws import living
from tests.passes.quantize.models import count_ops, draw, make_function
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Function, Node, TensorType, hash_values
from xrt.graph.verify import verify, verify_types
from xrt.passes import infer_shapes
from xrt.passes.quantize import (
    QuantizationOptions,
    fold_batch_normalization,
    fuse_biases,
    list_calibrated_values,
    quantize,
    quantize_weights,
)
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.collectors import Observer
from xrt.testing.generate import make_seeded_function, rename_values
from xrt.testing.strategies import Form, make_random_inputs

pytestmark = pytest.mark.slow

FORM = Form(families=("product", "window", "elementwise"), aliases=False, symbolic=False, empty=False)
OPTIONS = QuantizationOptions(activation_products=True, include=("*",))  # type: ignore[arg-type]  # texts are read


def is_near(found: list[Any], expected: list[Any]) -> bool:
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True) for a, b in zip(found, expected, strict=True))


@given(living(FORM), st.integers(0, 9))
def test_passes_before_quantization_change_no_result(function: Function, seed: int) -> None:
    function = infer_shapes(function)
    values = make_random_inputs(function, seed)
    made = fuse_biases(fold_batch_normalization(function))
    verify(made)
    verify_types(infer_shapes(made))
    assert is_near(evaluate(made, values), evaluate(function, values))


@given(living(FORM))
def test_keys_do_not_depend_on_names(function: Function) -> None:
    keys, other = hash_values(function), hash_values(rename_values(function, {}))
    assert {f"{name}'": key for name, key in keys.items()} == other


def test_nodes_that_others_wait_for_stay() -> None:
    terms = {"w": draw(1, 6, 5), "b": draw(2, 5)}
    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node("Add", ("a", "b"), ("y",), name="add")]
    nodes.append(Node("Relu", ("x",), ("z",), control=("add",)))
    function = make_function(nodes, terms, (3, 6), "y", "z")
    assert fuse_biases(function) is function
    nodes = [Node("Conv", ("x", "v"), ("c",)), Node("BatchNormalization", ("c", "s", "s", "s", "s"), ("y",), name="norm")]
    nodes.append(Node("Relu", ("x",), ("z",), control=("norm",)))
    function = make_function(nodes, {"v": draw(1, 2, 3, 1, 1), "s": np.ones(2, np.float32)}, (1, 3, 4, 4), "y", "z")
    assert fold_batch_normalization(function) is function


def quantize_by(function: Function, values: list[Any], options: QuantizationOptions = OPTIONS) -> Function | None:
    """Return the Function quantized by the ranges of one call; None where a value is not finite or nothing can be quantized."""
    names, keys = list_calibrated_values(function, options), hash_values(function)
    own = {value.name for value in (*function.inputs, *function.outputs)} | set(function.constants)
    inner = [name for name in names if name not in own]
    wide = function.replace(outputs=(*function.outputs, *map(function.value, inner)))
    found = dict(zip((v.name for v in wide.outputs), evaluate(wide, values), strict=True))
    found |= dict(zip((v.name for v in function.inputs), values, strict=True))
    found |= {name: constant.array for name, constant in function.constants.items()}
    if not names or not all(np.isfinite(found[name]).all() for name in names):
        return None
    observer = Observer()
    observer.add({keys[name]: (name, found[name]) for name in names})
    return quantize(function, observer.make_table(), options)


@given(living(FORM), st.integers(0, 9))
def test_a_quantized_graph_is_valid_and_runs(function: Function, seed: int) -> None:
    function = infer_shapes(function)
    values = make_random_inputs(function, seed)
    for made in (quantize_by(function, values), quantize_weights(function)):
        if made is not None:
            verify(made)
            verify_types(infer_shapes(made))
            for found, value in zip(evaluate(made, values), function.outputs, strict=True):
                assert isinstance(value.type, TensorType) and found.dtype == value.type.dtype.numpy


# OpenVINO gives a quantized product of a vector another shape; the product then runs on toy.
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_engines_agree_on_quantized_graphs(engine: str) -> None:
    """Where a rounding step is between, a value may be one step off; what is compared is how far results are from each other."""
    # Without VNNI, kernels for uint8 by int8 saturate unless weights have 7 bits.
    options = replace(OPTIONS, reduce_range=needs_reduced_range([registry.create(engine)]))
    tried = 0
    for seed in range(120):
        function = infer_shapes(make_seeded_function(seed, FORM))
        values = make_random_inputs(function, seed)
        made = quantize_by(function, values, options)
        if made is None or "QuantizeLinear" not in count_ops(made):
            continue
        tried += 1
        exact, near = evaluate(function, values), evaluate(made, values)
        with xrt.XRTModule(made, engine=[engine, "toy"]) as module:
            results = module(*values)
        found = list(results) if len(made.outputs) > 1 else [results]
        for a, b, c in zip(found, near, exact, strict=True):
            if b.dtype.kind == "f":
                step = np.abs(b.astype(np.float64) - c).max(initial=0.0) + np.abs(c).max(initial=0.0) / 64
                assert np.abs(a.astype(np.float64) - b).max(initial=0.0) <= step, seed
    assert tried >= 10
