"""Which plans are worth trying, by what is known of the costs of their regions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.partition.costs import CostTable, Measured
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.devices import Homes
from xrt.partition.explicit import assigned
from xrt.partition.placement import settled
from xrt.partition.plan import Plan
from xrt.partition.planner.board import PLAIN, SMALL, TINY, Board, Effort, Layout, Region, View
from xrt.partition.planner.ground import Ground, bits, places_of
from xrt.partition.planner.linear import best_stretches, cheapest_homes
from xrt.partition.planner.moves import improved, improved_beyond, recoloured
from xrt.partition.planner.options import SearchOptions
from xrt.partition.planner.parts import survey
from xrt.partition.planner.prediction import predicted
from xrt.partition.sequence import fewest
from xrt.partition.units import Units

__all__ = ["Ranking", "propose", "simple_layouts"]

STRETCHES = 48
"""The most atoms of which every stretch is tried as a region."""

CUTS = 256
"""The most cuts in two of a tiny model that are tried."""

MOST_RECOLOURED = 32
"""The most regions of a layout that is also proposed in other colours: what was measured region by region may be otherwise in
a row, and a race tells."""

REPEATS = 4
"""How often plans are proposed anew, at most, because the table knew regions of theirs."""


def propose(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    limit: int = 8,
    options: SearchOptions = SearchOptions(),
    device: str | Homes = "cpu",
) -> tuple[Plan, ...]:
    """Return plans, the best predicted first: every single-engine plan there is, and at most ``limit`` others.

    Half of the others, if there are so many, have no region that was not measured: an estimate is a hope.
    Plans with a region that the table calls impossible are left out. The same Function, engines, table and options give
    the same plans, byte for byte. Empty where no engine takes some node.
    """
    ground = Ground.of(function, engines, device)
    ranking = Ranking.of(ground, table, options)
    mixtures = ranking.mixtures(limit)
    singles = [layout for layout in ranking.layouts if len(layout) == 1]
    plans = [plan_of(ground, layout, engines, device) for layout in (*mixtures, *singles)]
    costs = [predicted(plan, table).seconds for plan in plans]
    return tuple(plans[at] for at in sorted(range(len(plans)), key=lambda at: (costs[at], at)))


def plan_of(ground: Ground, layout: Layout, engines: Sequence[GraphCompiler], device: str | Homes = "cpu") -> Plan:
    """Return the Plan of a layout in nodes."""
    names = [node.name for node in ground.function.nodes]
    groups = {names[place]: number for number, (_, mask) in enumerate(layout) for place in places_of(mask)}
    homes = {name: ground.engines[layout[number][0]] for name, number in groups.items()}
    return assigned(ground.function, engines, homes, groups=groups, device=device)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Layouts in nodes, the cheapest first; equal ones by their regions. Impossible ones are left out."""

    board: Board
    layouts: tuple[Layout, ...]

    @classmethod
    def of(cls, ground: Ground, table: CostTable, options: SearchOptions, view: View = PLAIN) -> Ranking:
        """Propose, look the regions of what is proposed up in the table, and propose anew until that tells nothing new.

        Of a tiny model the layouts are among them that look best when what was not measured is taken at its best.
        """
        ranking = cls._told(ground, table, options, view)
        if len(ground) > TINY or view.at_best:
            return ranking
        return ranking.with_layouts(cls._told(ground, table, options, View(view.hope, at_best=True)).layouts)

    @classmethod
    def _told(cls, ground: Ground, table: CostTable, options: SearchOptions, view: View) -> Ranking:
        ground = ground.unasked()
        survey(ground)
        effort = Effort(options.effort, options.changes)
        for _ in range(REPEATS):
            ranking = cls._once(Board.fine(ground, table, effort, view), options)
            if not ranking.learnt(options.plans):
                break
        return ranking

    @classmethod
    def _once(cls, board: Board, options: SearchOptions) -> Ranking:
        coarse = board.coarse(options.grain)
        found = dict.fromkeys(map(coarse.on_nodes, _searched(coarse, options)))
        if coarse is not board:
            found.update(dict.fromkeys(simple_layouts(board)))
        ranking = cls(board, ()).with_layouts(found)
        return ranking.with_layouts(ranking._surest())

    def _surest(self) -> Iterator[Layout]:
        """Yield the layouts with each region on the engine that was measured to be its quickest, where each was measured."""
        for layout in self.layouts:
            best = [region for _, mask in layout if (region := self._quickest(mask)) is not None]
            if len(best) == len(layout):
                yield tuple(best)

    def _quickest(self, mask: int) -> Region | None:
        known = [(engine, mask) for engine in range(len(self.board.takes)) if self._is_measured((engine, mask))]
        return min(known, key=self.board.seconds, default=None)

    def with_layouts(self, layouts: Iterable[Layout]) -> Ranking:
        """Return the ranking with more layouts, those that are possible."""
        board = self.board
        found = [layout for layout in dict.fromkeys((*self.layouts, *layouts)) if math.isfinite(board.total(layout))]
        return Ranking(board, tuple(sorted(found, key=lambda layout: (board.total(layout), layout))))

    def mixtures(self, limit: int) -> list[Layout]:
        """Return at most so many layouts of several regions, the cheapest; half of them, if there are any, of measured ones."""
        mixtures = [layout for layout in self.layouts if len(layout) > 1]
        known = [layout for layout in mixtures if all(map(self._is_measured, layout))][: (limit + 1) // 2]
        return list(dict.fromkeys((*known, *mixtures)))[:limit]

    def _is_measured(self, region: Region) -> bool:
        engine, mask = region
        ground, key = self.board.ground, self.board.ground.known().get(mask)
        return key is not None and isinstance(self.board.table.region(key, ground.engines[engine]), Measured)

    def learnt(self, count: int) -> bool:
        """Look up the regions of the first layouts; return whether the table knew one that was only estimated."""
        ground, effort = self.board.ground, self.board.effort
        masks = dict.fromkeys(mask for layout in self.layouts[:count] for _, mask in layout if mask not in ground.known())
        fresh = [mask for mask in masks if effort.spend(mask.bit_count())]
        known = {key for key, _ in self.board.table.regions}
        return not known.isdisjoint([ground.key(mask) for mask in fresh])


def _searched(board: Board, options: SearchOptions) -> Iterator[Layout]:
    """Yield the best stretches, each atom on its cheapest engine, each engine in turn first, and what moves make of the best."""
    starts = dict.fromkeys(simple_layouts(board))
    homes, stretches = cheapest_homes(board), best_stretches(lines := board.coarse(STRETCHES))
    starts.update(dict.fromkeys([board.of_nodes(lines.on_nodes(stretches))] if stretches else []))
    starts.update(dict.fromkeys([clustered(board, homes)] if homes else []))
    yield from starts
    found = [improved(board, start) for start in _cheapest(board, starts, options.starts)]
    if len(board) <= TINY:
        found += [improved(board, start) for start in _cheapest(board, halves(board), options.starts)]
    if found and len(board) <= SMALL:
        found.append(improved_beyond(board, min(found, key=lambda layout: (board.total(layout), layout)), options.width))
    yield from found
    for layout in _cheapest(board, found, options.starts):
        yield from recoloured(board, layout) if len(layout) <= MOST_RECOLOURED else ()


def _cheapest(board: Board, layouts: Iterable[Layout], count: int) -> list[Layout]:
    return sorted(layouts, key=lambda layout: (board.total(layout), layout))[:count]


def simple_layouts(board: Board) -> Iterator[Layout]:
    """Yield the layout of each engine that takes all, and those in which each engine in turn takes all that it can."""
    yield from _singles(board)
    yield from _by_priority(board)


def _singles(board: Board) -> Iterator[Layout]:
    everything = (1 << len(board)) - 1
    for engine in range(len(board.takes)):
        if board.allows((engine, everything)):
            yield ((engine, everything),)


def _by_priority(board: Board) -> Iterator[Layout]:
    """Yield the layout in which each engine in turn takes all that it can, and the others what is left, by their order."""
    count = len(board.takes)
    for first in range(count):
        order = [first, *(engine for engine in range(count) if engine != first)]
        homes = [next((e for e in order if board.takes[e] >> atom & 1), None) for atom in range(len(board))]
        if None not in homes:
            yield clustered(board, [home for home in homes if home is not None])


def halves(board: Board) -> Iterator[Layout]:
    """Yield the layouts of two regions on two engines: some of the atoms with all that they need, and the rest."""
    everything = (1 << len(board)) - 1
    for first in _closed(board):
        for early, late in permutations(range(len(board.takes)), 2):
            regions = (early, first), (late, everything & ~first)
            if all(map(board.allows, regions)):
                yield regions


def _closed(board: Board) -> Iterator[int]:
    """Yield sets of atoms that hold all that their atoms need, but not nothing and not all; at most `CUTS`."""
    found = [0]
    for atom, before in enumerate(board.before):
        found += [some | 1 << atom for some in found if not before & ~some]
        found = found[:CUTS]
    yield from (some for some in found if 0 < some < (1 << len(board)) - 1)


def clustered(board: Board, homes: Sequence[int]) -> Layout:
    """Return the layout of the fewest regions with each atom on that engine."""
    graph = DependencyGraph([tuple(places_of(before)) for before in board.before])
    units = Units.of(graph, homes, board.named)
    regions: dict[int, list[int]] = {}
    for atom, place in enumerate(settled(units, fewest(units), (), 2)):
        regions.setdefault(place, []).append(atom)
    return tuple((homes[atoms[0]], bits(atoms)) for _, atoms in sorted(regions.items()))
