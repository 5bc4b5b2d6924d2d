"""How far the planner goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import OptionError
from xrt.partition.clustering import find_engine_sequence, minimize_cut
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.quotient_graph import DependencyGraph, QuotientGraph
from xrt.placement.bitset_graph import BitsetGraph, classify_operator, enumerate_subgraphs, iter_bits, register_keys, to_mask
from xrt.placement.cost_model import EngineRegion, PartitionCostModel, Partitioning, SearchBudget
from xrt.placement.prediction import predict_cost

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.partition.plan import Plan

__all__ = [
    "MissingSupport",
    "ProfilingRequest",
    "RankedPartitionings",
    "SearchOptions",
    "choose_requests",
    "find_best_intervals",
    "iter_partitionings",
    "iter_requests",
    "pick_cheapest_engines",
    "propose_plans",
    "rank_missing_support",
]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Bounds of the search, all of them counts, so that the same table gives the same plans on every machine.

    Raises OptionError for a bound below 1.
    """

    pieces: int = 96
    """The most parts that are asked to be measured in one round."""
    plans: int = 8
    """The most plans that are proposed."""
    grain: int = 128
    """The most parts that a model is divided into; nodes beyond that are moved together."""
    effort: int = 40_000
    """How many nodes may be hashed in order to look regions up in the table; beyond that they are estimated."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{field.name} must be an integer of at least 1; got {value!r}")


@dataclass(frozen=True, slots=True)
class _Step:
    """The cheapest way to have run all atoms before a place, the last of them on an engine."""

    seconds: float
    start: int
    """Where its last region starts."""
    previous: int
    """The engine of the region before; -1 where it is the first."""


def find_best_intervals(board: PartitionCostModel) -> Partitioning | None:
    """Return the cheapest sequence of stretches; None where some atom has no engine.

    What a stretch reads is taken to come from the engine before it, which is right where no value passes over a region.
    Quadratic in atoms and in engines.
    """
    steps: list[dict[int, _Step]] = [{-1: _Step(0.0, 0, -1)}]
    for end in range(1, len(board) + 1):
        steps.append({})
        for engine in range(len(board.takes)):
            found = min(_ways(board, steps, end, engine), key=lambda step: step.seconds, default=None)
            if found is not None and math.isfinite(found.seconds):
                steps[end][engine] = found
    if not len(board) or not steps[-1]:
        return None
    engine = min(steps[-1], key=lambda e: (steps[-1][e].seconds, e))
    return tuple(_backwards(steps, engine))[::-1]


def _ways(board: PartitionCostModel, steps: list[dict[int, _Step]], end: int, engine: int) -> Iterator[_Step]:
    """Yield the ways to end a region of that engine at that place."""
    mask = 0
    for start in range(end - 1, -1, -1):
        mask |= 1 << start
        if not board.takes[engine] >> start & 1:
            return
        own = board.seconds((engine, mask))
        for previous, step in steps[start].items():
            yield _Step(step.seconds + own + board.compute_transfer_cost(mask, previous, engine), start, previous)


def _backwards(steps: list[dict[int, _Step]], engine: int) -> Iterator[tuple[int, int]]:
    end = len(steps) - 1
    while end:
        step = steps[end][engine]
        yield engine, (1 << end) - (1 << step.start)
        end, engine = step.start, step.previous


def pick_cheapest_engines(board: PartitionCostModel) -> list[int] | None:
    """Return for each atom the engine on which it costs least by itself; None where one has none."""
    homes = []
    for atom in range(len(board)):
        willing = [engine for engine, takes in enumerate(board.takes) if takes >> atom & 1]
        if not willing:
            return None
        homes.append(min(willing, key=lambda engine: (board.alone[engine][atom], engine)))
    return homes


STRETCHES = 48
"""The most atoms of which every stretch is tried as a region."""
REPEATS = 4
"""The most rounds of proposals, which repeat because the table knew regions of the last ones."""


def propose_plans(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    limit: int = 8,
    options: SearchOptions = SearchOptions(),
    device: str | DeviceMap = "cpu",
) -> tuple[Plan, ...]:
    """Return plans, the best predicted first: every single-engine plan there is, and at most ``limit`` others.

    Half of the others, if there are so many, have no region that was not measured: an estimate is a hope.
    Plans with a region that the table calls impossible are left out. The same Function, engines, table and options give
    the same plans, byte for byte. Empty where no engine takes some node.
    """
    ground = BitsetGraph.of(function, engines, device)
    ranking = RankedPartitionings.of(ground, table, options)
    mixtures = ranking.mixtures(limit)
    singles = [layout for layout in ranking.layouts if len(layout) == 1]
    plans = [plan_from_partitioning(ground, layout, engines, device) for layout in (*mixtures, *singles)]
    costs = [predict_cost(plan, table).seconds for plan in plans]
    return tuple(plans[at] for at in sorted(range(len(plans)), key=lambda at: (costs[at], at)))


def plan_from_partitioning(
    ground: BitsetGraph, layout: Partitioning, engines: Sequence[GraphCompiler], device: str | DeviceMap = "cpu"
) -> Plan:
    """Return the Plan of a layout in nodes."""
    names = [node.name for node in ground.function.nodes]
    groups = {names[place]: number for number, (_, mask) in enumerate(layout) for place in iter_bits(mask)}
    homes = {name: ground.engines[layout[number][0]] for name, number in groups.items()}
    return plan_from_assignment(ground.function, engines, homes, groups=groups, device=device)


@dataclass(frozen=True, slots=True)
class RankedPartitionings:
    """Layouts in nodes, the cheapest first; equal ones by their regions. Impossible ones are left out."""

    board: PartitionCostModel
    layouts: tuple[Partitioning, ...]

    @classmethod
    def of(cls, ground: BitsetGraph, table: CostTable, options: SearchOptions, hope: float = 0.0) -> RankedPartitionings:
        """Propose layouts, look up their regions in the table, and repeat until the table adds no cost.

        ``hope`` is the assumed saving of an edge inside no measured region, as a share of its cheaper end.
        """
        ground = ground.forget_keys()
        register_keys(ground)
        effort = SearchBudget(options.effort)
        for _ in range(REPEATS):
            ranking = cls._once(PartitionCostModel.at_node_level(ground, table, effort, hope), options)
            if not ranking.learn(options.plans):
                break
        return ranking

    @classmethod
    def _once(cls, board: PartitionCostModel, options: SearchOptions) -> RankedPartitionings:
        coarse = board.coarsen(options.grain)
        found = dict.fromkeys(map(coarse.to_nodes, iter_partitionings(coarse)))
        if coarse is not board:
            found.update(dict.fromkeys(iter_simple_partitionings(board)))
        ranking = cls(board, ()).with_layouts(found)
        return ranking.with_layouts(ranking._surest())

    def _surest(self) -> Iterator[Partitioning]:
        """Yield the layouts with each region on the engine that was measured to be its quickest, where each was measured."""
        for layout in self.layouts:
            best = [region for _, mask in layout if (region := self._quickest(mask)) is not None]
            if len(best) == len(layout):
                yield tuple(best)

    def _quickest(self, mask: int) -> EngineRegion | None:
        known = [(engine, mask) for engine in range(len(self.board.takes)) if self._is_measured((engine, mask))]
        return min(known, key=self.board.seconds, default=None)

    def with_layouts(self, layouts: Iterable[Partitioning]) -> RankedPartitionings:
        """Return the ranking with more layouts, those that are possible."""
        board = self.board
        found = [layout for layout in dict.fromkeys((*self.layouts, *layouts)) if math.isfinite(board.total(layout))]
        return RankedPartitionings(board, tuple(sorted(found, key=lambda layout: (board.total(layout), layout))))

    def mixtures(self, limit: int) -> list[Partitioning]:
        """Return at most so many layouts of several regions, the cheapest; half of them, if there are any, of measured ones."""
        mixtures = [layout for layout in self.layouts if len(layout) > 1]
        known = [layout for layout in mixtures if all(map(self._is_measured, layout))][: (limit + 1) // 2]
        return list(dict.fromkeys((*known, *mixtures)))[:limit]

    def _is_measured(self, region: EngineRegion) -> bool:
        engine, mask = region
        ground, key = self.board.ground, self.board.ground.list_known().get(mask)
        return key is not None and isinstance(self.board.table.region(key, ground.engines[engine]), MeasuredCost)

    def learn(self, count: int) -> bool:
        """Look up the regions of the first layouts; return whether the table knew one that was only estimated."""
        ground, effort = self.board.ground, self.board.effort
        masks = dict.fromkeys(mask for layout in self.layouts[:count] for _, mask in layout if mask not in ground.list_known())
        fresh = [mask for mask in masks if effort.spend(mask.bit_count())]
        known = {key for key, _ in self.board.table.regions}
        return not known.isdisjoint([ground.key(mask) for mask in fresh])


def iter_partitionings(board: PartitionCostModel) -> Iterator[Partitioning]:
    """Yield the simple layouts, the best stretches by dynamic programming, and each atom on its cheapest engine."""
    yield from iter_simple_partitionings(board)
    lines = board.coarsen(STRETCHES)
    if stretches := find_best_intervals(lines):
        yield board.to_atoms(lines.to_nodes(stretches))
    if homes := pick_cheapest_engines(board):
        yield cluster_by_engine(board, homes)


def iter_simple_partitionings(board: PartitionCostModel) -> Iterator[Partitioning]:
    """Yield the layout of each engine that takes all, and those in which each engine in turn takes all that it can."""
    yield from _propose_singles(board)
    yield from _by_priority(board)


def _propose_singles(board: PartitionCostModel) -> Iterator[Partitioning]:
    everything = (1 << len(board)) - 1
    for engine in range(len(board.takes)):
        if board.allows((engine, everything)):
            yield ((engine, everything),)


def _by_priority(board: PartitionCostModel) -> Iterator[Partitioning]:
    """Yield the layout in which each engine in turn takes all that it can, and the others what is left, by their order."""
    count = len(board.takes)
    for first in range(count):
        order = [first, *(engine for engine in range(count) if engine != first)]
        homes = [next((e for e in order if board.takes[e] >> atom & 1), None) for atom in range(len(board))]
        if None not in homes:
            yield cluster_by_engine(board, [home for home in homes if home is not None])


def cluster_by_engine(board: PartitionCostModel, homes: Sequence[int]) -> Partitioning:
    """Return the layout of the fewest regions with each atom on that engine."""
    graph = DependencyGraph([tuple(iter_bits(before)) for before in board.before])
    units = QuotientGraph.of(graph, homes, board.named)
    regions: dict[int, list[int]] = {}
    for atom, place in enumerate(minimize_cut(units, find_engine_sequence(units), (), 2)):
        regions.setdefault(place, []).append(atom)
    return tuple((homes[atoms[0]], to_mask(atoms)) for _, atoms in sorted(regions.items()))


OPTIMISTIC_FUSION_GAIN = 0.4
"""Optimistic saving of an edge inside a region, as a share of the cheaper end's cost, until it is measured."""
EXPECTED_SPEEDUP = 2.0
"""How much quicker than it looks an engine may turn out to be on a part that was not measured."""
LEAST = 0.02
"""What is hoped of a part on an engine that looks hopeless, as a part of its cost."""
MAX_NODES_PER_NODE_COST = 2
"""The most nodes of a part whose cost tells of each of them."""
COARSE_DISCOUNT = 0.25
"""What a part is worth that was cut by size, against one of the same cost that was cut by what its nodes do."""
_Wish: TypeAlias = tuple[EngineRegion, str]
"""A region in nodes, and why its cost is worth knowing."""


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """A part of the model whose cost on an engine is not known and would help."""

    key: str
    """The shape key of its Function, under which the table has it; equal for equal blocks."""
    spec: str
    """The engine on which it is to be measured."""
    function: Function
    """The part as a closed Function; its values are named as in the model."""
    nodes: tuple[str, ...]
    """Names of the model's nodes that it holds."""
    why: str
    """What it is of the model."""


def choose_requests(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable = CostTable(),
    options: SearchOptions = SearchOptions(),
    *,
    device: str | DeviceMap = "cpu",
) -> tuple[ProfilingRequest, ...]:
    """Return at most ``options.pieces`` parts to measure next, the most useful first; none where all is known.

    First, and at first only, the whole model on each engine that takes all of it, then the regions of the plans that are best
    by what is known, then parts of the model, those first in which most time might be saved. What the table has is not
    asked again, and equal parts once.
    """
    return tuple(islice(iter_requests(BitsetGraph.of(function, engines, device), table, options), options.pieces))


def iter_requests(ground: BitsetGraph, table: CostTable, options: SearchOptions) -> Iterator[ProfilingRequest]:
    """Yield the parts to measure next, each (key, engine) once."""
    asked: set[tuple[str, str]] = set()
    for (engine, mask), why in _wanted(ground, table, options, asked):
        key, spec = ground.key(mask), ground.engines[engine]
        if (key, spec) not in asked and table.region(key, spec) is None:
            asked.add((key, spec))
            names = tuple(ground.function.nodes[place].name for place in iter_bits(mask))
            yield ProfilingRequest(key, spec, ground.part(mask), names, why)


def _wanted(ground: BitsetGraph, table: CostTable, options: SearchOptions, asked: Set[tuple[str, str]]) -> Iterator[_Wish]:
    """Yield regions in nodes, the most useful first, those among them that are known; ``asked`` grows by the others."""
    yield from (
        ((engine, ground.whole), "the whole") for engine in range(len(ground.engines)) if ground.holds(engine, ground.whole)
    )
    if asked:
        return  # what is worth asking next depends on the answers
    ranking = RankedPartitionings.of(ground, table, options)
    yield from _alternately(_of_plans(ranking, options.plans), _by_potential_gain(ranking))
    for layout in RankedPartitionings.of(ground, table, options, OPTIMISTIC_FUSION_GAIN).layouts[: options.plans]:
        yield from ((region, "a region of a plan that might save more") for region in layout)


def _of_plans(ranking: RankedPartitionings, count: int) -> Iterator[_Wish]:
    """Yield the regions of the first plans, those of each plan that cost most first."""
    for layout in ranking.layouts[:count]:
        for region in sorted(layout, key=lambda region: (-ranking.board.seconds(region), region)):
            yield region, "a region of a plan"


def _alternately(first: Iterator[_Wish], second: Iterator[_Wish]) -> Iterator[_Wish]:
    for pair in zip_longest(first, second):
        yield from (wish for wish in pair if wish is not None)


def _by_potential_gain(ranking: RankedPartitionings) -> Iterator[_Wish]:
    """Yield the standard parts on the engines that take them, those first where most might be saved.

    That is what the part costs now, as often as the model has it, less what it might cost if the engine were `EXPECTED_SPEEDUP`
    times as quick as it looks; where the engine has not shown what it does on such nodes, as quick as the best.
    """
    board = ranking.board
    shown = [_shown(board, engine) for engine in range(len(board.takes))]
    parts = [part for part in enumerate_subgraphs(board.ground) if part.mask != board.ground.whole]
    often = Counter(board.ground.kinds)
    often.update(board.ground.key(part.mask) for part in parts if part.mask.bit_count() > 1)
    found = []
    for part in parts:
        now, count, ops = _cost_now(ranking, part.mask), often[board.ground.key(part.mask)], _operators(board, part.mask)
        for engine in range(len(board.takes)):
            if board.allows((engine, part.mask)):
                then = board.estimate((engine, part.mask))
                then = (then if part.is_rough or ops <= shown[engine] else min(then, now)) / EXPECTED_SPEEDUP
                saved = count * max(now - then, LEAST * now) * (COARSE_DISCOUNT if part.is_rough else 1)
                found.append((saved, (engine, part.mask), part.why))
    yield from ((region, why) for _, region, why in sorted(found, key=lambda one: (-one[0], one[1])))


def _shown(board: PartitionCostModel, engine: int) -> set[str]:
    """Return the operators that were tried on an engine in a part of few nodes, or of one sort of work."""
    ground, spec = board.ground, board.ground.engines[engine]
    tried = [mask for mask, key in ground.list_known().items() if board.table.region(key, spec) is not None]
    nodes = ground.function.nodes
    pure = [
        mask
        for mask in tried
        if mask.bit_count() <= MAX_NODES_PER_NODE_COST or len({classify_operator(nodes[place]) for place in iter_bits(mask)}) == 1
    ]
    return set().union(*(_operators(board, mask) for mask in pure))


def _operators(board: PartitionCostModel, mask: int) -> set[str]:
    return {board.ground.function.nodes[place].op for place in iter_bits(mask)}


def _cost_now(ranking: RankedPartitionings, mask: int) -> float:
    """Return what some nodes cost in the best plan, by their shares; the least that they might, where there is none."""
    board = ranking.board
    if not ranking.layouts:
        return min(board.estimate((engine, mask)) for engine in range(len(board.takes)))
    return sum(board.estimate((engine, mask & theirs)) for engine, theirs in ranking.layouts[0] if mask & theirs)


TRIED = 12
"""The most pairs of operator and engine that are planned again: those whose nodes cost most now."""


@dataclass(frozen=True, slots=True)
class MissingSupport:
    """An operator that an engine declines, and what the best plan would gain if it took it."""

    operator: str
    engine: str
    nodes: int
    """How many nodes it declines of that operator."""
    seconds: float
    """Predicted saving; it cannot be measured."""


def rank_missing_support(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    options: SearchOptions = SearchOptions(),
    *,
    device: str | DeviceMap = "cpu",
) -> tuple[MissingSupport, ...]:
    """Return what would unlock the model, the largest saving first; what saves nothing is left out.

    One capability is added, and the model planned again. Empty where no plan is possible now.
    """
    ranking = RankedPartitionings.of(BitsetGraph.of(function, engines, device), table, options)
    if not ranking.layouts:
        return ()
    found = []
    for engine, operator, mask in _declined(ranking)[:TRIED]:
        saved = ranking.board.total(ranking.layouts[0]) - _best_with(ranking, engine, mask, options)
        if saved > 0:
            found.append(MissingSupport(operator, ranking.board.ground.engines[engine], mask.bit_count(), saved))
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.operator, one.engine)))


def _declined(ranking: RankedPartitionings) -> list[tuple[int, str, int]]:
    """Return (engine, operator, the nodes of it that the engine declines), those first that cost most now."""
    board = ranking.board
    home = {place: engine for engine, mask in ranking.layouts[0] for place in iter_bits(mask)}
    declined: dict[tuple[int, str], int] = {}
    for place, node in enumerate(board.ground.function.nodes):
        for engine, takes in enumerate(board.takes):
            if not takes >> place & 1:
                declined[engine, node.op] = declined.get((engine, node.op), 0) | 1 << place
    costs = {pair: sum(board.alone[home[place]][place] for place in iter_bits(mask)) for pair, mask in declined.items()}
    return [(*pair, declined[pair]) for pair in sorted(declined, key=lambda pair: (-costs[pair], pair))]


def _best_with(ranking: RankedPartitionings, engine: int, mask: int, options: SearchOptions) -> float:
    """Return what the best plan costs if the engine takes those nodes too."""
    old = ranking.board
    takes = tuple(own | mask if at == engine else own for at, own in enumerate(old.ground.takes))
    ground = replace(old.ground, takes=takes, parts=[])
    board = PartitionCostModel(ground, old.table, old.shares, old.atoms, SearchBudget(0))
    coarse = board.coarsen(options.grain)
    return min(map(board.total, map(coarse.to_nodes, iter_partitionings(coarse))))
