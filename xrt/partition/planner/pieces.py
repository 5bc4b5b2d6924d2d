"""Which parts of a model to measure next, on which engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.partition.costs import CostTable
from xrt.partition.planner.board import Board, Region
from xrt.partition.planner.ground import Ground, places_of
from xrt.partition.planner.options import SearchOptions
from xrt.partition.planner.parts import standard_parts
from xrt.partition.planner.proposing import ranked

__all__ = ["Piece", "next_pieces", "pieces"]


@dataclass(frozen=True, slots=True)
class Piece:
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


def pieces(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable = CostTable(),
    options: SearchOptions = SearchOptions(),
    *,
    device: str = "cpu",
) -> tuple[Piece, ...]:
    """Return at most ``options.pieces`` parts to measure next, the most useful first; none where all is known.

    First the whole model on each engine that takes all of it, then the regions of the plans that are best by what is
    known, then parts of the model, those first in which most time might be saved. What the table has is not asked again,
    and equal parts once.
    """
    ground = Ground.of(function, engines, device)
    board = Board.fine(ground, table, options.effort)
    return tuple(next_pieces(board, options))[: options.pieces]


def next_pieces(board: Board, options: SearchOptions) -> Iterator[Piece]:
    """Yield the parts to measure next, each (key, engine) once."""
    asked: set[tuple[str, str]] = set()
    for region, why in _wanted(board, options):
        key, spec = board.ground.key(board.nodes(region[1])), board.ground.engines[region[0]]
        if (key, spec) not in asked and board.table.region(key, spec) is None:
            asked.add((key, spec))
            yield piece_of(board, region, why)


def piece_of(board: Board, region: Region, why: str) -> Piece:
    """Return the region as a piece."""
    ground, mask = board.ground, board.nodes(region[1])
    names = tuple(ground.function.nodes[place].name for place in places_of(mask))
    return Piece(ground.key(mask), ground.engines[region[0]], ground.part(mask), names, why)


def _wanted(board: Board, options: SearchOptions) -> Iterator[tuple[Region, str]]:
    for engine in range(len(board.ground.engines)):
        if board.allows((engine, board.ground.whole)):
            yield (engine, board.ground.whole), "the whole"
    for layout in ranked(board, options)[: options.plans]:
        yield from ((region, "a region of a plan") for region in layout)
    for part in standard_parts(board.ground):
        for engine in range(len(board.ground.engines)):
            if board.allows((engine, part.mask)):
                yield (engine, part.mask), part.why
