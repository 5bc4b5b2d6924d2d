"""Assign offsets in one arena to values by their live ranges."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xrt.graph.constants import ALIGNMENT


@dataclass(slots=True)
class LiveRange:
    """A buffer that is needed from step ``first`` to step ``last``, inclusive."""

    nbytes: int
    first: int
    last: int
    offset: int = 0
    """Set by `assign_offsets`."""


def assign_offsets(spans: Sequence[LiveRange]) -> int:
    """Set offsets so that ranges that are live at the same step do not overlap; return the arena size in bytes.

    In order of time, each range gets the smallest gap that fits (best fit); of those that begin together the largest goes first.
    O(n log n), plus insertion into one sorted list of gaps.
    """
    gaps = _Gaps()
    ends: dict[int, list[LiveRange]] = defaultdict(list)
    step = -1
    for span in sorted(spans, key=lambda span: (span.first, -span.nbytes)):
        # Free buffers whose last reader is done before placing the next ones.
        while step < span.first - 1:
            step += 1
            for dead in ends.pop(step, ()):
                gaps.free(dead.offset, _align(dead.nbytes))
        span.offset = gaps.allocate(_align(span.nbytes))
        ends[span.last].append(span)
    return gaps.end


class _Gaps:
    """Free memory below `end` as gaps, none adjacent to another."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        """Allocate bytes in the smallest gap that fits, else at the end, including a gap that ends there."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index < len(self._by_size):
            size, start = self._by_size[index]
            self._remove(start)
            if size > nbytes:
                self._add(start + nbytes, size - nbytes)
            return start
        # Extend a gap at the end of the arena instead of leaving it unused.
        start = self._start_of.get(self.end, self.end)
        if start != self.end:
            self._remove(start)
        self.end = start + nbytes
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Free a block and merge it with adjacent gaps."""
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


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
