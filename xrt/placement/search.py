"""The planner: derives plans, the next parts to measure, and predictions from measured costs.

It is deterministic and has no clock: the same Function, engines and table give the same plans, byte for byte.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise, zip_longest
from typing import TYPE_CHECKING, Literal

from xrt.graph import Function
from xrt.partition.clustering import find_engine_sequence, minimize_cut
from xrt.partition.cost_table import LAUNCH, CostTable, MeasuredCost
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.quotient_graph import QuotientGraph
from xrt.placement.cost_model import CostModel, Partitioning, PlanningGraph, Region, iter_bits, to_mask, union

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition.device_map import DeviceMap
    from xrt.partition.plan import Launch, Plan


GAIN = 0.05
"""Share of the best plan's time that a mixture must be predicted to save. Predictions ignore the effect of a boundary on caches
and threads, and rounds vary by 1 to 8 %: a smaller gain rarely wins its race. Eleven models took 122 measurements with 5 %, and
332 with 2 %."""
EXPECTED_SPEEDUP = 2.0
"""How much faster than its estimate an engine may be on an unmeasured part. With 1 no mixture of four benchmark models was found;
with 4 the search took 206 measurements for them and seven others, not 122."""
ALONE = 0.25
"""Weight of a single node in a run of similar nodes, which is measured too: a chain of 50 needs 6 measurements, not 20. With 1
eleven models took 150 measurements, not 122, and one mixture of four was not found."""
MOST_ATOMS = 128
"""Maximum atoms, the stretches of nodes that the planner moves as a whole: 128 take 0.1 s, with quadratic growth."""
RANKED = 4
"""Number of top partitionings whose regions are looked up and measured, and of mixtures that may race. With 2, 4 and 8 eleven
models took the same measurements, for the same mixtures."""
REPEATS = 4
"""Maximum rounds of proposing again because the table had regions of the last proposals."""


# ---------------------------------------------------------------------- partitionings


def iter_partitionings(costs: CostModel) -> Iterator[Partitioning]:
    """Yield each engine alone, each engine as first choice, each node on its cheapest engine, and the best stretches."""
    graph = costs.graph
    engines = range(len(graph.engines))
    yield from (((engine, graph.whole),) for engine in engines if graph.supports((engine, graph.whole)))
    for first in engines:
        order = [first, *(engine for engine in engines if engine != first)]
        yield from _cluster(graph, [next((e for e in order if graph.supported[e] >> at & 1), -1) for at in range(len(graph))])
    yield from _cluster(graph, list_cheapest(costs))
    yield from find_best_stretches(costs)


def list_cheapest(costs: CostModel) -> list[int]:
    """Per node, the index of the cheapest engine; -1 if no engine supports it."""
    graph, seconds = costs.graph, costs.node_seconds
    supporting = ([e for e, mask in enumerate(graph.supported) if mask >> at & 1] for at in range(len(graph)))
    return [min(engines, key=lambda e, at=at: (seconds[e][at], e), default=-1) for at, engines in enumerate(supporting)]  # type: ignore[misc]


def _cluster(graph: PlanningGraph, homes: Sequence[int]) -> Iterator[Partitioning]:
    """Yield a partitioning into few regions with each node on its engine in ``homes``; nothing if a node has none."""
    if -1 in homes:
        return
    units = QuotientGraph.of(graph.dependencies, homes, [node.device for node in graph.function.nodes])
    regions: dict[int, list[int]] = {}
    for at, slot in enumerate(minimize_cut(units, find_engine_sequence(units), (), 2)):
        regions.setdefault(slot, []).append(at)
    yield tuple((homes[nodes[0]], to_mask(nodes)) for _, nodes in sorted(regions.items()))


def find_best_stretches(costs: CostModel) -> Iterator[Partitioning]:
    """Yield the cheapest sequence of stretches of the node order, by dynamic programming; nothing if a node has no engine.

    Quadratic in the number of atoms.
    """
    graph, atoms = costs.graph, list_atoms(costs)
    masks = [(1 << end) - (1 << start) for start, end in atoms]
    defines = [union(graph.defines[start:end]) for start, end in atoms]
    reads = [union(graph.reads[start:end]) for start, end in atoms]
    alone = [[float(seconds[start:end].sum()) for start, end in atoms] for seconds in costs.node_seconds]
    best: list[tuple[float, int, Region]] = [(0.0, 0, (0, 0))]
    """Per number of atoms, the least seconds to run them, the start of the last region, and that region."""
    transfers: dict[int, float] = {}
    for end in range(1, len(atoms) + 1):
        best.append((math.inf, 0, (0, 0)))
        for engine in range(len(graph.engines)):
            mask = inside = outside = 0
            estimate = LAUNCH
            for start in range(end - 1, -1, -1):
                mask, inside, outside = mask | masks[start], inside | defines[start], outside | reads[start]
                estimate += alone[engine][start]
                if not graph.supports((engine, mask)):
                    break
                if (values := outside & ~inside) not in transfers:
                    transfers[values] = graph.transfer(values)
                seconds = best[start][0] + costs.seconds((engine, mask), estimate) + transfers[values]
                if seconds < best[end][0]:
                    best[end] = seconds, start, (engine, mask)
    regions, end = [], len(atoms)
    while end and math.isfinite(best[end][0]):
        _, end, region = best[end]
        regions.append(region)
    if atoms and not end:
        yield tuple(reversed(regions))


def list_atoms(costs: CostModel) -> list[tuple[int, int]]:
    """Split the node order into atoms: cut where support or the cheapest engine changes, and at narrow places.

    If there are too many, neighbors are joined as long as one engine supports them all.
    """
    graph, cheapest = costs.graph, list_cheapest(costs)
    nodes = graph.function.nodes
    sides = [
        (to_mask(e for e, mask in enumerate(graph.supported) if mask >> at & 1), nodes[at].device) for at in range(len(nodes))
    ]
    changes = [at for at in range(1, len(nodes)) if (sides[at], cheapest[at]) != (sides[at - 1], cheapest[at - 1])]
    cuts, room = graph.cut_points[1:-1], MOST_ATOMS - len(changes)
    spread = cuts[:: -(-len(cuts) // room)] if room > 0 and cuts else []
    starts = sorted({0, *changes, *spread}) if nodes else []
    most, joined, common = max(-(-len(starts) // MOST_ATOMS), 1), [], (0, "")
    for number, start in enumerate(starts):
        engines, device = sides[start]
        if number % most and device == common[1] and engines & common[0]:
            common = engines & common[0], device
        else:
            joined.append(start)
            common = engines, device
    return list(pairwise([*joined, len(nodes)]))


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Partitionings of the nodes, cheapest first, without impossible ones."""

    costs: CostModel
    partitionings: tuple[Partitioning, ...]

    @classmethod
    def of(cls, graph: PlanningGraph, table: CostTable) -> _Ranking:
        """Propose partitionings and look up the regions of the best ones, until the table adds no cost."""
        keys = {mask: graph.key(mask) for mask in graph.parts}
        measured = {key for key, _ in table.regions}
        for _ in range(REPEATS):
            costs = CostModel.of(graph, table, keys)
            totals = {one: costs.total(one) for one in iter_partitionings(costs)}
            ranked = sorted((one for one in totals if math.isfinite(totals[one])), key=lambda one: (totals[one], one))
            masks = {mask for one in ranked[:RANKED] for _, mask in one} - keys.keys()
            fresh = {mask: graph.key(mask) for mask in sorted(masks)}
            if measured.isdisjoint(fresh.values()):
                break
            keys = {**keys, **fresh}
        return cls(costs, tuple(ranked))

    def within(self, seconds: float) -> list[Partitioning]:
        """The partitionings that cost at most ``seconds``."""
        return [one for one in self.partitionings if self.costs.total(one) <= seconds]


def propose_plans(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    limit: int = RANKED,
    device: str | DeviceMap = "cpu",
    to_beat: float = math.inf,
) -> tuple[Plan, ...]:
    """Propose the plan of each engine alone and at most ``limit`` mixtures, cheapest first.

    With ``to_beat``, the seconds of a plan, only plans that are predicted to be `GAIN` faster. Plans with an impossible region
    are left out. Empty if no engine supports some node.
    """
    graph = PlanningGraph.of(function, engines, device)
    ranked = _Ranking.of(graph, table).within((1 - GAIN) * to_beat)
    mixtures = [one for one in ranked if len(one) > 1][:limit]
    plans = [_make_plan(graph, one, engines, device) for one in (*mixtures, *(one for one in ranked if len(one) == 1))]
    seconds = [predict_cost(function, plan, table).seconds for plan in plans]
    return tuple(plans[at] for at in sorted(range(len(plans)), key=lambda at: (seconds[at], at)))


def _make_plan(
    graph: PlanningGraph, partitioning: Partitioning, engines: Sequence[GraphCompiler], device: str | DeviceMap
) -> Plan:
    nodes = graph.function.nodes
    groups = {nodes[at].name: number for number, (_, mask) in enumerate(partitioning) for at in iter_bits(mask)}
    homes = {name: graph.engines[partitioning[number][0]] for name, number in groups.items()}
    return plan_from_assignment(graph.function, engines, homes, groups=groups, device=device)


# ---------------------------------------------------------------------- the next parts to measure


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """A part of the model to measure on an engine."""

    key: str
    """The shape key of the part; equal for equal blocks."""
    spec: str
    """The engine to measure on."""
    function: Function
    """The part as a Function; its values have the model's names."""

    @classmethod
    def of(cls, launch: Launch) -> ProfilingRequest:
        """Make the request for a region of a plan."""
        return cls(launch.function.shape_key, launch.engine, launch.function)


def choose_requests(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable = CostTable(),
    *,
    limit: int = 96,
    device: str | DeviceMap = "cpu",
    to_beat: float = math.inf,
) -> tuple[ProfilingRequest, ...]:
    """Choose the parts to measure next, most useful first, equal parts once; empty if nothing would help.

    First the whole model on each engine that supports it. Then, alternately, regions of the best plans, and parts with the
    largest potential savings. With ``to_beat``, the seconds of a plan, only parts that may save `GAIN` of it.
    """
    graph = PlanningGraph.of(function, engines, device)
    wholes = [region for e in range(len(engines)) if graph.supports(region := (e, graph.whole))]
    if requests := tuple(_list_unmeasured(graph, table, wholes)):
        return requests  # the next requests depend on their costs
    ranking = _Ranking.of(graph, table)
    plans = ranking.within((1 - GAIN) * to_beat)[:RANKED]
    regions = (sorted(one, key=lambda region: (-ranking.costs.seconds(region), region)) for one in plans)
    worth = GAIN * to_beat if math.isfinite(to_beat) else 0.0
    pairs = zip_longest(chain.from_iterable(regions), _list_by_potential_gain(ranking, worth))
    return tuple(islice(_list_unmeasured(graph, table, filter(None, chain.from_iterable(pairs))), limit))


def _list_unmeasured(graph: PlanningGraph, table: CostTable, regions: Iterable[Region]) -> Iterator[ProfilingRequest]:
    """Yield requests for the regions that the table lacks, each key once per engine."""
    requested: set[tuple[str, str]] = set()
    for engine, mask in regions:
        subject = graph.key(mask), graph.engines[engine]
        if subject not in requested and table.region(*subject) is None:
            requested.add(subject)
            yield ProfilingRequest(*subject, graph.make_subgraph(mask))


def _list_by_potential_gain(ranking: _Ranking, worth: float) -> list[Region]:
    """List the parts on each engine by potential saving, largest first, down to ``worth`` seconds.

    The saving is the cost of the part in the best plan minus its estimate on the engine over `EXPECTED_SPEEDUP`, times its number
    of occurrences. For operators not yet tried on the engine, the estimate is at most the cost in the best plan.
    """
    costs, graph = ranking.costs, ranking.costs.graph
    parts = [part for part in graph.parts if part != graph.whole]
    often = Counter(graph.key(part) for part in parts if part.bit_count() > 1) + Counter(graph.kinds)
    tried = [_list_tried_operators(costs, engine) for engine in range(len(graph.engines))]
    found = []
    for part in parts:
        now, operators = _find_present_cost(ranking, part), _list_operators(graph, part)
        is_cut_out = part.bit_count() == 1 and bool(part & graph.within_runs)
        for engine in range(len(graph.engines)):
            if graph.supports((engine, part)):
                estimate = costs.estimate((engine, part))
                expected = (estimate if operators <= tried[engine] else min(estimate, now)) / EXPECTED_SPEEDUP
                saved = often[graph.key(part)] * max(now - expected, 0.0) * (ALONE if is_cut_out else 1.0)
                if saved >= worth:
                    found.append((saved, (engine, part)))
    return [region for _, region in sorted(found, key=lambda pair: (-pair[0], pair[1]))]


def _list_tried_operators(costs: CostModel, engine: int) -> set[str]:
    """The operators that were measured on an engine in a part smaller than the whole model."""
    graph = costs.graph
    masks = [mask for mask in costs.keys if mask != graph.whole and costs.find((engine, mask)) is not None]
    return set().union(*(_list_operators(graph, mask) for mask in masks))


def _list_operators(graph: PlanningGraph, mask: int) -> set[str]:
    return {graph.function.nodes[at].op for at in iter_bits(mask)}


def _find_present_cost(ranking: _Ranking, mask: int) -> float:
    """The estimated cost of some nodes in the best plan; without a plan, the lowest estimate of an engine."""
    costs = ranking.costs
    if not ranking.partitionings:
        return min(costs.estimate((engine, mask)) for engine in range(len(costs.graph.engines)))
    return sum(costs.estimate((engine, mask & nodes)) for engine, nodes in ranking.partitionings[0] if mask & nodes)


# ---------------------------------------------------------------------- operators that an engine lacks

TRIED = 12
"""Maximum pairs of operator and engine to plan again, those with the most expensive nodes first."""


@dataclass(frozen=True, slots=True)
class MissingSupport:
    """An operator that an engine does not support, and the gain of the best plan if it did."""

    operator: str
    engine: str
    nodes: int
    """Number of nodes of that operator that the engine does not support."""
    seconds: float
    """Predicted saving in seconds; it cannot be measured."""


def rank_missing_support(
    function: Function, engines: Sequence[GraphCompiler], table: CostTable, *, device: str | DeviceMap = "cpu"
) -> tuple[MissingSupport, ...]:
    """Rank missing operators by predicted saving, largest first: add support for one operator, and plan the model again."""
    graph = PlanningGraph.of(function, engines, device)
    ranking = _Ranking.of(graph, table)
    if not ranking.partitionings:
        return ()
    best, seconds = ranking.partitionings[0], ranking.costs.node_seconds
    homes = {at: engine for engine, mask in best for at in iter_bits(mask)}
    declined: dict[tuple[int, str], list[int]] = {}
    for at, node in enumerate(function.nodes):
        for engine, supported in enumerate(graph.supported):
            if not supported >> at & 1:
                declined.setdefault((engine, node.op), []).append(at)
    present = {pair: sum(float(seconds[homes[at]][at]) for at in nodes) for pair, nodes in declined.items()}
    found = []
    for engine, op in sorted(declined, key=lambda pair: (-present[pair], pair))[:TRIED]:
        nodes = declined[engine, op]
        wider = tuple(mask | to_mask(nodes) if e == engine else mask for e, mask in enumerate(graph.supported))
        costs = replace(ranking.costs, graph=replace(graph, supported=wider))
        saved = ranking.costs.total(best) - min(map(costs.total, iter_partitionings(costs)))
        if saved > 0:
            found.append(MissingSupport(op, graph.engines[engine], len(nodes), saved))
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.operator, one.engine)))


# ---------------------------------------------------------------------- predictions


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """The predicted cost of a region of a plan, and the measured one."""

    name: str
    engine: str
    nodes: int
    predicted: float | None
    """Seconds, including the launch; None if the engine cannot run it."""
    source: Literal["measured", "estimated", "impossible"]
    note: str = ""
    """Why the region is impossible."""
    measured: float | None = None
    """Seconds within whole calls; None if not profiled."""

    def __str__(self) -> str:
        measured = "" if self.measured is None else f", took {format_seconds(self.measured)}"
        note = f" {self.note}" if self.note else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        predicted = f"predicted {format_seconds(self.predicted)} ({self.source}{note})"
        return f"{self.name} on {self.engine}, {nodes}: {predicted}{measured}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted cost of a plan and of its regions."""

    seconds: float
    """Total, including transfers; infinite if a region is impossible."""
    regions: tuple[RegionPrediction, ...]
    """In the order of the plan's launches."""


def predict_cost(function: Function, plan: Plan, table: CostTable) -> Prediction:
    """Predict the cost of a plan: regions as measured, else estimated from the measured parts."""
    specs = tuple(dict.fromkeys(launch.engine for launch in plan.launches))
    graph = PlanningGraph(function, specs, ((1 << len(function.nodes)) - 1,) * len(specs))
    positions = {node.name: at for at, node in enumerate(function.nodes)}
    masks = [to_mask(positions[name] for name in launch.nodes) for launch in plan.launches]
    costs = None
    regions = []
    for launch, mask in zip(plan.launches, masks, strict=True):
        cost = table.region(launch.function.shape_key, launch.engine)
        head = launch.name, launch.engine, len(launch.nodes)
        if isinstance(cost, MeasuredCost):
            regions.append(RegionPrediction(*head, cost.seconds, "measured"))
        elif cost is not None:
            regions.append(RegionPrediction(*head, None, "impossible", cost))
        else:
            costs = costs or CostModel.of(graph, table)
            regions.append(RegionPrediction(*head, costs.estimate((specs.index(launch.engine), mask)), "estimated"))
    seconds = (math.inf if region.predicted is None else region.predicted for region in regions)
    transfers = (graph.transfer(graph.inputs(mask)) for mask in masks)
    return Prediction(math.fsum([*seconds, *transfers]), tuple(regions))


def format_seconds(seconds: float | None) -> str:
    """Format a time for reading.

    >>> format_seconds(0.00123), format_seconds(4.5e-6), format_seconds(12.0), format_seconds(None)
    ('1.23 ms', '4.5 us', '12 s', 'unknown')
    """
    if seconds is None:
        return "unknown"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"
