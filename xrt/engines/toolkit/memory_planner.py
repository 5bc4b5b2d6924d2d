"""Where values that live for some steps lie: offsets in one block of memory, planned once from who is alive when.

The runtime plans with it what crosses regions, and the native tape what crosses kernels.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xrt.graph.aligned_arrays import ALIGNMENT

__all__ = ["LiveRange", "assign_offsets"]


@dataclass(slots=True)
class LiveRange:
    """Memory that is needed from one step to another, both included."""

    nbytes: int
    first: int
    last: int
    offset: int = 0
    """Where `placed` puts it."""


def assign_offsets(spans: Sequence[LiveRange]) -> int:
    """Set each span's offset so that none overlaps another that is needed at the same step; return the bytes of the whole.

    In the order of time: each span gets the smallest gap that holds it, those that begin together the largest first.
    Cost: n log n and the shifting of one sorted list of gaps.
    """
    gaps = _Gaps()
    ending: dict[int, list[LiveRange]] = defaultdict(list)
    now = -1
    for span in sorted(spans, key=lambda span: (span.first, -span.nbytes)):
        while now < span.first - 1:
            now += 1
            for dead in ending.pop(now, ()):
                gaps.give(dead.offset, _rounded(dead.nbytes))
        span.offset = gaps.take(_rounded(span.nbytes))
        ending[span.last].append(span)
    return gaps.end


class _Gaps:
    """Free memory below `end`, as gaps that never touch each other."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """Return the offset of so many bytes: in the smallest gap that holds them, else at the end, the last gap used up."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index < len(self._by_size):
            size, start = self._by_size[index]
            self._remove(start)
            if size > nbytes:
                self._add(start + nbytes, size - nbytes)
            return start
        start = self._start_of.get(self.end, self.end)
        if start != self.end:
            self._remove(start)
        self.end = start + nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Free a block of memory, and merge its gap with the neighbouring ones."""
        if not nbytes:
            return
        if start in self._start_of:
            before = self._start_of[start]
            nbytes += self._remove(before)
            start = before
        if start + nbytes in self._size_at:
            nbytes += self._remove(start + nbytes)
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, start))
        self._size_at[start] = nbytes
        self._start_of[start + nbytes] = start

    def _remove(self, start: int) -> int:
        nbytes = self._size_at.pop(start)
        del self._start_of[start + nbytes]
        del self._by_size[bisect_left(self._by_size, (nbytes, start))]
        return nbytes


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
