"""Fewer atoms for a model of many nodes: stretches within which no engine change seems worth while."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import pairwise

from xrt.partition.planner.board import Board
from xrt.partition.planner.ground import bits

__all__ = ["grains"]


def grains(board: Board, most: int) -> tuple[tuple[int, ...], ...]:
    """Return the nodes in at most so many stretches, merging neighbours where that loses least; more where it must not be.

    A merge loses what it costs to have both on the engine that is best for them together, against each on its own best.
    The board's atoms are nodes. Time grows as n log n.
    """
    cuts = _Cuts(board)
    while cuts.count > most and cuts.merge_cheapest():
        pass
    return cuts.stretches()


class _Cuts:
    """Stretches of nodes, known by their first node, with what each costs on every engine."""

    def __init__(self, board: Board) -> None:
        self.count = len(board)
        self._end = list(range(1, len(board) + 1))
        self._previous = [start - 1 for start in range(len(board))]
        self._costs = [_costs(board, atom) for atom in range(len(board))]
        self._device = [node.device for node in board.ground.function.nodes]
        self._alive = [True] * len(board)
        self._queue = [self._entry(first, second) for first, second in pairwise(range(len(board)))]
        heapq.heapify(self._queue)

    def merge_cheapest(self) -> bool:
        """Merge the two neighbours that lose least; return False where none can be merged."""
        while self._queue:
            loss, _, first, second, *ends = heapq.heappop(self._queue)
            if math.isinf(loss):
                return False
            if self._alive[first] and self._alive[second] and ends == [self._end[first], self._end[second]]:
                self._merge(first, second)
                return True
        return False

    def stretches(self) -> tuple[tuple[int, ...], ...]:
        """Return the stretches as they are."""
        return tuple(tuple(range(start, self._end[start])) for start, alive in enumerate(self._alive) if alive)

    def _merge(self, first: int, second: int) -> None:
        self.count -= 1
        self._alive[second] = False
        self._end[first] = end = self._end[second]
        self._costs[first] = _added(self._costs[first], self._costs[second])
        self._device[first] = self._device[first] or self._device[second]
        if end < len(self._end):
            self._previous[end] = first
            heapq.heappush(self._queue, self._entry(first, end))
        if (before := self._previous[first]) >= 0:
            heapq.heappush(self._queue, self._entry(before, first))

    def _entry(self, first: int, second: int) -> tuple[float, float, int, int, int, int]:
        a, b = self._costs[first], self._costs[second]
        both = min(_added(a, b))
        apart = len({self._device[first], self._device[second]} - {""}) > 1
        loss = math.inf if apart or math.isinf(both) else max(both - min(a) - min(b), 0.0)
        return loss, both, first, second, self._end[first], self._end[second]


def _costs(board: Board, atom: int) -> list[float]:
    taken = bits([atom])
    return [alone[atom] if takes & taken else math.inf for alone, takes in zip(board.alone, board.takes, strict=True)]


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]
