"""Where each unit runs in a sequence of regions, so that little crosses from one to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.partition.quotient_graph import QuotientGraph

__all__ = ["find_earliest_slots", "find_next_slots", "minimize_cut"]


def find_earliest_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[int]:
    """Return for each unit the first place in the sequence of kinds at which it can run; -1 where there is none. Linear."""
    ahead = find_next_slots(units, sequence)
    place: list[int] = []
    for kind, before in zip(units.kind, units.graph.predecessors, strict=True):
        place.append(ahead[max([place[unit] for unit in before], default=0)][kind])
    return place


def find_next_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[list[int]]:
    """Return for each place and kind the first place from there on that accepts the kind; -1 where none does."""
    accepted = [units.kinds.find_compatible(k) for k in range(len(units.kinds))]
    ahead = [[-1] * len(units.kinds)]
    for at in range(len(sequence) - 1, -1, -1):
        ahead.append([at if kind in accepted[sequence[at]] else later for kind, later in enumerate(ahead[-1])])
    return ahead[:0:-1]


def minimize_cut(units: QuotientGraph, sequence: Sequence[int], ends: Collection[int], sweeps: int | None) -> list[int]:
    """Return for each unit a place in the sequence, with no edge to an earlier place.

    Each starts at the first place that it can run at; then sweeps against the order move units to the place of the
    first that waits for them, wherever as few or fewer values cross for it, as long as a whole sweep leaves fewer.
    ``ends`` are the units that make outputs. Linear per sweep; each leaves at least one crossing fewer than before.
    """
    place = find_earliest_slots(units, sequence)
    if len(sequence) < 2:
        return place
    crossings = CutCounter(units, sequence, ends, place)
    done = 0
    while done != sweeps:
        before = list(crossings.place)
        if not crossings.sweep():
            return before
        done += 1
    return crossings.place


class CutCounter:
    """Which values cross between regions; a unit's outputs count as one value."""

    def __init__(self, units: QuotientGraph, sequence: Sequence[int], ends: Collection[int], place: list[int]) -> None:
        self.place = place
        self._kind = units.kind
        self._before = units.graph.predecessors
        self._after = units.graph.successors()
        self._accepted = [units.kinds.find_compatible(phase) for phase in sequence]
        self._ends = frozenset(ends)
        self._beyond = len(sequence)
        self._readers: dict[int, Counter[int]] = {}

    def sweep(self) -> int:
        """Move what can be moved without loss; return how many crossings that saved: outputs and inputs of regions."""
        saved = 0
        for unit in range(len(self.place) - 1, -1, -1):
            after = self._after[unit]
            if not after:
                continue
            target = min([self.place[later] for later in after])
            if target > self.place[unit] and self._kind[unit] in self._accepted[target]:
                saved += self._try(unit, target)
        return saved

    def _try(self, unit: int, target: int) -> int:
        gain = 2 - (len(self._read(unit)) > 1)  # its value need not enter the target, nor leave its region if none else reads it
        gain -= sum(self._added(earlier, self.place[unit], target) for earlier in self._before[unit])
        if gain < 0:
            return 0
        for earlier in self._before[unit]:
            self._move_reader(self._read(earlier), self.place[unit], target)
        self.place[unit] = target
        return gain

    def _read(self, unit: int) -> Counter[int]:
        """Return the places at which the unit's value is read, with how many read it there; outputs are read beyond the end."""
        readers = self._readers.get(unit)
        if readers is None:
            readers = Counter([self.place[later] for later in self._after[unit]])
            if unit in self._ends:
                readers[self._beyond] = 1
            self._readers[unit] = readers
        return readers

    def _added(self, unit: int, place: int, target: int) -> int:
        """Return how many crossings of the unit's value are added when one of its readers moves from the place to the target."""
        readers = self._read(unit)
        added = int(target not in readers)
        if self.place[unit] != place:
            return added - (readers[place] == 1)
        crossed = len(readers) > 1  # some reader is elsewhere already, so that the value leaves its region anyhow
        return added + (not crossed)

    @staticmethod
    def _move_reader(readers: Counter[int], place: int, target: int) -> None:
        readers[target] += 1
        readers[place] -= 1
        if not readers[place]:
            del readers[place]
