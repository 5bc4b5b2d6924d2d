"""What would be gained if an engine took an operator that it declines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.placement.cost_model.bitset_graph import BitsetGraph, iter_bits
from xrt.placement.cost_model.cost_model import PartitionCostModel, SearchBudget
from xrt.placement.search.options import SearchOptions
from xrt.placement.search.proposals import RankedPartitionings, iter_partitionings

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.cost_table import CostTable
    from xrt.partition.device_map import DeviceMap

__all__ = ["MissingSupport", "rank_missing_support"]


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
