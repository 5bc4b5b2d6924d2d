"""Asking, measuring and proposing in turn, until the best plan's regions are all measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from xrt.partition.cost_table import CostTable, RegionCost
from xrt.placement.cost_model.bitset_graph import BitsetGraph
from xrt.placement.profiling.profiling_requests import ProfilingRequest, iter_requests
from xrt.placement.search.options import SearchOptions
from xrt.placement.search.proposals import propose_plans

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.partition.plan import Plan

__all__ = ["SearchResult", "run_search"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search came to."""

    plans: tuple[Plan, ...]
    """The best predicted first; what `propose` gives for the table."""
    table: CostTable
    """All that was known before, and all that was measured."""
    measured: int
    """How many pieces were measured."""
    is_finished: bool
    """Whether nothing was left to ask; False where measuring was stopped, or the rounds were used up."""


def run_search(
    function: Function,
    engines: Sequence[GraphCompiler],
    measure: Callable[[ProfilingRequest], RegionCost | None],
    options: SearchOptions = SearchOptions(),
    *,
    table: CostTable = CostTable(),
    device: str | DeviceMap = "cpu",
) -> SearchResult:
    """Measure piece after piece, the most useful first, and return the plans that come of it.

    ``measure`` returns the piece's cost, the reason why it has none, or None to stop the search. ``table`` is what is
    known beforehand: costs of launches and boundaries belong there. What is known is not measured again.
    """
    ground = BitsetGraph.of(function, engines, device)
    known, count, is_finished = table, 0, False
    for _ in range(options.rounds):
        asked = tuple(islice(iter_requests(ground, known, options), options.pieces))
        costs = dict(_measured(asked, measure))
        known, count = known.merge(CostTable(costs)), count + len(costs)
        is_finished = not asked
        if len(costs) < len(asked) or is_finished:
            break
    plans = propose_plans(function, engines, known, limit=options.plans, options=options, device=device)
    return SearchResult(plans, known, count, is_finished)


def _measured(
    asked: Iterable[ProfilingRequest], measure: Callable[[ProfilingRequest], RegionCost | None]
) -> Iterator[tuple[tuple[str, str], RegionCost]]:
    """Yield what pieces cost, up to the one at which measuring is stopped."""
    for piece in asked:
        cost = measure(piece)
        if cost is None:
            return
        yield (piece.key, piece.spec), cost
