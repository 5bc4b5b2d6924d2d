"""The plain algorithm: merge each child into its parents wherever that closes no cycle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.partition.dependencies import renumber

if TYPE_CHECKING:
    from xrt.partition.quotient_graph import QuotientGraph

__all__ = ["merge_greedily"]


def merge_greedily(units: QuotientGraph, effort: float = math.inf) -> list[int]:
    """Return for each unit its group, after merging across every edge that allows it, in topological order.

    What most partitioners do, and the measure for `xrt.partition.clustering.scheduling`: units that no edge joins meet in a group
    only through others. No edge leads to a lower group. Quick where edges are short in the topological order, since
    each question about a cycle is answered within the part of the order between the two groups that it is about;
    merging ends early when these questions have looked at more than ``effort`` groups.
    """
    groups = _Groups(units)
    for unit, before in enumerate(units.graph.predecessors):
        if groups.effort > effort:
            break
        for earlier in before:
            groups.merge(groups.of(earlier), groups.of(unit))
    return renumber(groups.place[groups.of(unit)] for unit in range(len(units)))


def _find(leader: list[int], unit: int) -> int:
    """Return the last of the leaders from the unit on, and shorten the way to it."""
    while leader[unit] != unit:
        leader[unit] = unit = leader[leader[unit]]
    return unit


class _Groups:
    """Groups with the edges between them, and a topological order of them that is mended at every merge."""

    def __init__(self, units: QuotientGraph) -> None:
        self.place = list(range(len(units)))
        """For each group its place in the order; a group is known by one of its units."""
        self.effort = 0
        """How many groups have been looked at in search of a cycle."""
        self._leader = list(range(len(units)))
        self._kind = list(units.kind)
        self._accepted = [units.kinds.find_compatible(k) for k in range(len(units.kinds))]
        self._before = [set(before) for before in units.graph.predecessors]
        self._after = [set(after) for after in units.graph.successors()]

    def of(self, unit: int) -> int:
        """Return the group of the unit."""
        return _find(self._leader, unit)

    def merge(self, parent: int, child: int) -> None:
        """Make the two one group, unless they are already, their kinds differ, or another way leads from one to the other."""
        kind = max(self._kind[parent], self._kind[child])
        if parent == child or not {self._kind[parent], self._kind[child]} <= self._accepted[kind]:
            return
        low, high = self.place[parent], self.place[child]
        later = self._reach(self._after[parent] - {child}, self._after, low, high)
        if child in later:
            return
        earlier = self._reach(self._before[child] - {parent}, self._before, low, high)
        kept, gone = sorted((parent, child), key=lambda group: len(self._before[group]) + len(self._after[group]), reverse=True)
        self._mend(earlier, kept, later, low, high)
        self._kind[kept] = kind
        self._join(kept, gone)

    def _reach(self, starts: set[int], edges: Sequence[set[int]], low: int, high: int) -> set[int]:
        """Return the starts and what edges lead to from them, within those places of the order."""
        place = self.place
        found = {group for group in starts if low <= place[group] <= high}
        stack = list(found)
        while stack:
            fresh = {other for other in edges[stack.pop()] if low <= place[other] <= high and other not in found}
            found |= fresh
            stack += fresh
        self.effort += len(found)
        return found

    def _mend(self, earlier: set[int], own: int, later: set[int], low: int, high: int) -> None:
        """Put the group behind what leads to it and before what it leads to; the places are those that they had together."""
        rank = self.place.__getitem__
        places = sorted([low, high, *map(rank, earlier), *map(rank, later)])
        for group, place in zip([*sorted(earlier, key=rank), own], places, strict=False):
            self.place[group] = place
        for group, place in zip(sorted(later, key=rank), places[len(earlier) + 2 :], strict=True):
            self.place[group] = place

    def _join(self, kept: int, gone: int) -> None:
        self._leader[gone] = kept
        for mine, theirs in ((self._before, self._after), (self._after, self._before)):
            mine[gone].discard(kept)
            mine[kept].discard(gone)
            for other in mine[gone]:
                theirs[other].discard(gone)
                theirs[other].add(kept)
            mine[kept] |= mine[gone]
            mine[gone] = set()
