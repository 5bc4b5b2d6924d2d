"""Which plans are worth trying, by what is known of the costs of their regions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.partition.clustering.cut_refinement import minimize_cut
from xrt.partition.clustering.scheduling import find_engine_sequence
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.explicit import plan_from_assignment
from xrt.partition.quotient_graph import QuotientGraph
from xrt.placement.cost_model.bitset_graph import BitsetGraph, iter_bits, to_mask
from xrt.placement.cost_model.cost_model import (
    EngineRegion,
    PartitionCostModel,
    Partitioning,
    SearchBudget,
)
from xrt.placement.cost_model.prediction import predict_cost
from xrt.placement.profiling.candidate_subgraphs import register_keys
from xrt.placement.search.interval_dp import find_best_intervals, pick_cheapest_engines
from xrt.placement.search.options import SearchOptions

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.partition.plan import Plan

__all__ = ["RankedPartitionings", "iter_partitionings", "propose_plans"]

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
    yield from _singles(board)
    yield from _by_priority(board)


def _singles(board: PartitionCostModel) -> Iterator[Partitioning]:
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
