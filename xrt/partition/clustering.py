"""Clustering: group the nodes of each engine into few regions with little data between them, without creating cycles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph.device_names import normalize_device

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.partition.options import ClusteringOptions


@dataclass(frozen=True, slots=True)
class Targets:
    """The distinct (engine, device) pairs of a graph, sorted; an empty device means any device."""

    pairs: tuple[tuple[int, str], ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def find_compatible(self, region: int) -> frozenset[int]:
        """Kinds whose units may join a region of this kind: same engine, and same device or none."""
        engine, device = self.pairs[region]
        return frozenset(k for k, pair in enumerate(self.pairs) if pair == (engine, device) or pair == (engine, ""))

    def phases(self) -> tuple[int, ...]:
        """The kinds that regions may have: those with a device, and those of engines that have none with a device."""
        # A region on a device also accepts units of the engine that require none.
        placed = {engine for engine, device in self.pairs if device}
        return tuple(k for k, (engine, device) in enumerate(self.pairs) if device or engine not in placed)

    def shareable(self) -> list[list[bool]]:
        """For each two kinds, whether their units can share a region."""
        accepted = [self.find_compatible(k) for k in range(len(self))]
        return [[any({a, b} <= kinds for kinds in accepted) for b in range(len(self))] for a in range(len(self))]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """The nodes of a Function, or groups of them, as numbered units with dependencies and kinds."""

    graph: DependencyGraph
    kind: Sequence[int]
    """Index of each unit's kind."""
    kinds: Targets

    @classmethod
    def of(cls, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str]) -> QuotientGraph:
        """Create one unit per node, from each node's engine and device."""
        pairs = list(zip(engines, devices, strict=True))
        kinds = Targets(tuple(sorted(set(pairs))))
        number = {pair: k for k, pair in enumerate(kinds.pairs)}
        return cls(graph, [number[pair] for pair in pairs], kinds)

    def __len__(self) -> int:
        return len(self.kind)

    def tails(self) -> list[int]:
        """For each unit, a lower bound on the regions along any path from it, including its own. Linear."""
        apart = [[0 if share else 1 for share in row] for row in self.kinds.shareable()]
        tail = [1] * len(self)
        for unit in range(len(self) - 1, -1, -1):
            length, cost = tail[unit], apart[self.kind[unit]]
            # Two units that can share a region may cost nothing between them, hence a lower bound.
            for earlier in self.graph.predecessors[unit]:
                through = length + cost[self.kind[earlier]]
                tail[earlier] = max(tail[earlier], through)
        return tail


@dataclass(frozen=True, slots=True)
class DependencyGraph:
    """The direct predecessors of each number, without duplicates. Predecessors are lower, so the graph is acyclic."""

    predecessors: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, function: Function) -> DependencyGraph:
        """Dependencies between the nodes of a Function, numbered by position.

        Data, values captured by bodies and control edges are equivalent. Linear.
        """
        position = function.position
        by_name: dict[str, int] = {}
        if any(node.control for node in function.nodes):
            # Control edges are rare, and the names of a large model take time to collect.
            by_name = {node.name: number for number, node in enumerate(function.nodes)}
        rows = []
        for node in function.nodes:
            before = {place for name in node.uses if (place := position(name)) is not None}
            before.update(by_name[name] for name in node.control)
            rows.append(tuple(before))
        return cls(rows)

    def __len__(self) -> int:
        return len(self.predecessors)

    def successors(self) -> list[list[int]]:
        """For each number its direct successors, ascending."""
        after: list[list[int]] = [[] for _ in self.predecessors]
        for number, before in enumerate(self.predecessors):
            for earlier in before:
                after[earlier].append(number)
        return after


def find_earliest_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[int]:
    """For each unit, the first slot in the sequence of kinds in which it can run; -1 if there is none. Linear."""
    ahead = find_next_slots(units, sequence)
    place: list[int] = []
    for kind, before in zip(units.kind, units.graph.predecessors, strict=True):
        place.append(ahead[max([place[unit] for unit in before], default=0)][kind])
    return place


def find_next_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[list[int]]:
    """For each slot and kind, the first slot from there on that accepts the kind; -1 if there is none."""
    accepted = [units.kinds.find_compatible(k) for k in range(len(units.kinds))]
    next_slots = [[-1] * len(units.kinds)]  # filled from the last slot to the first; this row is behind the last
    for slot in range(len(sequence) - 1, -1, -1):
        next_slots.append([slot if kind in accepted[sequence[slot]] else later for kind, later in enumerate(next_slots[-1])])
    return next_slots[:0:-1]


def minimize_cut(units: QuotientGraph, sequence: Sequence[int], ends: Collection[int]) -> list[int]:
    """Assign each unit to a slot of the sequence, with no edge to an earlier slot, so that few values cross between slots.

    Units start in their earliest slot. From the last to the first, a unit then moves to the slot of its first reader if at most
    one of its operands stays behind, which crosses in its place. An operand that only this unit reads can follow it. ``ends``
    are the units that compute outputs. Linear.
    """
    earliest = find_earliest_slots(units, sequence)
    if len(sequence) < 2:
        return earliest
    accepted = [units.kinds.find_compatible(phase) for phase in sequence]
    after, outputs = units.graph.successors(), frozenset(ends)
    place = list(earliest)
    for unit in reversed(range(len(units))):
        # An output leaves its region in any case, so that a move saves little.
        if not after[unit] or unit in outputs:
            continue
        target = min([place[later] for later in after[unit]])
        # A region of another engine or device cannot accept the unit.
        if target == place[unit] or units.kind[unit] not in accepted[target]:
            continue
        staying = (
            len(after[operand]) > 1 or operand in outputs or units.kind[operand] not in accepted[target]
            for operand in units.graph.predecessors[unit]
        )
        if sum(staying) <= 1:
            place[unit] = target
    # The rule looks at one unit at a time and may lose where several readers are in different slots.
    place = min(place, earliest, key=lambda slots: _count_crossings(after, slots, outputs))
    numbers = {slot: number for number, slot in enumerate(sorted(set(place)))}  # all units of a slot may have moved
    return [numbers[slot] for slot in place]


def _count_crossings(after: Sequence[Sequence[int]], place: Sequence[int], outputs: Collection[int]) -> int:
    """The number of region inputs and outputs; all outputs of a unit count as one value."""
    total = 0
    for unit, readers in enumerate(after):
        elsewhere = {place[later] for later in readers} - {place[unit]}
        total += len(elsewhere) + bool(elsewhere or unit in outputs)
    return total


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Find a short sequence of kinds in which all units can run: next the one with the longest remaining path.

    Optimal for up to two kinds of regions, rarely more than one slot longer for more. Linear.
    """
    run = _Scheduler(units, units.tails())
    sequence = []
    while run.remaining:
        phase = run.most_urgent()
        run.exhaust(phase)
        sequence.append(phase)
    return tuple(sequence)


class _Scheduler:
    """Schedules units greedily, region by region: a unit is ready when all its predecessors have run."""

    def __init__(self, units: QuotientGraph, tails: Sequence[int]) -> None:
        self._kind = units.kind
        self._after = units.graph.successors()
        self._tail = tails
        self._accepted = {phase: units.kinds.find_compatible(phase) for phase in units.kinds.phases()}
        self._waiting = [len(before) for before in units.graph.predecessors]
        self._ready: list[list[int]] = [[] for _ in range(len(units.kinds))]
        self._longest = [0] * len(units.kinds)
        self.remaining = len(units)
        for unit, count in enumerate(self._waiting):
            if not count:
                self._add_ready(unit)

    def most_urgent(self) -> int:
        """The kind of region whose ready units have the longest remaining path; of equal ones the first."""
        # The longest path decides how many regions must follow, so that it must not wait.
        return max(self._accepted, key=lambda phase: (max(self._longest[kind] for kind in self._accepted[phase]), -phase))

    def _add_ready(self, unit: int) -> None:
        kind = self._kind[unit]
        self._ready[kind].append(unit)
        self._longest[kind] = max(self._longest[kind], self._tail[unit])

    def exhaust(self, phase: int) -> None:
        """Run everything reachable in a region of that kind."""
        accepted = self._accepted[phase]
        stack = [unit for kind in accepted for unit in self._ready[kind]]
        for kind in accepted:
            self._ready[kind], self._longest[kind] = [], 0
        while stack:
            self.remaining -= 1
            for unit in self._after[stack.pop()]:
                self._waiting[unit] -= 1
                if self._waiting[unit]:
                    continue
                if self._kind[unit] in accepted:
                    stack.append(unit)
                else:
                    self._add_ready(unit)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that form one region of an engine."""

    nodes: tuple[int, ...]
    """Positions in the Function, ascending."""
    engine: int
    device: str = ""
    """The device required by its nodes; empty if none requires one."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters in execution order, and the nodes moved out of clusters that were too small."""

    clusters: tuple[Cluster, ...]
    dissolved: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, engine) to the size of the cluster in which the node was on that engine."""

    def engines(self) -> list[int]:
        """The engine of each node."""
        engine_of = {node: cluster.engine for cluster in self.clusters for node in cluster.nodes}
        return [engine_of[node] for node in range(len(engine_of))]


Devices: TypeAlias = Callable[[Sequence[int]], Sequence[str]]
"""Maps the engine of each node to its device; an empty device means any."""


def cluster(
    function: Function, candidates: Sequence[tuple[int, ...]], options: ClusteringOptions, devices: Devices | None = None
) -> Clustering:
    """Cluster the nodes, each on its first candidate by priority whose cluster is large enough.

    ``devices`` determines where nodes run; the default is their own device. Nodes on two devices are never in one cluster.

    A cluster that is too small is dissolved and its nodes try their next candidate, starting with the first engine that has such
    clusters. A node without another candidate stays, so small clusters may remain. Linear in nodes and edges, per round of
    dissolving.
    """
    graph = DependencyGraph.of(function)
    choice = [0] * len(candidates)
    dissolved: dict[tuple[int, int], int] = {}
    required = [normalize_device(node.device) for node in function.nodes]
    while True:
        engines = [engines[at] for engines, at in zip(candidates, choice, strict=True)]
        clusters = _form_clusters(function, graph, engines, devices(engines) if devices else required, options)
        leaving = _select_leaving_nodes(clusters, candidates, choice, options.minimum_nodes)
        if not leaving:
            return Clustering(tuple(clusters), dissolved)
        for node, size in leaving.items():
            dissolved[node, engines[node]] = size
            choice[node] += 1


def _select_leaving_nodes(
    clusters: Sequence[Cluster], candidates: Sequence[tuple[int, ...]], choice: Sequence[int], least: int
) -> dict[int, int]:
    """Nodes that leave the first engine with clusters that are too small, with the size of their cluster."""
    by_engine: dict[int, dict[int, int]] = {}
    for region in clusters:
        # One engine per round: the nodes it releases may enlarge small clusters of later engines.
        if len(region.nodes) < least:
            can_go = [node for node in region.nodes if choice[node] + 1 < len(candidates[node])]
            by_engine.setdefault(region.engine, {}).update(dict.fromkeys(can_go, len(region.nodes)))
    return next((by_engine[engine] for engine in sorted(by_engine) if by_engine[engine]), {})


def _form_clusters(
    function: Function, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str], options: ClusteringOptions
) -> list[Cluster]:
    units = QuotientGraph.of(graph, engines, devices)
    ends = {place for value in function.outputs if (place := function.position(value.name)) is not None}
    groups = minimize_cut(units, find_engine_sequence(units), ends)
    members: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for node, group in enumerate(groups):
        members[group].append(node)
    parts = (part for nodes in members if nodes for part in _split_evenly(nodes, options.maximum_nodes))
    # Nodes of one part share a device or have none; the empty string sorts first.
    return [Cluster(tuple(part), engines[part[0]], max(devices[node] for node in part)) for part in parts]


def _split_evenly(nodes: list[int], most: int | None) -> list[list[int]]:
    """Split nodes in topological order into the fewest parts allowed, of nearly equal size."""
    # The parts run one after another, so splitting cannot create a cycle.
    count = 1 if most is None else -(-len(nodes) // most)
    return [nodes[len(nodes) * i // count : len(nodes) * (i + 1) // count] for i in range(count)]
