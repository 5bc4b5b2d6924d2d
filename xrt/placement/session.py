"""Tuning: the survey, the planner's proposals, and the contest, within a budget of seconds.

The first thing that is measured is the whole model on the engine that is ready first; others are asked while time is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from xrt.engines.contract.proxy import load_engine
from xrt.errors import PlanError
from xrt.graph import FrozenDict, Function
from xrt.measure.timing import median_interval
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.placement import SearchOptions, choose_requests, propose_plans
from xrt.placement.profiler import (
    ProfiledRegion,
    ProfilingTarget,
    RegionProfiler,
    Truth,
    check_against_reference,
    compute_truth,
    find_first_random_node,
    find_first_viable,
    is_refuted,
    make_stand_in,
)
from xrt.placement.race import (
    PROFILED,
    Candidates,
    Placing,
    PreparedPlan,
    RankedPlan,
    TimedCandidate,
    alone,
    make_partition_key,
    pick_winner_from_profile,
    prepare_plan,
    run_interleaved,
    select_winner,
    sum_costs,
)
from xrt.placement.result import (
    NOT_MEASURED,
    CandidateComparison,
    CandidateResult,
    Origin,
    Progress,
    TuningResult,
    describe_plan,
    format_count,
    with_reasons,
)
from xrt.placement.runners import (
    Calibration,
    Inquiry,
    LocalRunner,
    OutOfTime,
    Runner,
    WorkerRunner,
    begin,
    choose_runner,
    within,
    within_or_stopped,
)
from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.cache.cost_store import CostStore
    from xrt.engines import GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.partition import Plan
    from xrt.placement.budget import TuningBudget
    from xrt.placement.profiler import Reference
    from xrt.placement.result import PlacementRequest

__all__ = ["LEAST", "ProgressCallback", "TuningSession", "ignore_progress"]

ProgressCallback: TypeAlias = Callable[[Progress], object]
"""Hears how far tuning is."""


def ignore_progress(progress: Progress) -> None:
    """Hear nothing."""


LEAST = 0.1
"""Seconds that what must be done may take in any case."""

T = TypeVar("T")
AT_ONCE = SearchOptions(pieces=6)
"""Few pieces are asked for at once: what is learnt from them says which are the most useful next."""


@dataclass(eq=False)
class TuningSession:
    """One tuning of one Function: measures whole models, then regions, then mixtures. Its state is complete at any time."""

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
    dismissed: list[CandidateResult] = field(default_factory=list)
    rounds: int = 0
    inquiry: Inquiry | None = None
    survey: RegionProfiler | None = None
    truth: Truth = field(default_factory=Truth)
    has_ended: threading.Event = field(default_factory=threading.Event)
    """Set at the end: what is still being made then is not compared."""
    settled_race: tuple[CandidateComparison, int] | None = None
    """The last race but the one that is on."""
    is_hurried: bool = False
    """Whether the first engine took so long that there is time for the whole on some others, and little more."""
    is_calibrated: bool = False
    planning: float = 0.0
    """Seconds that proposing plans took the last time."""
    is_renewed: bool = False
    """Whether an engine has become ready after plans were proposed."""
    preparing: dict[Placing, Future[PreparedPlan]] = field(default_factory=dict)
    """Plans that are being made ready in this process."""
    preparing_since: dict[Placing, float] = field(default_factory=dict)
    """When that was begun."""
    awaited: int = 0
    """Engines whose answers were waited for since then."""
    uncompared: set[Placing] = field(default_factory=set)
    """Plans that ran before the expected results were known, and were not compared since."""
    late_plans: list[Plan] = field(default_factory=list)
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

    def run(self) -> None:
        """Survey, propose and race; ends early where there is nothing left to find out."""
        contexts = self.request.contexts  # raises where a device is unavailable, before anything is begun
        limits = WorkerLimits(self.budget, self.bounds.memory)

        def open_runner(engine: GraphCompiler) -> Runner:
            return choose_runner(engine, limits) if self.bounds.apart else LocalRunner.of(engine)

        self.inquiry = Inquiry(self.function, self.engines, contexts, open_runner, self.store)
        try:
            self._report_progress("asking the engines")
            self._await_plan(self.inquiry)
            if self.budget < self.bounds.small:
                self._measure_here(self.began + self.budget * self.bounds.quick)
            self._report_progress("computing what is right")
            self.truth = self._compute_truth()
            self._check_early_runners()
            if self.truth.reference is not None:
                self._measure()
            if not self._has_measured:
                self._measure_here(self.began + self.budget + self.bounds.grace)
        finally:
            self.has_ended.set()
            self.inquiry.close()
            for runner in self.runners:
                runner.ready.close()
            for made in self.preparing.values():
                made.add_done_callback(_let_go)

    # ------------------------------------------------------------------ time

    @property
    def _end(self) -> float:
        return self.began + self.budget * (1 - self.bounds.end)

    def _left(self) -> float:
        return self._end - self.clock()

    def _report_progress(self, stage: str, best: tuple[str, float] | None = None) -> None:
        quickest = self._candidates.best_alone(self.table) if best is None and self._candidates is not None else None
        title, seconds = best or ((describe_plan(quickest[0]), quickest[1].seconds) if quickest else ("", None))
        self.report(Progress(stage, title, seconds, self.clock() - self.began, self.budget))

    def _make_reporter(self, survey: RegionProfiler) -> Callable[[ProfilingTarget], object]:
        def report(subject: ProfilingTarget) -> None:
            self.table = survey.table  # what is known if this is the last that is begun
            nodes = len(subject.function.nodes)
            self._report_progress(f"measuring {nodes} node{'s' * (nodes != 1)} on {subject.spec}")

        return report

    # ------------------------------------------------------------------ costs that are known

    @property
    def _has_measured(self) -> bool:
        """Whether there is a plan that was measured as a whole."""
        return any(runner.has_run for runner in self.runners) or self.candidates.best_alone(self.table) is not None

    @property
    def _simple(self) -> set[Placing]:
        """The placings that mixtures must beat: those of one engine, or else the one by priority."""
        single = {make_partition_key(plan) for plan in self.proposals if len({x.engine for x in plan.launches}) <= 1}
        return single or {make_partition_key(self.priority)}

    # ------------------------------------------------------------------ engines' answers

    def _await_plan(self, inquiry: Inquiry) -> None:
        """Wait for answers until some plan takes all nodes, however long that is; raises PlanError where there is none."""
        patience = self.budget * self.bounds.turn
        while unanswered := inquiry.unanswered:
            for spec in unanswered:
                if inquiry.wait_for_answers(spec, patience):
                    try:
                        _ = self.priority
                    except PlanError:
                        continue
                    return
            patience = max(2 * patience, LEAST)
        _ = self.priority

    def _ask(self, until: float, is_enough: Callable[[], bool]) -> bool:
        """Wait for engines in turn, for longer each time, until that is enough; return whether it is."""
        assert self.inquiry is not None
        patience = self.budget * self.bounds.turn
        while (pending := sorted(self.inquiry.pending, key=self._is_measured)) and (now := self.clock()) < until:
            for spec in pending:
                if self.inquiry.wait(spec, min(patience, until - now)):
                    if self.survey is not None:
                        self.survey.ways = self.inquiry.ways
                    if is_enough():
                        return True
                now = self.clock()
            patience *= 2
        return is_enough()

    def _is_measured(self, spec: str) -> bool:
        """Whether the whole was measured on an engine: it can wait."""
        wholes = (plan for plan in self.candidates.wholes if plan.launches and plan.launches[0].engine == spec)
        return any(alone(plan, self.table) is not None for plan in wholes)

    def _await_answers(self, seconds: float) -> None:
        """Wait for the first engine that has not answered, and the next time for one more: all at once would keep each other."""
        if self.inquiry is None:
            return
        self.awaited += 1
        unanswered = self.inquiry.unanswered[: self.awaited]
        for spec in unanswered:
            if self.inquiry.wait_for_answers(spec, seconds / len(unanswered)):
                return

    def _pause_inquiry(self) -> AbstractContextManager[None]:
        """Return what keeps engines from being asked meanwhile."""
        return self.inquiry.quiet() if self.inquiry is not None else nullcontext()

    @property
    def _reachable(self) -> Candidates:
        """The candidates on engines that can be measured."""
        if self.inquiry is None:
            return self.candidates
        engines = self.inquiry.engines(started=True)
        if self.survey is not None:
            self.survey.ways = self.inquiry.ways  # of these at least
        return Candidates.of(self.request, engines)

    # ------------------------------------------------------------------ whole models in this process

    def _measure_here(self, until: float) -> None:
        """Let plans run in this process until one has, because workers take too long to start: it is what would be used anyway.

        Where there is no time for a round, the first call is one. A plan that takes long to be made ready is not waited for
        alone: when others are ready sooner, they run.
        """
        while not any(runner.has_run for runner in self.runners) and (now := self.clock()) < until:
            self._begin_local_plan()
            with self._pause_inquiry():
                done, _ = wait(self.preparing.values(), max((until - now) / 2, LEAST), return_when=FIRST_COMPLETED)
            for place in [place for place, made in self.preparing.items() if made in done]:
                self._admit(self.preparing.pop(place).result())
            if done:
                self._race_early(until)
            else:
                self._await_answers(max((until - self.clock()) / 2, LEAST))
            if not self.preparing and self._find_local_plan() is None and not (self.inquiry and self.inquiry.unanswered):
                return

    def _begin_local_plan(self) -> None:
        """Begin to make one more plan ready in this process."""
        if (plan := self._find_local_plan()) is None:
            return
        self._report_progress(f"running {describe_plan(plan)}")
        self.proposals = (*self.proposals, plan)
        self.preparing_since[make_partition_key(plan)] = self.clock()
        used = {launch.engine for launch in plan.launches}
        engines = {
            one.spec: one if isinstance(one, IsolatedEngine) else load_engine(one) for one in self.engines if one.spec in used
        }
        self.preparing[make_partition_key(plan)] = begin(partial(self._make_preparation(plan, engines), self.has_ended.is_set))

    def _find_local_plan(self) -> Plan | None:
        """Return the plan to try next in this process: the list's, or that of one engine."""
        met = {make_partition_key(plan) for plan in self.proposals}
        plans = (self.priority, *self.candidates.wholes)
        return next((one for one in plans if make_partition_key(one) not in met and not is_refuted(one, self.table)), None)

    def _race_early(self, until: float) -> None:
        """Race what is ready; of one that there is no time for, the first call is a round."""
        self._race(until)
        for runner in self.runners:
            if not runner.entrant.rounds and not runner.entrant.failure:
                runner.entrant.rounds.append(runner.ready.seconds)
                self.rounds = 1

    # ------------------------------------------------------------------ expected results

    def _compute_truth(self) -> Truth:
        """Return what is right, by the reference or, where that fails, by the plan of the list."""
        given = {engine.spec: engine for engine in self.engines}
        stand_in, name = make_stand_in(self.candidates, given, self.request.context), describe_plan(self.priority)
        seconds = max(self._left() * self.bounds.truth, LEAST)
        with self._pause_inquiry():
            truth = compute_truth(self.function, self.inputs, self.reference, stand_in, name, seconds)
        if truth.remark:
            self.notes.append(truth.remark)
        return truth

    @property
    def _expected(self) -> list[object] | None:
        """The expected outputs; None if they are unknown."""
        names = [value.name for value in self.function.outputs]
        return [self.truth.values[name] for name in names] if self.truth.reference is not None else None

    def _check_early_runners(self) -> None:
        """Hold what ran before anybody knew what is right against what is; who is wrong leaves."""
        early, self.runners = self.runners, []
        for runner in early:
            if self._expected is None or not (wrong := self._find_difference(runner)):
                self.runners.append(runner)
                plan, rounds = runner.ready.plan, runner.entrant.rounds
                if len(rounds) >= self.bounds.rules.least and len(plan.launches) == 1:
                    region, cost = ProfiledRegion.of(plan.launches[0]), MeasuredCost(*median_interval(rounds))
                    self.table = self.table.with_region(region.key, region.spec, cost)
                continue
            self.dismissed.append(CandidateResult(runner.ready.plan, "wrong", note=wrong))
            runner.ready.close()

    def _find_difference(self, runner: RankedPlan) -> str:
        """Return what is wrong with a plan's first results; empty if nothing is, or if they were compared before."""
        results, function = runner.ready.results, self.function
        if results is None or self._expected is None or find_first_random_node(function):
            return ""
        reference = self.truth.reference or self.reference
        work = partial(
            check_against_reference, function, self.inputs, results, self._expected, reference, self.request.context.options
        )
        try:
            wrong = within_or_stopped(max(self._left(), LEAST), work).wrong
            self.uncompared.discard(make_partition_key(runner.ready.plan))
            return wrong
        except OutOfTime:
            self.notes.append(f"the budget ended before {describe_plan(runner.ready.plan)} was compared with the reference")
            return ""

    # ------------------------------------------------------------------ whole models

    def _measure(self) -> None:
        """Measure the whole on each engine as it becomes ready; then what the planner asks for, and race what it proposes."""
        assert self.inquiry is not None  # it comes before this
        self.survey = survey = RegionProfiler(
            self.request,
            self.inquiry.ways,
            self.truth.values,
            self.truth.reference or self.reference,
            self.table,
            limit=self.budget * self.bounds.limit,
            slice_=min(self.budget * self.bounds.slice, self.bounds.longest),
            clock=self.clock,
            end=self._end,
        )
        self._report_progress("starting the engines")
        self._measure_wholes(survey)
        if not self._has_measured and self._left() < self.budget * self.bounds.hurry:
            self._measure_here(self.began + self.budget + self.bounds.grace)
        if self.function.aliases or self.budget < self.bounds.small or self._left() < self.budget * self.bounds.calm:
            self._race_wholes()
        while self._run_pass(survey):
            pass

    def _measure_wholes(self, survey: RegionProfiler) -> None:
        """Measure the whole on each engine that is ready, and ask the others meanwhile, as long as that may take."""
        until = self.began + self.budget * self.bounds.first
        self._ask(until, lambda: bool(self._list_fresh_wholes(survey)))
        is_first = True
        while survey.measure(self._list_fresh_wholes(survey), until, self._make_reporter(survey)):
            self.is_hurried |= is_first and self._left() < self.budget * self.bounds.calm
            is_first, self.table = False, survey.table
            share = self.bounds.start if self._has_measured and not self.is_hurried else self.bounds.first
            until_ready = self.began + self.budget * share
            if len(self._list_measured()) == 1:  # a choice takes two: the first one's compile has taken the time of the others
                until_ready = max(until_ready, self.clock() + self._left() * self.bounds.ask)
            if not self._ask(until_ready, lambda: bool(self._list_fresh_wholes(survey))):
                break
        self.table = survey.table

    def _list_fresh_wholes(self, survey: RegionProfiler) -> list[ProfiledRegion]:
        """Return the whole on each engine that is ready and of which nothing is known."""
        found = (ProfiledRegion.of(plan.launches[0]) for plan in self.candidates.wholes if len(plan.launches) == 1)
        return [region for region in found if region.spec in survey.ways and not survey.is_known(region)]

    def _race_wholes(self) -> None:
        """Let the plans of one engine that were measured race, each with its form that updates state in place elsewhere.

        Mixtures may leave no time for that: there are many, and a step of training takes long to compile.
        """
        began, left = self.clock(), self._left()
        if self.function.aliases:
            self._ask(began + left * self.bounds.ask, lambda: bool(self._reachable.updating))
        measured, forms = self._list_measured(), {plan.engines[0]: plan for plan in self._reachable.updating}
        specs = [launch.engine for plan in measured for launch in plan.launches]
        measured += [forms[spec] for spec in specs if spec in forms]
        met = {make_partition_key(plan) for plan in self.proposals}
        if fresh := [plan for plan in measured if make_partition_key(plan) not in met]:
            self.proposals = (*self.proposals, *fresh)
            self._settle()
            self._make_ready(fresh, self._end if self.is_hurried else began + left * self.bounds.survey)
            self._race()

    def _list_measured(self) -> list[Plan]:
        """Return the plans of one engine that were measured, the quickest first."""
        known = [
            (cost.seconds, plan) for plan in self.candidates.wholes if isinstance(cost := alone(plan, self.table), MeasuredCost)
        ]
        return [plan for _, plan in sorted(known, key=lambda pair: pair[0])]

    # ------------------------------------------------------------------ regions

    def _run_pass(self, survey: RegionProfiler) -> bool:
        """Survey for a part of the time that is left, and let what is then proposed and new race; tell whether to go on."""
        began, left, count = self.clock(), self._left(), survey.count
        self._ask(began + left * self.bounds.ask, lambda: False)
        if self.is_hurried and (late := self._list_fresh_wholes(survey)):
            survey.measure(late, began + left * self.bounds.survey, self._make_reporter(survey))
            self.table = survey.table
            self._race_wholes()
        try:
            is_known = self._survey(survey, began + left * self.bounds.survey)
            if self._left() <= self.planning:
                return False
            met = {make_partition_key(plan) for plan in self.proposals if plan not in self.late_plans}
            began_planning = self.clock()
            fresh = [plan for plan in self._proposed() if make_partition_key(plan) not in met]
            self.planning = self.clock() - began_planning
        except OutOfTime:
            self.notes.append("the budget ended while the planner was looking for mixtures")
            return False
        self.proposals = (*(plan for plan in self.proposals if plan not in self.late_plans), *fresh)
        self.late_plans.clear()
        if fresh:
            self._settle()
            self._make_ready(fresh, began + left * self.bounds.ready)
            self._race()
        is_waiting = self.inquiry is not None and bool(self.inquiry.pending)
        has_learnt = bool(fresh) or survey.count > count
        return (is_waiting or (has_learnt and not is_known)) and self._left() > self.bounds.last * self.budget

    def _survey(self, survey: RegionProfiler, until: float) -> bool:
        """Measure subgraphs until ``until``, the most useful first; return whether no more are known."""
        while True:
            engines, device = self._reachable.engines, self.request.device_map
            choosing = partial(choose_requests, self.function, engines, survey.table, AT_ONCE, device=device)
            asked = within(self._left(), choosing)
            fresh = [piece for piece in asked if not survey.is_known(piece)]
            in_time = survey.measure(fresh, until, self._make_reporter(survey))
            if not self.is_calibrated and len(self.function.nodes) > 1:
                self._calibrate(survey)
            self.is_calibrated, self.table = True, survey.table
            if not fresh or not in_time:
                return not fresh

    def _calibrate(self, survey: RegionProfiler) -> None:
        """Measure launches and boundaries of the engines that may be worth mixing, the quickest first, as far as time allows."""
        ways, limit = survey.ways, min(self.budget * self.bounds.limit, max(self._left(), LEAST))
        engines = {engine.spec: load_engine(engine) for engine in self.engines if engine.spec in ways}
        calibration = Calibration(
            engines,
            ways,
            self.request.contexts,
            self.request.context,
            self.request.device_map,
            limit,
            self.clock,
            self._report_progress,
        )
        until = self.clock() + self.budget * self.bounds.calibration
        survey.table = calibration.of(survey.table, self._list_promising(ways), until)

    def _list_promising(self, ways: Mapping[str, Runner]) -> list[str]:
        """Return the engines that are not known to be far slower than another on the whole, the quickest first."""
        costs = {plan.launches[0].engine: alone(plan, self.table) for plan in self.candidates.wholes if plan.launches}
        known = {spec: cost.seconds for spec, cost in costs.items() if isinstance(cost, MeasuredCost)}
        most = self.bounds.far * min(known.values(), default=float("inf"))
        willing = [spec for spec in ways if known.get(spec, 0.0) <= most and not isinstance(costs.get(spec), str)]
        return sorted(willing, key=lambda spec: known.get(spec, float("inf")))

    # ------------------------------------------------------------------ mixtures

    def _proposed(self) -> tuple[Plan, ...]:
        """Return plans that keep the caller's options: the best predicted, one engine each, and the one by priority."""
        self._report_progress("planning")
        limit = self.bounds.plans + sum(len(plan.launches) > 1 for plan in self.proposals)
        given, table = self._reachable, self.table
        proposing = partial(
            propose_plans, self.function, given.engines, table, limit=limit, options=AT_ONCE, device=self.request.device_map
        )
        found = within(self._left(), proposing)
        with_updates = (*given.updating, *given.wholes)
        plans = {make_partition_key(plan): plan for plan in (*filter(given.is_allowed, found), *with_updates)}
        with suppress(PlanError):  # what takes all may not have started yet
            plans.setdefault(make_partition_key(given.priority), given.priority)
        return tuple(plans.values())

    def _make_ready(self, plans: Sequence[Plan], until: float) -> None:
        """Compile plans here, those of one engine first, and hold each against the reference; no more of them after ``until``.

        Nor is there one more where the race would not have its rounds then.
        """
        for plan in sorted(plans, key=self._rank_by_cost):
            if (known := self._hopeless(plan)) is not None:
                self.dismissed.append(known)
            elif self.runners and self.clock() >= min(until, self._end - self._estimate_race(plan)):
                self.late_plans.append(plan)  # for the first one there is time in any case
            elif (unproved := self._find_unproved(plan)) is None:
                self.late_plans.append(plan)
            elif unproved:
                self.dismissed.append(CandidateResult(plan, "wrong" if unproved.startswith("wrong") else "failed", note=unproved))
            elif (known := self._hopeless(plan)) is not None:  # it has been measured just now
                self.dismissed.append(known)
            else:
                self._report_progress(f"compiling {describe_plan(plan)}")
                self._prepare(plan)

    def _rank_by_cost(self, plan: Plan) -> tuple[bool, float]:
        """Return what plans are made ready by: those of one engine first, of these the quickest, as far as is known."""
        cost = alone(plan, self.table)
        return make_partition_key(plan) not in self._simple, cost.seconds if isinstance(cost, MeasuredCost) else float("inf")

    def _estimate_race(self, plan: Plan) -> float:
        """Return the seconds of the fewest rounds of a race that one more plan has joined, as far as is known."""
        best = found[1].seconds if (found := self.candidates.best_alone(self.table)) else 0.0
        costs = (alone(one, self.table) for one in (plan, *(runner.ready.plan for runner in self.runners)))
        known = (cost.seconds if isinstance(cost, MeasuredCost) else best for cost in costs)
        return self.bounds.rules.seconds(known)

    def _hopeless(self, plan: Plan) -> CandidateResult | None:
        """Return the verdict on a plan that need not run: it is known to fail, to be wrong, or to be far too slow."""
        if isinstance(cost := alone(plan, self.table), str):
            return CandidateResult(plan, "wrong" if cost.startswith("wrong") else "failed", note=cost)
        if (known := sum_costs(plan, self.table)) is None:
            return None
        others = [one for one in self.proposals if cost is None or len(one.launches) == 1]
        best = min(found.seconds for one in others if (found := sum_costs(one, self.table)) is not None)
        if known.low <= self.bounds.worse * best:
            return None
        what = "measured alone" if cost is not None else "its regions were measured one by one"
        return CandidateResult(
            plan, "lost", known.seconds, known.low, known.high, note=f"{what}, and not compared with the others"
        )

    def _find_unproved(self, plan: Plan) -> str | None:
        """Return why a plan may not be compiled in this process: a region of it has not been right in a worker.

        Empty where all have been; None where there was no time to find out.
        """
        assert self.survey is not None  # it comes before this
        regions = [ProfiledRegion.of(launch) for launch in plan.launches]
        self.survey.measure(regions, self._end, self._make_reporter(self.survey))
        self.table = self.survey.table
        costs = [self.table.region(region.key, region.spec) for region in regions]
        reason = next((cost for cost in costs if isinstance(cost, str)), "")
        return reason if reason or None not in costs else None

    def _prepare(self, plan: Plan) -> None:
        """Make a plan ready to race; one for which the budget ends before is late."""
        left = max(self._end - self.clock(), LEAST)
        ways = self.survey.ways if self.survey is not None else {}
        for way in ways.values():
            if isinstance(way, WorkerRunner):
                way.bound(min(self.budget * self.bounds.limit, left))
        own = {one.spec: one for one in self.engines if isinstance(one, IsolatedEngine)}
        used = {launch.engine for launch in plan.launches}
        fronts = {spec: own.get(spec, way.compiler) for spec, way in ways.items()}
        # What the store knows of a region stands for a measurement: then its engine may not have been started here.
        fronts |= {one.spec: own.get(one.spec) or load_engine(one) for one in self.engines if one.spec in used - fronts.keys()}
        try:
            with self._pause_inquiry():
                self._admit(within_or_stopped(left, self._make_preparation(plan, fronts), late=PreparedPlan.close))
        except OutOfTime:
            self.late_plans.append(plan)

    def _make_preparation(self, plan: Plan, engines: Mapping[str, GraphCompiler]) -> Callable[[Callable[[], bool]], PreparedPlan]:
        """Return the work of making a plan ready on those engines, by spec; it takes what says that it is stopped."""
        request = replace(self.request, engines=tuple(engines.values()))
        reference = self.truth.reference or self.reference
        return partial(prepare_plan, plan, request, self.cache, self.inputs, self._expected, reference)

    def _admit(self, made: PreparedPlan) -> None:
        """Let a plan that is ready race, or say why it may not."""
        plan = made.plan
        if made.may_run:
            known = sum_costs(plan, self.table)
            entrant = TimedCandidate(
                made.call, make_partition_key(plan) in self._simple, expected=known.seconds if known else 0.0
            )
            self.runners.append(RankedPlan(made, entrant))
            if made.results is not None:  # nobody knew what is right yet
                self.uncompared.add(make_partition_key(plan))
            return
        made.close()
        wrong = made.found.wrong
        self.dismissed.append(CandidateResult(plan, "wrong" if wrong else "failed", note=wrong or made.failure))

    # ------------------------------------------------------------------ the race

    def _settle(self) -> None:
        """Keep the results of a comparison: losers leave, and the others run again from the start, against new candidates."""
        if not any(runner.has_run for runner in self.runners):
            return
        settled = select_winner(self.runners, self.dismissed, self.rounds, self.bounds.rules.least)
        self.settled_race = settled, self.rounds
        gone = {make_partition_key(runner.ready.plan): runner for runner in self.runners if runner.entrant.is_out}
        self.dismissed += [one for one in settled.contenders if make_partition_key(one.plan) in gone]
        for runner in gone.values():
            runner.ready.close()
        self.runners = [runner for runner in self.runners if not runner.entrant.is_out]
        for runner in self.runners:
            runner.entrant.rounds.clear()

    def _race(self, until: float | None = None) -> None:
        self.rounds, until = 0, self._end if until is None else until
        entrants = [runner.entrant for runner in self.runners]
        with self._pause_inquiry():
            self.rounds = run_interleaved(entrants, until=until, rules=self.bounds.rules, clock=self.clock, watch=self._watch)
        for runner in self.runners:
            if runner.has_run and not runner.entrant.is_out and self._left() > PROFILED * runner.entrant.median:
                runner.regions = runner.ready.profile(self.inputs)

    def _watch(self, turn: int, best: TimedCandidate) -> None:
        self.rounds = turn
        plan = next(runner.ready.plan for runner in self.runners if runner.entrant is best)
        self._report_progress(
            f"timing {format_count(len(self.runners), 'plan')} in turn, round {turn}", (describe_plan(plan), best.median)
        )

    # ------------------------------------------------------------------ the result

    def make_result(self, how: Origin) -> TuningResult:
        """Return the best by what is known now: who won, else the engine that was quickest alone, else the list's order."""
        count, least = self.survey.count if self.survey else 0, self.bounds.rules.least
        race, rounds = select_winner(self.runners, [*self.dismissed, *self._list_late_results()], self.rounds, least), self.rounds
        if self.settled_race is not None and (race.winner is None or rounds < least):  # the last race has hardly begun
            race, rounds = self.settled_race
        spent, best = self.clock() - self.began, self.candidates.best_alone(self.table)
        if race.winner is None and best is not None:
            race = pick_winner_from_profile(race, *best)
        unmeasured, given = self._list_unmeasured(race), self._find_participants(race)
        race = replace(race, contenders=tuple(self._renew_reasons(one, given, unmeasured) for one in race.contenders))
        if race.winner is not None:
            plan = race.winner.plan
        else:
            chosen = find_first_viable([self.priority, *self.candidates.wholes], self.table)
            plan, how = with_reasons(chosen, unmeasured), "priority"
        is_compared = self.truth.reference is self.reference and make_partition_key(plan) not in self.uncompared
        return TuningResult(
            plan,
            self.table,
            race,
            how,
            self.budget,
            spent,
            count,
            (*self.notes, *self._list_late_notes()),
            unmeasured=FrozenDict(unmeasured),
            is_provisional=how != "priority" and rounds < least,
            is_checked=how != "priority" and is_compared,
            asked=tuple(self.inquiry.engines()) if self.inquiry is not None else (),
        )

    def _list_late_results(self) -> Iterator[CandidateResult]:
        """Yield the plans of one engine for which there was no time left, with what they were measured to take alone."""
        for plan in self.late_plans:
            if isinstance(cost := alone(plan, self.table), MeasuredCost):
                note = "measured alone; the budget ended before it was made ready"
                yield CandidateResult(plan, "lost", cost.seconds, cost.low, cost.high, note=note)

    def _list_late_notes(self) -> list[str]:
        """Return what to say of the mixtures for which there was no time left; nothing where there was."""
        titles = [describe_plan(plan) for plan in self.late_plans if alone(plan, self.table) is None]
        if len(titles) <= 1:
            return [f"the budget ended before {title} was made ready" for title in titles]
        return [f"the budget ended before {len(titles)} plans were made ready, the first {titles[0]}"]

    def _find_participants(self, race: CandidateComparison) -> Candidates:
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

    def _list_unmeasured(self, race: CandidateComparison) -> dict[str, str]:
        """Return by spec why an engine does not stand in the race with the whole model."""
        stands = {one.plan.launches[0].engine for one in race.contenders if one.is_single and one.plan.launches}
        wholes = {plan.launches[0].engine: plan for plan in self.candidates.wholes if plan.launches}
        taking = {engine.spec: engine for engine in self.candidates.engines}
        return {spec: self._explain_unmeasured(engine, wholes.get(spec)) for spec, engine in taking.items() if spec not in stands}

    def _explain_unmeasured(self, engine: GraphCompiler, whole: Plan | None) -> str:
        """Return why the whole was not measured on an engine."""
        spec, function = engine.spec, self.function
        if whole is not None:
            if isinstance(cost := alone(whole, self.table), str):
                return cost
            cut = self.survey.cut_off.get((whole.launches[0].function.shape_key, spec)) if self.survey else None
            if not cut and (key := make_partition_key(whole)) in self.preparing:
                return f"it was not ready to be called within {self.clock() - self.preparing_since[key]:.3g} s"
            unready = self.inquiry.why_not_ready(spec) if self.inquiry is not None else None
            return cut or unready or "the budget ended before its turn"
        declined = [(node, reason) for node in function.nodes if (reason := engine.why_not(node, function)) is not None]
        if not declined:
            return "the options keep the whole model from it"
        (node, reason), count, of = declined[0], len(declined), len(function.nodes)
        if reason.startswith(NOT_MEASURED):
            unready = self.inquiry.why_not_ready(spec) if self.inquiry is not None else None
            return unready or reason.removeprefix(NOT_MEASURED)
        return f"it does not take {count} of {of} node{'s' * (of != 1)}, first {node.name!r} ({node.op}): {reason}"


def _let_go(made: Future[PreparedPlan]) -> None:
    """Let go of a plan that was not waited for."""
    if made.exception() is None:
        made.result().close()
