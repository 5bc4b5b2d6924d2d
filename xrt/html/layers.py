"""The layered layout of a drawing: each box on a row below everything that it reads from, edges bent around the boxes between.

After Sugiyama, Tagawa and Toda (1981): rows by longest path, a bend for each row that an edge passes, an order within
rows that follows the neighbours' places, and places as near to the neighbours as the order lets them be.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

__all__ = ["Edge", "GraphLayout", "layout"]

Edge: TypeAlias = tuple[int, int]
"""From a box to a later one."""

SWEEPS = 6
HALF_BOX, HALF_BEND = 0.5, 0.1
"""Half of the room that a box and a bend of an edge take, in widths of a box."""


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The positions of boxes: the row and the place of the middle, in widths of a box; the leftmost is at 0."""

    rows: tuple[int, ...]
    places: tuple[float, ...]
    bends: Mapping[Edge, tuple[float, ...]]
    """The place of an edge in each row that it passes, from above to below."""

    @property
    def height(self) -> int:
        """How many rows there are."""
        return max(self.rows, default=-1) + 1

    @property
    def width(self) -> float:
        """The place furthest to the right, of a box or of a bend."""
        return max([*self.places, *(place for bend in self.bends.values() for place in bend)], default=0.0)


def layout(boxes: int, edges: Sequence[Edge]) -> GraphLayout:
    """Lay out that many boxes; every edge must lead to a box of a higher number.

    >>> layout(3, [(0, 1), (1, 2)]).places
    (0.0, 0.0, 0.0)
    """
    edges = sorted(set(edges))
    row_of = _rows(boxes, edges)
    chains = _bent(boxes, edges, row_of)
    neighbours = _neighbours(chains.values())
    rows = _ordered(row_of, neighbours)
    places = _placed(rows, neighbours, boxes)
    least = min(places.values(), default=0.0)
    where = {item: round(place - least, 6) for item, place in places.items()}
    bends = {edge: tuple(where[item] for item in chain[1:-1]) for edge, chain in chains.items()}
    return GraphLayout(tuple(row_of[:boxes]), tuple(where[box] for box in range(boxes)), bends)


def _rows(boxes: int, edges: Sequence[Edge]) -> list[int]:
    """Return each box's row: one below the lowest that it reads from."""
    rows = [0] * boxes
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        rows[target] = max(rows[target], rows[source] + 1)
    return rows


def _bent(boxes: int, edges: Sequence[Edge], row_of: list[int]) -> dict[Edge, list[int]]:
    """Return each edge as a chain from row to row, and add the rows of its bends, which are numbered after the boxes."""
    chains = {}
    for source, target in edges:
        passed = range(row_of[source] + 1, row_of[target])
        bends = range(len(row_of), len(row_of) + len(passed))
        row_of.extend(passed)
        chains[source, target] = [source, *bends, target]
    return chains


Neighbours: TypeAlias = Mapping[int, Sequence[int]]


def _neighbours(chains: Iterable[Sequence[int]]) -> tuple[Neighbours, Neighbours]:
    """Return, of each item, those above and those below that it is joined with."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _ordered(row_of: Sequence[int], neighbours: tuple[Neighbours, Neighbours]) -> list[list[int]]:
    """Return the rows in an order with few crossings: again and again by the mean place of the neighbours, down and up."""
    rows: list[list[int]] = [[] for _ in range(max(row_of, default=-1) + 1)]
    for item, row in enumerate(row_of):
        rows[row].append(item)
    for sweep in range(SWEEPS):
        joined, walked = neighbours[sweep % 2], rows if sweep % 2 == 0 else rows[::-1]
        place = {item: index for row in rows for index, item in enumerate(row)}
        for line in walked:
            line.sort(key=lambda item: (_mean([place[other] for other in joined.get(item, ())], place[item]), item))
            place.update({item: index for index, item in enumerate(line)})
    return rows


def _placed(rows: Sequence[Sequence[int]], neighbours: tuple[Neighbours, Neighbours], boxes: int) -> dict[int, float]:
    """Return each item's place: as near to the mean of its neighbours as the order in its row and the room let it be."""
    places = {item: float(index) for row in rows for index, item in enumerate(row)}
    for sweep in range(SWEEPS):
        joined, walked = neighbours[sweep % 2], rows if sweep % 2 == 0 else rows[::-1]
        for row in walked:
            wished = [_mean([places[other] for other in _heeded(item, joined, boxes)], places[item]) for item in row]
            places.update(zip(row, _apart(wished, [HALF_BOX if item < boxes else HALF_BEND for item in row]), strict=True))
    return places


def _heeded(item: int, joined: Neighbours, boxes: int) -> Sequence[int]:
    """Return the neighbours that determine an item's position: a box's boxes, if any, so that a chain of them is straight."""
    others = joined.get(item, ())
    return [other for other in others if item < boxes and other < boxes] or others


def _apart(wished: Sequence[float], halves: Sequence[float]) -> list[float]:
    """Return places that keep the order and room for each; bends give way, so that the boxes' mean is that of their wishes."""
    places: list[float] = []
    for index, wish in enumerate(wished):
        places.append(max(wish, places[-1] + halves[index - 1] + halves[index]) if places else wish)
    off = [(wish - place, half) for wish, place, half in zip(wished, places, halves, strict=True)]
    shift = _mean([one for one, half in off if half == max(halves)], 0.0)
    return [round(place + shift, 6) for place in places]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return statistics.fmean(values) if values else otherwise
