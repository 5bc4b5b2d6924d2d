"""Medians, intervals, ties and loads for numbers whose truth is known; models and candidates as text."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from xrt.bench import BenchCandidate, BenchTarget
from xrt.errors import OptionError, XRTError
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.measure import statistics
from xrt.measure.statistics import RatioInterval, Timing, bootstrap
from xrt.measure.timing import (
    MAX_WARM_UP_CALLS as MOST_CALLS,
    WINDOW_CALLS,
    choose_calls,
    measure_turn,
    run_closed_loop,
    time_call,
    warm_up,
)

SECONDS = st.floats(1e-6, 1e3)
ROUNDS = st.lists(SECONDS, min_size=2, max_size=30).map(tuple)


@pytest.mark.slow
@given(ROUNDS)
def test_the_interval_holds_the_median_and_stays_among_the_ratios(ratios: tuple[float, ...]) -> None:
    result = bootstrap(ratios)
    assert result == bootstrap(ratios)
    assert result.low <= result.median <= result.high
    assert min(ratios) * (1 - 1e-9) <= result.low and result.high <= max(ratios) * (1 + 1e-9)
    assert result.median == pytest.approx(float(np.median(ratios)))


@pytest.mark.slow
def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    results = [bootstrap(1.3 * np.exp(0.1 * rng.standard_normal(20))) for _ in range(200)]
    share = sum(result.low <= 1.3 <= result.high for result in results) / len(results)
    assert 0.88 <= share <= 0.995


@pytest.mark.slow
@given(ROUNDS, st.floats(0.1, 10))
def test_drift_that_both_share_cancels(drift: tuple[float, ...], factor: float) -> None:
    of, to = Timing(tuple(factor * d for d in drift)), Timing(drift)
    result = statistics.compute_round_ratio(of.seconds, to.seconds)
    assert (result.low, result.median, result.high) == pytest.approx((factor,) * 3)
    assert statistics.compute_ratio(of, [to, to]).median == pytest.approx(factor / 2)
    assert statistics.compute_round_ratio((4.0, 6.0), (2.0, 3.0, 100.0)).median == 2, "rounds that one did not take do not count"


def test_the_geometric_mean_is_that_of_the_ratios_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(3)
    pairs = [tuple(scale * (1 + 0.01 * rng.random(20)) for scale in scales) for scales in ((0.04, 0.01), (0.01, 0.01))]
    result = statistics.compute_geometric_mean(pairs)  # type: ignore[arg-type]  # pairs of arrays
    assert result is not None and result.median == pytest.approx(2, rel=0.01)
    assert 1.95 < result.low <= result.median <= result.high < 2.05
    assert statistics.compute_geometric_mean(pairs) == result  # type: ignore[arg-type]
    assert statistics.compute_geometric_mean([]) is None


def test_a_pair_is_judged_by_its_own_interval() -> None:
    assert statistics.judge_ratio(RatioInterval(19.35, 6.46, 60.57)) == "slower"
    assert statistics.judge_ratio(RatioInterval(1.02, 1.011, 1.03)) == "slower"
    assert statistics.judge_ratio(RatioInterval(1.02, 1.005, 1.04)) == "tie"
    assert statistics.judge_ratio(RatioInterval(1.3, 0.9, 2.1)) == "too noisy"


def test_the_ratio_of_medians_is_that_of_the_times_that_are_shown() -> None:
    mine, theirs = (4.0, 6.0, 50.0, 6.0), (2.0, 3.0, 3.0, 9.0, 100.0)
    result = statistics.compute_ratio_of_medians(mine, theirs)
    assert result.median == Timing(mine).median / Timing(theirs[:4]).median
    assert result.low <= result.median <= result.high and result == statistics.compute_ratio_of_medians(mine, theirs)
    steady = statistics.compute_ratio_of_medians([2.0] * 5, [1.0] * 5)
    assert (steady.low, steady.median, steady.high) == (2.0, 2.0, 2.0)


class Ticking:
    """A clock that a call moves on by the next of the given seconds, the last one again and again."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.seconds, self.calls = 0.0, seconds, 0

    def __call__(self) -> float:
        return self.now

    def call(self) -> None:
        self.now += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1


def test_each_takes_its_turn_first_as_often_as_the_others() -> None:
    assert [statistics.rotate("abc", turn)[0] for turn in range(6)] == list("abcabc")
    assert statistics.rotate([], 3) == []
    behind = {
        (a, b)
        for turn in range(6)
        for a, b in zip(statistics.rotate("abc", turn), statistics.rotate("abc", turn)[1:], strict=False)
    }
    assert len(behind) == 6, "each runs behind each of the others"
    clock, order = Ticking(1.0), []
    times = statistics.interleave({n: lambda n=n: (order.append(n), clock.call()) for n in "ab"}, rounds=3, clock=clock)  # type: ignore[misc]
    assert order[2:] == list("abbaab")  # after one call each to see how long it takes
    assert times == {"a": Timing((1.0,) * 3), "b": Timing((1.0,) * 3)}


def test_turns_end_when_they_suffice() -> None:
    seen: list[tuple[int, list[int]]] = []

    def is_over(rounds: int, value: Mapping[str, Sequence[int]]) -> bool:
        seen.append((rounds, [len(each) for each in value.values()]))
        return rounds == 2

    assert statistics.take_turns({"a": lambda: 1, "b": lambda: 2}, 9, is_over) == {"a": [1, 1], "b": [2, 2]}
    assert seen == [(n, [n, n]) for n in range(3)]
    assert statistics.take_turns({"a": lambda: 1}, 3) == {"a": [1, 1, 1]}


def test_a_turn_begins_with_a_call_that_does_not_count() -> None:
    cold, warm = Ticking(5.0, 1.0, 1.0), Ticking(5.0, 1.0)
    assert measure_turn(cold.call, 2, cold) == 1.0
    assert measure_turn(warm.call, 2, warm, warms=False) == 3.0
    assert time_call(lambda: warm.call() or "done", warm) == ("done", 1.0)


@pytest.mark.parametrize(("seconds", "calls"), [((0.001,), 100), ((0.3, *[0.001] * 3), 100), ((0.5,), 1)])
def test_a_quick_call_is_repeated_and_a_slow_one_is_not(seconds: tuple[float, ...], calls: int) -> None:
    clock = Ticking(*seconds)  # the second one is slow only at first
    assert choose_calls(clock.call, 0.1, clock) == pytest.approx(calls, abs=1)


def test_warming_up_ends_when_the_time_no_longer_falls() -> None:
    clock = Ticking(*(1 / n for n in range(1, 20)), 0.05)
    result = warm_up(clock.call, seconds=1000, clock=clock)
    assert result.steady
    assert 19 + WINDOW_CALLS <= result.calls <= 19 + 2 * WINDOW_CALLS


def test_warming_up_is_bounded_by_calls_and_by_seconds() -> None:
    falling = Ticking(*(1.05**-n for n in range(MOST_CALLS + 1)))
    result = warm_up(falling.call, seconds=1000, clock=falling)
    assert (result.calls, result.steady) == (MOST_CALLS, False)
    slow = Ticking(3.0)
    result = warm_up(slow.call, seconds=5, clock=slow)
    assert (result.calls, result.steady) == (2, False)


TINY = "mlp{layers=2, features=3, hidden=4, classes=2}"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    type_ = TensorType(DType.FLOAT32, ("n", "m"))
    path = tmp_path / "model.onnx"
    onnx.save(Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",)),), opsets={"": 20}), path)
    return str(path)


def first_shape(function: Function) -> object:
    type_ = function.inputs[0].type
    return type_.shape if isinstance(type_, TensorType) else None


@pytest.mark.parametrize("text", ["squeezenet", TINY, "some/model.onnx{tokens=128}"])
def test_a_model_reads_as_it_prints(text: str) -> None:
    assert str(BenchTarget.parse(text)) == text
    assert BenchTarget.parse(str(BenchTarget.parse(text))) == BenchTarget.parse(text)


def test_a_batch_is_a_size_of_a_model_by_code_and_the_first_extent_of_a_file(saved: str) -> None:
    assert first_shape(BenchTarget.parse(TINY, 5).load()) == (5, 3)
    assert first_shape(BenchTarget.parse(TINY).load()) == (1, 3)
    assert first_shape(BenchTarget.parse(f"{saved}{{m=7}}", 5).load()) == (5, 7)
    assert first_shape(BenchTarget.parse(saved).load()) == ("n", "m")
    assert first_shape(BenchTarget.parse("squeezenet", 1).load()) == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("text", "batch", "says"),
    [
        ("mlp{layers}", None, "a model's size is written NAME=NUMBER, such as layers=2; got 'layers' in 'mlp{layers}'"),
        ("mlp{layers=2", None, "'mlp{layers=2' is not a model; write a model like 'squeezenet', 'bert{layers=2}'"),
        ("squeezenet", 4, "the model's batch is 1, and 4 was requested; the size can be chosen only"),
        ("missing.onnx", None, "cannot load 'missing.onnx': there is no such file"),
        ("mlp{depth=2}", None, "model 'mlp' has no size 'depth'"),
        ("model.onnx{k=1}", None, "no input has a dimension 'k'. The model has: m, n"),
    ],
)
def test_what_is_no_model_is_reported(
    text: str, batch: int | None, says: str, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(saved).parent)
    with pytest.raises(XRTError) as caught:
        BenchTarget.parse(text, batch).load()
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ort", BenchCandidate(("ort",))),
        ("tvm{opt_level=2}, ort", BenchCandidate(("tvm{opt_level=2}", "ort"))),
        ("tvm,ort with Conv|MatMul=ort; Softmax!=tvm", BenchCandidate(("tvm", "ort"), ("Conv|MatMul=ort", "Softmax!=tvm"))),
    ],
)
def test_a_candidate_reads_as_it_prints(text: str, expected: BenchCandidate) -> None:
    assert BenchCandidate.parse(text) == expected == BenchCandidate.parse(str(expected))


@pytest.mark.parametrize("text", ["", "tvm,", "tvm ort", "tvm,ort with ", "tvm,ort with Conv=ort;"])
def test_what_is_no_candidate_is_reported(text: str) -> None:
    with pytest.raises(OptionError):
        BenchCandidate.parse(text)


class Served:
    """An instance whose call takes a known time."""

    def __init__(self, call: float) -> None:
        self.call, self.now = call, 0.0
        self.calls: list[tuple[int, int]] = []

    def __call__(self, first: int, count: int) -> None:
        self.calls.append((first, count))
        self.now += self.call


@pytest.mark.parametrize(("depth", "latency"), [(1, 0.5), (2, 1.0), (3, 1.5)])
def test_a_request_waits_for_the_batches_before_its_own(depth: int, latency: float) -> None:
    first = Served(0.5)
    result = run_closed_loop([first], 4, 4 * depth, 20.0, clock=lambda: first.now)
    assert (result.concurrency, result.rate) == (4 * depth, pytest.approx(8.0))
    assert (result.p50, result.p99) == (pytest.approx(latency), pytest.approx(latency))


def test_every_call_has_a_full_batch_of_the_next_requests() -> None:
    first = Served(1.0)
    run_closed_loop([first], 2, 4, 3.0, clock=lambda: first.now)
    assert first.calls[:5] == [(0, 2), (0, 2), (0, 2), (2, 2), (4, 2)]


def test_a_call_longer_than_the_time_is_repeated_five_times() -> None:
    first = Served(10.0)
    result = run_closed_loop([first], 1, 2, 0.1, clock=lambda: first.now)
    assert len(first.calls) == 2 + 5
    assert result.rate == pytest.approx(0.1)


def test_instances_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    result = run_closed_loop([lambda first, count: both.wait()] * 2, 1, 2, 0.0)
    assert result.requests >= 2


def test_a_request_of_the_first_moment_counts_if_there_is_no_other() -> None:
    """The five calls answer requests that were all issued at the start."""
    first = Served(1.0)
    measured = run_closed_loop([first], 1, 8, 0.0, clock=lambda: first.now)
    assert (measured.requests, measured.p50, measured.p99) == (5, 3.0, 5.0)


def test_an_instance_that_fails_is_reported() -> None:
    def fail(first: int, count: int) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_closed_loop([fail, lambda first, count: None], 1, 2, 0.0)
