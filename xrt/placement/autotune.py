"""Placement by measurement in three stages: whole models on one engine each, regions of the model, and a race of the best plans.

`tune` loads the decision of an earlier search, or searches within a budget of seconds and stores the result. The search ends
early once no remaining plan can win. A mixture is a plan that uses several engines.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from xrt.engines.contract.proxy import load_engine
from xrt.errors import InputError, OptionError, PlacementWarning, PlanError, XRTError, warn
from xrt.formats.placement_file import SearchRecord
from xrt.graph import Function
from xrt.html.views import format_count
from xrt.measure.timing import MeasuredCost, compute_median_interval
from xrt.operators.sample_inputs import sample_inputs
from xrt.partition import Plan, partition
from xrt.partition.cost_table import LAUNCH, CostTable, WrongResult
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.placement import choose_requests, predict_cost, propose_plans
from xrt.placement.profiler import (
    MIN_STEP_SECONDS,
    EngineQueries,
    RegionProfiler,
    WorkerRunner,
    choose_runner,
    compute_expected_values,
    has_failed_region,
    make_substitute_reference,
)
from xrt.placement.race import (
    PROFILED_CALLS,
    Candidates,
    Entrant,
    PartitionKey,
    StoppingRule,
    get_single_cost,
    is_allowed,
    make_candidate,
    make_partition_key,
    prepare_plan,
    run_interleaved,
    select_winner,
)
from xrt.placement.records import load_decision, store_decision
from xrt.placement.result import (
    NOT_MEASURED,
    Origin,
    PlacementRequest,
    Progress,
    TuningResult,
    describe_plan,
    suggest_budget,
    unwrap,
    update_reasons,
)
from xrt.placement.search import MIN_GAIN, UNCERTAINTY, ProfilingRequest
from xrt.processes.background import OutOfTime, run_stoppable
from xrt.runtime import on_device, to_host
from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.cache.cost_store import CostStore
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import CandidateRecord
    from xrt.measure.timing import Clock
    from xrt.placement.profiler import Reference

_log = logging.getLogger(__name__)
T = TypeVar("T")

ProgressCallback: TypeAlias = Callable[[Progress], object]
MAX_COMBINED_ENGINES = 3
"""Maximum engines that mixtures combine. Every mixture that beat the single engines had two; with a third engine, the search
also succeeds if the whole-model times rank two engines in the wrong order."""


@dataclass(frozen=True, slots=True)
class TuningBudget:
    """How a search divides its time budget, and its other limits. Shares are fractions of the whole budget."""

    wholes: float = 0.5
    """Share of stage 1, which starts the engines and measures whole models. SqueezeNet on six engines and two busy cores took
    5 s until all had started, and 14 s to measure four of them."""
    reserve: float = 0.05
    """Share kept for the end: the shutdown of workers takes 0.2 s each, and one call may take longer than expected."""
    limit: float = 0.2
    """Share for a single compile or measurement, so that two engines that hang leave time for a third. DenseNet took OpenVINO,
    its fastest engine, 15 % of a budget of 20 s to compile on two busy cores."""
    memory: int | None = None
    samples: float = 0.3
    """Seconds of sampling per region. Seven samples of 2 ms suffice on an idle machine; a busy machine needs more."""
    rules: StoppingRule = field(default_factory=StoppingRule)

    @property
    def stage(self) -> float:
        """Share of each of the stages 2 and 3. On two busy cores, 10 regions of SqueezeNet on three engines took 8 s, and a race
        with 4 mixtures of a model of 0.4 s took 22 s, compiles included.
        """
        return (1 - self.wholes - self.reserve) / 2


def tune(
    request: PlacementRequest,
    *,
    cache: CompileCache,
    reference: Reference,
    store: CostStore | None = None,
    inputs: Sequence[Any] | None = None,
    progress: ProgressCallback = lambda progress: None,
    bounds: TuningBudget = TuningBudget(),
    clock: Clock = time.perf_counter,
) -> TuningResult:
    """Find the fastest plan within the request's time budget, or load the decision of an earlier search.

    ``reference`` computes the expected results. ``inputs`` are the values of a call, which are not modified; None uses random
    values. Measurements are read from ``store`` and added to it. ``progress`` is called with the state of the search. A stored
    decision is not used if the request has ``retune``, or if its search had a smaller budget and was not requested by the user.

    Models and regions are measured in workers first, where a hang or a crash does no harm. Plans that passed then race in this
    process, where they will be used. The search waits without a limit until the engines support all nodes, and otherwise exceeds
    its budget by at most one call. Ctrl-C ends the search, and the best plan so far is returned.

    Raises OptionError if the budget is not a positive number, DeviceError if a device is unavailable, and PlanError if no engine
    supports a node.
    """
    # Before the store is read: an invalid option must not pass because of a stored decision.
    check_budget(request.budget)
    request = replace(request, context=on_device(request.context.device, request.context))
    if not request.function.nodes:  # such as a model whose outputs were folded to constants
        return plan_by_priority(request, "the model has no nodes to measure")
    if store is not None and not request.retune and (decision := load_decision(request, store)) is not None:
        return decision
    if inputs is None:
        try:
            samples = sample_inputs(request.function)
        except InputError as error:
            return plan_by_priority(request, str(error))
        inputs = [samples[value.name] for value in request.function.inputs]
    search = Search(request, [to_host(value) for value in inputs], reference, cache, bounds, progress, clock)
    if store is not None:
        # Parts that an earlier search has measured are not measured again.
        search.profiler.table = load_cost_table(store, request)
    tuned = _run(search).with_record(is_explicit=request.retune)
    if store is not None:
        table = search.profiler.select_reliable_costs()
        for engine in unwrap(request.engines):
            store.store_costs(table, [engine], request.contexts[engine.spec])
        store_decision(tuned, request, store)
    warn_unmeasured(tuned, request.function)
    return tuned


def check_budget(budget: object) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise OptionError(f"budget must be a positive number of seconds; got {budget!r}")


def plan_by_priority(request: PlacementRequest, reason: str) -> TuningResult:
    """Plan by the order of the engine list, without measurements. ``reason`` becomes a note of the result."""
    function, implicit, device_map = request.function, request.implicit, request.device_map
    plan = partition(function, request.engines, request.clustering, implicit=implicit, device_map=device_map)
    return TuningResult(plan, SearchRecord(notes=(reason,)), "priority")


def _run(search: Search) -> TuningResult:
    """Run the stages in order. An error or Ctrl-C ends the search with the best plan so far."""
    try:
        search.report_stage("querying the engines")
        search.queries.start()
        try:
            # Without a plan the search could return nothing: this is the only wait without a limit.
            search.wait_for_plan()
            search.report_stage("computing the expected results")
            # The reference runs while the workers start and import the libraries.
            search.compute_expected_values()
            measure_whole_models(search)
            race_plans(search, propose_mixtures(search))
        finally:
            # A worker ends within 0.2 s. If one does not, the search does not wait for it beyond the budget.
            search.queries.close(search.began + search.request.budget - search.clock())
            for entrant in search.entrants:
                entrant.close()
    except KeyboardInterrupt:
        # The user is waiting, so nothing more is measured.
        tuned = search.make_result("interrupted")
        note = "it was interrupted before anything was measured"
        return tuned if tuned.how == "interrupted" else tuned.with_record(notes=(note,))
    except XRTError as error:
        _log.info("tuning ended early", exc_info=True)
        search.notes.append(f"the search ended early: {error}")
    return search.make_result("measured")


def measure_whole_models(search: Search) -> None:
    """Stage 1: measure the model on each engine that supports all of it, and prepare the fastest ones for the race.

    An engine that takes more than `UNCERTAINTY` times as long as the fastest does not race. If no engine supports all nodes, the
    plan by priority races instead.
    """
    until = search.began + search.bounds.wholes * search.request.budget
    has_reference = search.profiler.expected.reference is not None
    if has_reference:
        search.report_stage("starting the engines")
        # Library imports disturb measurements, so wait for the engines that start soon.
        search.queries.wait(lambda: not search.queries.pending, (until - search.clock()) / 2)
        # Then measure, and wait for the next engine. It may have started during a measurement.
        while search.measure(search.list_unmeasured_wholes(), until) and search.clock() < until:
            search.queries.wait(
                lambda: bool(search.list_unmeasured_wholes()) or not search.queries.pending, until - search.clock()
            )
            if not search.list_unmeasured_wholes():
                break
    plans = search.list_leading_wholes()
    # Copying a large state, such as the cache of a decoder, may cost more than a second engine that updates it in place.
    if search.function.aliases:
        updating_plans = {plan.engines[0]: plan for plan in search.get_candidates(started=True).updating_plans}
        engines = [launch.engine for plan in plans for launch in plan.launches]
        plans += [updating_plans[engine] for engine in engines if engine in updating_plans]
    if not plans and has_reference:
        with suppress(PlanError):  # an engine that the plan needs may not have started
            plans = [search.get_candidates(started=True).priority]
    # Mixtures are compared with the plans of one engine or, if there is only one plan, with that.
    single_engine_plans = [plan for plan in plans if len(plan.used_engines) == 1]
    search.baselines = set(map(make_partition_key, plans if len(plans) == 1 else single_engine_plans))
    for plan in plans:
        search.prepare(plan, until + search.bounds.stage * search.request.budget)


def propose_mixtures(search: Search) -> Sequence[Plan]:
    """Stage 2: measure parts of the model on the fastest engines, and return the mixtures that may beat the best plan so far.

    Measures until no unmeasured part could save enough time. For most models no mixture is proposed.
    """
    best, engines = search.find_leader(), search.list_engines_to_combine()  # `best` is the plan to beat
    # Without expected values no part can be checked.
    if best is None or search.profiler.expected.reference is None:
        return ()
    if len(engines) < 2 or len(search.function.nodes) < 2:
        return ()
    # Leave time for the race of the plans that are ready.
    end = search.end - search.estimate_race()
    until = min(search.clock() + search.bounds.stage * search.request.budget, end)
    to_beat = predict_cost(search.function, best, search.table).seconds
    # A mixture has at least two launches, which may alone take longer than the best plan.
    if (1 - MIN_GAIN) * to_beat < 2 * LAUNCH:
        return ()
    if end <= search.clock():
        search.notes.append("the budget left no time to look for mixtures")
        return ()

    def run_planner(planner: Callable[..., T], **options: Any) -> T:
        options |= {"device_map": search.request.device_map, "to_beat": to_beat}
        work = partial(planner, search.function, engines, search.table, **options)
        return run_stoppable(end - search.clock(), lambda is_stopped: work(is_stopped=is_stopped))

    try:
        # Parts that could not be measured, such as a whole model too large for a device, are skipped, and others are chosen.
        while requests := run_planner(choose_requests, skipped=set(search.profiler.skipped)):
            if not search.measure(requests, until):
                break
        search.report_stage("planning")
        plans = run_planner(propose_plans)
    except OutOfTime:
        search.notes.append("the budget ended while the planner was looking for mixtures")
        return ()
    except XRTError as error:  # the plans that are ready race all the same
        _log.info("no mixtures are proposed", exc_info=True)
        search.notes.append(f"the search for mixtures ended early: {error}")
        return ()
    # A plan that was excluded or is ready need not be prepared again.
    ready_plans = [best, *(entrant.plan for entrant in search.entrants)]
    known_keys = {*search.excluded, *map(make_partition_key, ready_plans)}
    new_plans = [plan for plan in plans if make_partition_key(plan) not in known_keys]
    all_engines, options = search.get_candidates(started=True).engines, search.request.clustering
    return [plan for plan in new_plans if len(plan.launches) > 1 and is_allowed(plan, all_engines, options)]


def race_plans(search: Search, mixtures: Sequence[Plan]) -> None:
    """Stage 3: race the mixtures against the plans prepared in stage 1. If no plan can be measured, run fallback plans."""
    until = min(search.clock() + search.bounds.stage * search.request.budget, search.end)
    # A mixture is proposed from estimates. Once its regions are measured, it may turn out to be too slow to race.
    leader = search.find_leader() if mixtures else None
    limit = math.inf if leader is None else (1 - MIN_GAIN) * predict_cost(search.function, leader, search.table).seconds
    for plan in mixtures:
        search.prepare(plan, until, limit)
    search.race()
    if not search.has_measured:
        _run_fallback_plans(search)


def _run_fallback_plans(search: Search) -> None:
    """Run the plan by priority and the single-engine plans in this process, fastest measured first, until one succeeds.

    This is the last resort if no plan could be raced, because workers started too slowly or every prepared plan failed.
    """

    def get_seconds(plan: Plan) -> float:
        cost = get_single_cost(plan, search.table)
        return cost.seconds if isinstance(cost, MeasuredCost) else math.inf

    candidates = search.get_candidates()
    # By key, because the plan by priority may equal the plan of a single engine.
    plans = {make_partition_key(plan): plan for plan in sorted((candidates.priority, *candidates.wholes), key=get_seconds)}
    has_tried = False
    for key, plan in plans.items():
        if key in search.failed_plans or has_failed_region(plan, search.table):
            continue
        if has_tried and search.remaining <= 0:  # at least one plan is tried, even without time
            return
        has_tried = True
        search.report_stage(f"running {describe_plan(plan)}")
        search.baselines = {key}
        search.compile(plan, max(search.remaining / 2, MIN_STEP_SECONDS))
        search.race()
        if search.has_measured:
            return


@dataclass(eq=False)
class Search:
    """The state of one search. `make_result` can be called at any time and uses the measurements made so far."""

    request: PlacementRequest
    inputs: Sequence[Any]
    reference: Reference
    cache: CompileCache
    bounds: TuningBudget
    report: ProgressCallback
    clock: Clock = time.perf_counter
    notes: list[str] = field(default_factory=list)
    entrants: list[Entrant] = field(default_factory=list)
    excluded: dict[PartitionKey, CandidateRecord[Plan]] = field(default_factory=dict)
    baselines: set[PartitionKey] = field(default_factory=set)
    """Keys of the plans that a mixture must beat."""
    failed_plans: set[PartitionKey] = field(default_factory=set)
    """Keys of the plans that failed or were wrong in this process."""
    late_plans: set[PartitionKey] = field(default_factory=set)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.function = self.request.function
        self.least_rounds = self.bounds.rules.least  # with fewer rounds the decision is provisional
        # Even after a slow construction, half of the budget is for the search.
        self.began = self.clock() - min(self.request.spent, self.request.budget / 2)
        self.end = self.began + self.request.budget * (1 - self.bounds.reserve)
        limits = WorkerLimits(self.request.budget, self.bounds.memory)
        # Raises DeviceError before anything is started if a device is unavailable.
        self.queries = EngineQueries(self.request, lambda engine: choose_runner(engine, limits))
        limit = self.request.budget * self.bounds.limit
        self.profiler = RegionProfiler(self.request, self.queries, limit, self.bounds.samples, self.clock, self.end)
        self._candidates: dict[tuple[bool, tuple[str, ...]], Candidates] = {}

    @property
    def table(self) -> CostTable:
        return self.profiler.table

    @property
    def remaining(self) -> float:
        return self.end - self.clock()

    def report_stage(self, stage: str, best: tuple[str, float] | None = None) -> None:
        fastest = self.find_best_alone() if best is None and self._candidates else None
        if fastest is not None:
            plan, cost = fastest
            best = describe_plan(plan), cost.seconds
        title, seconds = best or ("", None)
        self.report(Progress(stage, title, seconds, self.clock() - self.began, self.request.budget))

    def get_candidates(self, *, started: bool = False) -> Candidates:
        """Collect the plans on the engines whose supported nodes are known and, with ``started``, whose workers are ready."""
        # Engines report their support while the search runs, so candidates are computed again after each report.
        key = started, tuple(self.queries.pending if started else self.queries.unanswered)
        if key not in self._candidates:
            self._candidates[key] = Candidates.collect(self.request, self.queries.list_engines(started=started))
        return self._candidates[key]

    def wait_for_plan(self) -> None:
        """Wait, without a limit, until each node has an engine known to support it; raises PlanError if a node has none."""

        def can_plan() -> bool:
            try:
                return bool(self.get_candidates().priority)
            except PlanError:
                return not self.queries.unanswered  # then no plan will be possible either

        self.queries.wait(can_plan, math.inf)
        _ = self.get_candidates().priority  # raises PlanError if a node has no engine

    def compute_expected_values(self) -> None:
        """Compute the expected values on the reference, or with the plan by priority if the reference fails."""
        candidates = self.get_candidates()
        substitute = make_substitute_reference(self.request, candidates.implicit, candidates.engines)
        seconds = max(self.bounds.wholes * self.remaining, MIN_STEP_SECONDS)
        name = describe_plan(candidates.priority)
        self.profiler.expected = compute_expected_values(self.function, self.inputs, self.reference, substitute, name, seconds)
        if self.profiler.expected.remark:
            self.notes.append(self.profiler.expected.remark)

    def measure(self, regions: Sequence[ProfilingRequest], until: float) -> bool:
        """Measure regions in workers, in order, until the clock shows ``until``; return False if time ran out."""

        def report(region: ProfilingRequest) -> None:
            self.report_stage(f"measuring {format_count(len(region.function.nodes), 'node')} on {region.spec}")

        return self.profiler.measure(regions, until, report)

    def list_unmeasured_wholes(self) -> list[ProfilingRequest]:
        """List requests to measure the whole model, one for each ready engine that supports it and was not measured yet."""
        wholes = [plan for plan in self.get_candidates().wholes if len(plan.launches) == 1]
        regions = [ProfilingRequest.from_launch(plan.launches[0]) for plan in wholes]
        return [region for region in regions if region.spec in self.queries.runners and not self.profiler.is_known(region)]

    def list_measured_wholes(self, *, started: bool = False) -> list[tuple[Plan, MeasuredCost]]:
        """List (plan, cost) of the measured single-engine plans, fastest first; with ``started``, only those of ready engines."""
        costs = [(plan, get_single_cost(plan, self.table)) for plan in self.get_candidates(started=started).wholes]
        measured = [(plan, cost) for plan, cost in costs if isinstance(cost, MeasuredCost)]
        return sorted(measured, key=lambda pair: pair[1].seconds)

    def list_leading_wholes(self) -> list[Plan]:
        """Select the single-engine plans that may be fastest, in order of measured time; exclude the others from the race."""
        for plan in self.get_candidates().wholes:
            if isinstance(failure := get_single_cost(plan, self.table), str):
                self.exclude_failed(plan, failure)
        leading = []
        measured = self.list_measured_wholes()
        shortest = min((cost.seconds for _, cost in measured), default=0.0)
        for plan, cost in measured:
            # A time that was measured while an engine started may be too long by another factor.
            factor = UNCERTAINTY**2 if _make_cost_key(plan) in self.profiler.unreliable else UNCERTAINTY
            # Compare the low end, so that an engine is excluded only if its whole interval is above the limit.
            if cost.low <= factor * shortest:
                leading.append(plan)
            else:
                self.exclude_slower(plan, cost, "measured alone, and not compared with the others")
        return leading

    def list_engines_to_combine(self) -> Sequence[GraphCompiler]:
        """List the engines for mixtures: the fastest on the whole model, and the engine that supports most nodes but not all."""
        candidates = self.get_candidates(started=True)
        fastest = [plan.launches[0].engine for plan, _ in self.list_measured_wholes(started=True)]
        engines_by_node = candidates.capability.supporting_engines
        counts = Counter(candidates.engines[index].spec for supporting in engines_by_node for index in supporting)
        # If no engine supports the whole model, all engines may be needed to cover every node.
        if not fastest:
            return [engine for engine in candidates.engines if counts[engine.spec]]
        # An engine that supports only some nodes may be far faster at these, and is in no plan of a single engine.
        whole = {plan.launches[0].engine for plan in candidates.wholes if plan.launches}
        by_count = sorted(candidates.engines, key=lambda engine: -counts[engine.spec])  # equal counts stay in list order
        partial_specs = [engine.spec for engine in by_count if counts[engine.spec] and engine.spec not in whole]
        # First the fastest engines and the best partial one, then the others while there is room.
        ranked = dict.fromkeys([*fastest[: MAX_COMBINED_ENGINES - 1], *partial_specs[:1], *fastest, *partial_specs])
        chosen = list(ranked)[:MAX_COMBINED_ENGINES]
        return [engine for engine in candidates.engines if engine.spec in chosen]

    @property
    def has_measured(self) -> bool:
        """Whether a plan ran in this process without failure and was measured: in the race, or alone in a worker."""
        ran = [entrant for entrant in self.entrants if not entrant.failure]
        return any(entrant.rounds or isinstance(get_single_cost(entrant.plan, self.table), MeasuredCost) for entrant in ran)

    def find_best_alone(self) -> tuple[Plan, MeasuredCost] | None:
        measured = self.list_measured_wholes()
        sound = [(plan, cost) for plan, cost in measured if make_partition_key(plan) not in self.failed_plans]
        # A plan that could not be compiled in time is the last choice.
        in_time = [(plan, cost) for plan, cost in sound if make_partition_key(plan) not in self.late_plans]
        return next(iter(in_time or sound), None)

    def find_leader(self) -> Plan | None:
        """Find the plan to beat: the ready plan with the lowest predicted time, else the plan of the fastest engine, or None."""
        if self.entrants:
            return min(self.entrants, key=lambda entrant: entrant.expected).plan
        if (best := self.find_best_alone()) is None:
            return None
        plan, _ = best
        return plan

    def estimate_race(self, *plans: Plan, rounds: int | None = None) -> float:
        """Estimate the seconds of a race of the ready plans and ``plans`` over ``rounds``, by default the minimum."""
        calls = (self._predict(plan) for plan in (*plans, *(entrant.plan for entrant in self.entrants)))
        rules = self.bounds.rules if rounds is None else replace(self.bounds.rules, least=rounds)
        return UNCERTAINTY * rules.estimate_seconds(calls)

    def prepare(self, plan: Plan, until: float, limit: float = math.inf) -> None:
        """Measure a plan's regions in workers, compile the plan here and add it to the race; else exclude it, with the reason.

        It is excluded if it fails, if its predicted time exceeds ``limit`` seconds, or if time is over and another plan is ready.
        """
        # Leave time for the race of the plan with the ready plans. A mixture, which has a limit, needs the rounds of an interval.
        # For a plan of one engine a single round is enough: a slow model was timed only once in its worker.
        rounds = self.bounds.rules.least if math.isfinite(limit) else 1
        latest = self.end
        if self.entrants:
            latest -= self.estimate_race(plan, rounds=rounds)
            if self.clock() >= min(until, latest):
                self.exclude_out_of_time(plan)
                return
        # Each region runs in a worker first: a hang or a crash of an engine must not happen in this process.
        regions = [ProfilingRequest.from_launch(launch) for launch in plan.launches]
        self.measure(regions, latest)
        costs = [self.table.region(region.key, region.spec) for region in regions]
        failures = [cost for cost in costs if isinstance(cost, str)]
        if failures:
            self.exclude_failed(plan, failures[0])
        elif None in costs:
            self.exclude_out_of_time(plan)
        elif (seconds := self._predict(plan)) > limit:
            note = "its regions were measured one by one, and not compared with the others"
            self.exclude(make_candidate(plan, "lost", seconds, note=note))
        else:
            self.report_stage(f"compiling {describe_plan(plan)}")
            self.compile(plan, max(latest - self.clock(), MIN_STEP_SECONDS))

    def exclude(self, candidate: CandidateRecord[Plan]) -> None:
        self.excluded[make_partition_key(candidate.plan)] = candidate

    def exclude_failed(self, plan: Plan, reason: str) -> None:
        self.exclude(make_candidate(plan, "wrong" if isinstance(reason, WrongResult) else "failed", note=str(reason)))

    def exclude_slower(self, plan: Plan, cost: MeasuredCost, note: str) -> None:
        self.exclude(make_candidate(plan, "lost", cost.seconds, cost.low, cost.high, note=note))

    def exclude_out_of_time(self, plan: Plan) -> None:
        """Exclude a plan that cannot race because the time is over. Record its measured time if it has only one region."""
        note = "the search ended before its turn in the race"
        if isinstance(cost := get_single_cost(plan, self.table), MeasuredCost):
            self.exclude_slower(plan, cost, f"measured alone; {note}")
        else:
            self.exclude(make_candidate(plan, "late", note=note))

    def _predict(self, plan: Plan) -> float:
        """Predict the seconds of a plan in the race. Without an estimate for a region, guess the time of the best engine."""
        seconds = predict_cost(self.function, plan, self.table).seconds
        if math.isfinite(seconds):
            return seconds
        if (best := self.find_best_alone()) is None:
            return 0.0
        _, cost = best
        return cost.seconds

    def compile(self, plan: Plan, seconds: float) -> None:
        """Make a plan callable in this process within ``seconds``, check its results, and add it to the race or exclude it.

        Workers compile and save the executables, and this process loads them.
        """
        runners, expected, key = self.queries.runners, self.profiler.expected, make_partition_key(plan)
        # First, limit the requests to the workers to the time for this plan.
        for runner in runners.values():
            if isinstance(runner, WorkerRunner):
                runner.limit_requests(min(self.request.budget * self.bounds.limit, seconds))

        def load(engine: GraphCompiler) -> GraphCompiler:
            if isinstance(engine, IsolatedEngine):
                return engine  # the user isolates it, so the chosen plan uses it in its worker too
            return runners[engine.spec].compiler if engine.spec in runners else load_engine(engine)

        # Second, select the engines of the plan, and the expected outputs, if the reference could compute them.
        used = [engine for engine in self.request.engines if engine.spec in plan.used_engines]
        request = replace(self.request, engines=tuple(map(load, used)))
        outputs = None if expected.reference is None else [expected.values[value.name] for value in self.function.outputs]
        work = partial(prepare_plan, plan, request, self.cache, self.inputs, outputs, expected.reference or self.reference)
        # Third, prepare the plan in a thread. A plan that is ready too late is closed.
        try:
            # Queries of other engines would slow down the first call, and hold the interpreter during the compile.
            with self.queries.pause_queries():
                outcome = run_stoppable(seconds, work, on_late=lambda late: late.close() if isinstance(late, Entrant) else None)
        except OutOfTime:
            self.exclude_failed(plan, f"it was not ready to be called within {seconds:.3g} s")
            self.late_plans.add(key)
            return
        if not isinstance(outcome, Entrant):
            self.exclude(outcome)
            self.failed_plans.add(key)
            return
        entrant = outcome
        entrant.is_simple = key in self.baselines
        # The prediction decides whether a turn of the first round fits into the budget.
        entrant.expected = self._predict(plan)
        self.entrants.append(entrant)
        self.excluded.pop(key, None)  # a fallback plan may have been excluded before as late

    def race(self) -> None:
        """Time the ready plans in interleaved rounds, until the winner is certain or the budget ends."""
        rules = self.bounds.rules
        # A slow plan without a rival is timed once: the minimum of rounds could take the whole budget and decide nothing.
        if len(self.entrants) == 1 and self.entrants[0].expected > rules.turn:
            rules = replace(rules, least=1)
        self.least_rounds = rules.least
        with self.queries.pause_queries():
            self.rounds = 0
            self.rounds = run_interleaved(self.entrants, until=self.end, rules=rules, clock=self.clock, watch=self._report_round)
        for entrant in self.entrants:
            if entrant.failure:
                self.failed_plans.add(make_partition_key(entrant.plan))
            elif entrant.rounds and len(entrant.plan.launches) == 1:
                # Times in this process, where the plan will be used, replace the times in a worker.
                cost_key = _make_cost_key(entrant.plan)
                self.profiler.table = self.table.with_region(*cost_key, MeasuredCost(*compute_median_interval(entrant.rounds)))
                self.profiler.unreliable.discard(cost_key)
            if entrant.has_run and not entrant.is_out and self.remaining > PROFILED_CALLS * entrant.median:
                entrant.profile(self.inputs)
        if not self.has_measured:
            # No time was left for a round: the first calls are used as one.
            for entrant in self.entrants:
                if not entrant.failure:
                    entrant.rounds = [entrant.first_call]
                    self.rounds = 1
                    self.least_rounds = self.bounds.rules.least

    def _report_round(self, turn: int, best: Entrant) -> None:
        self.rounds = turn
        stage = f"timing {format_count(len(self.entrants), 'plan')} in turn, round {turn}"
        self.report_stage(stage, (describe_plan(best.plan), best.median))

    def make_result(self, how: Origin) -> TuningResult:
        """Choose the best plan so far: the winner of the race, else the fastest single engine, else the plan by priority.

        ``how`` says whether the search ran to its end or was interrupted; for the plan by priority it becomes "priority".
        """
        for entrant in list(self.entrants):
            if not entrant.rounds and not entrant.failure:  # the search ended before the race
                self.entrants.remove(entrant)
                self.exclude_out_of_time(entrant.plan)
        record = select_winner(self.entrants, tuple(self.excluded.values()), self.rounds, self.bounds.rules.least)
        spent, best = self.clock() - self.began, self.find_best_alone()
        end_reason = "the search was interrupted" if how == "interrupted" else "the budget ended"
        # Without a round of the race, the times in workers decide.
        if record.winner is None and best is not None:
            plan, cost = best
            note = f"measured alone; {end_reason} before it was compared with the others"
            winner = make_candidate(plan, "won", cost.seconds, cost.low, cost.high, note=note)
            others = [candidate for candidate in record.candidates if candidate.plan != plan]
            record = record.replace(candidates=(winner, *others))
        unmeasured = self._explain_unmeasured(record, f"{end_reason} before its turn")
        record = self._update_reasons(record, unmeasured)
        if record.winner is not None:
            plan = record.winner.plan
        else:
            how = "priority"
            candidates = self.get_candidates()
            plans = [candidates.priority, *candidates.wholes]
            runnable = [plan for plan in plans if make_partition_key(plan) not in self.failed_plans]
            runnable = [plan for plan in runnable if not has_failed_region(plan, self.table)]
            plan = update_reasons(next(iter(runnable or plans)), unmeasured)
        record = record.replace(
            budget=self.request.budget,
            spent=spent,
            notes=tuple(self.notes),
            unmeasured=unmeasured,
            is_provisional=how != "priority" and record.rounds < self.least_rounds,
            is_checked=how != "priority" and self.profiler.expected.reference is self.reference,
        )
        return TuningResult(plan, record, how, self.profiler.count, self.table, tuple(self.queries.list_engines()))

    def _update_reasons(self, record: SearchRecord[Plan], unmeasured: Mapping[str, str]) -> SearchRecord[Plan]:
        """Recompute why nodes are not on an engine: plans may have been made before all engines had reported their support."""
        candidates = self.get_candidates()
        engines, implicit = candidates.engines, candidates.implicit
        used = {spec for candidate in record.candidates for spec in candidate.plan.used_engines}
        # Such a plan may have nodes on the implicit engine, which is not needed any more.
        if implicit is None and self.request.implicit in used:
            engines, implicit = tuple(self.queries.list_engines()), self.request.implicit

        def rebuild(plan: Plan) -> Plan:
            assignment, groups, device_map = map_nodes_to_engines(plan), map_nodes_to_regions(plan), self.request.device_map
            plan = plan_from_assignment(
                self.function, engines, assignment, groups=groups, implicit=implicit, device_map=device_map
            )
            return update_reasons(plan, unmeasured)

        return record.map_plans(rebuild)

    def _explain_unmeasured(self, record: SearchRecord[Plan], late: str) -> dict[str, str]:
        """Explain, by engine spec, why the whole model was not measured on an engine; ``late`` is the reason if time was over."""
        compared = {candidate.plan.used_engines for candidate in record.candidates}
        candidates = self.get_candidates()
        wholes = {plan.launches[0].engine: plan for plan in candidates.wholes if plan.launches}
        missing = (engine for engine in candidates.engines if (engine.spec,) not in compared)
        return {engine.spec: self._why_not_measured(engine, wholes.get(engine.spec), late) for engine in missing}

    def _why_not_measured(self, engine: GraphCompiler, whole: Plan | None, late: str) -> str:
        """Explain why the model was not measured on an engine; ``whole`` is its plan, None if it does not support all nodes."""
        nodes, unready = self.function.nodes, self.queries.why_not_ready(engine.spec)
        if whole is not None:
            cost = get_single_cost(whole, self.table)
            if isinstance(cost, str):  # the reason why the measurement failed
                return cost
            # The most specific reason first: of this plan, of the engine, of the whole search.
            return self.profiler.skipped.get(_make_cost_key(whole)) or unready or late
        declined = [(node, reason) for node in nodes if (reason := engine.why_not(node, self.function)) is not None]
        if not declined:
            return "the options keep the whole model from it"
        node, reason = declined[0]
        if reason.startswith(NOT_MEASURED):  # an engine that has not reported its support
            return unready or reason.removeprefix(NOT_MEASURED)
        total = format_count(len(nodes), "node")
        return f"it does not support {len(declined)} of {total}, first {node.name!r} ({node.op}): {reason}"


def _make_cost_key(plan: Plan) -> tuple[str, str]:
    return plan.launches[0].function.shape_key, plan.launches[0].engine


def load_cost_table(store: CostStore, request: PlacementRequest) -> CostTable:
    """Load the stored costs of the engines, each on its device. Raises DeviceError if a device is unavailable."""
    # Costs are stored by engine and device: those of a GPU say nothing about the CPU.
    table = CostTable()
    for engine in unwrap(request.engines):
        table = table.merge(store.read_costs([engine], request.contexts[engine.spec]))
    return table


def warn_unmeasured(tuned: TuningResult, function: Function) -> None:
    if tuned.how != "priority":
        return
    record = tuned.record
    failed = {candidate.title: candidate.note for candidate in record.candidates}
    reasons = [f"{name}: {reason}" for name, reason in {**record.unmeasured, **failed}.items()]
    why = "; ".join([*record.notes, *reasons]) or f"budget={record.budget:g} s is too small for one measurement"
    used = ", ".join(tuned.plan.used_engines) or "no engine"
    warn(
        f"{function.name!r} was not placed by measurement: {why}. By the order of the list it runs on {used}; "
        f"{suggest_budget(record.budget)}",
        PlacementWarning,
    )
