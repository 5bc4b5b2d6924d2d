"""How far the planner goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

from xrt.errors import OptionError
from xrt.graph import FrozenDict, Function, TensorType, shape_key
from xrt.partition.clustering import find_engine_sequence, minimize_cut
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.quotient_graph import DependencyGraph, QuotientGraph
from xrt.placement.cost_model import (
    BitsetGraph,
    EngineRegion,
    NodeCosts,
    PartitionCostModel,
    Partitioning,
    SearchBudget,
    classify_operator,
    enumerate_subgraphs,
    iter_bits,
    register_keys,
    to_mask,
)

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.partition.plan import Launch, Plan

__all__ = [
    "BoundaryCost",
    "MissingSupport",
    "Prediction",
    "ProfilingRequest",
    "RankedPartitionings",
    "RegionPrediction",
    "SearchOptions",
    "choose_requests",
    "find_best_intervals",
    "format_seconds",
    "inline_regions",
    "iter_partitionings",
    "iter_requests",
    "pick_cheapest_engines",
    "predict_cost",
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
    to_beat: float = math.inf,
) -> tuple[Plan, ...]:
    """Return plans, the best predicted first: every single-engine plan there is, and at most ``limit`` others.

    With the seconds of a plan ``to_beat``, only plans that are predicted to be `GAIN` faster.

    Half of the others, if there are so many, have no region that was not measured: an estimate is a hope.
    Plans with a region that the table calls impossible are left out. The same Function, engines, table and options give
    the same plans, byte for byte. Empty where no engine takes some node.
    """
    ground = BitsetGraph.of(function, engines, device)
    ranking = RankedPartitionings.of(ground, table, options).within((1 - GAIN) * to_beat)
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
    def of(cls, ground: BitsetGraph, table: CostTable, options: SearchOptions) -> RankedPartitionings:
        """Propose layouts, look up their regions in the table, and repeat until the table adds no cost."""
        ground = ground.forget_keys()
        register_keys(ground)
        effort = SearchBudget(options.effort)
        for _ in range(REPEATS):
            ranking = cls._once(PartitionCostModel.at_node_level(ground, table, effort), options)
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

    def within(self, seconds: float) -> RankedPartitionings:
        """Return the layouts that cost no more than so many seconds."""
        return RankedPartitionings(self.board, tuple(one for one in self.layouts if self.board.total(one) <= seconds))

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


GAIN = 0.05
"""Part of the time of the best plan that a mixture must be predicted to save. Predictions leave out what a boundary does to
caches and threads, and rounds spread by 1 to 8 %: a smaller gain seldom wins its race."""
EXPECTED_SPEEDUP = 2.0
"""How much quicker than it looks an engine may turn out to be on a part that was not measured."""
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
    to_beat: float = math.inf,
) -> tuple[ProfilingRequest, ...]:
    """Return at most ``options.pieces`` parts to measure next, the most useful first; none where all is known.

    With the seconds of a plan ``to_beat``, none where no part may save `GAIN` of that, and no plan is predicted to.

    First, and at first only, the whole model on each engine that takes all of it, then the regions of the plans that are best
    by what is known, then parts of the model, those first in which most time might be saved. What the table has is not
    asked again, and equal parts once.
    """
    return tuple(islice(iter_requests(BitsetGraph.of(function, engines, device), table, options, to_beat), options.pieces))


def iter_requests(
    ground: BitsetGraph, table: CostTable, options: SearchOptions, to_beat: float = math.inf
) -> Iterator[ProfilingRequest]:
    """Yield the parts to measure next, each (key, engine) once."""
    asked: set[tuple[str, str]] = set()
    for (engine, mask), why in _wanted(ground, table, options, asked, to_beat):
        key, spec = ground.key(mask), ground.engines[engine]
        if (key, spec) not in asked and table.region(key, spec) is None:
            asked.add((key, spec))
            names = tuple(ground.function.nodes[place].name for place in iter_bits(mask))
            yield ProfilingRequest(key, spec, ground.part(mask), names, why)


def _wanted(
    ground: BitsetGraph, table: CostTable, options: SearchOptions, asked: Set[tuple[str, str]], to_beat: float
) -> Iterator[_Wish]:
    """Yield regions in nodes, the most useful first, those among them that are known; ``asked`` grows by the others."""
    yield from (
        ((engine, ground.whole), "the whole") for engine in range(len(ground.engines)) if ground.holds(engine, ground.whole)
    )
    if asked:
        return  # what is worth asking next depends on the answers
    ranking, limit = RankedPartitionings.of(ground, table, options), (1 - GAIN) * to_beat
    worth = GAIN * to_beat if math.isfinite(to_beat) else 0.0
    yield from _alternately(_of_plans(ranking.within(limit), options.plans), _by_potential_gain(ranking, worth))


def _of_plans(ranking: RankedPartitionings, count: int) -> Iterator[_Wish]:
    """Yield the regions of the first plans, those of each plan that cost most first."""
    for layout in ranking.layouts[:count]:
        for region in sorted(layout, key=lambda region: (-ranking.board.seconds(region), region)):
            yield region, "a region of a plan"


def _alternately(first: Iterator[_Wish], second: Iterator[_Wish]) -> Iterator[_Wish]:
    for pair in zip_longest(first, second):
        yield from (wish for wish in pair if wish is not None)


def _by_potential_gain(ranking: RankedPartitionings, worth: float) -> Iterator[_Wish]:
    """Yield the standard parts on the engines that take them, those first where most might be saved, and none that saves less
    than is ``worth`` it.

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
                saved = count * max(now - then, 0.0) * (COARSE_DISCOUNT if part.is_rough else 1)
                if saved >= worth:
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


Source = Literal["measured", "estimated", "impossible"]


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """What a region of a plan is predicted to cost, and what it took."""

    name: str
    engine: str
    nodes: int
    predicted: float | None
    """Predicted seconds, launch included; None where the table says that the engine cannot run it."""
    source: Source
    note: str = ""
    """How it was estimated, or why it is impossible."""
    measured: float | None = None
    """Seconds within calls of the whole; None where that was not profiled."""

    def __str__(self) -> str:
        took = "" if self.measured is None else f", took {format_seconds(self.measured)}"
        note = f" {self.note}" if self.note else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        predicted = f"predicted {format_seconds(self.predicted)} ({self.source}{note})"
        return f"{self.name} on {self.engine}, {nodes}: {predicted}{took}"


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What it costs that a value goes from one region to another."""

    value: str
    source: str
    """The launch that makes it."""
    target: str
    """The launch that reads it."""
    bytes: int
    """Estimated where it is not known before the run."""
    seconds: float
    is_estimated: bool
    """Whether the bytes are."""

    def __str__(self) -> str:
        about = "about " if self.is_estimated else ""
        return f"{self.value} from {self.source} to {self.target}, {about}{self.bytes} bytes: {format_seconds(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A Plan's cost, and what it is the sum of."""

    seconds: float
    """Infinite where a region is impossible."""
    regions: tuple[RegionPrediction, ...]
    """In the order of the Plan's launches."""
    boundaries: tuple[BoundaryCost, ...]


def predict_cost(plan: Plan, table: CostTable) -> Prediction:
    """Return what the Plan costs if regions and boundaries cost what the table says.

    A region that is not in the table is estimated from those parts of the model that are: see
    `xrt.placement.cost_model`.
    """
    function = inline_regions(plan)
    specs = tuple(dict.fromkeys(launch.engine for launch in plan.launches))
    whole = (1 << len(function.nodes)) - 1
    ground = BitsetGraph(function, specs, (whole,) * len(specs))
    places = {node.name: place for place, node in enumerate(function.nodes)}
    for launch in plan.launches:  # without the control edges between regions, the order of nodes may be another than it was
        ground.know(to_mask([places[name] for name in launch.nodes]), shape_key(launch.function))
    return _Predictor(ground.forget_keys(), table).prediction(plan)


def inline_regions(plan: Plan) -> Function:
    """Return the model that was partitioned, from the bodies of its launch nodes; control edges between regions are left out."""
    outer = plan.function
    bodies = [launch.function for launch in plan.launches]
    types = {**outer.types}
    for body in bodies:
        types.update(body.types)
        types.update((value.name, value.type) for value in body.outputs if value.type is not None)
    inner_names = {name for body in bodies for node in body.nodes for name in node.defines} - {v.name for v in outer.outputs}
    constants = {**outer.constants, **{name: one for body in bodies for name, one in body.constants.items()}}
    return outer.replace(
        nodes=tuple(node for body in bodies for node in body.nodes),
        constants=FrozenDict(constants),
        types=FrozenDict({name: type_ for name, type_ in types.items() if name in inner_names}),
        opsets=FrozenDict({domain: version for domain, version in outer.opsets.items() if domain != "xrt"}),
    )


class _Predictor:
    """One model's parts and shares, and what regions of it cost."""

    def __init__(self, ground: BitsetGraph, table: CostTable) -> None:
        self._ground, self._table = ground, table
        self._places = {node.name: place for place, node in enumerate(ground.function.nodes)}

    def prediction(self, plan: Plan) -> Prediction:
        masks = [to_mask([self._places[name] for name in launch.nodes]) for launch in plan.launches]
        for mask in masks:
            self._ground.key(mask)
        regions = tuple(self._region(launch, mask) for launch, mask in zip(plan.launches, masks, strict=True))
        boundaries = tuple(self._boundaries(plan))
        parts = (math.inf if region.predicted is None else region.predicted for region in regions)
        seconds = math.fsum([*parts, *(boundary.seconds for boundary in boundaries)])
        return Prediction(seconds, regions, boundaries)

    def _region(self, launch: Launch, mask: int) -> RegionPrediction:
        cost = self._table.region(self._ground.key(mask), launch.engine)
        count = len(launch.nodes)
        if isinstance(cost, MeasuredCost):
            return RegionPrediction(launch.name, launch.engine, count, cost.seconds, "measured")
        if cost is not None:
            return RegionPrediction(launch.name, launch.engine, count, None, "impossible", cost)
        seconds = self._shares.seconds(self._ground.engines.index(launch.engine), mask, self._before)
        seconds += self._table.launch(launch.engine)
        return RegionPrediction(launch.name, launch.engine, count, seconds, "estimated", self._note(launch.engine, mask))

    @cached_property
    def _shares(self) -> NodeCosts:
        register_keys(self._ground)
        return NodeCosts.fit(self._ground, self._table)

    @cached_property
    def _before(self) -> list[int]:
        return [to_mask(earlier) for earlier in self._ground.graph.predecessors]

    def _note(self, spec: str, mask: int) -> str:
        """Say from what a region was estimated."""
        measured = [part for part, key in self._ground.list_known().items() if part & mask and self._is_measured(key, spec)]
        held = to_mask([place for place in iter_bits(mask) if self._is_measured(self._ground.kinds[place], spec)])
        for part in measured:
            held |= part if not part & ~mask else 0
        if held == mask:
            return "from parts that were measured"
        if held:
            return f"{held.bit_count()} of {mask.bit_count()} nodes from parts that were measured, the others by their shares"
        return "by its share of larger parts" if measured else "from its size; nothing of it was measured"

    def _is_measured(self, key: str, spec: str) -> bool:
        return isinstance(self._table.region(key, spec), MeasuredCost)

    def _boundaries(self, plan: Plan) -> Iterator[BoundaryCost]:
        makers = {name: launch for launch in plan.launches for name in launch.outputs}
        for launch in plan.launches:
            for name in dict.fromkeys(launch.inputs):
                if name in makers:
                    yield self._boundary(name, makers[name], launch)

    def _boundary(self, name: str, source: Launch, target: Launch) -> BoundaryCost:
        type_ = self._ground.function.get_type(name)
        exact = isinstance(type_, TensorType) and type_.nbytes is not None
        size = self._ground.sizes[self._ground.values[name]]
        fixed, per_byte = self._table.boundary(source.engine, target.engine)
        return BoundaryCost(name, source.name, target.name, size, fixed + per_byte * size, not exact)


def format_seconds(seconds: float | None) -> str:
    """Return a time as a person reads it.

    >>> format_seconds(0.00123), format_seconds(4.5e-6), format_seconds(12.0), format_seconds(None)
    ('1.23 ms', '4.5 us', '12 s', 'unknown')
    """
    if seconds is None:
        return "unknown"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"
