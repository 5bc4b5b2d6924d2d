"""The shortest sequence of kinds by exact search, for graphs that are small once contracted.

A* (Hart, Nilsson and Raphael, 1968) over the sets of units that have run, each an integer with one bit per unit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.partition.quotient_graph import QuotientGraph

__all__ = ["search_engine_sequence"]

BUDGET = 100_000
"""Units that the search may look at, all its steps together, before it gives up."""


def search_engine_sequence(bound: int, units: QuotientGraph) -> tuple[bool, tuple[int, ...]]:
    """Return whether the search came to its end, and a shorter sequence than the bound, empty if none was found.

    A search that came to its end found the shortest there is, or that none is shorter than the bound. What is left
    to run needs at least as many batches as its longest way; the search goes on where that promises the shortest.
    """
    states = _States(units)
    best = {0: (0, -1, -1)}  # what has run: (length of the sequence, the last phase, what had run before it)
    queue = [(states.least(0), 0, 0)]
    for _ in range(BUDGET // max(len(units), 1)):
        if not queue:
            return True, ()
        _, negative, ran = heapq.heappop(queue)
        if ran == states.all:
            return True, tuple(_phases_to(ran, best))[::-1]
        length = 1 - negative
        for phase, then in states.following(ran):
            least = length + states.least(then)
            if least < bound and (then not in best or best[then][0] > length):
                best[then] = (length, phase, ran)
                heapq.heappush(queue, (least, -length, then))
    return False, ()


def _phases_to(ran: int, best: dict[int, tuple[int, int, int]]) -> Iterator[int]:
    while ran:
        _, phase, ran = best[ran]
        yield phase


class _States:
    """Sets of units that can have run, as bits of integers."""

    def __init__(self, units: QuotientGraph) -> None:
        self.all = (1 << len(units)) - 1
        self._needs = [sum(1 << earlier for earlier in before) for before in units.graph.predecessors]
        tails = units.tails()
        self._tails = self._longest_first(tails)
        self._members = [
            (phase, [unit for unit, kind in enumerate(units.kind) if kind in units.kinds.find_compatible(phase)])
            for phase in units.kinds.phases()
        ]

    @staticmethod
    def _longest_first(tails: Sequence[int]) -> list[tuple[int, int]]:
        """Return (tail, the units of that tail as bits), the longest first."""
        sets: dict[int, int] = {}
        for unit, tail in enumerate(tails):
            sets[tail] = sets.get(tail, 0) | 1 << unit
        return sorted(sets.items(), reverse=True)

    def least(self, ran: int) -> int:
        """Return how many batches are needed at least for what has not run."""
        return next((tail for tail, units in self._tails if units & ~ran), 0)

    def following(self, ran: int) -> Iterator[tuple[int, int]]:
        """Yield each phase that can run something, with what has run after it."""
        for phase, members in self._members:
            then = ran
            for unit in members:  # in topological order: one pass reaches all
                if not self._needs[unit] & ~then:
                    then |= 1 << unit
            if then != ran:
                yield phase, then
