"""Group the nodes of each engine into few regions with little data between them, without creating cycles."""

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
        """The targets whose units may join a region on this target: those with its engine, and its device or none."""
        engine, device = self.pairs[target]
        return frozenset(i for i, pair in enumerate(self.pairs) if pair == (engine, device) or pair == (engine, ""))

    def region_targets(self) -> tuple[int, ...]:
        """The targets of regions: each with a device, and one without a device if its engine has no other."""
        # A region on a device also accepts units of the engine that require none.
        placed = {engine for engine, device in self.pairs if device}
        return tuple(i for i, (engine, device) in enumerate(self.pairs) if device or engine not in placed)

    def make_sharing_table(self) -> list[list[bool]]:
        """Table of two target indices: whether units of both targets can share a region."""
        accepted = [self.find_compatible(target) for target in range(len(self))]
        return [[any({a, b} <= targets for targets in accepted) for b in range(len(self))] for a in range(len(self))]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """The nodes of a Function, or groups of nodes, as units with dependencies and targets. A unit is an index."""

    graph: DependencyGraph
    target_of: Sequence[int]
    """For each unit, the index of its target."""
    targets: Targets

    @classmethod
    def of(cls, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str]) -> QuotientGraph:
        """Create one unit per node, from each node's engine and device."""
        pairs = list(zip(engines, devices, strict=True))
        targets = Targets(tuple(sorted(set(pairs))))
        index_of = {pair: i for i, pair in enumerate(targets.pairs)}
        return cls(graph, [index_of[pair] for pair in pairs], targets)

    def __len__(self) -> int:
        return len(self.target_of)

    def count_remaining_regions(self) -> list[int]:
        """For each unit, a lower bound on the number of regions along the longest path that starts at it. Linear."""
        costs = [[0 if share else 1 for share in row] for row in self.targets.make_sharing_table()]
        tails = [1] * len(self)
        for unit in range(len(self) - 1, -1, -1):
            length, cost = tails[unit], costs[self.target_of[unit]]
            # Units that can share a region count as sharing it, although they may not: hence a lower bound.
            for earlier in self.graph.predecessors[unit]:
                tails[earlier] = max(tails[earlier], length + cost[self.target_of[earlier]])
        return tails


@dataclass(frozen=True, slots=True)
class DependencyGraph:
    """The direct predecessors of each node, as indices without duplicates. Predecessors have lower indices: no cycles."""

    predecessors: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, function: Function) -> DependencyGraph:
        """Collect the dependencies between the nodes of a Function, by index.

        Inputs, values captured by bodies, and control edges all count as dependencies. Linear.
        """
        by_name: dict[str, int] = {}
        if any(node.control for node in function.nodes):
            # Control edges are rare, and the names of a large model take time to collect.
            by_name = {node.name: number for number, node in enumerate(function.nodes)}
        rows = []
        for node in function.nodes:
            predecessors = {index for name in node.uses if (index := function.producer_index(name)) is not None}
            predecessors.update(by_name[name] for name in node.control)
            rows.append(tuple(predecessors))
        return cls(rows)

    def __len__(self) -> int:
        return len(self.predecessors)

    def successors(self) -> list[list[int]]:
        """For each node its direct successors, ascending."""
        successors: list[list[int]] = [[] for _ in self.predecessors]
        for node, predecessors in enumerate(self.predecessors):
            for earlier in predecessors:
                successors[earlier].append(node)
        return successors


def find_earliest_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[int]:
    """For each unit, the first slot in which it can run, or -1. ``sequence`` has the target of each slot (region). Linear."""
    next_slots = find_next_slots(units, sequence)
    slots: list[int] = []
    for target, before in zip(units.target_of, units.graph.predecessors, strict=True):
        slots.append(next_slots[max([slots[unit] for unit in before], default=0)][target])
    return slots


def find_next_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[list[int]]:
    """Table of slot and target: the first slot from this one on whose region accepts the target; -1 if there is none."""
    accepted_by_target = [units.targets.find_compatible(target) for target in range(len(units.targets))]
    next_slots = [[-1] * len(units.targets)]  # a sentinel row for the slot behind the last
    for slot in range(len(sequence) - 1, -1, -1):
        next_slots.append([slot if i in accepted_by_target[sequence[slot]] else later for i, later in enumerate(next_slots[-1])])
    # The rows were appended from the last slot to the first: reverse them, and drop the sentinel.
    return next_slots[:0:-1]


def minimize_cut(units: QuotientGraph, sequence: Sequence[int], ends: Collection[int]) -> list[int]:
    """Assign each unit to a slot of the sequence of targets such that few values cross between slots, and none backwards.

    Units start in their earliest slot. From the last unit to the first, a unit then moves to the slot of its first reader if at
    most one of its operands stays behind: this operand then crosses instead of the unit's result. An operand that only this unit
    reads does not count, because it can move too. ``ends`` are the units that compute outputs of the model. Linear.
    """
    earliest = find_earliest_slots(units, sequence)
    if len(sequence) < 2:
        return earliest
    accepted_by_slot = [units.targets.find_compatible(target) for target in sequence]
    readers, outputs = units.graph.successors(), frozenset(ends)
    slots = list(earliest)
    for unit in reversed(range(len(units))):
        # An output leaves its region in any case, so that a move saves little.
        if not readers[unit] or unit in outputs:
            continue
        first_reader_slot = min([slots[reader] for reader in readers[unit]])
        # A region of another engine or device cannot accept the unit.
        if first_reader_slot == slots[unit] or units.target_of[unit] not in accepted_by_slot[first_reader_slot]:
            continue
        stays = (
            len(readers[operand]) > 1 or operand in outputs or units.target_of[operand] not in accepted_by_slot[first_reader_slot]
            for operand in units.graph.predecessors[unit]
        )
        if sum(stays) <= 1:
            slots[unit] = first_reader_slot
    # The rule looks at one unit at a time and may lose where several readers are in different slots.
    slots = min(slots, earliest, key=lambda candidate: _count_crossings(readers, candidate, outputs))
    new_slots = {slot: new_slot for new_slot, slot in enumerate(sorted(set(slots)))}  # all units of a slot may have moved
    return [new_slots[slot] for slot in slots]


def _count_crossings(readers: Sequence[Sequence[int]], slots: Sequence[int], outputs: Collection[int]) -> int:
    """Count the inputs and outputs of all slots for an assignment of units; all outputs of a unit count as one value."""
    total = 0
    for unit, slot in enumerate(slots):
        elsewhere = {slots[reader] for reader in readers[unit]} - {slot}
        total += len(elsewhere) + bool(elsewhere or unit in outputs)
    return total


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Find a short sequence of targets for regions that run all units. Greedy: the most urgent target is next.

    Optimal for up to two targets; with more, rarely more than one slot longer than the shortest. Linear.
    """
    scheduler = _Scheduler(units, units.count_remaining_regions())
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
        """Find the target whose ready units have the most remaining regions behind them; of equal targets the first."""
        # The longest path determines how many regions must follow, so it must not wait.
        return max(self._accepted, key=lambda target: (max(self._longest[i] for i in self._accepted[target]), -target))

    def _add_ready(self, unit: int) -> None:
        target = self._target_of[unit]
        self._ready[target].append(unit)
        self._longest[target] = max(self._longest[target], self._tail[unit])

    def run_region(self, target: int) -> None:
        """Schedule a region on the target: all ready units that it accepts, and units that become ready and that it accepts."""
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
    """Indices of nodes of the Function, ascending."""
    engine: int
    device: str = ""
    """The device required by its nodes; empty if none requires one."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters in execution order, and the nodes moved out of clusters that were too small."""

    clusters: tuple[Cluster, ...]
    dissolved: dict[tuple[int, int], int] = field(default_factory=dict)
    """Index pair (node, engine) to the size of the cluster, too small, that the node left on this engine."""

    def engines(self) -> list[int]:
        """The engine index of each node."""
        engine_of = {node: cluster.engine for cluster in self.clusters for node in cluster.nodes}
        return [engine_of[node] for node in range(len(engine_of))]


Devices: TypeAlias = Callable[[Sequence[int]], Sequence[str]]
"""Maps the engine index of each node to the device of each node; an empty device means any."""


def cluster(
    function: Function, candidates: Sequence[tuple[int, ...]], options: ClusteringOptions, devices: Devices | None = None
) -> Clustering:
    """Cluster the nodes, each on its first candidate engine whose cluster is large enough.

    ``devices`` determines where nodes run; by default on the device that they require. Nodes on different devices are never in
    one cluster.

    A cluster that is too small is dissolved: its nodes move to their next candidate. The first engine with such clusters is
    treated first. A node without another candidate stays, so small clusters may remain. Linear in nodes and edges, per round of
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
    clusters: Sequence[Cluster], candidates: Sequence[tuple[int, ...]], choice: Sequence[int], minimum_nodes: int
) -> dict[int, int]:
    """The nodes that leave clusters of fewer than ``minimum_nodes``, on the first engine with any: node to cluster size."""
    by_engine: dict[int, dict[int, int]] = {}
    for region in clusters:
        # One engine per round: the nodes it releases may enlarge small clusters of later engines.
        if len(region.nodes) < minimum_nodes:
            movable = [node for node in region.nodes if choice[node] + 1 < len(candidates[node])]
            by_engine.setdefault(region.engine, {}).update(dict.fromkeys(movable, len(region.nodes)))
    return next((by_engine[engine] for engine in sorted(by_engine) if by_engine[engine]), {})


def _form_clusters(
    function: Function, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str], options: ClusteringOptions
) -> list[Cluster]:
    units = QuotientGraph.of(graph, engines, devices)
    ends = {index for value in function.outputs if (index := function.producer_index(value.name)) is not None}
    groups = minimize_cut(units, find_engine_sequence(units), ends)
    members: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for node, group in enumerate(groups):
        members[group].append(node)
    parts = (part for nodes in members if nodes for part in _split_evenly(nodes, options.maximum_nodes))
    # Nodes of one part share a device or have none; the empty string sorts first.
    return [Cluster(tuple(part), engines[part[0]], max(devices[node] for node in part)) for part in parts]


def _split_evenly(nodes: list[int], maximum_nodes: int | None) -> list[list[int]]:
    """Split nodes in topological order into the fewest parts allowed, of nearly equal size."""
    # The parts run one after another, so splitting cannot create a cycle.
    count = 1 if maximum_nodes is None else -(-len(nodes) // maximum_nodes)
    return [nodes[len(nodes) * i // count : len(nodes) * (i + 1) // count] for i in range(count)]
