"""Right first: precision is as the caller allows, and what is lost by it is told."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from xrt.engines import ExecutionOptions
from xrt.graph import Function
from xrt.passes import infer_shapes
from xrt.placement.profiler import STRETCH, capture_activations, check_against_reference, find_first_random_node
from xrt.placement.reference import evaluate
from xrt.verify.execution import Stopped

PAIR = infer_shapes(chain("Exp", "Cos"))
RIGHT = evaluate(PAIR, [X])


def found(results: Any, precision: Any = "fp32") -> tuple[str, str]:
    return check_against_reference(PAIR, [X], results, RIGHT, evaluate, ExecutionOptions(precision=precision))


def test_what_agrees_needs_no_word() -> None:
    assert found(RIGHT) == ("", "")


def test_a_lower_precision_is_wrong_unless_it_is_allowed() -> None:
    coarse = [RIGHT[0] + np.float32(0.01)]
    assert "differ" in found(coarse)[0]
    wrong, note = found(coarse, "bf16")
    assert not wrong and note.startswith("off by 0.01 at most (")
    wrong, note = found([RIGHT[0] + np.float32(0.5)], "bf16")
    assert wrong and not note


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_too_few_results_are_wrong(precision: str) -> None:
    assert found([], precision) == ("there are 0 outputs; 1 were expected", "")


def test_captured_values_are_those_of_the_reference_as_far_as_memory_goes() -> None:
    values = capture_activations(PAIR, [X], evaluate)
    assert set(values) == {"x", "v1", "y"}
    np.testing.assert_array_equal(values["v1"], np.exp(X))
    assert set(capture_activations(PAIR, [X], evaluate, most=23)) == {"x", "y"}
    assert set(capture_activations(PAIR, [X], evaluate, most=24)) == {"x", "v1", "y"}


def test_the_reference_computes_the_same_in_stretches_and_can_be_stopped_between_them() -> None:
    function = infer_shapes(chain(*("Exp", "Cos", "Sin", "Abs", "Neg") * 12))
    whole, asked, stop = capture_activations(function, [X], evaluate), [], threading.Event()

    def stretch(part: Function, inputs: Any) -> Any:
        asked.append(len(part.nodes))
        return evaluate(part, inputs)

    parts = capture_activations(function, [X], stretch, is_stopped=stop.is_set)
    assert asked == [STRETCH, len(function.nodes) - STRETCH]
    assert {name: value.tobytes() for name, value in parts.items()} == {name: value.tobytes() for name, value in whole.items()}
    assert set(capture_activations(function, [X], evaluate, most=0, is_stopped=stop.is_set)) == {"x", function.outputs[0].name}
    stop.set()
    with pytest.raises(Stopped, match=r"^after 0 of 60 nodes$"):
        capture_activations(function, [X], evaluate, is_stopped=stop.is_set)


def test_what_is_drawn_cannot_be_compared_with_anything() -> None:
    assert find_first_random_node(PAIR) == ""
    assert find_first_random_node(chain("Bernoulli")) == "node 'n0' (Bernoulli) does not give the same twice"
