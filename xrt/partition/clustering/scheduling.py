"""The fewest regions, as the sequence of kinds in which they run.

Regions that hang together without a cycle have an order in which they can run. So the fewest regions are the fewest
batches, each of one kind, in which all units can be run; and each batch may take all that it can reach, because that
only leaves less to the later ones. What is to be found is the shortest sequence of kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.partition.clustering.cut_refinement import find_earliest_slots
from xrt.partition.clustering.greedy_merge import merge_greedily

if TYPE_CHECKING:
    from xrt.partition.quotient_graph import QuotientGraph

__all__ = ["find_engine_sequence"]

EFFORT = 20
"""Groups per unit that the plain algorithm may look at before it stops merging."""


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Return a short sequence of kinds in which all units can be run.

    It is the shortest with up to two kinds of region. It is no longer than what merging children into parents comes to
    (`xrt.partition.clustering.greedy_merge`, within its effort). Linear.
    """
    phases = units.kinds.phases()
    if len(phases) < 3:
        return min((_taking_turns(units, phases[i:] + phases[:i]) for i in range(len(phases))), key=len, default=())
    tails = units.tails()
    found = _greedy(units, tails)
    if len(found) > max(tails):
        turned = units.reverse()
        backward = _greedy(turned, turned.tails())[::-1]
        found = min(_used(turned, found[::-1])[::-1], _used(units, backward), key=len)
    return found if len(found) == max(tails) else min(found, _used(units, _plain(units)), key=len)


# ------------------------------------------------------------------ one or two kinds of region


def _taking_turns(units: QuotientGraph, turn: Sequence[int]) -> tuple[int, ...]:
    """Return the sequence in which the phases take turns, without the turns that nothing runs in."""
    wait = _waits(units, turn)
    place: list[int] = []
    for kind, before in zip(units.kind, units.graph.predecessors, strict=True):
        at = max([place[unit] for unit in before], default=0)
        place.append(at + wait[at % len(turn)][kind])
    return tuple(turn[at % len(turn)] for at in sorted(set(place)))


def _waits(units: QuotientGraph, turn: Sequence[int]) -> list[list[int]]:
    """Return for each place in the turn and each kind how many places further the next phase is that accepts it."""
    accepted = [units.kinds.find_compatible(phase) for phase in turn]
    count = len(turn)
    return [
        [next(d for d in range(count) if kind in accepted[(at + d) % count]) for kind in range(len(units.kinds))]
        for at in range(count)
    ]


# ------------------------------------------------------------------ three kinds and more


def _plain(units: QuotientGraph) -> tuple[int, ...]:
    group = merge_greedily(units, EFFORT * len(units))
    kinds: dict[int, int] = {}
    for unit, own in enumerate(group):
        kinds[own] = max(kinds.get(own, 0), units.kind[unit])
    return tuple(kinds[own] for own in sorted(kinds))


def _greedy(units: QuotientGraph, tails: Sequence[int]) -> tuple[int, ...]:
    """Return the sequence that always runs the kind with the longest remaining path, then the one with most of it."""
    run = _Run(units, tails)
    sequence = []
    while run.left:
        phase = run.most_urgent()
        run.exhaust(phase)
        sequence.append(phase)
    return tuple(sequence)


def _used(units: QuotientGraph, sequence: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sequence without the places that stay empty when each unit runs as early as it can."""
    return tuple(sequence[at] for at in sorted(set(find_earliest_slots(units, sequence))))


class _Run:
    """Units being run batch by batch."""

    def __init__(self, units: QuotientGraph, tails: Sequence[int]) -> None:
        self._kind = units.kind
        self._after = units.graph.successors()
        self._tail = tails
        self._accepted = {phase: units.kinds.find_compatible(phase) for phase in units.kinds.phases()}
        self._waiting = [len(before) for before in units.graph.predecessors]
        self._ready: list[list[int]] = [[] for _ in range(len(units.kinds))]
        self._longest = [0] * len(units.kinds)
        self._total = [0] * len(units.kinds)
        self.left = len(units)
        for unit, count in enumerate(self._waiting):
            if not count:
                self._put(unit)

    def most_urgent(self) -> int:
        """Return the phase whose ready units have the longest way before them; of equal ones the first by priority."""
        return max(self._accepted, key=self._urgency)

    def _urgency(self, phase: int) -> tuple[int, int, int]:
        kinds = self._accepted[phase]
        return max(self._longest[k] for k in kinds), sum(self._total[k] for k in kinds), -phase

    def _put(self, unit: int) -> None:
        kind, tail = self._kind[unit], self._tail[unit]
        self._ready[kind].append(unit)
        self._longest[kind] = max(self._longest[kind], tail)
        self._total[kind] += tail

    def exhaust(self, phase: int) -> None:
        """Run all that can be reached in a region of that kind."""
        accepted = self._accepted[phase]
        stack = [unit for kind in accepted for unit in self._ready[kind]]
        for kind in accepted:
            self._ready[kind], self._longest[kind], self._total[kind] = [], 0, 0
        while stack:
            self.left -= 1
            for unit in self._after[stack.pop()]:
                self._waiting[unit] -= 1
                if self._waiting[unit]:
                    continue
                if self._kind[unit] in accepted:
                    stack.append(unit)
                else:
                    self._put(unit)
