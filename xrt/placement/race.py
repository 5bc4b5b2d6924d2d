"""Compare plans that take turns in one process: the race of a search, and the regression check of a lock.

The ratio of two plans' times, measured in one process, is more stable than times of different days. So the regression check
measures the ratio of the locked plan to its baseline plan again, and compares the ratio with that in the lockfile.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.engines import RunOptions
from xrt.errors import LockError, PlanError, XRTError
from xrt.formats.placement_file import VERDICTS, Baseline, CandidateRecord, SearchRecord
from xrt.measure.statistics import (
    MIN_DIFFERENCE,
    RatioInterval,
    compute_round_ratio,
    compute_round_ratio_with_drift,
    rotate,
)
from xrt.measure.timing import Clock, choose_calls_per_turn, compute_median_interval, measure_turn, time_call
from xrt.partition import ClusteringOptions, Plan, SupportMatrix, partition
from xrt.partition.cost_table import CostTable, RegionCost
from xrt.partition.partitioner import map_nodes_to_engines, plan_from_assignment
from xrt.placement.profiler import Reference, check_against_reference, describe_error, find_first_random_node
from xrt.placement.records import list_node_ranges
from xrt.placement.result import describe_plan
from xrt.runtime import Program, compile_plan, to_host
from xrt.runtime.inputs import copy_values

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import SelectionOutcome
    from xrt.placement.result import PlacementRequest


@dataclass(frozen=True, slots=True)
class StoppingRule:
    turn: float = 0.03
    """Target seconds of one turn of one plan. A faster call is repeated to fill the turn; a slower call is timed once."""
    least: int = 6
    """Minimum rounds before a decision: from fewer samples no 95 % interval of the median can be computed."""
    most: int = 60
    """Maximum rounds. Plans whose order is still uncertain after these are ties."""

    def estimate_seconds(self, calls: Iterable[float]) -> float:
        """Estimate the seconds of a race with the minimum of rounds; ``calls`` has each plan's seconds per call."""
        # A turn is an untimed call, and timed calls that fill the turn. The first round is the warm-up.
        return (self.least + 1) * sum(call + max(call, self.turn) for call in calls)


PROFILED_CALLS = 5


@dataclass(slots=True, eq=False)
class Entrant:
    """A compiled plan that is timed in turn with others."""

    plan: Plan
    call: Callable[[], object] = tuple
    is_simple: bool = True
    """Whether the plan may be the baseline, because it does not mix engines. The baseline is the fastest simple plan."""
    program: Program | None = None
    note: str = ""
    first_call: float = 0.0
    expected: float = 0.0
    """Seconds per call: first as predicted, then as measured in the warm-up turn."""
    repeats: int = 1
    rounds: list[float] = field(default_factory=list)
    regions: tuple[float, ...] = ()
    is_out: bool = False
    """Whether the plan takes no more turns: it failed or clearly lost."""
    failure: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def turn(self) -> float:
        """Expected seconds of a turn: one untimed call, then `repeats` timed calls."""
        return (1 + self.repeats) * (self.median if self.rounds else self.expected)

    @property
    def has_run(self) -> bool:
        return bool(self.rounds) and not self.failure

    @property
    def simplicity(self) -> tuple[int, int]:
        """Sort key: the number of regions, then of engines; a lower key is simpler."""
        return len(self.plan.launches), len(self.plan.used_engines)

    def take_turn(self, clock: Clock) -> None:
        """Time one turn and add its seconds per call to `rounds`; an exception is recorded as this plan's failure."""
        try:
            self.rounds.append(measure_turn(self.call, self.repeats, clock))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            self.is_out, self.failure = True, f"{type(error).__name__}: {error}"

    def profile(self, inputs: Sequence[Any]) -> None:
        if self.program is None or len(self.plan.launches) < 2:
            return
        for _ in range(PROFILED_CALLS):
            self.program.run(inputs, RunOptions(profile=True))
        self.regions = tuple(launch.seconds / launch.calls for launch in self.program.profile().launches)

    def close(self) -> None:
        program, self.program = self.program, None
        if program is not None:
            program.close()


def make_candidate(
    plan: Plan,
    verdict: SelectionOutcome,
    seconds: float | None = None,
    low: float | None = None,
    high: float | None = None,
    **details: Any,
) -> CandidateRecord[Plan]:
    return CandidateRecord(describe_plan(plan), verdict, seconds, low, high, plan=plan, **details)


def run_interleaved(
    entrants: Sequence[Entrant],
    *,
    until: float,
    rules: StoppingRule = StoppingRule(),
    clock: Clock = time.perf_counter,
    watch: Callable[[int, Entrant], object] = lambda turn, best: None,
    is_decided: Callable[[Sequence[Entrant]], bool] | None = None,
) -> int:
    """Time the entrants in rounds, one turn each per round; return the number of complete rounds.

    Ends before a turn that would end after the clock shows ``until``, or when ``is_decided`` is true of the entrants that still
    run, by default when each plan has won or cannot win. ``watch(rounds, fastest)`` is called after each round.
    """
    is_decided = is_decided or _drop_losers
    # The time of the warm-up turn is not kept: it only determines the calls per turn.
    for entrant in entrants:
        if clock() + entrant.turn < until:
            entrant.take_turn(clock)
        if entrant.rounds:
            entrant.expected = entrant.rounds.pop()
            entrant.repeats = choose_calls_per_turn(entrant.expected, rules.turn)
    for completed in range(rules.most):
        order = rotate([entrant for entrant in entrants if not entrant.is_out], completed)
        for index, entrant in enumerate(order):
            if clock() + entrant.turn >= until:
                # The round stays incomplete. Remove its times, since ratios need the times of both plans in each round.
                for timed in order[:index]:
                    if not timed.is_out:
                        timed.rounds.pop()
                return completed
            entrant.take_turn(clock)
        active = [entrant for entrant in order if not entrant.is_out]  # without those that failed in this round
        if not active:
            return completed + 1 if order else completed  # without plans there was no round
        watch(completed + 1, min(active, key=lambda entrant: entrant.median))
        if completed + 1 >= rules.least and is_decided(active):
            return completed + 1
    return rules.most


def _choose_baseline(entrants: Sequence[Entrant]) -> Entrant:
    simple = [entrant for entrant in entrants if entrant.is_simple]
    return min(simple or entrants, key=lambda entrant: entrant.median)


WIN_RATIO = 0.98
"""A plan wins only if the whole interval of its ratio to the baseline is below this; if the interval is above, it cannot win. The
order of closer plans changes from run to run, because rounds vary by 1 to 8 %."""


def _drop_losers(active: Sequence[Entrant]) -> bool:
    """Mark the plans that clearly lost to the baseline as out. Return whether it is certain of each plan if it wins or not."""
    # The baseline is chosen again after each round: the order of two engines may change.
    baseline = _choose_baseline(active)
    is_decided = True
    for entrant in active:
        if entrant is not baseline:
            ratio = compute_round_ratio(entrant.rounds, baseline.rounds)
            entrant.is_out = ratio.is_loss
            is_certain = ratio.high < WIN_RATIO or ratio.low > WIN_RATIO  # the whole interval is on one side
            is_decided = is_decided and is_certain
    return is_decided


def prepare_plan(
    plan: Plan,
    request: PlacementRequest,
    cache: CompileCache,
    inputs: Sequence[Any],
    expected: Sequence[Any] | None,
    reference: Reference,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Entrant | CandidateRecord[Plan]:
    """Compile a plan on the request's engines, call it once on copies of the host inputs, and compare the results.

    Returns an Entrant for the race, or the CandidateRecord of a plan that fails or is wrong. If ``expected`` is None, results are
    not compared. Stops the comparison once ``is_stopped()`` is true.
    """
    function, context = request.function, request.context
    engines = {engine.spec: engine for engine in request.engines}
    try:
        program = compile_plan(plan, engines, context, cache, graph=request.cuda_graph)
    except XRTError as error:
        return make_candidate(plan, "failed", note=describe_error(error))
    if not isinstance(program, Program):
        return make_candidate(plan, "failed", note="; ".join(dict.fromkeys(refusal.reason for refusal in program)))
    # The timed call reuses these copies; updates in place must not reach the caller's arrays.
    values = [copy_values(value) for value in inputs]
    wrong = note = ""
    try:
        results, seconds = time_call(lambda: [copy_values(to_host(value)) for value in program.run(values)])
        # Random results differ from call to call, and cannot be compared.
        if expected is not None and not find_first_random_node(function):
            wrong, note = check_against_reference(function, inputs, results, expected, reference, context.options, is_stopped)
    except Exception as error:  # noqa: BLE001  # whatever an engine raises
        program.close()
        return make_candidate(plan, "failed", note=describe_error(error))
    if wrong:
        program.close()
        return make_candidate(plan, "wrong", note=wrong)
    return Entrant(plan, program.make_timed_call(values), program=program, note=note, first_call=seconds)


PartitionKey: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Identifies a plan: the engine and the node names of each region."""


@dataclass(frozen=True)
class Candidates:
    """The plans that can be made without measurements: the plan by priority, and plans that run the model on one engine."""

    request: PlacementRequest
    engines: tuple[GraphCompiler, ...]
    """The engines that plans may use. The implicit engine is among them only if the others do not support every node."""
    implicit: str | None
    """The spec of the implicit engine if it is among `engines`, else None."""
    all_engines: tuple[GraphCompiler, ...] = ()
    """All engines, including the implicit one, which `updating_plans` may use."""

    @classmethod
    def collect(cls, request: PlacementRequest, engines: Sequence[GraphCompiler]) -> Candidates:
        """Make the candidates of a request on ``engines``, without the implicit engine if the others support every node."""
        # The implicit engine is slow: measuring its plans would take time from the engines that the user listed.
        listed = tuple(engine for engine in engines if engine.spec != request.implicit)
        if request.implicit is not None and listed:
            candidates = cls(request, listed, None, tuple(engines))
            if all(candidates.capability.supporting_engines):
                return candidates
        return cls(request, tuple(engines), request.implicit, tuple(engines))

    @cached_property
    def capability(self) -> SupportMatrix:
        return SupportMatrix.of(self.request.function, self.engines, self.request.device_map)

    @cached_property
    def priority(self) -> Plan:
        """The plan by the order of the engine list; raises PlanError if there is a node that no engine supports."""
        return self._partition(self.engines, self.implicit, self.capability)

    def _partition(
        self, engines: Sequence[GraphCompiler], implicit: str | None = None, capability: SupportMatrix | None = None
    ) -> Plan:
        function, options, device_map = self.request.function, self.request.clustering, self.request.device_map
        return partition(function, engines, options, implicit=implicit, device_map=device_map, capability=capability)

    @cached_property
    def wholes(self) -> tuple[Plan, ...]:
        """The plans that run all nodes on one engine, if the caller's options allow that. Plans measured to fail are included."""
        function, device_map = self.request.function, self.request.device_map
        plans = []
        engines_by_node = self.capability.supporting_engines
        for index, engine in enumerate(self.engines):
            if all(index in supporting for supporting in engines_by_node):
                assignment = {node.name: engine.spec for node in function.nodes}
                with suppress(PlanError):
                    plan = plan_from_assignment(
                        function, self.engines, assignment, device_map=device_map, capability=self.capability
                    )
                    if is_allowed(plan, self.engines, self.request.clustering):
                        plans.append(plan)
        return tuple(plans)

    @cached_property
    def updating_plans(self) -> tuple[Plan, ...]:
        """Plans on two engines for a model that updates state: one runs the model, the other only updates the state in place."""
        if not self.request.function.aliases:
            return ()
        plans = []
        for whole in self.wholes:
            first_spec = whole.launches[0].engine if whole.launches else ""
            # By priority, this engine gets all nodes, except updates in place that only another engine supports.
            engines = sorted(self.all_engines, key=lambda engine: 0 if engine.spec == first_spec else 1)
            with suppress(PlanError):
                plan = self._partition(engines)
                if len(plan.used_engines) == 2 and is_allowed(plan, engines, self.request.clustering):
                    plans.append(plan)
        return tuple(plans)


def get_single_cost(plan: Plan, table: CostTable) -> RegionCost | None:
    """Return the cost of a single-region plan from the table; None if it was not measured, or the plan has several regions."""
    if len(plan.launches) != 1:
        return None
    (launch,) = plan.launches
    return table.region(launch.function.shape_key, launch.engine)


def make_partition_key(plan: Plan) -> PartitionKey:
    return tuple((launch.engine, launch.nodes) for launch in plan.launches)


def is_allowed(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    """Whether a plan respects the pins and the minimum and maximum nodes per region."""
    sizes = [len(launch.nodes) for launch in plan.launches] or [1]  # a plan without nodes counts as one with a single node
    if min(sizes) < options.minimum_nodes or (options.maximum_nodes and max(sizes) > options.maximum_nodes):
        return False
    assignment, names = map_nodes_to_engines(plan), {engine.spec: engine.name for engine in engines}
    nodes = [node for launch in plan.launches for node in launch.function.nodes]
    for pin in options.pins:
        for node in nodes:
            spec = assignment[node.name]
            # A pin either requires that the node is on its engine, or forbids it.
            if pin.matches(pin.get_subject(node)) and pin.covers_engine(names[spec], spec) is pin.forbid:
                return False
    return True


def select_winner(
    entrants: Sequence[Entrant],
    others: Sequence[CandidateRecord[Plan]],
    rounds: int,
    least: int = 1,
    *,
    prefers_simple: bool = True,
) -> SearchRecord[Plan]:
    """Choose the winner among the entrants that ran; record all candidates, together with ``others`` that did not race.

    The baseline is the fastest simple plan. Another plan can win only if the whole interval of its ratio to the baseline is below
    `WIN_RATIO`; if no plan is simple, every plan can win. The simplest of the winners that cannot be distinguished from the
    fastest winner is chosen; without ``prefers_simple``, the fastest. If no plan can win, the baseline is chosen.

    With fewer than ``least`` rounds there are no intervals: the baseline is chosen, and no plan has lost.
    """
    ran = [entrant for entrant in entrants if entrant.has_run]
    failed = [
        make_candidate(entrant.plan, "failed", note=entrant.failure or "it was not called before the budget ended")
        for entrant in entrants
        if not entrant.has_run
    ]
    if not ran:
        return SearchRecord(candidates=tuple(sorted([*failed, *others], key=_rank)), rounds=rounds)
    # Plans that left early have few rounds, so the baseline is one of those that stayed, if there are any.
    base = _choose_baseline([entrant for entrant in ran if not entrant.is_out] or ran)
    ratios = {id(entrant): compute_round_ratio(entrant.rounds, base.rounds) for entrant in ran}
    is_sure = rounds >= least
    chosen = _choose_winner(ran, base, ratios, prefers_simple=prefers_simple) if is_sure else base
    judged = [
        _judge(entrant, ratios[id(entrant)], chosen, is_sure=is_sure).replace(is_baseline=entrant is base) for entrant in ran
    ]
    return SearchRecord(candidates=tuple(sorted([*judged, *failed, *others], key=_rank)), rounds=rounds)


def _choose_winner(ran: Sequence[Entrant], base: Entrant, ratios: dict[int, RatioInterval], *, prefers_simple: bool) -> Entrant:
    """Choose the winner, as `select_winner` describes. ``ratios`` has each entrant's ratio to ``base``, by ``id``."""
    winners = [entrant for entrant in ran if not entrant.is_out and (not base.is_simple or ratios[id(entrant)].high < WIN_RATIO)]
    if not winners:
        return base
    fastest = min(winners, key=lambda entrant: ratios[id(entrant)].median)
    if not prefers_simple:
        return fastest
    # Fewer regions and engines mean fewer ways to fail, for the same time.
    tied = [x for x in winners if x is fastest or compute_round_ratio(x.rounds, fastest.rounds).low <= 1 + MIN_DIFFERENCE]
    return min(tied, key=lambda entrant: (*entrant.simplicity, ratios[id(entrant)].median))


def _judge(entrant: Entrant, ratio: RatioInterval, chosen: Entrant, *, is_sure: bool) -> CandidateRecord[Plan]:
    """Record an entrant. After too few rounds, when ``is_sure`` is false, it has no interval and has not lost."""
    seconds, low, high = compute_median_interval(entrant.rounds)
    verdict: SelectionOutcome = "won" if entrant is chosen else "tie"
    candidate = make_candidate(entrant.plan, verdict, seconds, ratio=ratio.median, note=entrant.note, regions=entrant.regions)
    if not is_sure:
        return candidate
    if entrant is not chosen and compute_round_ratio(entrant.rounds, chosen.rounds).is_loss:
        verdict = "lost"
    return candidate.replace(verdict=verdict, low=low, high=high, ratio_low=ratio.low, ratio_high=ratio.high)


def _rank(candidate: CandidateRecord[Plan]) -> tuple[int, float]:
    return list(VERDICTS).index(candidate.verdict), candidate.seconds if candidate.seconds is not None else math.inf


SEGMENTS = 4
"""Segments of a measurement. If the median of a segment lies outside the interval, the machine drifted, and the interval is
widened."""
CHECK_RULES = StoppingRule(least=SEGMENTS, most=200)
MIN_CHECK_ROUNDS = 12
"""Minimum rounds before a check is decided, unless the time is over."""
MIN_REGRESSION_ROUNDS = 36
"""Minimum rounds before a regression is reported, unless the time is over."""

CheckOutcome: TypeAlias = Literal["held", "regressed", "undecided", "alone"]
"""Outcome of a check. ``undecided``: the interval contains the limit; ``alone``: the lock has no other plan to compare with."""


@dataclass(frozen=True, slots=True)
class RegressionSetup:
    request: PlacementRequest
    cache: CompileCache
    inputs: Sequence[Any]
    reference: Reference
    seconds: float
    """Time limit of a comparison, without compiles. At least `SEGMENTS` rounds are run."""
    clock: Clock = time.perf_counter
    reduced_plan: Plan | None = None
    """The plan of reduced precision, if there is one. `check_error` compares its results with the reference."""

    @contextmanager
    def prepare_entrants(self, *plans: Plan) -> Iterator[list[Entrant]]:
        """Compile plans, compare their results with the reference, and yield them to be timed. Raises LockError if one fails."""
        expected = list(self.reference(self.request.function.replace(aliases=()), list(self.inputs)))
        entrants: list[Entrant] = []
        try:
            for plan in plans:
                outputs = None if plan is self.reduced_plan else expected
                entrant = prepare_plan(plan, self.request, self.cache, self.inputs, outputs, self.reference)
                if not isinstance(entrant, Entrant):
                    failure = "computes wrongly" if entrant.verdict == "wrong" else "does not run"
                    raise LockError(f"the plan {describe_plan(plan)} {failure}: {entrant.note}")
                entrants.append(entrant)
            yield entrants
        finally:
            for entrant in entrants:
                entrant.close()


def compare_plans(
    setup: RegressionSetup, plan: Plan, other: Plan, is_enough: Callable[[RatioInterval, int], bool]
) -> tuple[RatioInterval, int]:
    """Measure the ratio of ``plan``'s time to ``other``'s; return the ratio and the number of rounds.

    The plans run in turn until ``is_enough(ratio, rounds)`` is true, or ``setup.seconds`` have passed. Raises LockError for a
    plan that fails.
    """
    with setup.prepare_entrants(plan, other) as entrants:
        until = setup.clock() + setup.seconds

        def compute_ratio() -> RatioInterval:
            return compute_round_ratio_with_drift(*(entrant.rounds for entrant in entrants), parts=SEGMENTS)

        def is_decided(active: Sequence[Entrant]) -> bool:
            if len(active) < len(entrants) or setup.clock() >= until:
                return True
            rounds = len(active[0].rounds)
            return rounds >= MIN_CHECK_ROUNDS and is_enough(compute_ratio(), rounds)

        rounds = run_interleaved(entrants, until=math.inf, rules=CHECK_RULES, clock=setup.clock, is_decided=is_decided)
        for entrant in entrants:
            if entrant.failure:
                raise LockError(f"the plan {describe_plan(entrant.plan)} does not run: {entrant.failure}")
        return compute_ratio(), rounds


def find_runner_up(plan: Plan, candidates: Sequence[CandidateRecord[Plan]]) -> CandidateRecord[Plan] | None:
    """Find the other plan to compare ``plan`` with: the baseline, else the best single-engine plan, else the best; or None."""
    key = make_partition_key(plan)
    others = [
        candidate
        for candidate in candidates
        if candidate.verdict not in ("late", "wrong", "failed") and make_partition_key(candidate.plan) != key
    ]
    baselines = [candidate for candidate in others if candidate.is_baseline]
    single_engine = [candidate for candidate in others if len(candidate.plan.used_engines) == 1]
    return next(iter(baselines or single_engine or others), None)


def make_baseline(setup: RegressionSetup, plan: Plan, candidates: Sequence[CandidateRecord[Plan]]) -> Baseline | None:
    """Measure ``plan`` against another, for later checks; None if there is no other. Raises LockError if a plan fails."""
    opponent = find_runner_up(plan, candidates)
    if opponent is None:
        return None

    def is_narrow(ratio: RatioInterval, rounds: int) -> bool:
        return ratio.high - ratio.low <= (1 - WIN_RATIO) * ratio.median  # the least gain with which a plan wins

    ratio, rounds = compare_plans(setup, plan, opponent.plan, is_narrow)
    ranges = list_node_ranges(opponent.plan, setup.request.function)
    return Baseline(opponent.title, ratio.median, ratio.low, ratio.high, rounds, ranges)


@dataclass(frozen=True, slots=True)
class RegressionResult:
    """The result of a regression check. Its truth value is False if the plan has regressed. Prints as text."""

    state: CheckOutcome
    limit: float
    """The allowed relative increase of the ratio, such as 0.05 for 5 %."""
    locked: Baseline | None = None
    """The ratio in the lockfile. If ``state`` is ``alone``, `locked`, `now` and `change` are None."""
    now: RatioInterval | None = None
    rounds: int = 0
    change: RatioInterval | None = None
    """The ratio measured now, divided by the ratio in the lockfile. The interval includes the uncertainty of both ratios."""

    def __bool__(self) -> bool:
        return self.state != "regressed"

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        if self.locked is not None:
            facts["locked"] = self.locked.to_dict()
            del facts["locked"]["ranges"]
        return facts

    def __str__(self) -> str:
        was, now, change = self.locked, self.now, self.change
        if was is None or now is None or change is None:
            return "its results agree with the reference; the lock has no other plan to compare its time with"
        changed = f"{change.median - 1:+.1%} ({change.low - 1:+.1%} to {change.high - 1:+.1%})"
        phrase = "undecided, since the noise is too large" if self.state == "undecided" else self.state
        then = f"{was.ratio:.3f} ({was.low:.3f} to {was.high:.3f}) in the lock"
        return (
            f"{phrase}: {changed}; the limit is {self.limit:+.1%}\n"
            f"time divided by that of {was.plan}: {now} in {self.rounds} rounds, {then}"
        )


def check_regression(
    setup: RegressionSetup, plan: Plan, other: Plan | None, baseline: Baseline | None, limit: float
) -> RegressionResult:
    """Check whether the plan's time relative to the other plan's has grown by more than ``limit`` since the lockfile was written.

    Without a baseline, only check that the plan runs and its results are right. Raises LockError if a plan does not run, or if
    its results differ from the reference.
    """
    if baseline is None or other is None:
        # Entering compiles the plan and compares its results with the reference.
        with setup.prepare_entrants(plan):
            return RegressionResult("alone", limit)

    def is_decided(ratio: RatioInterval, rounds: int) -> bool:
        outcome = _judge_ratio(ratio, baseline, limit)
        return outcome == "held" or (outcome == "regressed" and rounds >= MIN_REGRESSION_ROUNDS)

    now, rounds = compare_plans(setup, plan, other, is_decided)
    change = _divide_ratios(now, baseline)
    return RegressionResult(_judge_ratio(now, baseline, limit), limit, baseline, now, rounds, change)


def _divide_ratios(now: RatioInterval, baseline: Baseline) -> RatioInterval:
    """Divide the ratio measured now by the baseline's. As errors are independent, the squares of their widths in logs add up."""
    ratio = now.median / baseline.ratio
    # A low ratio now and a high one in the lock give the lowest change.
    log_low = math.hypot(math.log(now.median / now.low), math.log(baseline.high / baseline.ratio))
    log_high = math.hypot(math.log(now.high / now.median), math.log(baseline.ratio / baseline.low))
    return RatioInterval(ratio, ratio * math.exp(-log_low), ratio * math.exp(log_high))


def _judge_ratio(now: RatioInterval, baseline: Baseline, limit: float) -> CheckOutcome:
    change = _divide_ratios(now, baseline)
    # The change must also exceed the noise of the baseline: a wide interval in the lockfile cannot prove a regression.
    if change.low > 1 + limit and change.median > 1 + baseline.doubt:
        return "regressed"
    return "held" if change.high <= 1 + limit else "undecided"
