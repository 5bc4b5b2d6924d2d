"""Tuning: the survey, the planner's proposals, and the contest, within a budget of seconds.

The first thing that is measured is the whole model on the engine that is ready first; others are asked while time is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from xrt.engines.contract.proxy import load_engine
from xrt.errors import PlanError
from xrt.partition.cost_table import MeasuredCost
from xrt.placement import SearchOptions, choose_requests, propose_plans
from xrt.placement.comparison import Racing
from xrt.placement.cost_model.calibration import Calibration
from xrt.placement.plans import Candidates, make_partition_key
from xrt.placement.profiling.profiler import ProfiledRegion, RegionProfiler
from xrt.placement.profiling.reference_results import Truth, compute_truth, make_stand_in
from xrt.placement.profiling.runners import LocalRunner, Runner, choose_runner
from xrt.placement.profiling.support_queries import Inquiry
from xrt.placement.result import describe_plan
from xrt.placement.session_state import LEAST, ProgressCallback, ignore_progress
from xrt.placement.time_limit import OutOfTime, within
from xrt.worker.isolated_engine import WorkerLimits

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition import Plan
    from xrt.placement.prepared_plans import PreparedPlan

__all__ = ["ProgressCallback", "TuningSession", "ignore_progress"]

T = TypeVar("T")

AT_ONCE = SearchOptions(pieces=6)
"""Few pieces are asked for at once: what is learnt from them says which are the most useful next."""


@dataclass(eq=False)
class TuningSession(Racing):
    """One tuning of one Function; what it knows is there at any time, so that it can end at any time."""

    # ------------------------------------------------------------------ the way

    def run(self) -> None:
        """Survey, propose and race; ends early where there is nothing left to find out."""
        contexts = self.request.contexts  # raises where a device is unavailable, before anything is begun
        limits = WorkerLimits(self.budget, self.bounds.memory)
        self.inquiry = Inquiry(self.function, self.engines, contexts, partial(self._way, limits=limits), self.store)
        try:
            self._tell("asking the engines")
            self._await_plan(self.inquiry)
            if self.budget < self.bounds.small:
                self._measure_here(self.began + self.budget * self.bounds.quick)
            self._tell("computing what is right")
            self.truth = self._truth()
            self._hold_early()
            if self.truth.reference is not None:
                self._measure()
            if not self._has_measured:
                self._measure_here(self.began + self.budget + self.bounds.grace)
        finally:
            self.has_ended.set()
            self.inquiry.close()
            for runner in self.runners:
                runner.ready.close()
            for made in self.begun.values():
                made.add_done_callback(_let_go)

    def _way(self, engine: GraphCompiler, limits: WorkerLimits) -> Runner:
        return choose_runner(engine, limits) if self.bounds.apart else LocalRunner.of(engine)

    def _measure(self) -> None:
        """Measure the whole on each engine as it becomes ready; then what the planner asks for, and race what it proposes."""
        assert self.inquiry is not None  # it comes before this
        self.survey = survey = RegionProfiler(
            *(self.request, self.inquiry.ways, self.truth.values, self.truth.reference or self.reference, self.table),
            limit=self.budget * self.bounds.limit,
            slice_=min(self.budget * self.bounds.slice, self.bounds.longest),
            clock=self.clock,
            end=self._end,
        )
        self._tell("starting the engines")
        self._measure_wholes(survey)
        if not self._has_measured and self._left() < self.budget * self.bounds.hurry:
            self._measure_here(self.began + self.budget + self.bounds.grace)
        if self.function.aliases or self.budget < self.bounds.small or self._left() < self.budget * self.bounds.calm:
            self._race_wholes()
        while self._passes(survey):
            pass

    def _measure_wholes(self, survey: RegionProfiler) -> None:
        """Measure the whole on each engine that is ready, and ask the others meanwhile, as long as that may take."""
        until = self.began + self.budget * self.bounds.first
        self._ask(until, lambda: bool(self._fresh_wholes(survey)))
        is_first = True
        while survey.measure(self._fresh_wholes(survey), until, self._report_on(survey)):
            self.is_hurried |= is_first and self._left() < self.budget * self.bounds.calm
            is_first, self.table = False, survey.table
            share = self.bounds.start if self._has_measured and not self.is_hurried else self.bounds.first
            until_ready = self.began + self.budget * share
            if len(self._list_measured()) == 1:  # a choice takes two: the first one's compile has taken the time of the others
                until_ready = max(until_ready, self.clock() + self._left() * self.bounds.ask)
            if not self._ask(until_ready, lambda: bool(self._fresh_wholes(survey))):
                break
        self.table = survey.table

    def _race_wholes(self) -> None:
        """Let the plans of one engine that were measured race, each with its form that updates state in place elsewhere.

        Mixtures may leave no time for that: there are many, and a step of training takes long to compile.
        """
        began, left = self.clock(), self._left()
        if self.function.aliases:
            self._ask(began + left * self.bounds.ask, lambda: bool(self._reach.updating))
        measured, forms = self._list_measured(), {plan.engines[0]: plan for plan in self._reach.updating}
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
        known = [(cost.seconds, plan) for plan in self.candidates.wholes if isinstance(cost := self._alone(plan), MeasuredCost)]
        return [plan for _, plan in sorted(known, key=lambda pair: pair[0])]

    def _fresh_wholes(self, survey: RegionProfiler) -> list[ProfiledRegion]:
        """Return the whole on each engine that is ready and of which nothing is known."""
        found = (ProfiledRegion.of(plan.launches[0]) for plan in self.candidates.wholes if len(plan.launches) == 1)
        return [region for region in found if region.spec in survey.ways and not survey.is_known(region)]

    def _passes(self, survey: RegionProfiler) -> bool:
        """Survey for a part of the time that is left, and let what is then proposed and new race; tell whether to go on."""
        began, left, count = self.clock(), self._left(), survey.count
        self._ask(began + left * self.bounds.ask, lambda: False)
        if self.is_hurried and (late := self._fresh_wholes(survey)):
            survey.measure(late, began + left * self.bounds.survey, self._report_on(survey))
            self.table = survey.table
            self._race_wholes()
        try:
            is_known = self._survey(survey, began + left * self.bounds.survey)
            if self._left() <= self.planning:
                return False
            met = {make_partition_key(plan) for plan in self.proposals if plan not in self.late}
            began_planning = self.clock()
            fresh = [plan for plan in self._proposed() if make_partition_key(plan) not in met]
            self.planning = self.clock() - began_planning
        except OutOfTime:
            self.notes.append("the budget ended while the planner was looking for mixtures")
            return False
        self.proposals = (*(plan for plan in self.proposals if plan not in self.late), *fresh)
        self.late.clear()
        if fresh:
            self._settle()
            self._make_ready(fresh, began + left * self.bounds.ready)
            self._race()
        is_waiting = self.inquiry is not None and bool(self.inquiry.pending)
        has_learnt = bool(fresh) or survey.count > count
        return (is_waiting or (has_learnt and not is_known)) and self._left() > self.bounds.last * self.budget

    # ------------------------------------------------------------------ asking

    def _ask(self, until: float, is_enough: Callable[[], bool]) -> bool:
        """Wait for engines in turn, for longer each time, until that is enough; return whether it is."""
        assert self.inquiry is not None
        patience = self.budget * self.bounds.turn
        while (pending := sorted(self.inquiry.pending, key=self._is_known)) and (now := self.clock()) < until:
            for spec in pending:
                if self.inquiry.wait(spec, min(patience, until - now)):
                    if self.survey is not None:
                        self.survey.ways = self.inquiry.ways
                    if is_enough():
                        return True
                now = self.clock()
            patience *= 2
        return is_enough()

    def _is_known(self, spec: str) -> bool:
        """Whether the whole was measured on an engine: it can wait."""
        wholes = (plan for plan in self.candidates.wholes if plan.launches and plan.launches[0].engine == spec)
        return any(self._alone(plan) is not None for plan in wholes)

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

    def _truth(self) -> Truth:
        """Return what is right, by the reference or, where that fails, by the plan of the list."""
        given = {engine.spec: engine for engine in self.engines}
        stand_in, name = make_stand_in(self.candidates, given, self.context), describe_plan(self.priority)
        seconds = max(self._left() * self.bounds.truth, LEAST)
        with self._quiet():
            truth = compute_truth(self.function, self.inputs, self.reference, stand_in, name, seconds)
        if truth.remark:
            self.notes.append(truth.remark)
        return truth

    # ------------------------------------------------------------------ the survey

    def _survey(self, survey: RegionProfiler, until: float) -> bool:
        """Measure subgraphs until ``until``, the most useful first; return whether no more are known."""
        while True:
            given = self.function, self._reach.engines, survey.table, AT_ONCE
            asked = self._in_time(partial(choose_requests, *given, device=self.request.device_map))
            fresh = [piece for piece in asked if not survey.is_known(piece)]
            in_time = survey.measure(fresh, until, self._report_on(survey))
            if not self.is_calibrated and len(self.function.nodes) > 1:
                self._calibrate(survey)
            self.is_calibrated, self.table = True, survey.table
            if not fresh or not in_time:
                return not fresh

    def _in_time(self, work: Callable[[], T]) -> T:
        """Return what the planner finds; raises OutOfTime where the budget ends first."""
        return within(self._left(), work)

    def _calibrate(self, survey: RegionProfiler) -> None:
        """Measure launches and boundaries of the engines that may be worth mixing, the quickest first, as far as time allows."""
        ways, limit = survey.ways, min(self.budget * self.bounds.limit, max(self._left(), LEAST))
        engines = {engine.spec: load_engine(engine) for engine in self.engines if engine.spec in ways}
        given = engines, ways, self.request.contexts, self.context, self.request.device_map, limit, self.clock, self._tell
        until = self.clock() + self.budget * self.bounds.calibration
        survey.table = Calibration(*given).of(survey.table, self._promising(ways), until)

    def _promising(self, ways: Mapping[str, Runner]) -> list[str]:
        """Return the engines that are not known to be far slower than another on the whole, the quickest first."""
        costs = {plan.launches[0].engine: self._alone(plan) for plan in self.candidates.wholes if plan.launches}
        known = {spec: cost.seconds for spec, cost in costs.items() if isinstance(cost, MeasuredCost)}
        most = self.bounds.far * min(known.values(), default=float("inf"))
        willing = [spec for spec in ways if known.get(spec, 0.0) <= most and not isinstance(costs.get(spec), str)]
        return sorted(willing, key=lambda spec: known.get(spec, float("inf")))

    def _proposed(self) -> tuple[Plan, ...]:
        """Return plans that keep the caller's options: the best predicted, one engine each, and the one by priority."""
        self._tell("planning")
        limit = self.bounds.plans + sum(len(plan.launches) > 1 for plan in self.proposals)
        given, table = self._reach, self.table
        proposing = partial(
            propose_plans, self.function, given.engines, table, limit=limit, options=AT_ONCE, device=self.request.device_map
        )
        found = self._in_time(proposing)
        with_updates = (*given.updating, *given.wholes)
        plans = {make_partition_key(plan): plan for plan in (*filter(given.is_allowed, found), *with_updates)}
        with suppress(PlanError):  # what takes all may not have started yet
            plans.setdefault(make_partition_key(given.priority), given.priority)
        return tuple(plans.values())

    @property
    def _reach(self) -> Candidates:
        """The candidates on engines that can be measured."""
        if self.inquiry is None:
            return self.candidates
        engines = self.inquiry.engines(started=True)
        if self.survey is not None:
            self.survey.ways = self.inquiry.ways  # of these at least
        return Candidates.of(self.request, engines)


def _let_go(made: Future[PreparedPlan]) -> None:
    """Let go of a plan that was not waited for."""
    if made.exception() is None:
        made.result().close()
