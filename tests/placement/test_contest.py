"""The contest and its judgement, by a clock that nobody waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle

import pytest

from tests.module.test_faults import OPS, chain
from tests.placement.test_lock import NET, mixed, single
from xrt.engines.contract import registry
from xrt.formats.placement_file import CandidateRecord, SearchRecord
from xrt.graph import shape_key
from xrt.measure.statistics import compute_round_ratio, rotate
from xrt.measure.timing import MeasuredCost, compute_median_interval, sample_call_times
from xrt.partition import Plan, partition
from xrt.partition.cost_table import BOUNDARY, CostTable
from xrt.partition.partitioner import plan_from_assignment
from xrt.placement.race import Entrant, StoppingRule, make_candidate, run_interleaved, select_winner
from xrt.placement.report import CostReport, make_report
from xrt.placement.result import TuningResult
from xrt.placement.search import format_seconds


@dataclass
class Clock:
    """Shows what has been added to it."""

    now: float = 0.0
    calls: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, seconds: Callable[[int], float] | float) -> Callable[[], None]:
        """Return a call of that name which takes so many seconds, each time or by its number."""
        numbers = count()

        def call() -> None:
            self.calls.append(name)
            self.now += seconds(next(numbers)) if callable(seconds) else seconds

        return call


def entrants(clock: Clock, *seconds: Callable[[int], float] | float, simple: int = 1) -> list[Entrant]:
    """Return entrants ``a``, ``b``, ... of whom so many are simple."""
    return [Entrant(PLANS["first"], clock.taking("abcdef"[i], each), i < simple) for i, each in enumerate(seconds)]


def test_each_turn_is_several_calls_and_the_first_does_not_count() -> None:
    clock = Clock()
    slow_first = entrants(clock, lambda number: 0.01)[0]
    slow_first.repeats = 3
    first = iter([5.0, 0.01, 0.01, 0.01])
    slow_first.call = clock.taking("a", lambda number: next(first))
    slow_first.take_turn(clock)
    assert slow_first.rounds == [pytest.approx(0.01)]
    assert clock.calls == ["a"] * 4


@pytest.mark.slow
def test_a_race_takes_its_fewest_rounds_and_the_turns_before_them() -> None:
    clock = Clock()
    data = entrants(clock, 1.0, 0.01)
    needed = StoppingRule().estimate_seconds([1.0, 0.01])
    run_interleaved(data, until=needed + 1e-9, clock=clock)
    assert [len(item.rounds) for item in data] == [StoppingRule().least] * 2
    assert clock.now == pytest.approx(needed, rel=0.01)


@pytest.mark.slow
def test_turns_rotate_and_then_go_backwards() -> None:
    assert ["".join(rotate("abc", turn)) for turn in range(6)] == ["abc", "bac", "cab", "acb", "bca", "cba"]
    clock = Clock()
    run_interleaved(entrants(clock, 0.1, 0.1, 0.1, simple=3), until=1e9, rules=StoppingRule(least=6), clock=clock)
    turns = "".join(clock.calls)[
        6::2
    ]  # after those by which turns are sized; each is a call that does not count, and one that does
    assert turns[:18] == "abcbaccabacbbcacba"


@pytest.mark.slow
def test_who_has_lost_for_certain_leaves() -> None:
    clock = Clock()
    quick, slow = entrants(clock, 0.1, 0.2, simple=2)
    rounds = run_interleaved([quick, slow], until=1e9, rules=StoppingRule(least=6), clock=clock)
    assert rounds == 6
    assert slow.is_out
    assert not quick.is_out


@pytest.mark.slow
def test_it_ends_when_the_interval_is_narrower_than_the_gain() -> None:
    clock, noise = Clock(), cycle([0.9, 1.1, 1.0, 1.05, 0.95])
    sure, unsure = (entrants(clock, 0.1, lambda number, part=part: part * 0.1 * next(noise)) for part in (0.5, 0.99))
    assert run_interleaved(sure, until=1e9, clock=clock) == 6
    assert run_interleaved(unsure, until=1e9, clock=clock) > 20


def test_engines_that_are_alike_end_the_race_at_once() -> None:
    """More rounds would tell which is 1 % faster: nobody notices, and slow calls took all of a budget for it."""
    clock, noise = Clock(), cycle([0.995, 1.005, 1.0])
    alike = entrants(clock, 0.1, lambda number: 0.1 * next(noise), simple=2)
    assert run_interleaved(alike, until=1e9, clock=clock) == StoppingRule().least


def test_no_turn_is_begun_that_would_end_after_the_budget() -> None:
    clock = Clock()
    some = entrants(clock, 1.0, 1.0, simple=2)
    assert run_interleaved(some, until=9.5, clock=clock) == 1
    assert clock.now == 8.0
    assert [len(item.rounds) for item in some] == [1, 1]


def test_who_raises_leaves_and_says_why() -> None:
    clock = Clock()

    def fails() -> None:
        raise RuntimeError("no more")

    good, bad = entrants(clock, 0.1, 0.1)
    bad.call = fails
    run_interleaved([good, bad], until=1e9, clock=clock)
    assert (bad.failure, bad.is_out) == ("RuntimeError: no more", True)
    assert len(good.rounds) == 6


ENGINES = [registry.create("toy"), registry.create("toy{native=off}")]
PLANS = {
    "first": partition(chain(*OPS), ENGINES),
    "second": partition(chain(*OPS), ENGINES[1:]),
    "two": plan_from_assignment(chain(*OPS), ENGINES, {f"n{i}": ENGINES[i > 2].spec for i in range(5)}),
    "three": plan_from_assignment(chain(*OPS), ENGINES, {f"n{i}": ENGINES[i in (1, 2)].spec for i in range(5)}),
}


def race(others: Sequence[CandidateRecord[Plan]] = (), **rounds: list[float]) -> SearchRecord[Plan]:
    """Return the judgement of plans whose rounds took so long; those of one region are simple."""
    runners = []
    for name, seconds in rounds.items():
        runners.append(Entrant(PLANS[name], is_simple=len(PLANS[name].launches) == 1, rounds=seconds))
    return select_winner(runners, others, 10)


def plan_of(actual: SearchRecord[Plan]) -> str:
    return next(name for name, plan in PLANS.items() if plan is actual.winner.plan)


def spread(middle: float, by: float = 0.0) -> list[float]:
    steps: Iterator[float] = cycle([0, 1, -1, 0.5, -0.5])
    return [middle * (1 + by * next(steps)) for _ in range(20)]


@pytest.mark.parametrize(
    ("rounds", "winner", "verdicts"),
    [
        ({"first": spread(1.0), "two": spread(0.9)}, "two", ["won", "lost"]),
        ({"first": spread(1.0), "two": spread(0.995)}, "first", ["won", "tie"]),
        ({"first": spread(1.0), "two": spread(0.95, by=0.5)}, "first", ["won", "tie"]),
        ({"first": spread(1.0), "two": spread(1.3)}, "first", ["won", "lost"]),
        ({"first": spread(1.0), "second": spread(0.8)}, "second", ["won", "lost"]),
        ({"first": spread(1.0), "two": spread(0.9), "three": spread(0.895)}, "two", ["won", "tie", "lost"]),
        ({"first": spread(1.0), "two": spread(0.9), "three": spread(0.7)}, "three", ["won", "lost", "lost"]),
        ({"first": spread(1.0), "second": spread(0.95), "two": spread(0.945)}, "second", ["won", "tie", "lost"]),
        ({"two": spread(0.9), "three": spread(0.895)}, "two", ["won", "tie"]),
        ({"two": spread(0.9), "three": spread(0.7)}, "three", ["won", "lost"]),
    ],
)
def test_a_mixture_wins_by_more_than_the_noise_and_ties_go_to_the_simpler(
    rounds: dict[str, list[float]], winner: str, verdicts: list[str]
) -> None:
    result = race(**rounds)
    assert plan_of(result) == winner
    assert [candidate.verdict for candidate in result.candidates] == verdicts
    assert race(**rounds) == result


def test_the_ratio_is_to_the_quickest_of_one_engine() -> None:
    result = race(first=spread(1.0), second=spread(2.0), two=spread(0.5))
    assert [candidate.plan for candidate in result.candidates if candidate.is_baseline] == [PLANS["first"]]
    assert [candidate.ratio for candidate in result.candidates] == [pytest.approx(0.5), 1.0, pytest.approx(2.0)]


def test_what_is_reported_of_a_race() -> None:
    result = race(first=spread(0.010), two=spread(0.009))
    text = str(TuningResult(PLANS["two"], result.replace(budget=20.0, spent=3.21), measurements=7))
    assert text.splitlines() == [
        "placed by measurement: toy + toy{native=off}",
        "  7 measurements of regions, 10 rounds, 3.2 of 20 s",
        "  chosen: toy + toy{native=off}, 9 ms, 0.900 (0.900 to 0.900) of the best single engine",
        "  slower: toy, 10 ms, the best single engine",
    ]


def test_a_ratio_is_of_the_rounds_that_both_have() -> None:
    assert compute_round_ratio([2.0, 4.0, 9.0], [1.0, 2.0]).median == 2.0


def test_samples_end_when_the_median_is_known() -> None:
    clock = Clock()
    samples = sample_call_times(clock.taking("a", 0.01), 100.0, clock=clock)
    assert samples == [pytest.approx(0.01)] * 7
    unsteady = cycle([0.01, 0.02, 0.03])
    assert len(sample_call_times(clock.taking("b", lambda number: next(unsteady)), 1.0, clock=clock)) > 20


def test_samples_end_when_their_time_does() -> None:
    clock = Clock()
    assert len(sample_call_times(clock.taking("a", 3.0), 1.0, clock=clock)) == 1
    assert clock.now == 6.0


def test_the_interval_of_a_median_is_of_the_samples() -> None:
    assert compute_median_interval([5.0]) == (5.0, 5.0, 5.0)
    # Of n samples it leaves out as many on each side.
    for n, left_out in ((5, 0), (8, 0), (9, 1), (20, 5), (101, 40)):
        samples = [float(i) for i in range(n)]
        assert compute_median_interval(samples) == ((n - 1) / 2, left_out, n - 1 - left_out)


def test_a_plan_is_called_by_its_engines() -> None:
    names = [TuningResult(PLANS[name], SearchRecord()).to_dict()["chosen"] for name in ("first", "second", "two", "three")]
    assert names == ["toy", "toy{native=off}", "toy + toy{native=off}", "toy + toy{native=off} + toy"]


TOY = "toy{native=off}"


def table(*, wrong: bool = False) -> CostTable:
    """The mixture's regions at 1, 2 and 3 ms, the whole at 9 on ort and 20 on toy."""
    costs = CostTable()
    for number, launch in enumerate(mixed().launches, 1):
        cost = "wrong: it differs" if wrong and number == 2 else MeasuredCost.exactly(number * 1e-3)
        costs = costs.with_region(shape_key(launch.function), launch.engine, cost)
    for spec, seconds in (("ort", 9e-3), (TOY, 20e-3)):
        (launch,) = single(spec).launches
        costs = costs.with_region(shape_key(launch.function), spec, MeasuredCost.exactly(seconds))
    return costs


def tuned() -> TuningResult:
    won = make_candidate(mixed(), "won", 6.5e-3, 6.4e-3, 6.6e-3, regions=(1.1e-3, 2.1e-3, 3.1e-3))
    lost = make_candidate(single("ort"), "lost", 9e-3, 8.9e-3, 9.2e-3, is_baseline=True)
    return TuningResult(mixed(), SearchRecord(candidates=(won, lost), rounds=12))


def account(known: CostTable) -> CostReport:
    return make_report(mixed(), tuned(), NET, known)


def test_each_part_is_reported() -> None:
    result = account(table())
    assert result.predicted == pytest.approx(6e-3 + 2 * BOUNDARY[0], rel=1e-5)
    assert result.measured == 6.5e-3
    assert [(part.engine, part.predicted, part.measured) for part in result.parts] == [
        ("ort", 1e-3, 1.1e-3),
        (TOY, 2e-3, 2.1e-3),
        ("ort", 3e-3, 3.1e-3),
    ]
    assert str(result).splitlines()[:4] == [
        "predicted 6.01 ms for a call; it took 6.5 ms:",
        "  xrt_ort_0 on ort, 2 nodes: predicted 1 ms (measured), took 1.1 ms",
        "  xrt_toy_1 on toy{native=off}, 2 nodes: predicted 2 ms (measured), took 2.1 ms",
        "  xrt_ort_2 on ort, 1 node: predicted 3 ms (measured), took 3.1 ms",
    ]


def test_nothing_is_timed_with_a_lock() -> None:
    assert make_report(mixed(), replace(tuned(), how="locked"), NET, table()).measured is None


def test_what_is_impossible_has_no_number() -> None:
    result = account(table(wrong=True))
    assert result.predicted is None and result.parts[1].predicted is None and result.parts[1].source == "impossible"
    assert "predicted unknown (impossible wrong: it differs), took 2.1 ms" in str(result.parts[1])
    assert "Infinity" not in json.dumps(result.to_dict(), allow_nan=False)


def test_of_nothing_known_there_is_no_account_but_the_time_in_the_race() -> None:
    result = account(CostTable())
    assert (result.predicted, result.measured, result.parts, str(result)) == (None, 6.5e-3, (), "")


@pytest.mark.parametrize(
    ("seconds", "told"), [(None, "unknown"), (0.0, "0 us"), (9.9996e-4, "1000 us"), (0.0123456, "12.35 ms"), (2.0, "2 s")]
)
def test_times_are_short(seconds: float | None, told: str) -> None:
    assert format_seconds(seconds) == told
