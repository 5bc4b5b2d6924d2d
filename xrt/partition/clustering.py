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

    def find_compatible(self, target: int) -> frozenset[int]:
        """Targets whose units may join a region on this target: same engine, and same device or none."""
        engine, device = self.pairs[target]
        return frozenset(i for i, pair in enumerate(self.pairs) if pair == (engine, device) or pair == (engine, ""))

    def region_targets(self) -> tuple[int, ...]:
        """The targets of regions: all with a device, and for an engine without such a target the one without a device."""
        # A region on a device also accepts units of the engine that require none.
        placed = {engine for engine, device in self.pairs if device}
        return tuple(i for i, (engine, device) in enumerate(self.pairs) if device or engine not in placed)

    def shareable(self) -> list[list[bool]]:
        """For each two targets, whether their units can share a region."""
        accepted = [self.find_compatible(target) for target in range(len(self))]
        return [[any({a, b} <= targets for targets in accepted) for b in range(len(self))] for a in range(len(self))]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """The nodes of a Function, or groups of them, as numbered units with dependencies and targets."""

    graph: DependencyGraph
    target_of: Sequence[int]
    """For each unit, the index of its target."""
    targets: Targets

    @classmethod
    def of(cls, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str]) -> QuotientGraph:
        """Create one unit per node, from each node's engine and device."""
        pairs = list(zip(engines, devices, strict=True))
        targets = Targets(tuple(sorted(set(pairs))))
        number = {pair: i for i, pair in enumerate(targets.pairs)}
        return cls(graph, [number[pair] for pair in pairs], targets)

    def __len__(self) -> int:
        return len(self.target_of)

    def tails(self) -> list[int]:
        """For each unit, a lower bound on the regions along any path from it, including its own. Linear."""
        costs = [[0 if share else 1 for share in row] for row in self.targets.shareable()]
        tails = [1] * len(self)
        for unit in range(len(self) - 1, -1, -1):
            length, cost = tails[unit], costs[self.target_of[unit]]
            # Two units that can share a region may cost nothing between them, hence a lower bound.
            for earlier in self.graph.predecessors[unit]:
                tails[earlier] = max(tails[earlier], length + cost[self.target_of[earlier]])
        return tails


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
    """For each unit, the first slot in the sequence of targets in which it can run; -1 if there is none. Linear."""
    next_slots = find_next_slots(units, sequence)
    slots: list[int] = []
    for target, before in zip(units.target_of, units.graph.predecessors, strict=True):
        slots.append(next_slots[max([slots[unit] for unit in before], default=0)][target])
    return slots


def find_next_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[list[int]]:
    """For each slot and target, the first slot from there on that accepts the target; -1 if there is none."""
    accepted = [units.targets.find_compatible(target) for target in range(len(units.targets))]
    next_slots = [[-1] * len(units.targets)]  # filled from the last slot to the first; this row is behind the last
    for slot in range(len(sequence) - 1, -1, -1):
        next_slots.append([slot if i in accepted[sequence[slot]] else later for i, later in enumerate(next_slots[-1])])
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
    accepted = [units.targets.find_compatible(target) for target in sequence]
    readers, outputs = units.graph.successors(), frozenset(ends)
    slots = list(earliest)
    for unit in reversed(range(len(units))):
        # An output leaves its region in any case, so that a move saves little.
        if not readers[unit] or unit in outputs:
            continue
        first_read = min([slots[reader] for reader in readers[unit]])
        # A region of another engine or device cannot accept the unit.
        if first_read == slots[unit] or units.target_of[unit] not in accepted[first_read]:
            continue
        staying = (
            len(readers[operand]) > 1 or operand in outputs or units.target_of[operand] not in accepted[first_read]
            for operand in units.graph.predecessors[unit]
        )
        if sum(staying) <= 1:
            slots[unit] = first_read
    # The rule looks at one unit at a time and may lose where several readers are in different slots.
    slots = min(slots, earliest, key=lambda candidate: _count_crossings(readers, candidate, outputs))
    numbers = {slot: number for number, slot in enumerate(sorted(set(slots)))}  # all units of a slot may have moved
    return [numbers[slot] for slot in slots]


def _count_crossings(readers: Sequence[Sequence[int]], slots: Sequence[int], outputs: Collection[int]) -> int:
    """The number of region inputs and outputs; all outputs of a unit count as one value."""
    total = 0
    for unit, slot in enumerate(slots):
        elsewhere = {slots[reader] for reader in readers[unit]} - {slot}
        total += len(elsewhere) + bool(elsewhere or unit in outputs)
    return total


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Find a short sequence of targets in which all units can run: next the one with the longest remaining path.

    Optimal for up to two targets, rarely more than one slot longer for more. Linear.
    """
    scheduler = _Scheduler(units, units.tails())
    sequence = []
    while scheduler.remaining:
        target = scheduler.find_most_urgent()
        scheduler.run_region(target)
        sequence.append(target)
    return tuple(sequence)


class _Scheduler:
    """Schedules units greedily, region by region: a unit is ready when all its predecessors have run."""

    def __init__(self, units: QuotientGraph, tails: Sequence[int]) -> None:
        self._target_of = units.target_of
        self._successors = units.graph.successors()
        self._tail = tails
        self._accepted = {target: units.targets.find_compatible(target) for target in units.targets.region_targets()}
        self._waiting = [len(before) for before in units.graph.predecessors]
        self._ready: list[list[int]] = [[] for _ in range(len(units.targets))]
        self._longest = [0] * len(units.targets)
        self.remaining = len(units)
        for unit, count in enumerate(self._waiting):
            if not count:
                self._add_ready(unit)

    def find_most_urgent(self) -> int:
        """Find the target of a region whose ready units have the longest remaining path; of equal ones the first."""
        # The longest path decides how many regions must follow, so that it must not wait.
        return max(self._accepted, key=lambda target: (max(self._longest[i] for i in self._accepted[target]), -target))

    def _add_ready(self, unit: int) -> None:
        target = self._target_of[unit]
        self._ready[target].append(unit)
        self._longest[target] = max(self._longest[target], self._tail[unit])

    def run_region(self, target: int) -> None:
        """Run the ready units that a region on the target accepts, and all that these make ready for it."""
        accepted = self._accepted[target]
        stack = [unit for i in accepted for unit in self._ready[i]]
        for i in accepted:
            self._ready[i], self._longest[i] = [], 0
        while stack:
            self.remaining -= 1
            for unit in self._successors[stack.pop()]:
                self._waiting[unit] -= 1
                if self._waiting[unit]:
                    continue
                if self._target_of[unit] in accepted:
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
        engines = [engines[index] for engines, index in zip(candidates, choice, strict=True)]
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
