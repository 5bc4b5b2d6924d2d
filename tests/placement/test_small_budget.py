"""A search with little time: what is measured first, who is not waited for, what is said of it, and what is not asked again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.module.test_faults import chain
from tests.placement.uneven import CALL, PAIR, SLOW_COS, SLOW_EXP, TOY, SimulatedClock, Uneven, simulate_time, tuned
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileFailed, PlacementWarning, RunFailed
from xrt.formats.placement_file import SearchRecord
from xrt.graph import Function, Node
from xrt.measure.timing import MeasuredCost, compute_median_interval, time_call
from xrt.partition import Plan
from xrt.partition.partitioner import plan_from_assignment
from xrt.placement import CostStore, TuningBudget
from xrt.placement.race import Entrant, StoppingRule, select_winner
from xrt.processes.background import OutOfTime, run_within
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.verify.execution import Stopped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here"), pytest.mark.sample(3)]

RELEASED = threading.Event()
"""Lets go of the engines that are waiting."""


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    RELEASED.clear()
    yield
    RELEASED.set()


@dataclass(frozen=True)
class Stuck(RecordingEngine):
    """An engine that does not come back from one of its methods before it is released."""

    name: ClassVar[str] = "stuck"
    where: str = "compile"

    def why_not(self, node: Node, function: Function) -> str | None:
        if self.where == "why_not":
            RELEASED.wait()
        return super().why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        if self.where == "compile":
            RELEASED.wait()
        return super().compile(function, context)


def ticking() -> Callable[[], float]:
    """Return a clock that goes on when it is looked at: what must be waited for is, however busy the machine is."""
    ticks = itertools.count()
    return lambda: 0.001 * next(ticks)


@pytest.mark.full
def test_a_budget_that_is_over_at_once_gives_a_measurement_all_the_same() -> None:
    result = tuned(PAIR, SLOW_EXP, TOY, budget=1e-6, clock=ticking())
    assert (result.how, result.record.winner and result.record.winner.title) == ("measured", SLOW_EXP.spec)


def test_engines_race_before_mixtures_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ran first had won where the planner used up the rest of a budget."""
    monkeypatch.setattr("xrt.placement.autotune.choose_requests", endless)
    result = tuned(PAIR, Uneven(slow="Exp|Cos"), SLOW_EXP, budget=60.0)
    assert (result.record.winner.title, result.record.rounds >= 6) == (SLOW_EXP.spec, True)
    assert result.notes == ("the budget ended while the planner was looking for mixtures",)


UNARY = "Abs Atan Asinh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Sigmoid Sin Tanh"


def test_mixtures_leave_time_for_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regions of a mixture were measured until the end of the budget, so that no round was left."""
    clock = simulate_time(monkeypatch)

    def sample(*given: Any) -> list[float]:
        clock.now += 1.0
        return [0.001] * 7

    def propose(function: Function, engines: Sequence[GraphCompiler], *given: Any, **options: Any) -> Any:
        homes = {node.name: engines[number % 2].spec for number, node in enumerate(function.nodes)}
        return (plan_from_assignment(function, engines, homes),)

    monkeypatch.setattr("xrt.placement.profiler.sample_call_times", sample)
    monkeypatch.setattr("xrt.placement.autotune.choose_requests", lambda *given, **options: ())
    monkeypatch.setattr("xrt.placement.autotune.propose_plans", propose)
    result = tuned(chain(*UNARY.split()), SLOW_EXP, SLOW_COS, budget=20.0, clock=clock)
    assert result.record.rounds >= StoppingRule().least and result.record.spent <= result.record.budget
    mixtures = [candidate for candidate in result.record.candidates if len(candidate.plan.used_engines) > 1]
    assert {(x.verdict, x.note) for x in mixtures} == {("late", "the search ended before its turn in the race")}


@dataclass(frozen=True)
class Importing(Stuck):
    """An engine whose library is being imported until it is released; it supports no node."""

    name: ClassVar[str] = "importing"

    def why_not(self, node: Node, function: Function) -> str | None:
        RELEASED.wait()
        return "it supports nothing"


def sample_first_as(factor: float, clock: SimulatedClock) -> Callable[..., list[float]]:
    """Return a sampler of one simulated call, whose first sample is so many times too long; the second releases `Importing`."""
    count = itertools.count(1)

    def sample(call: Callable[[], object], *given: Any) -> list[float]:
        _, seconds = time_call(call, clock)
        number = next(count)
        if number == 2:
            RELEASED.set()
        return [seconds * (factor if number == 1 else 1.0)]

    return sample


def test_an_engine_that_was_timed_during_imports_races_and_its_cost_is_that_of_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import made the quicker engine three times slower in its worker: it was not raced, and that time was stored."""
    clock = simulate_time(monkeypatch)
    monkeypatch.setattr("xrt.placement.profiler.sample_call_times", sample_first_as(3.0, clock))
    quick, other = Uneven(slow="Exp", seconds=0.004), Uneven(slow="Exp", seconds=0.005)
    result = tuned(PAIR, quick, other, Importing(), budget=20.0, bounds=TuningBudget(wholes=0.1), clock=clock)
    assert result.record.winner is not None and result.record.winner.title == quick.spec
    (launch,) = result.plan.launches
    cost = result.table.region(launch.function.shape_key, quick.spec)
    assert isinstance(cost, MeasuredCost) and cost.seconds == pytest.approx(0.004 + CALL, rel=0.05)


def test_an_engine_that_starts_while_another_is_measured_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it was the last to start, it was said that the budget had ended."""
    clock = simulate_time(monkeypatch)

    def sample(call: Callable[[], object], *given: Any) -> list[float]:
        if not RELEASED.is_set():
            RELEASED.set()
            time.sleep(0.5)  # the engine starts meanwhile
        return [time_call(call, clock)[1]]

    monkeypatch.setattr("xrt.placement.profiler.sample_call_times", sample)
    result = tuned(PAIR, SLOW_EXP, Stuck(where="why_not"), budget=20.0, bounds=TuningBudget(wholes=0.1), clock=clock)
    assert result.unmeasured == {}


def test_engines_race_where_a_call_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rounds of them did not fit into the budget, so that one call in each worker decided."""
    clock = simulate_time(monkeypatch)
    monkeypatch.setattr("xrt.placement.profiler.sample_call_times", sample_first_as(1.4, clock))
    quick, other = Uneven(slow="Exp", seconds=0.4), Uneven(slow="Exp", seconds=0.5)
    result = tuned(PAIR, quick, other, budget=20.0, clock=clock)
    assert result.record.winner is not None and result.record.winner.title == quick.spec
    assert result.record.rounds >= 2 and result.record.spent <= result.record.budget


@dataclass(frozen=True)
class Once(RecordingEngine):
    """An engine that compiles a model for its measurement, and not for the race."""

    name: ClassVar[str] = "once"
    count: ClassVar[Iterator[int]]

    def compile(self, function: Function, context: CompileContext) -> Executable:
        if len(function.nodes) > 1 and next(self.count):
            raise CompileFailed("it compiles only once")
        return super().compile(function, context)


def test_an_engine_that_fails_in_this_process_does_not_win_by_its_time_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Once, "count", itertools.count(), raising=False)
    monkeypatch.setattr("xrt.placement.autotune.choose_requests", lambda *given, **options: ())
    result = tuned(PAIR, Once(), SLOW_EXP, budget=20.0, clock=simulate_time(monkeypatch))
    assert (result.how, result.record.winner and result.record.winner.title) == ("measured", SLOW_EXP.spec)
    assert [one.note for one in result.record.candidates if one.title == "once"] == ["it compiles only once"]


def endless(*given: Any, **options: Any) -> Any:
    """A planner that does not end before the budget does."""
    raise OutOfTime


@pytest.mark.full
def test_a_comparison_that_takes_long_is_given_up_where_another_engine_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = itertools.count()

    def compare(*given: Any) -> tuple[str, str]:
        if next(compared) == 1:
            while not given[-1]():
                RELEASED.wait(0.01)
            raise Stopped
        return "", ""

    monkeypatch.setattr("xrt.placement.profiler.check_against_reference", compare)
    monkeypatch.setattr("xrt.placement.autotune.choose_requests", endless)
    result = tuned(PAIR, TOY, SLOW_EXP, budget=60.0, bounds=TuningBudget(limit=0.02))
    assert result.record.winner.title == "toy"
    output = f"not measured on {SLOW_EXP.spec}: comparing its results with the reference took longer than 1.2 s"
    assert output in str(result)


def test_an_engine_that_does_not_come_back_is_left_for_the_next() -> None:
    result = tuned(PAIR, Stuck(), TOY, budget=2.0, clock=ticking(), bounds=TuningBudget(limit=0.01))
    assert result.plan.used_engines == ("toy",)
    assert result.how == "measured"
    output = str(result).splitlines()
    assert output[0] == "placed by measurement: toy"
    (line,) = (line for line in output if "measured on stuck" in line or "failed: stuck" in line)
    assert "gave no answer within" in line or "it was not ready to be called within" in line


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    result = tuned(PAIR, TOY, Stuck(where="why_not"), budget=6.0, store=CostStore(tmp_path))
    assert result.how == "measured"
    assert result.unmeasured == {"stuck{where=why_not}": "the budget ended while it was asked which nodes it supports"}
    assert "  not measured in time: stuck{where=why_not}" in str(result)


@pytest.mark.full
def test_what_nobody_can_run_in_time_goes_by_the_list_and_says_so() -> None:
    with pytest.warns(PlacementWarning) as caught:
        result = tuned(PAIR, Stuck(), budget=0.2)
    (line,) = (str(warning.message) for warning in caught)
    assert line.startswith("'main' was not placed by measurement: ")
    assert "stuck: it was not ready to be called within " in line or "stuck: failed: " in line
    assert line.endswith(". By the order of the list it runs on stuck; give more time, such as a budget of 20 s")
    assert str(result).startswith("placed by the order of the list, without a measurement: stuck")


def cannot(function: Function, inputs: Sequence[Any]) -> list[Any]:
    raise RunFailed("the reference has no kernel for it")


def test_what_the_reference_cannot_compute_is_compared_with_the_first_engine() -> None:
    result = tuned(PAIR, TOY, FaultyEngine(how="value"), reference=cannot)
    assert (result.how, result.plan.used_engines) == ("measured", ("toy",))
    assert {candidate.verdict for candidate in result.record.candidates if candidate.title.startswith("faulty")} == {"wrong"}
    remark = "not checked against the reference: the reference has no kernel for it; results were compared with those of toy"
    assert remark in result.notes


def raced(rounds: int) -> SearchRecord[Plan]:
    plans = [tuned(chain("Exp"), engine, budget=1e-6, clock=ticking()).plan for engine in (TOY, SLOW_EXP)]
    entrants = [Entrant(plan, rounds=[seconds] * rounds) for plan, seconds in zip(plans, (1.0, 1.03), strict=True)]
    return select_winner(entrants, (), rounds, 6)


def test_few_rounds_have_no_interval_and_nobody_loses_by_them() -> None:
    won, other = raced(1).candidates
    assert (won.verdict, other.verdict) == ("won", "tie")
    assert (other.low, other.high, other.ratio_low, other.ratio_high, other.ratio) == (None, None, None, None, 1.03)
    assert str(other) == f"tie: {SLOW_EXP.spec}, 1030 ms, 1.030 of the best single engine, in too few rounds for an interval"
    sure = raced(6).candidates[1]
    assert (sure.verdict, sure.ratio_low, sure.low) == ("lost", 1.03, compute_median_interval([1.03] * 6)[1])


@pytest.mark.full
def test_a_provisional_decision_is_kept_and_says_so(tmp_path: Path) -> None:
    bounds = TuningBudget(rules=replace(TuningBudget().rules, least=1000, most=2))
    results = [tuned(PAIR, SLOW_EXP, SLOW_COS, store=CostStore(tmp_path), bounds=bounds) for _ in range(2)]
    assert [(result.how, result.record.is_provisional) for result in results] == [("measured", True), ("remembered", True)]
    assert results[1].remarks[0] == "provisional: 2 rounds cannot tell plans apart; give more time, such as a budget of 180 s"


def test_bounded_work_gives_what_it_gives_and_raises_what_it_raises() -> None:
    assert run_within(60.0, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run_within(60.0, lambda: 1 // 0)
    with pytest.raises(TimeoutError, match="its own"):
        run_within(60.0, lambda: (_ for _ in ()).throw(TimeoutError("its own")))


def test_abandoned_work_is_let_go_of_when_it_ends() -> None:
    gone, heard = threading.Event(), []
    with pytest.raises(OutOfTime, match=r"^it took longer than 0.01 s$"):
        run_within(0.01, lambda: RELEASED.wait() and 7, on_late=lambda found: (heard.append(found), gone.set()))
    assert not heard
    RELEASED.set()
    assert gone.wait(60)
    assert heard == [7]
