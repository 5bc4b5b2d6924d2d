"""What would be gained if an engine took an operator that it declines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.partition.costs import CostTable
from xrt.partition.planner.ground import Ground, bits
from xrt.partition.planner.options import SearchOptions
from xrt.partition.planner.proposing import Ranking

__all__ = ["Unlock", "unlocks"]


@dataclass(frozen=True, slots=True)
class Unlock:
    """An operator that an engine declines, and what the best plan would gain if it took it."""

    operator: str
    engine: str
    nodes: int
    """How many nodes it declines of that operator."""
    seconds: float
    """What would be saved, by the prediction."""


def unlocks(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    options: SearchOptions = SearchOptions(),
    *,
    device: str = "cpu",
) -> tuple[Unlock, ...]:
    """Return what would unlock the model, the largest saving first; what saves nothing is left out."""
    ground = Ground.of(function, engines, device)
    best = _best(ground, table, options)
    found = []
    for engine, takes in enumerate(ground.takes):
        declined: dict[str, list[int]] = {}
        for place, node in enumerate(function.nodes):
            if not takes >> place & 1:
                declined.setdefault(node.op, []).append(place)
        for operator, places in declined.items():
            more = list(ground.takes)
            more[engine] |= bits(places)
            saved = best - _best(replace(ground, takes=tuple(more)), table, options)
            if saved > 0:
                found.append(Unlock(operator, ground.engines[engine], len(places), saved))
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.operator, one.engine)))


def _best(ground: Ground, table: CostTable, options: SearchOptions) -> float:
    ranking = Ranking.of(ground, table, options)
    return min(map(ranking.board.total, ranking.layouts), default=math.inf)
