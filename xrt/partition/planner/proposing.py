"""Which plans are worth trying, by what is known of the costs of their regions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.partition.assigned import assigned
from xrt.partition.clustering import cluster
from xrt.partition.costs import CostTable
from xrt.partition.options import ClusteringOptions
from xrt.partition.plan import Plan
from xrt.partition.planner.board import Board, Layout
from xrt.partition.planner.ground import Ground, bits, places_of
from xrt.partition.planner.options import SearchOptions

__all__ = ["plan_of", "propose", "ranked"]


def propose(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    limit: int = 8,
    options: SearchOptions = SearchOptions(),
    device: str = "cpu",
) -> tuple[Plan, ...]:
    """Return plans, the best predicted first: every single-engine plan there is, and at most ``limit`` others.

    Plans with a region that the table calls impossible are left out. The same Function, engines, table and options give
    the same plans, byte for byte. Empty where no engine takes some node.
    """
    ground = Ground.of(function, engines, device)
    board = Board.fine(ground, table, options.effort)
    layouts = ranked(board, options)
    mixtures = [layout for layout in layouts if len(layout) > 1][:limit]
    return tuple(plan_of(board, layout, engines, device) for layout in layouts if len(layout) == 1 or layout in mixtures)


def plan_of(board: Board, layout: Layout, engines: Sequence[GraphCompiler], device: str = "cpu") -> Plan:
    """Return the Plan of a layout whose atoms are nodes."""
    names = [node.name for node in board.ground.function.nodes]
    groups = {names[place]: number for number, (_, mask) in enumerate(layout) for place in places_of(mask)}
    homes = {name: board.ground.engines[layout[number][0]] for name, number in groups.items()}
    return assigned(board.ground.function, engines, homes, groups=groups, device=device)


def ranked(board: Board, options: SearchOptions) -> list[Layout]:
    """Return the layouts that can be, the cheapest first; equal ones by their regions."""
    ground = board.ground
    found = dict.fromkeys([*_singles(ground), *_by_priority(ground)])
    costs = {layout: board.total(layout) for layout in found}
    return sorted((layout for layout in found if math.isfinite(costs[layout])), key=lambda layout: (costs[layout], layout))


def _singles(ground: Ground) -> Iterable[Layout]:
    for engine, takes in enumerate(ground.takes):
        if takes == ground.whole:
            yield ((engine, ground.whole),)


def _by_priority(ground: Ground) -> Iterable[Layout]:
    """Yield the plan in which each engine in turn takes all that it can, and the others what is left, by their order."""
    count = len(ground.engines)
    for first in range(count):
        order = [first, *(engine for engine in range(count) if engine != first)]
        homes = [next((e for e in order if ground.takes[e] >> place & 1), None) for place in range(len(ground))]
        if None not in homes:
            yield clustered(ground, [home for home in homes if home is not None])


def clustered(ground: Ground, homes: Sequence[int]) -> Layout:
    """Return the layout of the fewest regions with each node on that engine."""
    found = cluster(ground.function, [(engine,) for engine in homes], ClusteringOptions())
    return tuple((one.engine, bits(one.nodes)) for one in found.clusters)
