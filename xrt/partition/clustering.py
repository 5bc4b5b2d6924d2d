"""Clustering: which nodes go to which engine together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph.device_names import normalize_device
from xrt.partition.quotient_graph import DependencyGraph, QuotientGraph, renumber

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.partition.options import ClusteringOptions

__all__ = [
    "Cluster",
    "Clustering",
    "cluster",
    "find_earliest_slots",
    "find_engine_sequence",
    "find_next_slots",
    "merge_greedily",
    "minimize_cut",
]


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


def merge_greedily(units: QuotientGraph, effort: float = math.inf) -> list[int]:
    """Return for each unit its group, after merging across every edge that allows it, in topological order.

    What most partitioners do, and the measure for `find_engine_sequence`: units that no edge joins meet in a group
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


EFFORT = 20
"""Groups per unit that the plain algorithm may look at before it stops merging."""


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Return a short sequence of kinds in which all units can be run.

    It is the shortest with up to two kinds of region. It is no longer than what merging children into parents comes to
    (`merge_greedily`, within its effort). Linear.
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


SWEEPS = 2
"""Passes over the nodes that reduce the values between regions."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that one engine takes together."""

    nodes: tuple[int, ...]
    """Positions in the Function, ascending."""
    engine: int
    """Position in the list of engines."""
    device: str = ""
    """The device that its nodes name; empty where none names one."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters in an order in which they can run, and what became of those that were too small."""

    clusters: tuple[Cluster, ...]
    dissolved: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, engine) to the size of the cluster in which the node left the engine."""


Devices: TypeAlias = Callable[[Sequence[int]], Sequence[str]]
"""Takes the engine of each node, and returns each node's device; an empty one is any."""


def cluster(
    function: Function, candidates: Sequence[tuple[int, ...]], options: ClusteringOptions, devices: Devices | None = None
) -> Clustering:
    """Return the clusters: each node on the first of its candidates, by priority, whose cluster is large enough.

    ``devices`` says where the nodes run; without it, where they say themselves. Nodes of two devices are never together.

    A cluster that is too small dissolves, and its nodes go on to their next candidate, those of the first engine that
    has such clusters first; a node without a next one stays, and so may a small cluster. Linear in nodes and edges, for
    each time that clusters dissolve.
    """
    graph = DependencyGraph.of(function)
    turn = [0] * len(candidates)
    dissolved: dict[tuple[int, int], int] = {}
    own = [normalize_device(node.device) for node in function.nodes]
    while True:
        engines = [engines[at] for engines, at in zip(candidates, turn, strict=True)]
        found = _grouped(function, graph, engines, devices(engines) if devices else own, options)
        leaving = _leaving(found, candidates, turn, options.minimum_nodes)
        if not leaving:
            return Clustering(tuple(found), dissolved)
        for node, size in leaving.items():
            dissolved[node, engines[node]] = size
            turn[node] += 1


def _leaving(found: Sequence[Cluster], candidates: Sequence[tuple[int, ...]], turn: Sequence[int], least: int) -> dict[int, int]:
    """Return the nodes that leave the first engine that has to give any up, with the size of the cluster of each."""
    by_engine: dict[int, dict[int, int]] = {}
    for one in found:
        if len(one.nodes) < least:
            can_go = [node for node in one.nodes if turn[node] + 1 < len(candidates[node])]
            by_engine.setdefault(one.engine, {}).update(dict.fromkeys(can_go, len(one.nodes)))
    return next((by_engine[engine] for engine in sorted(by_engine) if by_engine[engine]), {})


def _grouped(
    function: Function, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str], options: ClusteringOptions
) -> list[Cluster]:
    groups = _groups(QuotientGraph.of(graph, engines, devices), function, options)
    members: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for node, group in enumerate(groups):
        members[group].append(node)
    parts = (part for nodes in members if nodes for part in _parts(nodes, options.maximum_nodes))
    return [Cluster(tuple(part), engines[part[0]], max(devices[node] for node in part)) for part in parts]


def _groups(units: QuotientGraph, function: Function, options: ClusteringOptions) -> list[int]:
    ends = {place for value in function.outputs if (place := function.position(value.name)) is not None}
    return minimize_cut(units, find_engine_sequence(units), ends, SWEEPS)


def _parts(nodes: list[int], most: int | None) -> list[list[int]]:
    """Cut nodes in topological order into as few, and as equal, parts as the limit allows.

    The parts run one after the other, so that a cut closes no cycle.
    """
    count = 1 if most is None else -(-len(nodes) // most)
    return [nodes[len(nodes) * i // count : len(nodes) * (i + 1) // count] for i in range(count)]
