"""The state of a search: what was asked for, what is known by now, and the best that comes of it at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.graph import FrozenDict, Function
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.explicit import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.placement.plans import Candidates, Placing, alone, make_partition_key
from xrt.placement.profiling.profiler import ProfilingTarget, RegionProfiler, find_first_viable
from xrt.placement.profiling.reference_results import Truth
from xrt.placement.result import (
    NOT_MEASURED,
    CandidateComparison,
    CandidateResult,
    Origin,
    Progress,
    TuningResult,
    describe_plan,
    with_reasons,
)
from xrt.placement.selection import RankedPlan, pick_winner_from_profile, select_winner

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.cache.disk.cost_store import CostStore
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.partition import Plan
    from xrt.placement.budget import TuningBudget
    from xrt.placement.prepared_plans import PreparedPlan
    from xrt.placement.profiling.activations import Reference
    from xrt.placement.profiling.support_queries import Inquiry
    from xrt.placement.request import PlacementRequest

__all__ = ["LEAST", "ProgressCallback", "SearchState", "ignore_progress"]

ProgressCallback: TypeAlias = Callable[[Progress], object]
"""Hears how far tuning is."""


def ignore_progress(progress: Progress) -> None:
    """Hear nothing."""


LEAST = 0.1
"""Seconds that what must be done may take in any case."""


@dataclass(eq=False)
class SearchState:
    """One tuning of one Function, as far as it is."""

    request: PlacementRequest
    inputs: Sequence[Any]
    reference: Reference
    cache: CompileCache
    bounds: TuningBudget
    report: ProgressCallback
    clock: Clock = time.perf_counter
    store: CostStore | None = None
    """Where answers of engines are kept."""
    table: CostTable = CostTable()
    notes: list[str] = field(default_factory=list)
    proposals: tuple[Plan, ...] = ()
    runners: list[RankedPlan] = field(default_factory=list)
    others: list[CandidateResult] = field(default_factory=list)
    rounds: int = 0
    inquiry: Inquiry | None = None
    survey: RegionProfiler | None = None
    truth: Truth = field(default_factory=Truth)
    has_ended: threading.Event = field(default_factory=threading.Event)
    """Set at the end: what is still being made then is not compared."""
    settled: tuple[CandidateComparison, int] | None = None
    """The last race but the one that is on."""
    is_hurried: bool = False
    """Whether the first engine took so long that there is time for the whole on some others, and little more."""
    is_calibrated: bool = False
    planning: float = 0.0
    """Seconds that proposing plans took the last time."""
    is_renewed: bool = False
    """Whether an engine has become ready after plans were proposed."""
    begun: dict[Placing, Future[PreparedPlan]] = field(default_factory=dict)
    """Plans that are being made ready in this process."""
    since: dict[Placing, float] = field(default_factory=dict)
    """When that was begun."""
    awaited: int = 0
    """Engines whose answers were waited for since then."""
    uncompared: set[Placing] = field(default_factory=set)
    """Plans that ran before the expected results were known, and were not compared since."""
    late: list[Plan] = field(default_factory=list)
    """Plans for which there was no time left."""

    began: float = field(init=False)
    _candidates: Candidates | None = field(init=False, default=None)
    _known: tuple[str, ...] = field(init=False, default=())
    """The engines whose answers the candidates are by."""

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def function(self) -> Function:
        return self.request.function

    @property
    def engines(self) -> Sequence[GraphCompiler]:
        return self.request.engines

    @property
    def context(self) -> CompileContext:
        return self.request.context

    @property
    def budget(self) -> float:
        return self.request.budget

    @property
    def candidates(self) -> Candidates:
        """The plans that there are without measuring, by what engines have answered."""
        known = self.inquiry.known if self.inquiry is not None else ()
        if self._candidates is None or known != self._known:  # they answer in threads, and not only while they are waited for
            self._known, self.is_renewed = known, self.is_renewed or bool(self.proposals)
            asked = self.inquiry.engines() if self.inquiry is not None else self.engines
            self._candidates = Candidates.of(self.request, asked)
        return self._candidates

    @property
    def priority(self) -> Plan:
        """What the order of the list alone gives; raises PlanError where nothing takes a node."""
        return self.candidates.priority

    # ------------------------------------------------------------------ time

    @property
    def _end(self) -> float:
        return self.began + self.budget * (1 - self.bounds.end)

    def _left(self) -> float:
        return self._end - self.clock()

    def _tell(self, stage: str, best: tuple[str, float] | None = None) -> None:
        title, seconds = best or self._quickest() or ("", None)
        self.report(Progress(stage, title, seconds, self.clock() - self.began, self.budget))

    def _report_on(self, survey: RegionProfiler) -> Callable[[ProfilingTarget], object]:
        def report(subject: ProfilingTarget) -> None:
            self.table = survey.table  # what is known if this is the last that is begun
            nodes = len(subject.function.nodes)
            self._tell(f"measuring {nodes} node{'s' * (nodes != 1)} on {subject.spec}")

        return report

    # ------------------------------------------------------------------ what is known

    def _quickest(self) -> tuple[str, float] | None:
        found = self._candidates.best_alone(self.table) if self._candidates is not None else None
        return (describe_plan(found[0]), found[1].seconds) if found else None

    def _alone(self, plan: Plan) -> MeasuredCost | str | None:
        """Return the measured cost of a plan of one region; None for other plans, and if it is unknown."""
        return alone(plan, self.table)

    @property
    def _has_measured(self) -> bool:
        """Whether there is a plan that was measured as a whole."""
        return any(runner.has_run for runner in self.runners) or self.candidates.best_alone(self.table) is not None

    @property
    def _simple(self) -> set[Placing]:
        """The placings that mixtures must beat: those of one engine, or else the one by priority."""
        single = {make_partition_key(plan) for plan in self.proposals if len({x.engine for x in plan.launches}) <= 1}
        return single or {make_partition_key(self.priority)}

    # ------------------------------------------------------------------ what comes of it

    def make_result(self, how: Origin) -> TuningResult:
        """Return the best by what is known now: who won, else the engine that was quickest alone, else the list's order."""
        (race, rounds), count = self._judgement(), self.survey.count if self.survey else 0
        spent, best = self.clock() - self.began, self.candidates.best_alone(self.table)
        if race.winner is None and best is not None:
            race = pick_winner_from_profile(race, *best)
        unmeasured, given = self._unmeasured(race), self._taking_part(race)
        race = replace(race, contenders=tuple(self._renew_reasons(one, given, unmeasured) for one in race.contenders))
        if race.winner is not None:
            plan = race.winner.plan
        else:
            chosen = find_first_viable([self.priority, *self.candidates.wholes], self.table)
            plan, how = with_reasons(chosen, unmeasured), "priority"
        is_compared = self.truth.reference is self.reference and make_partition_key(plan) not in self.uncompared
        return TuningResult(
            *(plan, self.table, race, how, self.budget, spent, count, (*self.notes, *self._late_note())),
            unmeasured=FrozenDict(unmeasured),
            is_provisional=how != "priority" and rounds < self.bounds.rules.least,
            is_checked=how != "priority" and is_compared,
            asked=tuple(self.inquiry.engines()) if self.inquiry is not None else (),
        )

    def _judgement(self) -> tuple[CandidateComparison, int]:
        """Return the current comparison and its rounds; the settled one instead if the current one has hardly begun."""
        race = select_winner(self.runners, [*self.others, *self._too_late()], self.rounds, self.bounds.rules.least)
        has_begun = race.winner is not None and self.rounds >= self.bounds.rules.least
        return self.settled if self.settled is not None and not has_begun else (race, self.rounds)

    def _too_late(self) -> Iterator[CandidateResult]:
        """Yield the plans of one engine for which there was no time left, with what they were measured to take alone."""
        for plan in self.late:
            if isinstance(cost := self._alone(plan), MeasuredCost):
                note = "measured alone; the budget ended before it was made ready"
                yield CandidateResult(plan, "lost", cost.seconds, cost.low, cost.high, note=note)

    def _late_note(self) -> list[str]:
        """Return what to say of the mixtures for which there was no time left; nothing where there was."""
        titles = [describe_plan(plan) for plan in self.late if self._alone(plan) is None]
        if len(titles) <= 1:
            return [f"the budget ended before {title} was made ready" for title in titles]
        return [f"the budget ended before {len(titles)} plans were made ready, the first {titles[0]}"]

    def _slowness(self, plan: Plan) -> str:
        """Return what to say of a plan that took too long to be made ready; nothing of another."""
        is_begun, since = make_partition_key(plan) in self.begun, self.since.get(make_partition_key(plan), 0.0)
        return f"it was not ready to be called within {self.clock() - since:.3g} s" if is_begun else ""

    def _taking_part(self, race: CandidateComparison) -> Candidates:
        """Return the current candidates, with the implicit engine if a contender needs it."""
        given = self.candidates
        used = {launch.engine for one in race.contenders for launch in one.plan.launches}
        if self.request.implicit in used and given.implicit is None and self.inquiry is not None:
            return replace(given, engines=tuple(self.inquiry.engines()), implicit=self.request.implicit)
        return given

    def _renew_reasons(self, contender: CandidateResult, given: Candidates, unmeasured: Mapping[str, str]) -> CandidateResult:
        """Return a contender whose plan has the reasons that hold now: it may have been made before all had answered."""
        plan = contender.plan
        if self.is_renewed:
            homes, groups = map_nodes_to_engines(plan), map_nodes_to_regions(plan)
            plan = plan_from_assignment(
                self.function, given.engines, homes, groups=groups, implicit=given.implicit, device=self.request.device_map
            )
        return replace(contender, plan=with_reasons(plan, unmeasured))

    def _unmeasured(self, race: CandidateComparison) -> dict[str, str]:
        """Return by spec why an engine does not stand in the race with the whole model."""
        stands = {one.plan.launches[0].engine for one in race.contenders if one.is_single and one.plan.launches}
        wholes = {plan.launches[0].engine: plan for plan in self.candidates.wholes if plan.launches}
        taking = {engine.spec: engine for engine in self.candidates.engines}
        return {spec: self._why_not(engine, wholes.get(spec)) for spec, engine in taking.items() if spec not in stands}

    def _why_not(self, engine: GraphCompiler, whole: Plan | None) -> str:
        """Return why the whole was not measured on an engine."""
        spec, function = engine.spec, self.function
        if whole is not None:
            cost = self._alone(whole)
            unready = self.inquiry.why_not_ready(spec) if self.inquiry is not None else None
            cut = self.survey.cut_off.get((whole.launches[0].function.shape_key, spec)) if self.survey else None
            return (
                cost if isinstance(cost, str) else cut or self._slowness(whole) or unready or "the budget ended before its turn"
            )
        declined = [(node, reason) for node in function.nodes if (reason := engine.why_not(node, function)) is not None]
        if not declined:
            return "the options keep the whole model from it"
        (node, reason), count, of = declined[0], len(declined), len(function.nodes)
        if reason.startswith(NOT_MEASURED):
            unready = self.inquiry.why_not_ready(spec) if self.inquiry is not None else None
            return unready or reason.removeprefix(NOT_MEASURED)
        return f"it does not take {count} of {of} node{'s' * (of != 1)}, first {node.name!r} ({node.op}): {reason}"
