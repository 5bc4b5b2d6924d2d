"""Partitioning: from a Function to a Plan, by priority of the engines or from an explicit assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import Function, TensorType
from xrt.graph.device_names import normalize_device
from xrt.graph.function import pause_gc
from xrt.partition.clustering import Cluster, DependencyGraph, cluster
from xrt.partition.fold import fold
from xrt.partition.options import ClusteringOptions
from xrt.partition.plan import Plan, Reason
from xrt.partition.support_matrix import DeviceMap, EligibleEngines, NodeDevices, Refused, check_all_supported

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node
    from xrt.partition.support_matrix import SupportMatrix

# Copying this many bytes of state per call costs more than a separate region: 20 us at 13 GB/s.
MIN_COPIED_BYTES = 1 << 18


def place_updates(
    function: Function, engines: Sequence[GraphCompiler], choices: EligibleEngines, devices: Sequence[str]
) -> EligibleEngines:
    """Exclude engines that would copy state which another engine of the list updates in place; return the remaining choices.

    A state is an alias. Its update is the node that writes the alias's output, plus the nodes whose results only updates read, if
    an engine may write the result over an input or the result has one element. The update moves to the first engine on the same
    device that supports all its nodes and declares in-place updates (`GraphCompiler.list_mutable_inputs`). Nothing changes if
    fewer than `MIN_COPIED_BYTES` would be copied. ``devices`` has the device of each engine. Linear in nodes and edges.
    """
    search = _UpdateSearch(function, tuple(engines), choices.candidates(), tuple(devices))
    copied = {result: size for result, size in search.list_copied_outputs() if size is not None}
    nbytes = sum(copied.values())
    if nbytes < MIN_COPIED_BYTES:
        return choices
    # Nodes are already on the first engine if it supports them, so only later engines can avoid a copy.
    for target in range(1, len(engines)):
        update_nodes = search.find_update_nodes(copied, target)
        if sum(size for result, size in copied.items() if function.producer_index(result) in update_nodes) >= MIN_COPIED_BYTES:
            exclusions = search.explain_exclusions(update_nodes, target, nbytes)
            updating = dict.fromkeys(exclusions, engines[target].spec)
            return replace(choices, exclusions={**choices.exclusions, **exclusions}, updating_engines=updating)
    return choices


@dataclass(frozen=True, slots=True)
class _UpdateSearch:
    """Finds the nodes that update state, and the aliases whose state would be copied."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    candidates: Sequence[tuple[int, ...]]
    devices: tuple[str, ...]

    def list_copied_outputs(self) -> Iterator[tuple[str, int | None]]:
        """Yield (output, bytes) for each alias that its node's first candidate would copy; bytes are None if unknown."""
        for _, result in self.function.aliases:
            index, type_ = self.function.producer_index(result), self.function.get_type(result)
            if index is not None and isinstance(type_, TensorType) and self.candidates[index]:
                if not self._is_mutable(self.function.nodes[index], self.candidates[index][0]):
                    yield result, type_.nbytes

    def find_update_nodes(self, copied: dict[str, int], target: int) -> set[int]:
        """Find the nodes to assign to engine ``target``, by index. ``copied`` are outputs of aliases that would be copied."""
        function = self.function
        index_of = {node.name: index for index, node in enumerate(function.nodes)}
        outputs = {value.name for value in function.outputs} - copied.keys()
        update_nodes: set[int] = set()
        # From the last node: a node can join only if all its users have joined.
        for index in reversed(range(len(function.nodes))):
            node = function.nodes[index]
            if target not in self.candidates[index] or node.control or self.devices[target] != self.devices[self._first(index)]:
                continue
            users = {index_of[use.node.name] for name in node.outputs for use in function.users(name)}
            is_update = not copied.keys().isdisjoint(node.outputs) or bool(users)
            if not is_update or not users <= update_nodes or not outputs.isdisjoint(node.outputs):
                continue
            if self._is_mutable(node, target) or all(self._is_scalar(name) for name in node.outputs):
                update_nodes.add(index)
        return update_nodes

    def explain_exclusions(self, update_nodes: set[int], target: int, nbytes: int) -> dict[tuple[int, int], str]:
        """Explain, by (node, engine) index, why the update nodes are not on the engines before ``target``."""
        spec = self.engines[target].spec
        exclusions = {}
        for node_index in update_nodes:
            for engine in self.candidates[node_index]:
                if engine < target:
                    text = f"it updates state, of which engine {self.engines[engine].spec!r} would copy {nbytes:,} bytes per call"
                    exclusions[node_index, engine] = f"{text}; engine {spec!r} updates it in place"
        return exclusions

    def _first(self, node_index: int) -> int:
        return self.candidates[node_index][0]

    def _is_mutable(self, node: Node, engine: int) -> bool:
        """Whether the engine may write the node's first result over an input of the same type."""
        function = self.function
        type_ = function.get_type(node.outputs[0]) if node.outputs else None
        input_indices = self.engines[engine].list_mutable_inputs(node, function)
        return type_ is not None and any(function.get_type(node.inputs[index]) == type_ for index in input_indices)

    def _is_scalar(self, name: str) -> bool:
        type_ = self.function.get_type(name)
        return isinstance(type_, TensorType) and type_.shape is not None and all(extent == 1 for extent in type_.shape)


def partition(
    function: Function,
    engines: Sequence[GraphCompiler],
    options: ClusteringOptions = ClusteringOptions(),
    *,
    strict: bool = False,
    implicit: str | None = None,
    refused: Sequence[Refused] = (),
    device: str | DeviceMap = "cpu",
    capability: SupportMatrix | None = None,
) -> Plan:
    """Partition a Function: a node runs on the first engine that supports it and that no pin, refusal or `minimum_nodes` forbids.

    ``engines`` are ordered by priority. ``implicit`` is the spec of the engine that was added without being listed by the user;
    it is recorded in the Plan. ``strict`` forbids such an engine. ``refused`` are (node, engine spec, reason) triples for nodes
    that engines refused to compile in an earlier Plan. ``device`` is the default device of nodes, or a DeviceMap if engines have
    different ones; no device is accessed. ``capability`` passes the support of nodes if the engines were already queried.

    Raises OptionError for an engine listed twice, or for an unlisted one in a pin, ``implicit`` or ``refused``; PlanError if a
    pin cannot be satisfied or no engine supports a node. Linear in nodes and edges.
    """
    names, specs = [(engine.name, engine.spec) for engine in engines], [engine.spec for engine in engines]
    check_engines(specs, implicit)
    options.check_pins(names)
    with pause_gc(len(function.nodes)):
        device_map = DeviceMap.from_device(device)
        choices = EligibleEngines.of(function, engines, options.pins, refused, device_map, capability)
        if function.aliases and len(engines) > 1:
            choices = place_updates(function, engines, choices, list(map(device_map.of, specs)))
        candidates = choices.candidates()
        check_all_supported(function, choices, candidates, options.pins, strict)
        clustering = cluster(function, candidates, options, NodeDevices.query(function, engines, device_map).devices)
        engine_of = clustering.engines()
        folded = fold(function, clustering.clusters, names)

        def explain_dissolved(node: int, engine: int) -> str:
            size = clustering.dissolved[node, engine]
            return f"its cluster of {size} node{'s' * (size != 1)} is smaller than minimum_nodes={options.minimum_nodes}"

        reasons = tuple(_explain(function, choices, engine_of, explain_dissolved))
        return Plan(folded, choices.engines, reasons, options, implicit, normalize_device(device_map.device))


def check_engines(specs: Sequence[str], implicit: str | None) -> None:
    """Raise OptionError if the list of engine specs is empty, has a duplicate, or lacks the spec ``implicit``."""
    if not specs:
        raise OptionError("the list of engines is empty; list at least one")
    duplicate = next((spec for spec in specs if specs.count(spec) > 1), None)
    if duplicate is not None:
        raise OptionError(f"engine {duplicate!r} is listed twice in {', '.join(specs)}; list each engine once")
    if implicit is not None and implicit not in specs:
        raise OptionError(
            f"implicit={implicit!r} is not in the list of engines: {', '.join(specs)}.{did_you_mean(implicit, specs)}"
        )


def _explain(
    function: Function, choices: EligibleEngines, engine_of: Sequence[int], explain_eligible: Callable[[int, int], str]
) -> Iterator[Reason]:
    """Yield, node by node, the reason why the node is not on each engine with higher priority than its own.

    ``engine_of`` has the engine index of each node. ``explain_eligible`` is called with the indices of a node and of an engine
    that may run it; it returns why the node is elsewhere: its cluster was too small, or a measurement chose another engine.
    """
    for index, (node, engine) in enumerate(zip(function.nodes, engine_of, strict=True)):
        for earlier in range(engine):
            text = choices.reason(index, earlier) or explain_eligible(index, earlier)
            yield Reason(node.name, node.op, choices.engines[earlier], text, choices.updating_engines.get((index, earlier), ""))


MEASURED_REASON = "placed by measurement"
"""Why a node is not on an engine of higher priority that supports it: a measured placement chose another one."""


def plan_from_assignment(
    function: Function,
    engines: Sequence[GraphCompiler],
    assignment: Mapping[str, str],
    *,
    groups: Mapping[str, int] | None = None,
    implicit: str | None = None,
    device: str | DeviceMap = "cpu",
    capability: SupportMatrix | None = None,
) -> Plan:
    """Create a Plan from an explicit ``assignment`` of nodes, by name, to engine specs.

    Without ``groups``, nodes are clustered into as few regions as possible, like in `partition`. ``groups`` maps node names to
    region numbers instead. To reproduce a Plan, pass the results of `map_nodes_to_engines` and `map_nodes_to_regions`.
    ``implicit``, ``device`` and ``capability`` have the same meaning as in `partition`.

    Raises PlanError if a node has no engine, its engine is not listed or does not support it, or if groups form a cycle or mix
    engines or devices; OptionError for an invalid list of engines.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    check_engines([spec for _, spec in names], implicit)
    with pause_gc(len(function.nodes)):
        device_map = DeviceMap.from_device(device)
        choices = EligibleEngines.of(function, engines, (), (), device_map, capability)
        engine_of = _index_engines(function, choices, assignment)
        devices = NodeDevices.query(function, engines, device_map).devices
        if groups is None:
            clusters = cluster(function, [(engine,) for engine in engine_of], ClusteringOptions(), devices).clusters
        else:
            clusters = _make_clusters(function, engine_of, groups, devices(engine_of))
        folded = fold(function, clusters, names)
        reasons = tuple(_explain(function, choices, engine_of, lambda node, engine: MEASURED_REASON))
        return Plan(folded, choices.engines, reasons, ClusteringOptions(), implicit, normalize_device(device_map.device))


def map_nodes_to_engines(plan: Plan) -> dict[str, str]:
    """Map each node of the model to the spec of its engine."""
    return {name: launch.engine for launch in plan.launches for name in launch.nodes}


def map_nodes_to_regions(plan: Plan) -> dict[str, int]:
    """Map each node of the model to the index of its region in execution order."""
    return {name: index for index, launch in enumerate(plan.launches) for name in launch.nodes}


# ------------------------------------------------------------------ assigned engines


def _index_engines(function: Function, choices: EligibleEngines, assignment: Mapping[str, str]) -> list[int]:
    """Convert an assignment to an engine index per node; PlanError if a node's engine is missing or does not support it."""
    index_of = {spec: index for index, spec in enumerate(choices.engines)}
    indices = []
    for node_index, node in enumerate(function.nodes):
        spec = assignment.get(node.name)
        if spec is None:
            raise PlanError(
                f"node {node.name!r} ({node.op}) has no engine; assign one to each of the {len(function.nodes)} nodes"
            )
        if spec not in index_of:
            listed = ", ".join(choices.engines)
            hint = did_you_mean(spec, choices.engines)
            raise PlanError(f"node {node.name!r} is assigned to {spec!r}, which is not in the list of engines: {listed}.{hint}")
        if (reason := choices.reason(node_index, index_of[spec])) is not None:
            raise PlanError(f"node {node.name!r} ({node.op}) is assigned to {spec!r}, which does not support it: {reason}")
        indices.append(index_of[spec])
    return indices


# ------------------------------------------------------------------ regions


def _make_clusters(
    function: Function, engine_of: Sequence[int], groups: Mapping[str, int], devices: Sequence[str]
) -> tuple[Cluster, ...]:
    """Convert groups to clusters; raises PlanError if a group mixes engines or devices, or if groups form a cycle."""
    members: dict[int, list[int]] = {}
    for index, node in enumerate(function.nodes):
        if node.name not in groups:
            raise PlanError(f"node {node.name!r} ({node.op}) is in no group; assign every node to a group, or omit groups")
        members.setdefault(groups[node.name], []).append(index)
    clusters = []
    for _, nodes in sorted(members.items()):
        engines, group_devices = {engine_of[index] for index in nodes}, {devices[index] for index in nodes} - {""}
        if len(engines) > 1 or len(group_devices) > 1:
            names = ", ".join(repr(function.nodes[index].name) for index in nodes[:6])
            raise PlanError(f"nodes {names} are in one group but differ in engine or device")
        clusters.append(Cluster(tuple(nodes), engines.pop(), max(group_devices, default="")))
    cluster_of = {index: cluster_index for cluster_index, group in enumerate(clusters) for index in group.nodes}
    needed_clusters: dict[int, set[int]] = {cluster_index: set() for cluster_index in range(len(clusters))}
    for index, needed in enumerate(DependencyGraph.of(function).predecessors):
        needed_clusters[cluster_of[index]].update(
            cluster_of[earlier] for earlier in needed if cluster_of[earlier] != cluster_of[index]
        )
    try:
        TopologicalSorter(needed_clusters).prepare()
    except CycleError as error:
        count = len(error.args[1]) - 1  # the first group of the cycle is listed at its end too
        raise PlanError(f"{count} groups depend on each other in a cycle; split one of them") from error
    return tuple(clusters)
