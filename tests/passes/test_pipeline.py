"""Passes are values; a pipeline runs them in order, prints, parses back and computes the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings

from tests.passes.agreement import assert_computes_the_same
from xrt.errors import OptionError
from xrt.formats.text import parse
from xrt.passes import infer_shapes
from xrt.passes.pipeline import (
    PASSES,
    DropDeadNodes,
    ExpandGradientNodes,
    FoldConstants,
    InferShapes,
    InlineConstantControlFlow,
    Pass,
    Pipeline,
    make_pipeline,
)
from xrt.placement.reference import evaluate
from xrt.testing.strategies import functions, make_random_inputs

if TYPE_CHECKING:
    from xrt.graph import Function

STANDARD = "expand-gradient-nodes, inline-constant-control-flow, fold-constants, drop-dead-nodes"
TWO = """function main(x: float32[2]) -> (y: float32[2]) {
  opset ai.onnx 18
  const c: float32[2] = [1.0, 2.0]
  k = Neg(c)
  d = Neg(x)
  y = Add(x, k)
}
"""


def test_a_pipeline_prints_lists_and_parses_back() -> None:
    pipeline = make_pipeline(evaluate)
    assert str(pipeline) == STANDARD
    assert [type(one) for one in pipeline] == [ExpandGradientNodes, InlineConstantControlFlow, FoldConstants, DropDeadNodes]
    assert Pipeline.parse(STANDARD, evaluate) == pipeline
    assert len(make_pipeline(None)) == 3
    assert str(Pipeline.parse(", ".join(PASSES), evaluate)) == ", ".join(PASSES)


def test_a_pass_that_does_not_exist_is_reported() -> None:
    with pytest.raises(OptionError, match=r"^there is no pass 'fold-constant'. Did you mean 'fold-constants'\?"):
        Pipeline.parse("fold-constant", evaluate)


def test_the_observer_sees_each_pass_with_its_result() -> None:
    function = infer_shapes(parse(TWO))
    seen: list[tuple[str, list[str]]] = []
    make_pipeline(evaluate).run(function, lambda one, after: seen.append((str(one), [node.op_type for node in after.nodes])))
    assert seen == [
        ("expand-gradient-nodes", ["Neg", "Add", "Neg"]),
        ("inline-constant-control-flow", ["Neg", "Add", "Neg"]),
        ("fold-constants", ["Add", "Neg"]),
        ("drop-dead-nodes", ["Add"]),
    ]


@dataclass(frozen=True)
class _Renaming(Pass):
    name: ClassVar[str] = "rename"
    to: str = "other"

    def run(self, function: Function) -> Function:
        return function.replace(name=self.to)


def test_a_pass_of_ones_own_runs_among_the_others() -> None:
    pipeline = Pipeline((InferShapes(), _Renaming(to="mine")))
    assert pipeline.run(parse(TWO)).name == "mine"
    assert pipeline == Pipeline((InferShapes(), _Renaming(to="mine"))) != Pipeline((InferShapes(), _Renaming()))
    assert repr(_Renaming()) == "_Renaming(to='other')"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(function=functions())
def test_the_pipeline_of_a_module_keeps_the_results(function: Function) -> None:
    inputs = make_random_inputs(function, 0)
    with np.errstate(all="ignore"):
        optimized = make_pipeline(evaluate).run(infer_shapes(function))
    assert_computes_the_same(optimized, function, inputs)
