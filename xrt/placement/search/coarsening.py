"""Fewer atoms for a model of many nodes: stretches within which no engine change seems worth while."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["coarsen"]


def coarsen(
    costs: Sequence[Sequence[float]], takes: Sequence[int], devices: Sequence[str], most: int
) -> tuple[tuple[int, ...], ...]:
    """Return the atoms in at most so many stretches, merging neighbours where that loses least; more where it must not be.

    ``costs`` and ``takes`` are by engine, ``devices`` by atom. A merge loses what it costs to have both on the engine that is
    best for them together, against each on its own best. Time grows as n log n.
    """
    cuts = _Cuts(costs, takes, devices)
    while cuts.count > most and cuts.merge_cheapest():
        pass
    return cuts.stretches()


class _Cuts:
    """Stretches of atoms, known by their first, with what each costs on every engine."""

    def __init__(self, costs: Sequence[Sequence[float]], takes: Sequence[int], devices: Sequence[str]) -> None:
        self.count = len(devices)
        self._end = list(range(1, self.count + 1))
        self._previous = [start - 1 for start in range(self.count)]
        rows = [
            [one if mask >> atom & 1 else math.inf for atom, one in enumerate(row)]
            for row, mask in zip(costs, takes, strict=True)
        ]
        self._costs = [list(column) for column in zip(*rows, strict=True)]
        self._device = list(devices)
        self._alive = [True] * self.count
        self._queue = [self._entry(first, second) for first, second in pairwise(range(self.count))]
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


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]
