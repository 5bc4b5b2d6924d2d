"""Who has won: a mixture by more than the noise, else the simpler plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.measure.statistics import FLOOR, RatioInterval, compute_round_ratio
from xrt.measure.timing import median_interval
from xrt.placement.interleaved import TimedCandidate, choose_baseline
from xrt.placement.result import CandidateComparison, CandidateResult

if TYPE_CHECKING:
    from xrt.formats.placement_file import SelectionOutcome
    from xrt.partition import Plan
    from xrt.partition.cost_table import MeasuredCost
    from xrt.placement.prepared_plans import PreparedPlan

__all__ = ["RankedPlan", "pick_winner_from_profile", "select_winner"]

_ORDER: dict[SelectionOutcome, int] = {"won": 0, "tie": 1, "lost": 2, "wrong": 3, "failed": 4}


@dataclass(slots=True, eq=False)
class RankedPlan:
    """A plan in the contest."""

    ready: PreparedPlan
    entrant: TimedCandidate
    regions: tuple[float, ...] = ()
    """Seconds of each launch within calls of the whole."""

    @property
    def has_run(self) -> bool:
        """Whether there are rounds to be judged by."""
        return bool(self.entrant.rounds) and not self.entrant.failure

    @property
    def simplicity(self) -> tuple[int, int]:
        """Regions, then engines: the fewer, the simpler."""
        launches = self.ready.plan.launches
        return len(launches), len({launch.engine for launch in launches})


def select_winner(
    runners: Sequence[RankedPlan],
    others: Sequence[CandidateResult],
    rounds: int,
    least: int = 1,
    choose: Callable[[Sequence[tuple[float, float]], float], int | None] | None = None,
) -> CandidateComparison:
    """Return the comparison: the candidates that ran, in the given order, and others, whose verdict is known without a run.

    With fewer than ``least`` rounds there are no intervals and no losers: the fastest simple plan is chosen.

    The baseline is the fastest simple plan. A plan that is not simple wins if the interval of its ratio to the baseline is wholly
    below one by more than the floor. Several winners, or all candidates if no simple plan ran, tie if they cannot be
    distinguished from the fastest. The simplest of these is chosen. ``choose`` decides in place of this rule, where there is a
    baseline: it receives the medians and upper ends of the ratios of the others to it, and the noise floor.
    """
    ran = [runner for runner in runners if runner.has_run]
    failed = [_failed(runner) for runner in runners if not runner.has_run]
    if not ran:
        return CandidateComparison(tuple(sorted([*failed, *others], key=_place)), rounds)
    base = choose_baseline([runner.entrant for runner in ran if not runner.entrant.is_out] or [runner.entrant for runner in ran])
    ratios = {id(runner): compute_round_ratio(runner.entrant.rounds, base.rounds) for runner in ran}
    is_sure = rounds >= least
    chosen = _chosen(ran, base, ratios, choose) if is_sure else next(runner for runner in ran if runner.entrant is base)
    found = [_contender(runner, ratios[id(runner)], chosen, is_sure=is_sure) for runner in ran]
    baseline = found[[runner.entrant for runner in ran].index(base)]
    contenders = sorted([*found, *failed, *(_at_pace(one, base.median) for one in others)], key=_place)
    return CandidateComparison(tuple(contenders), rounds, next(i for i, one in enumerate(contenders) if one is baseline))


def _at_pace(left: CandidateResult, baseline: float) -> CandidateResult:
    """Return the result of a plan that left an earlier race, with its times at the pace of the last one.

    Its own rounds may have been on a busier machine. Its ratio to the baseline, which both ran in, holds for these rounds too.
    """
    if left.ratio is None:
        return left
    low, high = (None if bound is None else bound * baseline for bound in (left.ratio_low, left.ratio_high))
    return replace(left, seconds=left.ratio * baseline, low=low, high=high)


def pick_winner_from_profile(race: CandidateComparison, plan: Plan, cost: MeasuredCost) -> CandidateComparison:
    """Return an unfinished comparison with a winner: the plan of one region with the lowest measured cost."""
    note = "measured alone; the budget ended before it was compared with the others"
    winner = CandidateResult(plan, "won", cost.seconds, cost.low, cost.high, note=note)
    return CandidateComparison((winner, *(one for one in race.contenders if one.plan != plan)), race.rounds)


def _chosen(
    ran: Sequence[RankedPlan],
    base: TimedCandidate,
    ratios: dict[int, RatioInterval],
    choose: Callable[[Sequence[tuple[float, float]], float], int | None] | None,
) -> RankedPlan:
    if choose is not None and base.is_simple:
        others = [runner for runner in ran if runner.entrant is not base and not runner.entrant.is_out]
        place = choose([(ratios[id(one)].median, ratios[id(one)].high) for one in others], FLOOR)
        return next(runner for runner in ran if runner.entrant is base) if place is None else others[place]
    if base.is_simple:
        winners = [runner for runner in ran if runner.entrant is not base and _beats(runner, ratios[id(runner)])]
    else:
        winners = [runner for runner in ran if not runner.entrant.is_out]
    if not winners:
        return next(runner for runner in ran if runner.entrant is base)
    quickest = min(winners, key=lambda runner: ratios[id(runner)].median)
    alike = [
        x for x in winners if x is quickest or compute_round_ratio(x.entrant.rounds, quickest.entrant.rounds).low <= 1 + FLOOR
    ]
    return min(alike, key=lambda runner: (*runner.simplicity, ratios[id(runner)].median))


def _beats(runner: RankedPlan, ratio: RatioInterval) -> bool:
    return ratio.is_win and not runner.entrant.is_out


def _contender(runner: RankedPlan, ratio: RatioInterval, chosen: RankedPlan, *, is_sure: bool) -> CandidateResult:
    seconds, low, high = median_interval(runner.entrant.rounds)
    has_lost = is_sure and _is_slower(runner, chosen)
    verdict: SelectionOutcome = "won" if runner is chosen else "lost" if has_lost else "tie"
    found = CandidateResult(
        runner.ready.plan, verdict, seconds, ratio=ratio.median, note=runner.ready.found.note, regions=runner.regions
    )
    return replace(found, low=low, high=high, ratio_low=ratio.low, ratio_high=ratio.high) if is_sure else found


def _is_slower(runner: RankedPlan, chosen: RankedPlan) -> bool:
    return compute_round_ratio(runner.entrant.rounds, chosen.entrant.rounds).is_loss


def _failed(runner: RankedPlan) -> CandidateResult:
    return CandidateResult(
        runner.ready.plan, "failed", note=runner.entrant.failure or "it was not called before the budget ended"
    )


def _place(contender: CandidateResult) -> tuple[int, float]:
    return _ORDER[contender.verdict], contender.seconds if contender.seconds is not None else float("inf")
