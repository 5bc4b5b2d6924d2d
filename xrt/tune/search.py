"""Tuning: the survey, the planner's proposals, and the contest, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import Any, TypeAlias

from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import EngineError, OutOfDeviceMemory
from xrt.graph import FrozenDict, Function
from xrt.partition import ClusteringOptions, Plan, partition
from xrt.partition.costs import CostTable, Measured
from xrt.partition.devices import Homes
from xrt.partition.planner import SearchOptions, pieces, propose
from xrt.runtime import on_device
from xrt.runtime.isolation import Isolated, Limits
from xrt.runtime.timing import Clock
from xrt.tune.bounds import Bounds
from xrt.tune.calibration import crossing, launch_cost
from xrt.tune.candidates import Placing, is_allowed, placing, single_plans, summed
from xrt.tune.contest import Entrant, contested
from xrt.tune.judging import Runner, judged, won_alone
from xrt.tune.programs import ready
from xrt.tune.survey import Region, Subject, Survey, unrefuted
from xrt.tune.tuned import Contender, How, Progress, Race, Tuned, title_of
from xrt.tune.values import Reference, captured
from xrt.tune.walls import Apart, Here, Way, way_of

__all__ = ["Search", "Told", "unheard"]

Told: TypeAlias = Callable[[Progress], object]
"""Hears how far tuning is."""


def unheard(progress: Progress) -> None:
    """Hear nothing."""


AT_ONCE = SearchOptions(pieces=6)
"""Few pieces are asked for at once: what is learnt from them says which are the most useful next."""

LEAST = 0.1
"""Seconds that the last compile may take in any case."""


@dataclass(eq=False)
class Search:
    """One tuning of one Function; what it knows is there at any time, so that it can end at any time."""

    function: Function
    engines: Sequence[GraphCompiler]
    context: CompileContext
    inputs: Sequence[Any]
    reference: Reference
    cache: CompileCache
    options: ClusteringOptions
    implicit: str | None
    budget: float
    bounds: Bounds
    told: Told
    clock: Clock = time.perf_counter
    devices: Mapping[str, str] = FrozenDict()
    """By spec where engines run that run elsewhere than the context says."""
    graph: bool = False
    """Whether calls on a device are recorded, where they can be."""
    table: CostTable = CostTable()
    notes: list[str] = field(default_factory=list)
    proposals: tuple[Plan, ...] = ()
    runners: list[Runner] = field(default_factory=list)
    others: list[Contender] = field(default_factory=list)
    rounds: int = 0
    survey: Survey | None = None
    settled: Race | None = None
    """The last race but the one that is on."""
    is_calibrated: bool = False
    planning: float = 0.0
    """Seconds that proposing plans took the last time."""
    late: list[Plan] = field(default_factory=list)
    """Plans for which there was no time left."""

    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @cached_property
    def priority(self) -> Plan:
        """What the order of the list alone gives; raises PlanError where nothing takes a node."""
        return partition(
            self.function, self.engines, self.options, implicit=self.implicit, device=self.context.device, devices=self.devices
        )

    @cached_property
    def homes(self) -> Homes:
        """Where nodes run."""
        return Homes(self.context.device, self.devices)

    @cached_property
    def contexts(self) -> dict[str, CompileContext]:
        """By spec the context of each engine, on its device."""
        return {engine.spec: on_device(self.homes.of(engine.spec), self.context) for engine in self.engines}

    # ------------------------------------------------------------------ the way

    def run(self) -> None:
        """Survey, propose and race; ends early where there is nothing left to find out."""
        _ = self.contexts  # raises where a device is not to be had, before anything is begun
        with self._ways() as ways:
            with _starting(ways.values()) as all_started:
                self._tell("asking the engines")
                _ = self.priority  # raises where nothing takes a node
                self._tell("computing what is right")
                values = captured(self.function, self.inputs, self.reference)
                self._tell("starting the engines")
                all_started(max(self._left() * self.bounds.start, 0.0))
            self.survey = Survey(
                *(ways, self.context, values, self.reference, self.table),
                limit=self.budget * self.bounds.limit,
                slice_=min(self.budget * self.bounds.slice, self.bounds.longest),
                clock=self.clock,
                contexts=self.contexts,
                returned=[value.name for value in self.function.outputs],
            )
            expected = [values[value.name] for value in self.function.outputs]
            while self._passes(self.survey, ways, expected):
                pass

    def _passes(self, survey: Survey, ways: Mapping[str, Way], expected: Sequence[Any]) -> bool:
        """Survey for a part of the time that is left, and let what is then proposed and new race; tell whether to go on."""
        began, left, count = self.clock(), self._left(), survey.count
        is_known = self._survey(survey, ways, began + left * self.bounds.survey)
        if self._left() <= self.planning:
            return False
        met = {placing(plan) for plan in self.proposals if plan not in self.late}
        began_planning = self.clock()
        fresh = [plan for plan in self._proposed() if placing(plan) not in met]
        self.planning = self.clock() - began_planning
        self.proposals = (*(plan for plan in self.proposals if plan not in self.late), *fresh)
        self.late.clear()
        if fresh:
            self._settle()
            self._make_ready(fresh, ways, expected, began + left * self.bounds.ready)
            self._race()
        has_learnt = bool(fresh) or survey.count > count
        return has_learnt and not is_known and self._left() > self.bounds.last * self.budget

    @contextmanager
    def _ways(self) -> Iterator[dict[str, Way]]:
        limits = Limits(self.budget * self.bounds.limit, self.bounds.memory)
        ways = {engine.spec: way_of(engine, limits) if self.bounds.apart else Here.of(engine) for engine in self.engines}
        try:
            yield ways
        finally:
            for way in ways.values():
                way.close()
            for runner in self.runners:
                runner.ready.close()

    def _survey(self, survey: Survey, ways: Mapping[str, Way], until: float) -> bool:
        """Measure pieces, the most useful first, for so long; return whether nobody knows of more."""
        while True:
            asked = pieces(self.function, self.engines, survey.table, AT_ONCE, device=self.homes)
            fresh = [piece for piece in asked if not survey.is_known(piece)]
            in_time = survey.measure(fresh, until, self._told_of(survey))
            if not self.is_calibrated and len(self.function.nodes) > 1:
                self._calibrate(survey, ways)
            self.is_calibrated, self.table = True, survey.table
            if not fresh or not in_time:
                return not fresh

    def _calibrate(self, survey: Survey, ways: Mapping[str, Way]) -> None:
        """Measure launches and boundaries of the engines that may be worth mixing, the quickest first, as far as time allows."""
        until = self.clock() + self.budget * self.bounds.calibration
        limit = self.budget * self.bounds.limit
        for engine in (engines := self._promising()):
            if engine.spec not in survey.table.launches and self.clock() < until:
                self._tell(f"launching nothing on {engine.spec}")
                with suppress(EngineError, OutOfDeviceMemory):
                    if (seconds := launch_cost(engine, ways[engine.spec], self.contexts[engine.spec], LEAST, limit)) is not None:
                        survey.table = survey.table.with_launch(engine.spec, seconds)
        for source, target in permutations([one for one in engines if one.spec in survey.table.launches], 2):
            if (source.spec, target.spec) not in survey.table.boundaries and self.clock() < until:
                self._tell(f"from {source.spec} to {target.spec}")
                fronts = ways[source.spec].front, ways[target.spec].front
                found = crossing(*fronts, self.context, self.clock, self.devices)
                if found is not None:
                    survey.table = survey.table.with_boundary(source.spec, target.spec, *found)

    def _promising(self) -> list[GraphCompiler]:
        """Return the engines that are not known to be far slower than another on the whole, the quickest first."""
        costs = {plan.launches[0].engine: self._alone(plan) for plan in self._wholes if plan.launches}
        known = {spec: cost.seconds for spec, cost in costs.items() if isinstance(cost, Measured)}
        most = self.bounds.far * min(known.values(), default=float("inf"))
        willing = [one for one in self.engines if known.get(one.spec, 0.0) <= most and not isinstance(costs.get(one.spec), str)]
        return sorted(willing, key=lambda one: known.get(one.spec, float("inf")))

    def _told_of(self, survey: Survey) -> Callable[[Subject], object]:
        def told(subject: Subject) -> None:
            self.table = survey.table  # what is known if this is the last that is begun
            nodes = len(subject.function.nodes)
            self._tell(f"measuring {nodes} node{'s' * (nodes != 1)} on {subject.spec}")

        return told

    def _proposed(self) -> tuple[Plan, ...]:
        """Return plans that keep the caller's options: the best predicted, one engine each, and the one by priority."""
        self._tell("planning")
        limit = self.bounds.plans + sum(len(plan.launches) > 1 for plan in self.proposals)
        found = propose(self.function, self.engines, self.table, limit=limit, options=AT_ONCE, device=self.homes)
        plans = {placing(plan): plan for plan in (*filter(self._is_allowed, found), *self._wholes)}
        plans.setdefault(placing(self.priority), self.priority)
        return tuple(plans.values())

    # ------------------------------------------------------------------ the contest

    def _settle(self) -> None:
        """Keep what a race has found: who has lost leaves it, and who is left runs anew, against what is new."""
        if not any(runner.has_run for runner in self.runners):
            return
        self.settled = judged(self.runners, self.others, self.rounds)
        gone = {placing(runner.ready.plan): runner for runner in self.runners if runner.entrant.is_out}
        self.others += [one for one in self.settled.contenders if placing(one.plan) in gone]
        for runner in gone.values():
            runner.ready.close()
        self.runners = [runner for runner in self.runners if not runner.entrant.is_out]
        for runner in self.runners:
            runner.entrant.rounds.clear()

    def _make_ready(self, plans: Sequence[Plan], ways: Mapping[str, Way], expected: Sequence[Any], until: float) -> None:
        """Compile plans here, those of one engine first, and hold each against the reference; no more of them after ``until``.

        Nor is there one more where the race would not have its rounds then.
        """
        for plan in sorted(plans, key=self._rank):
            if (known := self._hopeless(plan)) is not None:
                self.others.append(known)
            elif self.runners and self.clock() >= min(until, self._end - self._race_needs(plan)):
                self.late.append(plan)
            elif unproved := self._unproved(plan):
                self.others.append(Contender(plan, "wrong" if unproved.startswith("wrong") else "failed", note=unproved))
            elif (known := self._hopeless(plan)) is not None:  # it has been measured just now
                self.others.append(known)
            else:
                self._tell(f"compiling {title_of(plan)}")
                self._enter(plan, ways, expected)

    def _rank(self, plan: Plan) -> tuple[bool, float]:
        """Return what plans are made ready by: those of one engine first, of these the quickest, as far as is known."""
        cost = self._alone(plan)
        return placing(plan) not in self._simple, cost.seconds if isinstance(cost, Measured) else float("inf")

    def _race_needs(self, plan: Plan) -> float:
        """Return the seconds of the fewest rounds of a race that one more plan has joined, as far as is known."""
        best = found[1].seconds if (found := self._best_alone()) else 0.0
        costs = (self._alone(one) for one in (plan, *(runner.ready.plan for runner in self.runners)))
        known = (cost.seconds if isinstance(cost, Measured) else best for cost in costs)
        return self.bounds.rules.seconds(known)

    def _too_late(self) -> Iterator[Contender]:
        """Yield the plans of one engine for which there was no time left, with what they were measured to take alone."""
        for plan in self.late:
            if isinstance(cost := self._alone(plan), Measured):
                note = "measured alone; the budget ended before it was made ready"
                yield Contender(plan, "lost", cost.seconds, cost.low, cost.high, note=note)

    def _unproved(self, plan: Plan) -> str:
        """Return why a plan may not be compiled in this process: a region of it has not been right, and in time, in a worker."""
        assert self.survey is not None  # it comes before this
        regions = [Region.of(launch) for launch in plan.launches]
        self.survey.measure(regions, self._end, self._told_of(self.survey))
        self.table = self.survey.table
        costs = ((region, self.table.region(region.key, region.spec)) for region in regions)
        reasons = (
            cost or f"a region of it was not measured on {one.spec}" for one, cost in costs if not isinstance(cost, Measured)
        )
        return next(reasons, "")

    def _enter(self, plan: Plan, ways: Mapping[str, Way], expected: Sequence[Any]) -> None:
        limit = min(self.budget * self.bounds.limit, max(self._left(), LEAST))
        for way in ways.values():
            if isinstance(way, Apart):
                way.bound(limit)
        fronts = {one.spec: one if isinstance(one, Isolated) else ways[one.spec].front for one in self.engines}
        made = ready(
            plan, self.function, fronts, self.context, self.cache, self.inputs, expected, self.reference, graph=self.graph
        )
        if made.may_run:
            self.runners.append(Runner(made, Entrant(made.call, placing(plan) in self._simple)))
            return
        made.close()
        wrong = made.found.wrong
        self.others.append(Contender(plan, "wrong" if wrong else "failed", note=wrong or made.failure))

    @property
    def _simple(self) -> set[Placing]:
        """The placings that mixtures must beat: those of one engine, or else the one by priority."""
        single = {placing(plan) for plan in self.proposals if len({x.engine for x in plan.launches}) <= 1}
        return single or {placing(self.priority)}

    def _hopeless(self, plan: Plan) -> Contender | None:
        """Return the verdict on a plan that need not run: it is known to fail, to be wrong, or to be far too slow."""
        if isinstance(cost := self._alone(plan), str):
            return Contender(plan, "wrong" if cost.startswith("wrong") else "failed", note=cost)
        if (known := summed(plan, self.table)) is None:
            return None
        others = [one for one in self.proposals if cost is None or len(one.launches) == 1]
        best = min(found.seconds for one in others if (found := summed(one, self.table)) is not None)
        if known.low <= self.bounds.worse * best:
            return None
        what = "measured alone" if cost is not None else "its regions were measured one by one"
        return Contender(plan, "lost", known.seconds, known.low, known.high, note=f"{what}, and not held against the others")

    def _race(self) -> None:
        self.rounds = 0
        entrants = [runner.entrant for runner in self.runners]
        self.rounds = contested(entrants, until=self._end, rules=self.bounds.rules, clock=self.clock, watch=self._watch)
        for runner in self.runners:
            if not runner.entrant.is_out and self._left() > 0:
                runner.regions = runner.ready.profiled(self.inputs)

    def _watch(self, turn: int, best: Entrant) -> None:
        self.rounds = turn
        plan = next(runner.ready.plan for runner in self.runners if runner.entrant is best)
        self._tell(f"racing {len(self.runners)} plans, round {turn}", (title_of(plan), best.median))

    # ------------------------------------------------------------------ what is known

    @property
    def _end(self) -> float:
        return self.began + self.budget * (1 - self.bounds.end)

    def _left(self) -> float:
        return self._end - self.clock()

    def _tell(self, stage: str, best: tuple[str, float] | None = None) -> None:
        title, seconds = best or self._quickest() or ("", None)
        self.told(Progress(stage, title, seconds, self.clock() - self.began, self.budget))

    def _quickest(self) -> tuple[str, float] | None:
        found = self._best_alone()
        return (title_of(found[0]), found[1].seconds) if found else None

    def _alone(self, plan: Plan) -> Measured | str | None:
        """Return what a plan of one region was measured to take; None for others, and where nobody knows."""
        if len(plan.launches) != 1:
            return None
        (launch,) = plan.launches
        return self.table.region(launch.function.shape_key, launch.engine)

    def _best_alone(self) -> tuple[Plan, Measured] | None:
        """Return the plan of one region that was measured to be the quickest."""
        known = [(plan, cost) for plan in self._wholes if isinstance(cost := self._alone(plan), Measured)]
        return min(known, key=lambda pair: pair[1].seconds, default=None)

    @cached_property
    def _wholes(self) -> tuple[Plan, ...]:
        """The plans of one engine each that keep the caller's options, those that are known to fail among them."""
        return tuple(filter(self._is_allowed, single_plans(self.function, self.engines, self.homes)))

    def _is_allowed(self, plan: Plan) -> bool:
        return is_allowed(plan, self.engines, self.options)

    def tuned(self, how: How) -> Tuned:
        """Return the best by what is known now: who won, else the engine that was quickest alone, else the list's order."""
        race, count = self._judgement(), self.survey.count if self.survey else 0
        spent, alone = self.clock() - self.began, self._best_alone()
        if (winner := race.winner) is not None:
            plan = winner.plan
        elif alone is not None:
            plan, race = alone[0], won_alone(race, *alone)
        else:
            plan, how = unrefuted([self.priority, *self._wholes], self.table), "priority"
        late = [f"the budget ended before {title_of(one)} was made ready" for one in self.late if self._alone(one) is None]
        return Tuned(plan, self.table, race, how, self.budget, spent, count, (*self.notes, *late))

    def _judgement(self) -> Race:
        """Return the race as it stands; where one had been settled, and another has hardly begun, that one."""
        race = judged(self.runners, [*self.others, *self._too_late()], self.rounds)
        has_begun = race.winner is not None and self.rounds >= self.bounds.rules.least
        return self.settled if self.settled is not None and not has_begun else race


@contextmanager
def _starting(ways: Collection[Way]) -> Iterator[Callable[[float], object]]:
    """Have all engines start at once; what is yielded waits for them, for so many seconds. Who fails says so when it is tried."""
    threads = ThreadPoolExecutor(max(len(ways), 1), "xrt-start")
    started = [threads.submit(way.meet) for way in ways]
    try:
        yield lambda seconds: wait(started, seconds)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
