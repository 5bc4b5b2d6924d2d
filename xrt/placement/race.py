"""The race: plans are prepared, take turns in one process, and one of them wins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines import RunOptions
from xrt.errors import PlanError, XRTError
from xrt.measure.statistics import FLOOR, RatioInterval, compute_round_ratio, rotate
from xrt.measure.timing import Clock, choose_calls_per_turn, median_interval, seconds_per_turn, time_call
from xrt.partition import ClusteringOptions, Plan, SupportMatrix, partition
from xrt.partition.cost_table import CostTable, MeasuredCost, RegionCost
from xrt.partition.partitioner import map_nodes_to_engines, plan_from_assignment
from xrt.placement.profiler import CheckResult, Reference, check_against_reference, find_first_random_node
from xrt.placement.result import CandidateComparison, CandidateResult
from xrt.runtime import Program, compile_plan, to_host
from xrt.verify.execution import copy_values

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import SelectionOutcome
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.result import PlacementRequest

__all__ = [
    "Candidates",
    "Placing",
    "PreparedPlan",
    "RankedPlan",
    "StoppingRule",
    "TimedCandidate",
    "alone",
    "choose_baseline",
    "is_allowed",
    "list_single_engine_plans",
    "make_partition_key",
    "pick_winner_from_profile",
    "prepare_plan",
    "run_interleaved",
    "select_winner",
    "sum_costs",
]


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """How a contest goes."""

    turn: float = 0.03
    """Seconds of a turn; a slower call is made once, after the one that is not counted."""
    least: int = 6
    """Rounds before which nothing is decided."""
    most: int = 60
    """Rounds after which it ends: what is not decided then is a tie."""

    slack: float = 0.3
    """Seconds by which a turn may be expected to end too late."""

    def seconds(self, calls: Iterable[float]) -> float:
        """Return what the fewest rounds take, and the turns that come before them, of those whose calls take so many seconds."""
        return (self.least + 1) * sum(call + max(call, self.turn) for call in calls)


@dataclass(slots=True, eq=False)
class TimedCandidate:
    """One who takes part."""

    call: Callable[[], object]
    is_simple: bool
    """Whether the candidate may be the baseline, as a placement without mixing. Others are compared with the fastest of these."""
    repeats: int = 1
    rounds: list[float] = field(default_factory=list)
    """Seconds per call, round by round."""
    expected: float = 0.0
    """Seconds that a call is known to take before there are rounds."""
    is_out: bool = False
    failure: str = ""
    """Why it takes part no more, where a call raised."""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def turn(self) -> float:
        """Seconds that a turn should take, the call that is not counted included."""
        return (1 + self.repeats) * (self.median if self.rounds else self.expected)

    def take_turn(self, clock: Clock) -> None:
        """Make the calls of a turn; what one raises is the entrant's own failure."""
        try:
            self.rounds.append(seconds_per_turn(self.call, self.repeats, clock))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            self.is_out, self.failure = True, f"{type(error).__name__}: {error}"


class OnRound(Protocol):
    """Called after each round with the fastest candidate so far."""

    def __call__(self, turn: int, best: TimedCandidate) -> object: ...


def run_interleaved(
    entrants: Sequence[TimedCandidate],
    *,
    until: float,
    rules: StoppingRule = StoppingRule(),
    clock: Clock = time.perf_counter,
    watch: OnRound = lambda turn, best: None,
) -> int:
    """Let the entrants take turns until nothing left can win, or the clock shows ``until``; return the number of rounds.

    Who has lost for certain leaves; the quickest simple one stays to the end. A turn is begun where it should end in time.
    """
    _set_repeats(entrants, until, rules, clock)
    for turn in range(rules.most):
        active = [entrant for entrant in entrants if not entrant.is_out]
        if not active or not _round(active, turn, until + rules.slack, clock):
            return turn
        active = [entrant for entrant in active if not entrant.is_out]
        if active:
            watch(turn + 1, min(active, key=lambda entrant: entrant.median))
        if turn + 1 >= rules.least and _is_decided(active):
            return turn + 1
    return rules.most


def _set_repeats(entrants: Iterable[TimedCandidate], until: float, rules: StoppingRule, clock: Clock) -> None:
    """Find out how many calls make a turn, by a turn of one call that does not count: the others have not been heard."""
    for entrant in entrants:
        if clock() + entrant.turn < until + rules.slack:
            entrant.take_turn(clock)
        if entrant.rounds:
            entrant.expected = entrant.rounds.pop()
            entrant.repeats = choose_calls_per_turn(entrant.expected, rules.turn)


def _round(active: Sequence[TimedCandidate], turn: int, until: float, clock: Clock) -> bool:
    """Give each its turn; return whether there was time for all of them. Who came to its turn before the others keeps no lead."""
    took: list[TimedCandidate] = []
    for entrant in rotate(active, turn):
        if clock() + entrant.turn >= until:
            for early in took:
                early.rounds.pop()
            return False
        entrant.take_turn(clock)
        took += [] if entrant.is_out else [entrant]
    return True


def choose_baseline(entrants: Sequence[TimedCandidate]) -> TimedCandidate:
    """Return the baseline of the comparison: the fastest simple candidate, or the fastest of all if none is simple."""
    simple = [entrant for entrant in entrants if entrant.is_simple]
    return min(simple or entrants, key=lambda entrant: entrant.median)


WIN = 0.98
"""A plan wins only if the whole interval of its ratio to the baseline is below this. The order of plans that are closer changes
from run to run (rounds spread by 1 to 8 %), so that no further round is needed where the interval is above it."""


def _is_decided(active: Sequence[TimedCandidate]) -> bool:
    """Drop the candidates that have lost to the baseline for certain, and say whether each other has won or cannot win."""
    if not active:
        return True
    baseline = choose_baseline(active)
    ratios = {id(one): compute_round_ratio(one.rounds, baseline.rounds) for one in active if one is not baseline}
    for one in active:
        one.is_out = id(one) in ratios and ratios[id(one)].is_loss
    return all(ratio.high < WIN or ratio.low > WIN for ratio in ratios.values())


PROFILED = 5
"""Calls over which the launches of a plan are timed one by one."""
SOUND = CheckResult()


@dataclass(slots=True, eq=False)
class PreparedPlan:
    """A plan that can be called, or why it cannot."""

    plan: Plan
    program: Program | None = None
    call: Callable[[], object] = tuple
    found: CheckResult = SOUND
    failure: str = ""
    seconds: float = 0.0
    """What its first call took."""
    results: Sequence[Any] | None = None
    """The results of that call, if the expected ones were unknown."""

    @property
    def may_run(self) -> bool:
        """Whether it may enter the contest."""
        return self.program is not None and not self.found.wrong and not self.failure

    def close(self) -> None:
        """Let go of the program; what it was compiled to stays in the cache."""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def profile(self, inputs: Sequence[Any]) -> tuple[float, ...]:
        """Return seconds of each launch within calls of the whole; nothing for a plan of one, whose time is the whole's."""
        if self.program is None or len(self.plan.launches) < 2:
            return ()
        for _ in range(PROFILED):
            self.program.run(inputs, RunOptions(profile=True))
        return tuple(one.seconds / one.calls for one in self.program.profile().launches)


def prepare_plan(
    plan: Plan,
    request: PlacementRequest,
    cache: CompileCache,
    inputs: Sequence[Any],
    expected: Sequence[Any] | None,
    reference: Reference,
    is_stopped: Callable[[], bool] = lambda: False,
) -> PreparedPlan:
    """Compile a plan on the request's engines and call it once on copies of the host inputs; wrong results bar it from running.

    If ``expected`` is None, results are not compared. Once it ``is_stopped``, the comparison ends.
    """
    function, context, engines = request.function, request.context, {engine.spec: engine for engine in request.engines}
    try:
        made = compile_plan(plan, engines, context, cache, graph=request.cuda_graph)
        if not isinstance(made, Program):
            return PreparedPlan(plan, failure="; ".join(dict.fromkeys(one.reason for one in made)))
    except XRTError as error:
        return PreparedPlan(plan, failure=_one_line(error))
    own = [copy_values(value) for value in inputs]
    try:
        results, seconds = time_call(lambda: [copy_values(to_host(value)) for value in made.run(own)])
        is_open = expected is None or find_first_random_node(function)
        found = (
            SOUND
            if is_open
            else check_against_reference(function, inputs, results, expected or (), reference, context.options, is_stopped)
        )
    except Exception as error:  # noqa: BLE001  # whatever an engine raises
        made.close()
        return PreparedPlan(plan, failure=_one_line(error))
    return PreparedPlan(
        plan, made, made.make_timed_call(own), found, seconds=seconds, results=results if expected is None else None
    )


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, XRTError) else f"{type(error).__name__}: {said}"


Placing: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""For each region its engine and its nodes."""


@dataclass(frozen=True)
class Candidates:
    """The plans that there are without measuring, by what engines have answered so far."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    """Engines that take part: the implicit engine only if the others leave a node."""
    options: ClusteringOptions
    implicit: str | None
    homes: DeviceMap
    everything: tuple[GraphCompiler, ...] = ()
    """The engines, the implicit one included."""

    @classmethod
    def of(cls, request: PlacementRequest, engines: Sequence[GraphCompiler]) -> Candidates:
        """Return the candidates for a request on those of its engines."""
        function, options, implicit, homes = request.function, request.clustering, request.implicit, request.device_map
        named = [engine for engine in engines if engine.spec != implicit]
        if implicit is not None and named:
            answers = SupportMatrix.of(function, named, [homes.of(engine.spec) for engine in named])
            if all(answers.supporting_engines()):
                return cls(function, tuple(named), options, None, homes, tuple(engines))
        return cls(function, tuple(engines), options, implicit, homes, tuple(engines))

    @cached_property
    def priority(self) -> Plan:
        """What the order of the list alone gives; raises PlanError where nothing takes a node."""
        where = self.homes
        return partition(
            self.function,
            self.engines,
            self.options,
            implicit=self.implicit,
            device=where.device,
            devices=where.by_engine,
            capability=self.capability,
        )

    @cached_property
    def capability(self) -> SupportMatrix:
        """What the engines have answered, asked once."""
        return SupportMatrix.of(self.function, self.engines, [self.homes.of(engine.spec) for engine in self.engines])

    @cached_property
    def wholes(self) -> tuple[Plan, ...]:
        """The plans of one engine each that keep the caller's options, those that are known to fail among them."""
        return tuple(filter(self.is_allowed, list_single_engine_plans(self.function, self.engines, self.homes, self.capability)))

    @cached_property
    def updating(self) -> tuple[Plan, ...]:
        """The plans of one engine each, but for updates of state that it would copy and another engine writes in place."""
        found = []
        for whole in self.wholes if self.function.aliases else ():
            spec = whole.launches[0].engine if whole.launches else ""
            engines = sorted(self.everything, key=lambda engine: engine.spec != spec)
            with suppress(PlanError):
                where = self.homes
                plan = partition(self.function, engines, self.options, device=where.device, devices=where.by_engine)
                if len({launch.engine for launch in plan.launches}) == 2 and is_allowed(plan, engines, self.options):
                    found.append(plan)
        return tuple(found)

    def is_allowed(self, plan: Plan) -> bool:
        return is_allowed(plan, self.engines, self.options)

    def best_alone(self, table: CostTable) -> tuple[Plan, MeasuredCost] | None:
        """Return the plan of one region that was measured to be the quickest."""
        known = [(plan, cost) for plan in self.wholes if isinstance(cost := alone(plan, table), MeasuredCost)]
        return min(known, key=lambda pair: pair[1].seconds, default=None)


def alone(plan: Plan, table: CostTable) -> RegionCost | None:
    """Return the measured cost of a plan of one region; None for other plans, and if it is unknown."""
    if len(plan.launches) != 1:
        return None
    (launch,) = plan.launches
    return table.region(launch.function.shape_key, launch.engine)


def make_partition_key(plan: Plan) -> Placing:
    """Return what makes two plans the same: which nodes are together, on which engine."""
    return tuple((launch.engine, launch.nodes) for launch in plan.launches)


def list_single_engine_plans(
    function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap, capability: SupportMatrix
) -> Iterator[Plan]:
    """Yield the plan of each engine that takes all nodes, those that are known to fail among them."""
    willing = capability.supporting_engines()
    names = [node.name for node in function.nodes]
    for at, engine in enumerate(engines):
        if all(at in engines_of for engines_of in willing):
            with suppress(PlanError):
                yield plan_from_assignment(
                    function, engines, dict.fromkeys(names, engine.spec), device=homes, capability=capability
                )


def is_allowed(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    """Whether a plan keeps pins and sizes."""
    sizes = [len(launch.nodes) for launch in plan.launches] or [1]
    most = options.maximum_nodes or max(sizes)
    return options.minimum_nodes <= min(sizes) and max(sizes) <= most and _keeps_pins(plan, engines, options)


def _keeps_pins(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    homes, names = map_nodes_to_engines(plan), {engine.spec: engine.name for engine in engines}
    return not any(
        pin.covers(names[homes[node.name]], homes[node.name]) is pin.forbid
        for pin in options.pins
        for launch in plan.launches
        for node in launch.function.nodes
        if pin.matches(pin.subject(node))
    )


def sum_costs(plan: Plan, table: CostTable) -> MeasuredCost | None:
    """Return what the regions of a plan were measured to take together; None where one of them was not."""
    costs = [table.region(launch.function.shape_key, launch.engine) for launch in plan.launches]
    known = [cost for cost in costs if isinstance(cost, MeasuredCost)]
    if not costs or len(known) < len(costs):
        return None
    return MeasuredCost(*(sum(figures) for figures in zip(*((one.seconds, one.low, one.high) for one in known), strict=True)))


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
    *,
    prefers_simple: bool = True,
) -> CandidateComparison:
    """Return the comparison: the candidates that ran, in the given order, and others, whose verdict is known without a run.

    With fewer than ``least`` rounds there are no intervals and no losers: the fastest simple plan is chosen.

    The baseline is the fastest simple plan. A plan that is not simple wins if the interval of its ratio to the baseline is wholly
    below `WIN`. Several winners, or all candidates if no simple plan ran, tie if they cannot be distinguished from the fastest.
    The simplest of these is chosen; without ``prefers_simple`` the fastest winner.
    """
    ran = [runner for runner in runners if runner.has_run]
    failed = [_failed(runner) for runner in runners if not runner.has_run]
    if not ran:
        return CandidateComparison(tuple(sorted([*failed, *others], key=_place)), rounds)
    base = choose_baseline([runner.entrant for runner in ran if not runner.entrant.is_out] or [runner.entrant for runner in ran])
    ratios = {id(runner): compute_round_ratio(runner.entrant.rounds, base.rounds) for runner in ran}
    is_sure = rounds >= least
    chosen = (
        _chosen(ran, base, ratios, prefers_simple=prefers_simple)
        if is_sure
        else next(runner for runner in ran if runner.entrant is base)
    )
    found = [_contender(runner, ratios[id(runner)], chosen, is_sure=is_sure) for runner in ran]
    baseline = found[[runner.entrant for runner in ran].index(base)]
    contenders = sorted(
        [*found, *failed, *(_at_pace(one, base.median, is_beaten=chosen.entrant is not base) for one in others)], key=_place
    )
    return CandidateComparison(tuple(contenders), rounds, next(i for i, one in enumerate(contenders) if one is baseline))


def _at_pace(left: CandidateResult, baseline: float, *, is_beaten: bool) -> CandidateResult:
    """Return the result of a plan that left an earlier race, with its times at the pace of the last one.

    Its own rounds may have been on a busier machine. Its ratio to the baseline, which both ran in, holds for these rounds too. A
    plan that tied with the baseline has lost where that ``is_beaten``.
    """
    ratio = left.ratio
    if ratio is None:
        return left
    if is_beaten and left.verdict == "tie":
        left = replace(left, verdict="lost")
    low, high = (None if end is None else end * baseline for end in (left.ratio_low, left.ratio_high))
    return replace(left, seconds=ratio * baseline, low=low, high=high)


def pick_winner_from_profile(race: CandidateComparison, plan: Plan, cost: MeasuredCost) -> CandidateComparison:
    """Return an unfinished comparison with a winner: the plan of one region with the lowest measured cost."""
    note = "measured alone; the budget ended before it was compared with the others"
    winner = CandidateResult(plan, "won", cost.seconds, cost.low, cost.high, note=note)
    return CandidateComparison((winner, *(one for one in race.contenders if one.plan != plan)), race.rounds)


def _chosen(
    ran: Sequence[RankedPlan],
    base: TimedCandidate,
    ratios: dict[int, RatioInterval],
    *,
    prefers_simple: bool,
) -> RankedPlan:
    if base.is_simple:
        winners = [runner for runner in ran if not runner.entrant.is_out and ratios[id(runner)].high < WIN]
    else:
        winners = [runner for runner in ran if not runner.entrant.is_out]
    if not winners:
        return next(runner for runner in ran if runner.entrant is base)
    quickest = min(winners, key=lambda runner: ratios[id(runner)].median)
    if not prefers_simple:
        return quickest
    alike = [
        x for x in winners if x is quickest or compute_round_ratio(x.entrant.rounds, quickest.entrant.rounds).low <= 1 + FLOOR
    ]
    return min(alike, key=lambda runner: (*runner.simplicity, ratios[id(runner)].median))


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
