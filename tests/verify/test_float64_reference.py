"""Results beyond the tolerance: the reference in float64 decides."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from xrt.engines.contract import registry
from xrt.graph import DType, Function, Node, OptionalType, TensorType, Value
from xrt.testing.corpus.entry import graph, node
from xrt.verify import CheckVerdict, Verdict
from xrt.verify.comparison import OutputJudge, widen
from xrt.verify.execution import Stopped, run_alone

SQUARES = graph(
    {"x": "float32[2]", "y": "float32[2]"},
    {"z": "float32[2]"},
    node("Mul", "x x", "a"),
    node("Mul", "y y", "b"),
    node("Sub", "a b", "z"),
)
INPUTS = [np.array([1000.1, 3], np.float32), np.array([1000.05, 3], np.float32)]
EXACT = float(INPUTS[0][0]) ** 2 - float(INPUTS[1][0]) ** 2


class Counted:
    """The reference, and how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        return run_alone(registry.create("toy{native=off}"), function, inputs)


def judge(function: Function, inputs: Sequence[Any], *results: Any) -> CheckVerdict:
    run = Counted()
    expected = run(function, inputs)
    return OutputJudge(function, inputs, run).judge(
        [np.array(x, y.dtype) for x, y in zip(results, expected, strict=True)], expected
    )


def test_cancellation_is_explained_by_ten_times_the_error_of_the_reference() -> None:
    run = Counted()
    (expected,) = run(SQUARES, INPUTS)
    error = abs(float(expected[0]) - EXACT)
    assert error > 1e-3
    assert judge(SQUARES, INPUTS, [EXACT + 8 * error, 0]).verdict is Verdict.ROUNDING
    for wrong in ([EXACT + 12 * error, 0], [np.nan, 0], [np.inf, 0], [EXACT, 20 * error]):
        assert judge(SQUARES, INPUTS, wrong).verdict is Verdict.DISAGREES


def test_an_optional_without_a_value_excuses_and_accuses_nothing() -> None:
    kind = OptionalType(TensorType(DType.FLOAT32, (2,)))
    both = SQUARES.replace(
        inputs=(*SQUARES.inputs, Value("o", kind)),
        outputs=(*SQUARES.outputs, Value("p", kind)),
        nodes=(*SQUARES.nodes, Node("Identity", ("o",), ("p",))),
    )
    run, inputs = Counted(), [*INPUTS, None]
    expected = run(both, inputs)
    near = np.array([EXACT + 8 * abs(float(expected[0][0]) - EXACT), 0], np.float32)
    assert OutputJudge(both, inputs, run).judge([near, None], expected).verdict is Verdict.ROUNDING
    assert OutputJudge(both, inputs, run).judge([near, near], expected).verdict is Verdict.DISAGREES


def test_an_agreement_takes_no_further_run() -> None:
    run, stop = Counted(), threading.Event()
    expected = run(SQUARES, INPUTS)
    stop.set()
    judge = OutputJudge(SQUARES, INPUTS, run, stop.is_set)
    assert judge.judge(expected, expected).verdict is Verdict.AGREES
    with pytest.raises(Stopped):
        judge.judge([expected[0] + 50], expected)
    assert run.runs == 1


def test_a_row_that_cancels_does_not_excuse_the_others() -> None:
    shape = "float32[16,64]"
    draw = np.random.default_rng(0)
    x, y = (draw.uniform(0.5, 1, (16, 64)).astype(np.float32) for _ in range(2))
    y[0] = x[0] * np.float32(1 - 60 * np.finfo(np.float32).eps)
    normed = graph(
        {"x": shape, "y": shape},
        {"z": shape},
        node("Mul", "x x", "a"),
        node("Mul", "y y", "b"),
        node("Sub", "a b", "c"),
        node("ReduceL2", "c axes", "n", keepdims=1),
        node("Div", "c n", "z"),
        constants={"axes": np.array([1])},
    )
    (expected,) = Counted()(normed, [x, y])
    for place in (-1, 1):
        wrong = expected.copy()
        wrong[place, -1] = 0
        assert judge(normed, [x, y], wrong).verdict is Verdict.DISAGREES


def test_values_of_bodies_attributes_and_constants_become_float64() -> None:
    model = graph(
        {"x": "float16[3]"},
        {"y": "float16[3]"},
        node("Cast", "x", "a", to=1),
        node("Mul", "a c", "b"),
        node("Cast", "b", "y", to=10),
        constants={"c": np.array([1 / 3, 2, 3], np.float32)},
    )
    (y,) = Counted()(widen(model), [np.array([1, 1e-9, 1e6])])
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.array([1, 1e-9, 1e6]) * np.array([1 / 3, 2, 3], np.float32), rtol=1e-15)
