"""Cut a sequence of units into parts, exactly: the least cost of the costliest part, then the fewest bytes at the cuts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Sequenced", "cut_sequence", "find_fewest_parts"]

ROUNDING = 1e-9
"""Relative difference of two sums of costs that is no difference."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Units in an order in which they can run."""

    costs: Sequence[float]
    """Of each unit, at least 0; a part costs their sum."""
    cuts: Sequence[int]
    """Bytes that a cut before the unit of that number moves; one more than units, the first and the last are no cuts."""
    live: Sequence[int]
    """Bytes of values while the unit runs; a part needs the largest."""
    weights: Sequence[Mapping[str, int]]
    """Bytes of the unit's weights by name; a part has each once."""

    def __len__(self) -> int:
        return len(self.costs)

    def find_reach(self, memory: int | None) -> list[int]:
        """Return for each number of units the smallest start of a part that ends there and fits; the number if none does."""
        if memory is None:
            return [0] * (len(self) + 1)
        reach, start, held = [0], 0, _Held(self)
        for stop in range(1, len(self) + 1):
            held.add(stop - 1)
            while start < stop and held.nbytes > memory:
                held.drop(start)
                start += 1
            reach.append(start)
        return reach


class _Held:
    """The memory of a window of units whose both ends only move forward."""

    def __init__(self, units: Sequenced) -> None:
        self._units = units
        self._uses: Counter[str] = Counter()
        self._weights = 0
        self._peaks: deque[int] = deque()  # units of falling size, the largest first

    @property
    def nbytes(self) -> int:
        return self._weights + (self._units.live[self._peaks[0]] if self._peaks else 0)

    def add(self, unit: int) -> None:
        for name, size in self._units.weights[unit].items():
            self._weights += size if not self._uses[name] else 0
            self._uses[name] += 1
        while self._peaks and self._units.live[self._peaks[-1]] <= self._units.live[unit]:
            self._peaks.pop()
        self._peaks.append(unit)

    def drop(self, unit: int) -> None:
        for name, size in self._units.weights[unit].items():
            self._uses[name] -= 1
            self._weights -= size if not self._uses[name] else 0
        if self._peaks and self._peaks[0] == unit:
            self._peaks.popleft()


def cut_sequence(units: Sequenced, parts: int, memory: int | None = None, slack: float = 0.0) -> list[int] | None:
    """Return the ends of ``parts`` parts that are not empty and each fit in ``memory``; None where there are none.

    Among those whose costliest part costs at most ``1 + slack`` times the least possible, they are the ones with the fewest bytes
    at the cuts. Cost: parts times units, times the logarithm of the units.
    """
    if not 0 < parts <= len(units):
        return None
    reach = units.find_reach(memory)
    sums = [0.0, *accumulate(units.costs)]
    least = _find_bottleneck(sums, reach, parts)
    if least is None:
        return None
    bound = least * (1 + slack) + ROUNDING * sums[-1]
    first = [max(start, bisect_left(sums, sums[stop] - bound, 0, stop)) for stop, start in enumerate(reach)]
    return _minimize_bytes(units.cuts, first, parts)


def find_fewest_parts(units: Sequenced, memory: int) -> int | None:
    """Return how many parts there are at least where each fits in the memory; None where a unit alone does not."""
    reach, parts, stop = units.find_reach(memory), 0, len(units)
    while stop:
        if reach[stop] == stop:
            return None
        stop, parts = reach[stop], parts + 1
    return parts


def _find_bottleneck(sums: Sequence[float], reach: Sequence[int], parts: int) -> float | None:
    """Return the least cost of the costliest part, of at most so many; a part that is cut again costs no more."""
    infinite = float("inf")
    best = [0.0] + [infinite] * (len(sums) - 1)
    for _ in range(parts):
        before, best = best, [0.0]
        for stop in range(1, len(sums)):
            # With a later start the rest costs more and the last part less; the best start is where the two cross.
            cross = _find_crossing(before, sums, reach[stop], stop)
            tried = [start for start in (cross - 1, cross) if reach[stop] <= start < stop]
            best.append(min([max(before[start], sums[stop] - sums[start]) for start in tried], default=infinite))
    return None if best[-1] == infinite else best[-1]


def _find_crossing(before: Sequence[float], sums: Sequence[float], low: int, stop: int) -> int:
    """Return the first start from ``low`` on where what is before costs as much as what is behind; else ``stop``."""
    high = stop
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if before[middle] >= sums[stop] - sums[middle] else (middle + 1, high)
    return low


def _minimize_bytes(cuts: Sequence[int], first: Sequence[int], parts: int) -> list[int] | None:
    """Return the ends of parts with the fewest bytes at the cuts; what ends at ``stop`` starts at ``first[stop]`` or later."""
    infinite = float("inf")
    best: list[float] = [0.0] + [infinite] * (len(first) - 1)
    choices = []
    for _ in range(parts):
        before = [total + cuts[start] if start else total for start, total in enumerate(best)]
        best, chosen = [infinite], [0]
        window: deque[int] = deque()  # starts of rising bytes, the fewest first; `first` never falls
        for stop in range(1, len(first)):
            while window and before[window[-1]] > before[stop - 1]:
                window.pop()
            window.append(stop - 1)
            while window and window[0] < first[stop]:
                window.popleft()
            chosen.append(window[0] if window else 0)
            best.append(before[window[0]] if window else infinite)
        choices.append(chosen)
    if best[-1] == infinite:
        return None
    ends = [len(first) - 1]
    for chosen in reversed(choices[1:]):
        ends.append(chosen[ends[-1]])
    return ends[::-1]
