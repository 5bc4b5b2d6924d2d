"""Large channels moved into weights: the same function, and one that can be quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from tests.passes.quantize.models import draw, make_function, prepare
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import OptionError
from xrt.graph import Constant, Function, Node
from xrt.models import load, sample_inputs
from xrt.passes.quantize import balance_channels, list_balanced_values, quantize

HIDDEN = 64
FACTORS = np.where(np.arange(HIDDEN) % 11 == 0, np.float32(40), np.float32(1))


def make_hard(function: Function) -> Function:
    """Return the same function with six channels of each normalization 40 times as large, and their weights 40 times smaller."""
    constants = dict(function.constants)
    normalized = {*list_balanced_values(function)}
    for node in function.nodes:
        if node.outputs[0] in normalized:
            constants |= {name: Constant(function.constants[name].array * FACTORS) for name in node.inputs[1:]}
        elif node.op == "Reshape" and node.inputs[0] in normalized:
            normalized.add(node.outputs[0])
        elif node.op in ("Gemm", "MatMul") and node.inputs[0] in normalized:
            constants[node.inputs[1]] = Constant(function.constants[node.inputs[1]].array / FACTORS[:, None])
    return function.replace(constants=constants)


def run(function: Function, seeds: range) -> Any:
    return np.stack([evaluate(function, list(sample_inputs(function, seed).values()))[0] for seed in seeds])


def measure_quantized(function: Function, exact: Any) -> float:
    table = xrt.calibrate(function, [sample_inputs(function, seed) for seed in range(6)], engine="ort")
    found = run(quantize(function, table), range(100, 103))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def find_magnitudes(function: Function) -> dict[str, Any]:
    names = list_balanced_values(function)
    with xrt.XRTModule(function, engine="ort") as module:
        found = [module(**sample_inputs(function, seed), fetch=names) for seed in range(6)]
    return {name: np.max([np.abs(one[name]).reshape(-1, HIDDEN).max(axis=0) for one in found], axis=0) for name in names}


@pytest.mark.slow
def test_outlier_channels_cost_little_once_they_are_balanced() -> None:
    plain = prepare(load("gpt", layers=1, hidden=HIDDEN, heads=2, tokens=8, vocabulary=50))
    hard = make_hard(plain)
    exact = run(plain, range(100, 103))
    assert np.allclose(run(hard, range(100, 103)), exact, rtol=1e-4, atol=1e-4)
    balanced = balance_channels(hard, find_magnitudes(hard))
    assert np.allclose(run(balanced, range(100, 103)), exact, rtol=1e-4, atol=1e-4)
    errors = [measure_quantized(one, exact) for one in (plain, hard, balanced)]
    assert errors[1] > 5 * errors[0] and errors[2] < 1.5 * errors[0]


NORMALIZED = Node("LayerNormalization", ("x", "s", "t"), ("n",))
PRODUCT = Node("MatMul", ("n", "w"), ("y",))
OTHERS: dict[str, tuple[list[Node], tuple[str, ...]]] = {
    "an output": ([NORMALIZED, PRODUCT], ("y", "n")),
    "a residual sum": ([NORMALIZED, PRODUCT, Node("Add", ("n", "x"), ("z",))], ("y", "z")),
    "a second operand": ([NORMALIZED, Node("MatMul", ("w", "n"), ("y",))], ("y",)),
    "a computed scale": ([Node("Exp", ("s",), ("e",)), Node("LayerNormalization", ("x", "e", "t"), ("n",)), PRODUCT], ("y",)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_reads_the_value_keeps_it_as_it_is(case: str) -> None:
    nodes, outputs = OTHERS[case]
    function = make_function(nodes, {"s": draw(1, 6), "t": draw(2, 6), "w": draw(3, 6, 6)}, (6, 6), *outputs)
    assert list_balanced_values(function) == []
    assert balance_channels(function, {"n": np.ones(6)}) is function


def test_zeros_are_left_alone_and_a_strength_has_limits() -> None:
    function = make_function([NORMALIZED, PRODUCT], {"s": draw(1, 6), "t": draw(2, 6), "w": draw(3, 6, 5)}, (6, 6))
    made = balance_channels(function, {"n": np.array([0, 1, 1e9, 1, 1e-9, 1])})
    x = draw(4, 6, 6)
    assert np.allclose(evaluate(made, [x])[0], evaluate(function, [x])[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match="strength must be from 0 to 1; got 2"):
        balance_channels(function, {}, 2)
