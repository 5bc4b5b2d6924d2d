"""What rounding explains: with as few disturbed runs of the reference as it takes, and none once nobody waits."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.graph import Function
from xrt.placement.time_limit import OutOfTime, within_or_stopped
from xrt.testing.corpus.entry import graph, node
from xrt.verify import Verdict, WitnessedReference, Witnesses
from xrt.verify.comparison import OutputJudge
from xrt.verify.execution import Stopped, run_alone, run_pieces, split_regions
from xrt.verify.rounding_error import TRIALS, RoundingTrials

SQUARES = graph(
    {"x": "float32[2]", "y": "float32[2]"},
    {"z": "float32[2]"},
    node("Mul", "x x", "a"),
    node("Mul", "y y", "b"),
    node("Sub", "a b", "z"),
)
INPUTS = [np.array([1000.1, 3], np.float32), np.array([1000.1, 3], np.float32)]
NEAR, FAR = [np.array([0.0625, 0], np.float32)], [np.array([50, 0], np.float32)]


class Counted:
    """The reference, and how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        return run_alone(registry.create("toy{native=off}"), function, inputs)


def test_rounding_explains_cancellation_and_nothing_more() -> None:
    run, trials = Counted(), RoundingTrials(SQUARES, INPUTS)
    expected = run(SQUARES, INPUTS)
    assert trials.explain(NEAR, expected, run), "one rounding of a million"
    for other in ([50, 0], [np.nan, 0], [0]):
        assert not trials.explain([np.array(other, np.float32)], expected, run)


def test_an_agreement_takes_no_disturbed_run() -> None:
    run = Counted()
    expected, judge = run(SQUARES, INPUTS), OutputJudge(SQUARES, INPUTS, run)
    run.runs = 0
    assert judge.agrees(expected, expected)
    assert not judge.agrees(NEAR, expected), "rounding would explain it"
    assert not judge.agrees(FAR, expected)
    assert run.runs == 0


def test_there_are_as_few_disturbed_runs_as_explain_it() -> None:
    run = Counted()
    expected, judge = run(SQUARES, INPUTS), OutputJudge(SQUARES, INPUTS, run)
    run.runs = 0
    assert judge.judge(expected, expected).verdict is Verdict.AGREES and run.runs == 0
    assert judge.judge(NEAR, expected).verdict is Verdict.ROUNDING
    assert 0 < run.runs < TRIALS * len(SQUARES.nodes)
    for _ in range(2):
        assert judge.judge(FAR, expected).verdict is Verdict.DISAGREES
        assert run.runs == TRIALS * len(SQUARES.nodes)


def test_what_has_no_negative_element_gets_none() -> None:
    roots = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Mul", "x x", "a"), node("Sqrt", "a", "y"))
    given = [np.array([1e-4, 1000], np.float32)]
    run = Counted()
    trials = RoundingTrials(roots, given)
    assert trials.explain([np.array([0.1, 1000], np.float32)], run(roots, given), run), "a root of what is nearly zero"
    assert not trials.explain([np.array([50, 1000], np.float32)], run(roots, given), run)


def test_a_result_may_depart_from_the_trials_as_each_of_them_does_from_the_others() -> None:
    """Rounding turns some of many signs, and others in each trial: eight trials do not turn all that a right engine may."""
    count = 5000
    steps = graph(
        {"x": f"float32[{count}]", "y": f"float32[{count}]"},
        {"z": f"float32[{count}]"},
        node("Mul", "x x", "a"),
        node("Mul", "y y", "b"),
        node("Sub", "a b", "c"),
        node("Sign", "c", "z"),
    )
    x = np.random.default_rng(0).uniform(0.5, 1, count).astype(np.float32)
    given, run = [x, x * np.float32(1 - 15 * np.finfo(np.float32).eps)], Counted()
    (expected,), trials = run(steps, given), RoundingTrials(steps, given)
    assert (expected == 1).all()

    def turn(elements: int, value: float = -1) -> list[np.ndarray[Any, Any]]:
        return [np.where(np.arange(count) < elements, np.float32(value), expected)]

    run.runs = 0
    assert trials.explain(turn(20), [expected], run)
    assert run.runs < TRIALS * len(steps.nodes)
    for other in (turn(2000), turn(1, 50), turn(1, np.nan)):
        assert not trials.explain(other, [expected], run)


def test_a_wrong_tail_does_not_hide_among_large_differences() -> None:
    """One row nearly cancels, and its trials are far apart; those of the others are not, and there nothing else is right."""
    rows, columns = 16, 512
    shape = f"float32[{rows},{columns}]"
    differences = graph(
        {"x": shape, "y": shape},
        {"z": shape},
        node("Mul", "x x", "a"),
        node("Mul", "y y", "b"),
        node("Sub", "a b", "c"),
        node("ReduceL2", "c axes", "n", keepdims=1),
        node("Div", "c n", "z"),
        constants={"axes": np.array([1])},
    )
    draw = np.random.default_rng(0)
    x = draw.uniform(0.5, 1, (rows, columns)).astype(np.float32)
    y = draw.uniform(0.5, 1, (rows, columns)).astype(np.float32)
    y[0] = x[0] * np.float32(1 - 60 * np.finfo(np.float32).eps)
    given, run = [x, y], Counted()
    (expected,), trials = run(differences, given), RoundingTrials(differences, given)
    for count in (1, 2, 4):
        wrong = expected.copy()
        wrong[-1, -count:] = 0
        assert not trials.explain([wrong], [expected], run)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_special_values_and_large_ones_stay_what_they_are(dtype: Any) -> None:
    name, most = np.dtype(dtype).name, np.finfo(dtype).max
    same = graph({"x": f"{name}[4]"}, {"y": f"{name}[4]"}, node("Identity", "x", "y"))
    given = [np.array([np.inf, np.nan, -np.inf, most], dtype)]
    run = Counted()
    (expected,) = run(same, given)
    other = expected.copy()
    other[0] = 1
    assert RoundingTrials(same, given).explain([expected], [expected], run)
    assert not RoundingTrials(same, given).explain([other], [expected], run)


def test_a_judge_that_is_stopped_computes_nothing_more() -> None:
    run, stop = Counted(), threading.Event()
    expected, judge = run(SQUARES, INPUTS), OutputJudge(SQUARES, INPUTS, run, stop.is_set)
    stop.set()
    run.runs = 0
    assert judge.judge(expected, expected).verdict is Verdict.AGREES, "which takes no run"
    with pytest.raises(Stopped):
        judge.judge(NEAR, expected)
    assert run.runs == 0


def test_no_witness_is_asked_once_nobody_waits() -> None:
    asked: list[str] = []

    def list_engines() -> Any:
        asked.append("all")
        yield registry.create("ort")

    stop, run = threading.Event(), Counted()
    reference = WitnessedReference(run, Witnesses(list_engines, lambda node, function: False, CompileContext(threads=1)))
    judge, expected = reference.make_judge(SQUARES, INPUTS, stop.is_set), run(SQUARES, INPUTS)
    assert judge.judge(FAR, expected).verdict is Verdict.DISAGREES
    stop.set()
    with pytest.raises(Stopped):
        reference.doubt(judge, FAR, expected)


def test_judges_of_one_function_and_its_arrays_share_what_they_have_computed() -> None:
    run = Counted()
    reference = WitnessedReference(run, Witnesses(lambda: (), lambda node, function: False, CompileContext(threads=1)))
    expected = run(SQUARES, INPUTS)
    run.runs = 0
    for _ in range(2):
        assert reference.make_judge(SQUARES, INPUTS, lambda: False).judge(FAR, expected).verdict is Verdict.DISAGREES
        assert run.runs == TRIALS * len(SQUARES.nodes)
    others = [INPUTS[0] + 1, INPUTS[1]]
    assert reference.make_judge(SQUARES, others, lambda: False).judge(FAR, run(SQUARES, others)).verdict is Verdict.DISAGREES
    assert run.runs == 2 * TRIALS * len(SQUARES.nodes) + 1


def test_work_that_takes_too_long_is_stopped() -> None:
    has_ended = threading.Event()

    def compare_for_ever(is_stopped: Callable[[], bool]) -> None:
        while not is_stopped():
            has_ended.wait(0.001)
        has_ended.set()
        raise Stopped

    with pytest.raises(OutOfTime):
        within_or_stopped(0.01, compare_for_ever)
    assert has_ended.wait(60)


@pytest.mark.slow
def test_a_value_is_let_go_of_after_the_last_piece_that_reads_it() -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[list[bool]] = []

    def run(piece: Function, inputs: Sequence[Any]) -> list[Any]:
        gc.collect()
        alive.append([ref() is not None for ref in made])
        results = run_alone(registry.create("toy{native=off}"), piece, inputs)
        made.extend(weakref.ref(one) for one in results)
        return results

    (result,) = run_pieces(SQUARES, split_regions(SQUARES, [0, 1, 2]), INPUTS, run)
    assert alive == [[], [True], [True, True]]
    chain = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Exp", "x", "a"), node("Neg", "a", "b"), node("Abs", "b", "y"))
    made.clear()
    alive.clear()
    run_pieces(chain, split_regions(chain, [0, 1, 2]), INPUTS[:1], run)
    assert alive == [[], [True], [False, True]]
    np.testing.assert_array_equal(result, [0, 0])
