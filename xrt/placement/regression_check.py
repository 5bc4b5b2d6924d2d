"""The regression check: time a locked plan against its baseline plan now, and compare the ratio with the lockfile's.

Times measured on different days are hard to compare; the ratio of two plans that run in turn in one process is more stable. The
check compares these ratios with their intervals. A difference within the noise is undecided.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.errors import LockError
from xrt.formats.placement_file import Baseline
from xrt.measure.statistics import RatioInterval, compute_round_ratio_with_drift, take_turns
from xrt.measure.timing import Clock, choose_calls_per_turn, seconds_per_turn
from xrt.placement.race import Entrant, StoppingRule, make_partition_key, prepare_plan
from xrt.placement.records import list_node_ranges
from xrt.placement.result import CandidateComparison, CandidateResult, describe_plan

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.partition import Plan
    from xrt.placement.profiler import Reference
    from xrt.placement.result import PlacementRequest

RULES = StoppingRule(least=12, most=200)
SPELLS = 4
"""A measurement is divided into this many segments; their medians must lie in its interval, or the machine has drifted."""
SURE = 36
"""Minimum rounds before a regression is reported, unless time is up."""
NARROW = 0.02
"""Width of the interval of a lock's ratio, relative to the ratio, at which its measurement ends."""

State: TypeAlias = Literal["held", "regressed", "undecided", "alone"]


@dataclass(frozen=True, slots=True)
class RegressionSetup:
    """The setup for timing plans of one Function."""

    request: PlacementRequest
    cache: CompileCache
    inputs: Sequence[Any]
    reference: Reference
    seconds: float
    """Time limit of the race, without compiles; at least `SPELLS` rounds are run."""
    clock: Clock = time.perf_counter
    lowered: Plan | None = None
    """A plan within an error budget; its error is measured on other examples."""

    @contextmanager
    def ready(self, *plans: Plan) -> Iterator[list[Entrant]]:
        """Compile plans and compare each with the reference; raises LockError if one fails or is wrong."""
        expected = list(self.reference(self.request.function.replace(aliases=()), list(self.inputs)))
        entrants: list[Entrant] = []
        try:
            for plan in plans:
                outputs = None if plan is self.lowered else expected
                entrant = prepare_plan(plan, self.request, self.cache, self.inputs, outputs, self.reference)
                if isinstance(entrant, CandidateResult):
                    failure = "computes wrongly" if entrant.verdict == "wrong" else "does not run"
                    raise LockError(f"the plan {describe_plan(plan)} {failure}: {entrant.note}")
                entrants.append(entrant)
            yield entrants
        finally:
            for competitor in entrants:
                competitor.close()


# ---------------------------------------------------------------------- two plans in turns


def compare_plans(
    course: RegressionSetup, plan: Plan, other: Plan, is_enough: Callable[[RatioInterval, int], bool]
) -> tuple[RatioInterval, int]:
    """Measure the ratio of a plan's time to another's, and the number of rounds.

    The plans run in turn until ``is_enough(ratio, rounds)`` is true, or ``course.seconds`` have passed. Raises LockError for a
    plan that fails.
    """
    with course.ready(plan, other) as entrants:
        until = course.clock() + course.seconds
        repeats = [choose_calls_per_turn(_take_turn(entrant, 1, course.clock), RULES.turn) for entrant in entrants]
        time_plan, time_other = (partial(_take_turn, x, calls, course.clock) for x, calls in zip(entrants, repeats, strict=True))

        def is_over(rounds: int, times: Mapping[str, Sequence[float]]) -> bool:
            is_late = course.clock() >= until
            if rounds < (SPELLS if is_late else RULES.least):
                return False
            return is_late or is_enough(compute_round_ratio_with_drift(*times.values(), parts=SPELLS), rounds)

        times = take_turns({"plan": time_plan, "other": time_other}, RULES.most, is_over)
    return compute_round_ratio_with_drift(*times.values(), parts=SPELLS), len(times["plan"])


def _take_turn(entrant: Entrant, repeats: int, clock: Clock) -> float:
    try:
        return seconds_per_turn(entrant.call, repeats, clock)
    except Exception as error:  # whatever an engine raises
        message = f"the plan {describe_plan(entrant.plan)} does not run: {type(error).__name__}: {error}"
        raise LockError(message) from error


# ---------------------------------------------------------------------- for a lock


def find_runner_up(plan: Plan, race: CandidateComparison) -> CandidateResult | None:
    """Choose the opponent of a plan: the baseline, else the best single-engine plan, else the best other plan."""
    others = [
        contender
        for contender in race.contenders
        if contender.verdict not in ("wrong", "failed") and make_partition_key(contender.plan) != make_partition_key(plan)
    ]
    baseline = race.contenders[race.baseline] if race.baseline is not None else None
    if baseline in others:
        return baseline
    return min(others, key=lambda contender: (not contender.is_single, others.index(contender)), default=None)


def make_baseline(course: RegressionSetup, plan: Plan, race: CandidateComparison) -> Baseline | None:
    """Measure the baseline for later checks of the plan; None if no other plan could run. Raises LockError if a plan fails."""
    opponent = find_runner_up(plan, race)
    if opponent is None:
        return None
    ratio, rounds = compare_plans(course, plan, opponent.plan, lambda ratio, _: ratio.high - ratio.low <= NARROW * ratio.median)
    ranges = list_node_ranges(opponent.plan, course.request.function)
    return Baseline(opponent.title, ratio.median, ratio.low, ratio.high, rounds, ranges)


# ---------------------------------------------------------------------- against a lock


@dataclass(frozen=True, slots=True)
class RegressionResult:
    """The outcome of a regression check. True unless the plan has regressed; prints as text."""

    state: State
    limit: float
    """The allowed relative increase of the ratio."""
    locked: Baseline | None = None
    now: RatioInterval | None = None
    rounds: int = 0
    change: RatioInterval | None = None
    """The ratio now over that of the lock; its interval combines both."""

    def __bool__(self) -> bool:
        return self.state != "regressed"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data, without the node ranges."""
        facts = asdict(self)
        if self.locked is not None:
            facts["locked"] = self.locked.to_dict()
            del facts["locked"]["ranges"]
        return facts

    def __str__(self) -> str:
        was, now, change = self.locked, self.now, self.change
        if was is None or now is None or change is None:
            return "it runs and computes what the reference does; the lock has no other plan to hold its time against"
        changed = f"{change.median - 1:+.1%} ({change.low - 1:+.1%} to {change.high - 1:+.1%})"
        then = f"{was.ratio:.3f} ({was.low:.3f} to {was.high:.3f}) in the lock"
        return (
            f"{_PHRASES[self.state]}: {changed}; the limit is {self.limit:+.1%}\n"
            f"time over that of {was.plan}: {now} in {self.rounds} rounds, {then}"
        )


_PHRASES: Mapping[State, str] = {"held": "held", "regressed": "regressed", "undecided": "not decided, the noise is too large"}


def check_regression(
    course: RegressionSetup, plan: Plan, other: Plan | None, gate: Baseline | None, limit: float
) -> RegressionResult:
    """Check whether the plan's ratio to the other plan is worse than the lockfile's by more than ``limit``.

    Raises LockError if a plan does not run, or if its results differ from the reference.
    """
    if gate is None or other is None:
        with course.ready(plan):
            return RegressionResult("alone", limit)

    def is_decided(ratio: RatioInterval, rounds: int) -> bool:
        state = _choose_state(_divide_ratios(ratio, gate), limit)
        return state == "held" or (state == "regressed" and rounds >= SURE)

    now, rounds = compare_plans(course, plan, other, is_decided)
    change = _divide_ratios(now, gate)
    return RegressionResult(_choose_state(change, limit), limit, gate, now, rounds, change)


def _divide_ratios(now: RatioInterval, gate: Baseline) -> RatioInterval:
    """Divide two ratios; their uncertainties are independent and add in squares, on a log scale."""
    middle = now.median / gate.ratio
    less = math.hypot(math.log(now.median / now.low), math.log(gate.high / gate.ratio))
    more = math.hypot(math.log(now.high / now.median), math.log(gate.ratio / gate.low))
    return RatioInterval(middle, middle * math.exp(-less), middle * math.exp(more))


def _choose_state(change: RatioInterval, limit: float) -> State:
    if change.low > 1 + limit:
        return "regressed"
    return "held" if change.high <= 1 + limit else "undecided"
