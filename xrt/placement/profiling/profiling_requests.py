"""Which parts of a model to measure next, on which engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from xrt.partition.cost_table import CostTable
from xrt.placement.cost_model.bitset_graph import BitsetGraph, iter_bits
from xrt.placement.cost_model.cost_model import EngineRegion, PartitionCostModel
from xrt.placement.profiling.candidate_subgraphs import classify_operator, enumerate_subgraphs
from xrt.placement.search.options import SearchOptions
from xrt.placement.search.proposals import RankedPartitionings

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap

__all__ = ["ProfilingRequest", "choose_requests", "iter_requests"]

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
