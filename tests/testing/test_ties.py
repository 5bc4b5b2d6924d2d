"""The evidence of ties: for which outputs there is some, and what it admits."""

from __future__ import annotations

import numpy as np
import pytest

from xrt.comparison import IndexAmbiguity, StepAmbiguity, compare_all
from xrt.engines.contract import registry
from xrt.testing.corpus.entry import f32, graph, node
from xrt.verify.comparison import find_ambiguity
from xrt.verify.execution import run_alone


def on_toy(function, inputs):
    return run_alone(registry.create("toy"), function, inputs)


CASES = {
    "round": ("Round", "float32", {}, [0.5, 0.2], [1, 0]),
    "floor": ("Floor", "float32", {}, [1.0, 0.2], [0, 0]),
    "ceil": ("Ceil", "float32", {}, [1.0, 0.2], [2, 1]),
    "cast": ("Cast", "int32", {"to": 6}, [2.9999999, 0.2], [2, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_at_an_edge_is_a_tie_and_elsewhere_is_none(case):
    op, dtype, attributes, given, other = CASES[case]
    function = graph({"x": "float32[2]"}, {"y": f"{dtype}[2]"}, node(op, "x", "y", **attributes))
    inputs = [f32(*given)]
    [ties] = find_ambiguity(function, inputs, on_toy)
    expected = on_toy(function, inputs)
    assert compare_all([np.array(other, dtype)], expected, ties=[ties])
    assert not compare_all([np.array(other, dtype)], expected)
    wrong = expected[0].copy()
    wrong[1] += 1
    assert not compare_all([wrong], expected, ties=[ties])


@pytest.mark.parametrize("op", ["Less", "Greater", "Equal"])
def test_a_comparison_of_floats(op):
    function = graph({"a": "float32[2]", "b": "float32[2]"}, {"y": "bool[2]"}, node(op, "a b", "y"))
    inputs = [f32(1, 1), f32(1, 2)]
    [ties] = find_ambiguity(function, inputs, on_toy)
    assert ties.near.tolist() == [True, False]


def test_a_comparison_of_integers_is_exact():
    function = graph({"a": "int64[1]"}, {"y": "bool[1]"}, node("Equal", "a a", "y"))
    assert find_ambiguity(function, [np.array([1])], on_toy) == [None]


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_an_index(op):
    function = graph({"x": "float32[2,3]"}, {"y": "int64[2,1]"}, node(op, "x", "y", axis=-1))
    inputs = [f32([[1, 1, 2], [2, 2, 1]])]
    [ties] = find_ambiguity(function, inputs, on_toy)
    assert isinstance(ties, IndexAmbiguity)
    expected = on_toy(function, inputs)
    row = 0 if op == "ArgMin" else 1
    other = expected[0].copy()
    other[row] = 1
    assert compare_all([other], expected, ties=[ties])
    other[1 - row] = 1
    assert not compare_all([other], expected, ties=[ties])


def test_of_topk_the_indices_step_and_the_values_do_not():
    function = graph(
        {"x": "float32[3]"},
        {"v": "float32[2]", "i": "int64[2]"},
        node("TopK", "x k", "v i"),
        constants={"k": np.array([2])},
    )
    values, indices = find_ambiguity(function, [f32(1, 1, 0)], on_toy)
    assert values is None
    assert isinstance(indices, IndexAmbiguity)


def test_a_cast_between_floats_does_not_step():
    function = graph({"x": "float32[1]"}, {"y": "float64[1]"}, node("Cast", "x", "y", to=11))
    assert find_ambiguity(function, [f32([1])], on_toy) == [None]


def test_evidence_is_gathered_from_inside():
    """What the operator read is an inner value, which the model itself does not give out."""
    function = graph({"x": "float32[1]"}, {"y": "float32[1]"}, node("Mul", "x x", "h"), node("Round", "h", "y"))
    [ties] = find_ambiguity(function, [f32([np.sqrt(0.5)])], on_toy)
    assert isinstance(ties, StepAmbiguity)
    assert ties.near.tolist() == [True]


def test_an_output_that_is_an_input_has_no_ties():
    function = graph({"x": "float32[1]"}, {"x": "float32[1]", "y": "float32[1]"}, node("Round", "x", "y"))
    given, stepping = find_ambiguity(function, [f32([0.5])], on_toy)
    assert given is None
    assert stepping is not None
