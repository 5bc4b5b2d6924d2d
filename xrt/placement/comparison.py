"""The contest of a search: plans are made ready, take turns, and leave when they have lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from xrt.engines.contract.proxy import load_engine
from xrt.measure.timing import median_interval
from xrt.partition.cost_table import MeasuredCost
from xrt.placement.interleaved import TimedCandidate, run_interleaved
from xrt.placement.plans import make_partition_key, sum_costs
from xrt.placement.prepared_plans import PROFILED, PreparedPlan, prepare_plan
from xrt.placement.profiling.activations import find_first_random_node
from xrt.placement.profiling.correctness import check_against_reference
from xrt.placement.profiling.profiler import ProfiledRegion, is_refuted
from xrt.placement.profiling.runners import WorkerRunner
from xrt.placement.result import CandidateResult, describe_plan, format_count
from xrt.placement.selection import RankedPlan, select_winner
from xrt.placement.session_state import LEAST, SearchState
from xrt.placement.time_limit import OutOfTime, begin, within_or_stopped
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition import Plan

__all__ = ["Racing"]


@dataclass(eq=False)
class Racing(SearchState):
    """A search that can let plans race."""

    def _settle(self) -> None:
        """Keep the results of a comparison: losers leave, and the others run again from the start, against new candidates."""
        if not any(runner.has_run for runner in self.runners):
            return
        self.settled = (settled := select_winner(self.runners, self.others, self.rounds, self.bounds.rules.least)), self.rounds
        gone = {make_partition_key(runner.ready.plan): runner for runner in self.runners if runner.entrant.is_out}
        self.others += [one for one in settled.contenders if make_partition_key(one.plan) in gone]
        for runner in gone.values():
            runner.ready.close()
        self.runners = [runner for runner in self.runners if not runner.entrant.is_out]
        for runner in self.runners:
            runner.entrant.rounds.clear()

    def _make_ready(self, plans: Sequence[Plan], until: float) -> None:
        """Compile plans here, those of one engine first, and hold each against the reference; no more of them after ``until``.

        Nor is there one more where the race would not have its rounds then.
        """
        for plan in sorted(plans, key=self._rank):
            if (known := self._hopeless(plan)) is not None:
                self.others.append(known)
            elif not self._is_in_time(plan, until) or (unproved := self._unproved(plan)) is None:
                self.late.append(plan)
            elif unproved:
                self.others.append(CandidateResult(plan, "wrong" if unproved.startswith("wrong") else "failed", note=unproved))
            elif (known := self._hopeless(plan)) is not None:  # it has been measured just now
                self.others.append(known)
            else:
                self._tell(f"compiling {describe_plan(plan)}")
                self._enter(plan)

    def _is_in_time(self, plan: Plan, until: float) -> bool:
        """Whether there is time to make a plan ready and to race it; for one there is."""
        return not self.runners or self.clock() < min(until, self._end - self._race_needs(plan))

    def _rank(self, plan: Plan) -> tuple[bool, float]:
        """Return what plans are made ready by: those of one engine first, of these the quickest, as far as is known."""
        cost = self._alone(plan)
        return make_partition_key(plan) not in self._simple, cost.seconds if isinstance(cost, MeasuredCost) else float("inf")

    def _race_needs(self, plan: Plan) -> float:
        """Return the seconds of the fewest rounds of a race that one more plan has joined, as far as is known."""
        best = found[1].seconds if (found := self.candidates.best_alone(self.table)) else 0.0
        costs = (self._alone(one) for one in (plan, *(runner.ready.plan for runner in self.runners)))
        known = (cost.seconds if isinstance(cost, MeasuredCost) else best for cost in costs)
        return self.bounds.rules.seconds(known)

    def _unproved(self, plan: Plan) -> str | None:
        """Return why a plan may not be compiled in this process: a region of it has not been right in a worker.

        Empty where all have been; None where there was no time to find out.
        """
        assert self.survey is not None  # it comes before this
        regions = [ProfiledRegion.of(launch) for launch in plan.launches]
        self.survey.measure(regions, self._end, self._report_on(self.survey))
        self.table = self.survey.table
        costs = [self.table.region(region.key, region.spec) for region in regions]
        reason = next((cost for cost in costs if isinstance(cost, str)), "")
        return reason if reason or None not in costs else None

    def _enter(self, plan: Plan) -> None:
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
            with self._quiet():
                self._admit(within_or_stopped(left, self._making(plan, fronts), late=PreparedPlan.close))
        except OutOfTime:
            self.late.append(plan)

    def _making(self, plan: Plan, engines: Mapping[str, GraphCompiler]) -> Callable[[Callable[[], bool]], PreparedPlan]:
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
        self.others.append(CandidateResult(plan, "wrong" if wrong else "failed", note=wrong or made.failure))

    def _quiet(self) -> AbstractContextManager[None]:
        """Return what keeps engines from being asked meanwhile."""
        return self.inquiry.quiet() if self.inquiry is not None else nullcontext()

    @property
    def _expected(self) -> list[object] | None:
        """The expected outputs; None if they are unknown."""
        names = [value.name for value in self.function.outputs]
        return [self.truth.values[name] for name in names] if self.truth.reference is not None else None

    def _measure_here(self, until: float) -> None:
        """Let plans run in this process until one has, because workers take too long to start: it is what would be used anyway.

        Where there is no time for a round, the first call is one. A plan that takes long to be made ready is not waited for
        alone: when others are ready sooner, they run.
        """
        while not any(runner.has_run for runner in self.runners) and (now := self.clock()) < until:
            self._begin_here()
            with self._quiet():
                done, _ = wait(self.begun.values(), max((until - now) / 2, LEAST), return_when=FIRST_COMPLETED)
            for place in [place for place, made in self.begun.items() if made in done]:
                self._admit(self.begun.pop(place).result())
            if done:
                self._race_early(until)
            else:
                self._await_answers(max((until - self.clock()) / 2, LEAST))
            if not self.begun and self._next_here() is None and not (self.inquiry and self.inquiry.unanswered):
                return

    def _begin_here(self) -> None:
        """Begin to make one more plan ready in this process."""
        if (plan := self._next_here()) is None:
            return
        self._tell(f"running {describe_plan(plan)}")
        self.proposals = (*self.proposals, plan)
        self.since[make_partition_key(plan)] = self.clock()
        used = {launch.engine for launch in plan.launches}
        engines = {
            one.spec: one if isinstance(one, IsolatedEngine) else load_engine(one) for one in self.engines if one.spec in used
        }
        self.begun[make_partition_key(plan)] = begin(partial(self._making(plan, engines), self.has_ended.is_set))

    def _next_here(self) -> Plan | None:
        """Return the plan to try next in this process: the list's, or that of one engine."""
        met = {make_partition_key(plan) for plan in self.proposals}
        plans = (self.priority, *self.candidates.wholes)
        return next((one for one in plans if make_partition_key(one) not in met and not is_refuted(one, self.table)), None)

    def _await_answers(self, seconds: float) -> None:
        """Wait for the first engine that has not answered, and the next time for one more: all at once would keep each other."""
        if self.inquiry is None:
            return
        self.awaited += 1
        unanswered = self.inquiry.unanswered[: self.awaited]
        for spec in unanswered:
            if self.inquiry.wait_for_answers(spec, seconds / len(unanswered)):
                return

    def _race_early(self, until: float) -> None:
        """Race what is ready; of one that there is no time for, the first call is a round."""
        self._race(until)
        for runner in self.runners:
            if not runner.entrant.rounds and not runner.entrant.failure:
                runner.entrant.rounds.append(runner.ready.seconds)
                self.rounds = 1

    def _hold_early(self) -> None:
        """Hold what ran before anybody knew what is right against what is; who is wrong leaves."""
        early, self.runners = self.runners, []
        for runner in early:
            if self._expected is None or not (wrong := self._wrong(runner)):
                self.runners.append(runner)
                self._learn_of(runner)
                continue
            self.others.append(CandidateResult(runner.ready.plan, "wrong", note=wrong))
            runner.ready.close()

    def _learn_of(self, runner: RankedPlan) -> None:
        """Keep what a plan of one region took in a race as what the region costs."""
        if len(runner.entrant.rounds) >= self.bounds.rules.least and len(runner.ready.plan.launches) == 1:
            region, cost = ProfiledRegion.of(runner.ready.plan.launches[0]), MeasuredCost(*median_interval(runner.entrant.rounds))
            self.table = self.table.with_region(region.key, region.spec, cost)

    def _wrong(self, runner: RankedPlan) -> str:
        """Return what is wrong with a plan's first results; empty if nothing is, or if they were compared before."""
        results, function = runner.ready.results, self.function
        if results is None or self._expected is None or find_first_random_node(function):
            return ""
        reference = self.truth.reference or self.reference
        work = partial(check_against_reference, function, self.inputs, results, self._expected, reference, self.context.options)
        try:
            wrong = within_or_stopped(max(self._left(), LEAST), work).wrong
            self.uncompared.discard(make_partition_key(runner.ready.plan))
            return wrong
        except OutOfTime:
            self.notes.append(f"the budget ended before {describe_plan(runner.ready.plan)} was compared with the reference")
            return ""

    def _hopeless(self, plan: Plan) -> CandidateResult | None:
        """Return the verdict on a plan that need not run: it is known to fail, to be wrong, or to be far too slow."""
        if isinstance(cost := self._alone(plan), str):
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

    def _race(self, until: float | None = None) -> None:
        self.rounds, until = 0, self._end if until is None else until
        entrants = [runner.entrant for runner in self.runners]
        with self._quiet():
            self.rounds = run_interleaved(entrants, until=until, rules=self.bounds.rules, clock=self.clock, watch=self._watch)
        for runner in self.runners:
            if runner.has_run and not runner.entrant.is_out and self._left() > PROFILED * runner.entrant.median:
                runner.regions = runner.ready.profile(self.inputs)

    def _watch(self, turn: int, best: TimedCandidate) -> None:
        self.rounds = turn
        plan = next(runner.ready.plan for runner in self.runners if runner.entrant is best)
        self._tell(f"timing {format_count(len(self.runners), 'plan')} in turn, round {turn}", (describe_plan(plan), best.median))
