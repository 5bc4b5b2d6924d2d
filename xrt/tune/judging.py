"""Who has won: a mixture by more than the noise, else the simpler plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xrt.partition import Plan
from xrt.partition.costs import Measured
from xrt.runtime.rounds import FLOOR, Ratio, within_rounds
from xrt.runtime.timing import median_interval
from xrt.tune.contest import Entrant, against
from xrt.tune.programs import Ready
from xrt.tune.tuned import Contender, Race, Verdict

__all__ = ["Runner", "judged", "won_alone"]

_ORDER: dict[Verdict, int] = {"won": 0, "tie": 1, "lost": 2, "wrong": 3, "failed": 4}


@dataclass(slots=True, eq=False)
class Runner:
    """A plan in the contest."""

    ready: Ready
    entrant: Entrant
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


def judged(runners: Sequence[Runner], others: Sequence[Contender], rounds: int, least: int = 1) -> Race:
    """Return the race: who ran, in the order given, and others, whose verdict is known without running.

    Fewer than the ``least`` rounds have no interval, and nobody has lost by them: the quickest simple plan is chosen.

    The baseline is the quickest simple plan. A plan that is not simple wins where the interval of its ratio to the baseline
    lies wholly below one by more than the floor; of several winners, and of all where no simple plan ran, those that cannot
    be told from the quickest are tied, and the simplest of them is chosen.
    """
    ran = [runner for runner in runners if runner.has_run]
    failed = [_failed(runner) for runner in runners if not runner.has_run]
    if not ran:
        return Race(tuple(sorted([*failed, *others], key=_place)), rounds)
    base = against([runner.entrant for runner in ran if not runner.entrant.is_out] or [runner.entrant for runner in ran])
    ratios = {id(runner): within_rounds(runner.entrant.rounds, base.rounds) for runner in ran}
    is_sure = rounds >= least
    chosen = _chosen(ran, base, ratios) if is_sure else next(runner for runner in ran if runner.entrant is base)
    found = [_contender(runner, ratios[id(runner)], chosen, is_sure=is_sure) for runner in ran]
    baseline = found[[runner.entrant for runner in ran].index(base)]
    contenders = sorted([*found, *failed, *others], key=_place)
    return Race(tuple(contenders), rounds, next(i for i, one in enumerate(contenders) if one is baseline))


def won_alone(race: Race, plan: Plan, cost: Measured) -> Race:
    """Return a race that nobody has finished with a winner: the plan of one region that was measured to be the quickest."""
    note = "measured alone; the budget ended before it was held against the others"
    winner = Contender(plan, "won", cost.seconds, cost.low, cost.high, note=note)
    return Race((winner, *(one for one in race.contenders if one.plan != plan)), race.rounds)


def _chosen(ran: Sequence[Runner], base: Entrant, ratios: dict[int, Ratio]) -> Runner:
    if base.is_simple:
        winners = [runner for runner in ran if runner.entrant is not base and _beats(runner, ratios[id(runner)])]
    else:
        winners = [runner for runner in ran if not runner.entrant.is_out]
    if not winners:
        return next(runner for runner in ran if runner.entrant is base)
    quickest = min(winners, key=lambda runner: ratios[id(runner)].median)
    alike = [x for x in winners if x is quickest or within_rounds(x.entrant.rounds, quickest.entrant.rounds).low <= 1 + FLOOR]
    return min(alike, key=lambda runner: (*runner.simplicity, ratios[id(runner)].median))


def _beats(runner: Runner, ratio: Ratio) -> bool:
    return ratio.is_win and not runner.entrant.is_out


def _contender(runner: Runner, ratio: Ratio, chosen: Runner, *, is_sure: bool) -> Contender:
    seconds, low, high = median_interval(runner.entrant.rounds)
    has_lost = is_sure and _is_slower(runner, chosen)
    verdict: Verdict = "won" if runner is chosen else "lost" if has_lost else "tie"
    found = Contender(
        runner.ready.plan, verdict, seconds, ratio=ratio.median, note=runner.ready.found.note, regions=runner.regions
    )
    return replace(found, low=low, high=high, ratio_low=ratio.low, ratio_high=ratio.high) if is_sure else found


def _is_slower(runner: Runner, chosen: Runner) -> bool:
    return within_rounds(runner.entrant.rounds, chosen.entrant.rounds).is_loss


def _failed(runner: Runner) -> Contender:
    return Contender(runner.ready.plan, "failed", note=runner.entrant.failure or "it was not called before the budget ended")


def _place(contender: Contender) -> tuple[int, float]:
    return _ORDER[contender.verdict], contender.seconds if contender.seconds is not None else float("inf")
