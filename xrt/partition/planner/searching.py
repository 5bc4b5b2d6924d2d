"""Asking, measuring and proposing in turn, until the best plan's regions are all measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.partition.costs import CostTable, RegionCost
from xrt.partition.devices import Homes
from xrt.partition.plan import Plan
from xrt.partition.planner.ground import Ground
from xrt.partition.planner.options import SearchOptions
from xrt.partition.planner.profiling_requests import Piece, next_pieces
from xrt.partition.planner.proposing import propose

__all__ = ["Found", "search"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    plans: tuple[Plan, ...]
    """The best predicted first; what `propose` gives for the table."""
    table: CostTable
    """All that was known before, and all that was measured."""
    measured: int
    """How many pieces were measured."""
    is_finished: bool
    """Whether nothing was left to ask; False where measuring was stopped, or the rounds were used up."""


def search(
    function: Function,
    engines: Sequence[GraphCompiler],
    measure: Callable[[Piece], RegionCost | None],
    options: SearchOptions = SearchOptions(),
    *,
    table: CostTable = CostTable(),
    device: str | Homes = "cpu",
) -> Found:
    """Measure piece after piece, the most useful first, and return the plans that come of it.

    ``measure`` returns the piece's cost, the reason why it has none, or None to stop the search. ``table`` is what is
    known beforehand: costs of launches and boundaries belong there. What is known is not measured again.
    """
    ground = Ground.of(function, engines, device)
    known, count, is_finished = table, 0, False
    for _ in range(options.rounds):
        asked = tuple(islice(next_pieces(ground, known, options), options.pieces))
        costs = dict(_measured(asked, measure))
        known, count = known.merged(CostTable(costs)), count + len(costs)
        is_finished = not asked
        if len(costs) < len(asked) or is_finished:
            break
    plans = propose(function, engines, known, limit=options.plans, options=options, device=device)
    return Found(plans, known, count, is_finished)


def _measured(
    asked: Iterable[Piece], measure: Callable[[Piece], RegionCost | None]
) -> Iterator[tuple[tuple[str, str], RegionCost]]:
    """Yield what pieces cost, up to the one at which measuring is stopped."""
    for piece in asked:
        cost = measure(piece)
        if cost is None:
            return
        yield (piece.key, piece.spec), cost
