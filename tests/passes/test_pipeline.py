"""The passes of a module, in their order, compute the same as the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.passes.agreement import assert_computes_the_same
from xrt.formats.text import parse
from xrt.graph import Function
from xrt.passes import infer_shapes, optimize
from xrt.placement.reference import evaluate
from xrt.testing.strategies import functions, make_random_inputs

TWO = """function main(x: float32[2]) -> (y: float32[2]) {
  opset ai.onnx 18
  const c: float32[2] = [1.0, 2.0]
  k = Neg(c)
  d = Neg(x)
  y = Add(x, k)
}
"""


def test_constants_are_folded_and_dead_nodes_removed() -> None:
    function = infer_shapes(parse(TWO))
    assert [node.op for node in optimize(function, evaluate).nodes] == ["Add"]
    assert [node.op for node in optimize(function).nodes] == ["Neg", "Add"]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(function=functions())
def test_the_passes_of_a_module_keep_the_results(function: Function) -> None:
    inputs = make_random_inputs(function, 0)
    with np.errstate(all="ignore"):
        optimized = optimize(infer_shapes(function), evaluate)
    assert_computes_the_same(optimized, function, inputs)
