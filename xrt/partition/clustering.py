"""Group nodes into few regions with few values between them, such that the graph of regions has no cycle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from xrt.graph.device_names import normalize_device, parse_device_kind
from xrt.partition.support_matrix import DeviceMap, SupportMatrix

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.options import ClusteringOptions


@dataclass(frozen=True, slots=True)
class Targets:
    """The distinct (engine index, device) pairs of a graph, sorted; an empty device means any device. A target is an index."""

    pairs: tuple[tuple[int, str], ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def find_compatible(self, target: int) -> frozenset[int]:
        """Find the targets whose units may join a region on ``target``: the same engine, and the same device or none."""
        engine, device = self.pairs[target]
        return frozenset(i for i, pair in enumerate(self.pairs) if pair in ((engine, device), (engine, "")))

    def list_region_targets(self) -> list[int]:
        """List the targets that regions can have: all with a device, and those without one whose engine has no other target."""
        # A region on a device also accepts units of the engine that require none.
        placed = {engine for engine, device in self.pairs if device}
        return [i for i, (engine, device) in enumerate(self.pairs) if device or engine not in placed]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """The nodes of a Function, or groups of nodes, with their dependencies and targets. A unit is the index of one of them."""

    graph: DependencyGraph
    target_of: Sequence[int]
    """For each unit, the index of its target."""
    targets: Targets

    @classmethod
    def of(cls, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str]) -> QuotientGraph:
        """Create one unit per node; ``engines`` and ``devices`` have the engine and the device of each node."""
        pairs = list(zip(engines, devices, strict=True))
        targets = Targets(tuple(sorted(set(pairs))))
        index_of = {pair: i for i, pair in enumerate(targets.pairs)}
        return cls(graph, [index_of[pair] for pair in pairs], targets)

    def __len__(self) -> int:
        return len(self.target_of)

    def count_remaining_regions(self) -> list[int]:
        """List for each unit a lower bound of the number of regions along the longest path that starts at the unit. Linear."""
        # Units that can share a region count as sharing it, although they may not: hence a lower bound.
        targets = range(len(self.targets))
        accepted = [self.targets.find_compatible(target) for target in targets]

        def count_new_regions(a: int, b: int) -> int:
            return 0 if any({a, b} <= group for group in accepted) else 1

        costs = [[count_new_regions(a, b) for b in targets] for a in targets]
        counts = [1] * len(self)
        for unit in range(len(self) - 1, -1, -1):
            for predecessor in self.graph.predecessors[unit]:
                cost = costs[self.target_of[unit]][self.target_of[predecessor]]
                counts[predecessor] = max(counts[predecessor], counts[unit] + cost)
        return counts


@dataclass(frozen=True, slots=True)
class DependencyGraph:
    """The direct predecessors of each node, as indices without duplicates. Predecessors have lower indices than the node."""

    predecessors: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, function: Function) -> DependencyGraph:
        """Collect the dependencies between nodes: inputs, values captured by bodies, and control edges. Linear."""
        by_name: dict[str, int] = {}
        if any(node.control for node in function.nodes):
            # Control edges are rare, and the names of a large model take time to collect.
            by_name = {node.name: index for index, node in enumerate(function.nodes)}
        rows = []
        for node in function.nodes:
            predecessors = {index for name in node.uses if (index := function.producer_index(name)) is not None}
            predecessors.update(by_name[name] for name in node.control)
            rows.append(tuple(predecessors))
        return cls(rows)

    def __len__(self) -> int:
        return len(self.predecessors)

    def list_successors(self) -> list[list[int]]:
        """List for each node its direct successors, ascending."""
        successors: list[list[int]] = [[] for _ in self.predecessors]
        for node, predecessors in enumerate(self.predecessors):
            for predecessor in predecessors:
                successors[predecessor].append(node)
        return successors


def find_earliest_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[int]:
    """Find for each unit the first slot in which it can run, or -1. A slot is a region; ``sequence`` has its target. Linear."""
    next_slots = find_next_slots(units, sequence)
    slots: list[int] = []
    for target, predecessors in zip(units.target_of, units.graph.predecessors, strict=True):
        first = max([slots[unit] for unit in predecessors], default=0)
        slots.append(next_slots[first][target])
    return slots


def find_next_slots(units: QuotientGraph, sequence: Sequence[int]) -> list[list[int]]:
    """Make a table ``[slot][target]`` of the first slot, from this one on, that accepts the target (`find_compatible`), or -1."""
    accepted_by_target = [units.targets.find_compatible(target) for target in range(len(units.targets))]
    # From the last slot to the first; the table begins with a row for the slot after the last one.
    rows = [[-1] * len(units.targets)]
    for slot in range(len(sequence) - 1, -1, -1):
        accepted = accepted_by_target[sequence[slot]]
        rows.append([slot if target in accepted else next_slot for target, next_slot in enumerate(rows[-1])])
    rows.reverse()
    return rows[:-1]


def minimize_cut(units: QuotientGraph, sequence: Sequence[int], outputs: Collection[int]) -> list[int]:
    """Assign each unit to a slot of the sequence, such that few values cross between slots, and all cross forwards.

    Units begin in their earliest slot. Then, from the last unit to the first, a unit moves to the slot of its first reader if at
    most one of its operands cannot follow: that operand crosses instead of the unit's result. An operand can follow if the slot
    accepts it and no other unit reads it. ``outputs`` are the units that compute outputs of the model. Linear.
    """
    earliest = find_earliest_slots(units, sequence)
    if len(sequence) < 2:
        return earliest
    accepted_by_slot = [units.targets.find_compatible(target) for target in sequence]
    readers = units.graph.list_successors()
    outputs = frozenset(outputs)
    slots = list(earliest)
    for unit in reversed(range(len(units))):
        # An output leaves its region in any case, so that a move saves little.
        if not readers[unit] or unit in outputs:
            continue
        new_slot = min([slots[reader] for reader in readers[unit]])
        accepted = accepted_by_slot[new_slot]
        # A region of another engine or device does not accept the unit.
        if new_slot == slots[unit] or units.target_of[unit] not in accepted:
            continue
        staying_count = 0
        for operand in units.graph.predecessors[unit]:
            if len(readers[operand]) > 1 or operand in outputs or units.target_of[operand] not in accepted:
                staying_count += 1
        if staying_count <= 1:
            slots[unit] = new_slot
    # The rule looks at one unit at a time, and may make the result worse if readers are in different slots.
    slots = min(slots, earliest, key=lambda candidate: _count_crossings(readers, candidate, outputs))
    # Renumber the slots, because some may have become empty.
    numbers = {slot: number for number, slot in enumerate(sorted(set(slots)))}
    return [numbers[slot] for slot in slots]


def _count_crossings(readers: Sequence[Sequence[int]], slots: Sequence[int], outputs: Collection[int]) -> int:
    """Count the inputs and outputs of all slots for an assignment of units; all outputs of a unit count as one value."""
    total = 0
    for unit, slot in enumerate(slots):
        other_slots = {slots[reader] for reader in readers[unit]} - {slot}
        total += len(other_slots)
        if other_slots or unit in outputs:
            total += 1
    return total


def find_engine_sequence(units: QuotientGraph) -> tuple[int, ...]:
    """Find a short sequence of targets such that one region per target runs all units. Greedy: the most urgent target is next.

    Optimal for up to two targets; with more, rarely more than one region longer than the shortest sequence. Linear.
    """
    scheduler = _Scheduler(units)
    sequence = []
    while scheduler.unscheduled_count:
        target = scheduler.find_most_urgent()
        scheduler.run_region(target)
        sequence.append(target)
    return tuple(sequence)


class _Scheduler:
    """Schedules units greedily, region by region. A unit is ready when all its predecessors have run."""

    def __init__(self, units: QuotientGraph) -> None:
        self._target_of = units.target_of
        self._successors = units.graph.list_successors()
        self._remaining_regions = units.count_remaining_regions()
        self._accepted = {target: units.targets.find_compatible(target) for target in units.targets.list_region_targets()}
        # For each unit, the number of predecessors that have not run.
        self._blocking_counts = [len(predecessors) for predecessors in units.graph.predecessors]
        # For each target, its ready units, and their largest number of remaining regions.
        self._ready: list[list[int]] = [[] for _ in range(len(units.targets))]
        self._urgency = [0] * len(units.targets)
        self.unscheduled_count = len(units)
        for unit, count in enumerate(self._blocking_counts):
            if not count:
                self._add_ready(unit)

    def find_most_urgent(self) -> int:
        """Find the target with a ready unit that begins the longest path of remaining regions; of equal targets the first."""
        return max(self._accepted, key=lambda target: (max(self._urgency[i] for i in self._accepted[target]), -target))

    def _add_ready(self, unit: int) -> None:
        target = self._target_of[unit]
        self._ready[target].append(unit)
        self._urgency[target] = max(self._urgency[target], self._remaining_regions[unit])

    def run_region(self, target: int) -> None:
        """Schedule a region on the target, with all units that it accepts and that are ready or become ready in the region."""
        accepted = self._accepted[target]
        stack = [unit for i in accepted for unit in self._ready[i]]
        for i in accepted:
            self._ready[i], self._urgency[i] = [], 0
        while stack:
            self.unscheduled_count -= 1
            for unit in self._successors[stack.pop()]:
                self._blocking_counts[unit] -= 1
                if self._blocking_counts[unit]:
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
    """The device that a node requires; empty if no node requires a device."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters in execution order, and the nodes that were moved because their cluster was too small."""

    clusters: tuple[Cluster, ...]
    dissolved: dict[tuple[int, int], int] = field(default_factory=dict)
    """For a moved node, (node index, index of the engine that it left) to the size of the cluster on that engine."""

    def list_engines(self) -> list[int]:
        engine_of = {node: cluster.engine for cluster in self.clusters for node in cluster.nodes}
        return [engine_of[node] for node in range(len(engine_of))]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Determines the device of each node for a choice of engines."""

    function: Function
    specs: Sequence[str]
    device_map: DeviceMap
    required: tuple[str, ...]
    """The normalized device that each node requires, or an empty string."""
    support_elsewhere: Sequence[SupportMatrix]
    """One matrix for each kind of device that some node requires, except the kind of the plan's device."""

    @classmethod
    def query(cls, function: Function, engines: Sequence[GraphCompiler], device_map: DeviceMap) -> NodeDevices:
        """Query the engines about the kinds of device that nodes require, except the kind of the plan's device."""
        required = tuple(normalize_device(node.device) for node in function.nodes)
        kinds = {parse_device_kind(name) for name in required if name} - {parse_device_kind(device_map.device)}
        support_elsewhere = tuple(SupportMatrix.of(function, engines, DeviceMap(kind)) for kind in sorted(kinds))
        return cls(function, [engine.spec for engine in engines], device_map, required, support_elsewhere)

    def list_devices(self, engines: Sequence[int]) -> list[str]:
        """List the device of each node on its engine, given by index; an empty string means the device of its neighbors.

        A device that the node requires, or that the DeviceMap has for the engine, is fixed. Any other node may run on the device
        of its neighbors if its engine supports it there, because this saves a copy.
        """
        # The common case: devices of one kind, and none requested for an engine.
        if not self.device_map.by_engine and not self.support_elsewhere:
            return list(self.required)
        pairs = enumerate(zip(self.required, engines, strict=True))
        return [device or self._find_device(index, engine) for index, (device, engine) in pairs]

    def _find_device(self, node: int, engine: int) -> str:
        device = self.device_map.by_engine.get(self.specs[engine])
        if device is not None:
            return normalize_device(device)
        is_movable = all(support.reason(node, engine) is None for support in self.support_elsewhere)
        return "" if is_movable else normalize_device(self.device_map.device)


def cluster(
    function: Function, candidates: Sequence[tuple[int, ...]], options: ClusteringOptions, devices: NodeDevices
) -> Clustering:
    """Cluster the nodes, each on the first candidate engine on which its cluster has at least ``minimum_nodes`` nodes.

    ``candidates`` has the engine indices of each node, by priority. Nodes on different devices are never in one cluster.

    In each round, the clusters of one engine that are too small are dissolved: their nodes move to the next candidate. A node
    without another candidate stays, so small clusters may remain. Linear in nodes and edges, per round.
    """
    graph = DependencyGraph.of(function)
    # For each node, the index of the current engine among its candidates.
    positions = [0] * len(candidates)
    dissolved: dict[tuple[int, int], int] = {}
    while True:
        engines = [engines[position] for engines, position in zip(candidates, positions, strict=True)]
        clusters = _form_clusters(function, graph, engines, devices.list_devices(engines), options)
        leaving = _select_leaving_nodes(clusters, candidates, positions, options.minimum_nodes)
        if not leaving:
            return Clustering(tuple(clusters), dissolved)
        for node, size in leaving.items():
            dissolved[node, engines[node]] = size
            positions[node] += 1


def _select_leaving_nodes(
    clusters: Sequence[Cluster], candidates: Sequence[tuple[int, ...]], positions: Sequence[int], minimum_nodes: int
) -> dict[int, int]:
    """Select the nodes of small clusters that have another candidate, on the first engine with such nodes: node to cluster size.

    Only one engine per round, because its nodes may enlarge small clusters of later engines.
    """
    by_engine: dict[int, dict[int, int]] = {}
    for region in clusters:
        if len(region.nodes) < minimum_nodes:
            movable = [node for node in region.nodes if positions[node] + 1 < len(candidates[node])]
            by_engine.setdefault(region.engine, {}).update(dict.fromkeys(movable, len(region.nodes)))
    return next((by_engine[engine] for engine in sorted(by_engine) if by_engine[engine]), {})


def _form_clusters(
    function: Function, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str], options: ClusteringOptions
) -> list[Cluster]:
    units = QuotientGraph.of(graph, engines, devices)
    outputs = {index for value in function.outputs if (index := function.producer_index(value.name)) is not None}
    slots = minimize_cut(units, find_engine_sequence(units), outputs)
    nodes_by_slot: list[list[int]] = [[] for _ in range(max(slots, default=-1) + 1)]
    for node, slot in enumerate(slots):
        nodes_by_slot[slot].append(node)
    clusters = []
    for nodes in filter(None, nodes_by_slot):
        for part in _split_evenly(nodes, options.maximum_nodes):
            # The nodes of a part have the same device or none; the maximum ignores empty strings.
            device = max(devices[node] for node in part)
            clusters.append(Cluster(tuple(part), engines[part[0]], device))
    return clusters


def _split_evenly(nodes: list[int], maximum_nodes: int | None) -> list[list[int]]:
    """Split nodes in topological order into the fewest parts of at most ``maximum_nodes``, of nearly equal size."""
    # The parts run one after another, so splitting cannot create a cycle.
    count = 1 if maximum_nodes is None else -(-len(nodes) // maximum_nodes)
    bounds = [len(nodes) * i // count for i in range(count + 1)]
    return [nodes[start:end] for start, end in pairwise(bounds)]
