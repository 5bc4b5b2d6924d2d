"""Partitioning: from a Function to a Plan, by priority of the engines or from an explicit assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import FrozenDict, Function, TensorType
from xrt.graph.device_names import normalize_device
from xrt.graph.function import pause_gc
from xrt.graph.schemas import latest_version
from xrt.partition.clustering import Cluster, DependencyGraph, NodeDevices, cluster
from xrt.partition.fold import fold
from xrt.partition.options import ClusteringOptions
from xrt.partition.plan import Plan, Reason
from xrt.partition.support_matrix import DeviceMap, SupportMatrix

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node
    from xrt.partition.options import Pin

Refused: TypeAlias = tuple[str, str, str]
"""(Name of a node, spec of an engine that refused to compile the node, reason)."""
Exclusions: TypeAlias = dict[tuple[int, int], str]
"""(Node index, engine index) to the reason why the node must not run on the engine, even if the engine supports it."""
MAX_LISTED_NODES = 20  # in an error text


@dataclass(frozen=True, slots=True)
class EligibleEngines:
    """The engines that may run each node, and the reasons why other engines may not."""

    engines: tuple[str, ...]
    """Specs, by priority."""
    capability: SupportMatrix
    exclusions: Mapping[tuple[int, int], str]
    """See `Exclusions`: because of refusals, pins, or state that the engine would copy."""
    updating_engines: Mapping[tuple[int, int], str] = FrozenDict()
    """For exclusions because of state: (node index, engine index) to the spec of the engine that updates the state in place."""

    @classmethod
    def of(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        pins: Sequence[Pin],
        refused: Sequence[Refused],
        device_map: DeviceMap,
        capability: SupportMatrix | None = None,
    ) -> EligibleEngines:
        """Combine support of nodes, refusals and pins. The engines are queried if ``capability`` is None.

        Raises OptionError for a refusal of an unlisted engine or unknown node, and PlanError for a pin that matches no node.
        """
        specs = tuple(engine.spec for engine in engines)
        exclusions = _list_pin_exclusions(function, [(engine.name, engine.spec) for engine in engines], pins)
        exclusions.update(_list_refusal_exclusions(function, specs, refused))
        return cls(specs, capability or SupportMatrix.of(function, engines, device_map), exclusions)

    def candidates(self) -> list[tuple[int, ...]]:
        """List for each node the indices of the engines that may run it, by priority."""
        candidates = list(self.capability.supporting_engines)
        for node, excluded_engine in self.exclusions:
            candidates[node] = tuple(engine for engine in candidates[node] if engine != excluded_engine)
        return candidates

    def reason(self, node: int, engine: int) -> str | None:
        """Explain why the node may not run on the engine, or return None if it may."""
        return self.exclusions.get((node, engine)) or self.capability.reason(node, engine)

    def format_reasons(self, node: int) -> str:
        """Format the reasons of all engines in one line, for a node that no engine may run."""
        return "; ".join(f"{spec}: {self.reason(node, engine)}" for engine, spec in enumerate(self.engines))


def check_all_supported(
    function: Function, choices: EligibleEngines, candidates: Sequence[tuple[int, ...]], pins: Sequence[Pin], strict: bool
) -> None:
    """Raise PlanError if nodes have no candidate; the error lists the nodes with the reason of each engine."""
    unsupported = [index for index, engines in enumerate(candidates) if not engines]
    if not unsupported:
        return
    nodes = [function.nodes[index] for index in unsupported]
    count = f"{len(nodes)} of {len(function.nodes)} {'node' if len(function.nodes) == 1 else 'nodes'}"
    broken_pins = [pin for pin in pins if any(pin.matches(pin.get_subject(node)) for node in nodes)]
    if broken_pins:
        message = f"{', '.join(repr(str(pin)) for pin in broken_pins)} cannot be satisfied: no engine is left for {count}"
        advice = "change the pin, or list an engine that takes them"
    else:
        message = f"no engine of the list ({', '.join(choices.engines)}) takes {count}"
        advice = "list an engine that takes them"
        # The reference engine supports only domains that onnx describes.
        if strict and any(latest_version(node.domain) for node in nodes):
            advice += ", or leave out strict=True so that the reference engine may"
    listed = list(zip(unsupported, nodes, strict=True))[:MAX_LISTED_NODES]
    lines = [f"\n  {node.name!r} ({node.op}): {choices.format_reasons(index)}" for index, node in listed]
    more = f"\n  and {len(nodes) - MAX_LISTED_NODES} more" if len(nodes) > MAX_LISTED_NODES else ""
    unsupported_names = () if broken_pins else tuple(node.name for node in nodes)
    raise PlanError(f"{message}; {advice}:{''.join(lines)}{more}", unsupported_names)


def _list_refusal_exclusions(function: Function, specs: Sequence[str], refused: Sequence[Refused]) -> Exclusions:
    if not refused:
        return {}
    index_of = {node.name: index for index, node in enumerate(function.nodes)}
    exclusions: Exclusions = {}
    for node, engine, reason in refused:
        if engine not in specs:
            hint = did_you_mean(engine, specs)
            raise OptionError(f"a refusal names engine {engine!r}, which is not in the list: {', '.join(specs)}.{hint}")
        if node not in index_of:
            hint = did_you_mean(node, index_of)
            raise OptionError(f"a refusal names node {node!r}, which is not in function {function.name!r}.{hint}")
        exclusions[index_of[node], specs.index(engine)] = reason
    return exclusions


def _list_pin_exclusions(function: Function, engines: Sequence[tuple[str, str]], pins: Sequence[Pin]) -> Exclusions:
    """List the exclusions that follow from pins; ``engines`` are (name, spec) pairs."""
    exclusions: Exclusions = {}
    for node, pin in _match_pins(function, pins):
        reason = f"{'kept from' if pin.forbid else 'pinned to'} {pin.engine} by {str(pin)!r}"
        for engine, (name, spec) in enumerate(engines):
            # A forbidding pin excludes its engine, a forcing pin all others.
            if pin.covers_engine(name, spec) is pin.forbid:
                exclusions.setdefault((node, engine), reason)
    return exclusions


def _match_pins(function: Function, pins: Sequence[Pin]) -> Iterator[tuple[int, Pin]]:
    """Yield (node index, pin) pairs: for each node all forbidding pins that match it, and the last forcing pin.

    Raises PlanError for a pin that matches no node.
    """
    # `Pin.by` to operators or names to node indices.
    indices: dict[str, dict[str, list[int]]] = {}
    forced: dict[int, Pin] = {}
    for pin in pins:
        if pin.by not in indices:
            indices[pin.by] = _group_by_subject(function, pin)
        by_subject = indices[pin.by]
        subjects = list(pin.find_matches(by_subject))
        if not subjects:
            hint = did_you_mean(pin.patterns[0], by_subject)
            raise PlanError(f"pin {str(pin)!r} matches no node of function {function.name!r}.{hint}")
        matched = [node for subject in subjects for node in by_subject[subject]]
        if pin.forbid:
            yield from ((node, pin) for node in matched)
        else:
            forced.update(dict.fromkeys(matched, pin))
    yield from forced.items()


def _group_by_subject(function: Function, pin: Pin) -> dict[str, list[int]]:
    """Map operators, or names if the pin matches by name, to node indices."""
    indices: dict[str, list[int]] = {}
    for index, node in enumerate(function.nodes):
        indices.setdefault(pin.get_subject(node), []).append(index)
    return indices


# ---------------------------------------------------------------------- updates of state

# Copying this many bytes of state per call takes longer than a separate region: 20 us at 13 GB/s.
MIN_COPIED_BYTES = 1 << 18


def place_updates(
    function: Function, engines: Sequence[GraphCompiler], choices: EligibleEngines, devices: Sequence[str]
) -> EligibleEngines:
    """Exclude engines that would copy state, if another engine of the list updates the state in place; return the new choices.

    A state is an input that has an alias. Its update is the node that computes the output of the alias. A node whose results only
    updates read belongs to the update too, if the engine may write the result over an input or the result has one element. The
    updates move to the first engine on the same device that supports them and declares in-place updates
    (`GraphCompiler.list_mutable_inputs`). Nothing changes if fewer than `MIN_COPIED_BYTES` would be copied. ``devices`` has the
    device of each engine. Linear in nodes and edges.
    """
    search = _UpdateSearch(function, tuple(engines), choices.candidates(), tuple(devices))
    copied = {result: size for result, size in search.list_copied_outputs() if size is not None}
    nbytes = sum(copied.values())
    if nbytes < MIN_COPIED_BYTES:
        return choices
    # Nodes are on the first engine already if it supports them, so only a later engine can avoid a copy.
    for target in range(1, len(engines)):
        update_nodes = search.find_update_nodes(copied, target)
        if sum(size for result, size in copied.items() if function.producer_index(result) in update_nodes) >= MIN_COPIED_BYTES:
            exclusions = search.explain_exclusions(update_nodes, target, nbytes)
            updating = dict.fromkeys(exclusions, engines[target].spec)
            return replace(choices, exclusions={**choices.exclusions, **exclusions}, updating_engines=updating)
    return choices


@dataclass(frozen=True, slots=True)
class _UpdateSearch:
    """Finds the nodes that update state, and the aliases whose state would be copied. See `place_updates`."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    candidates: Sequence[tuple[int, ...]]
    """For each node, the indices of the engines that may run it, by priority."""
    devices: tuple[str, ...]

    def list_copied_outputs(self) -> Iterator[tuple[str, int | None]]:
        """Yield (output, bytes or None) for each alias whose update would not be in place on the first candidate engine."""
        for _, result in self.function.aliases:
            index = self.function.producer_index(result)
            type_ = self.function.get_type(result)
            if index is not None and isinstance(type_, TensorType) and self.candidates[index]:
                if not self._is_mutable(self.function.nodes[index], self.candidates[index][0]):
                    yield result, type_.nbytes

    def find_update_nodes(self, copied: dict[str, int], target: int) -> set[int]:
        """Find the indices of the nodes to move to engine ``target``. ``copied`` has the outputs of `list_copied_outputs`.

        A node moves if it computes a copied output, or if only nodes that move read its results. The target must support it on
        the same device, and be able to write its result over an input, unless the result has one element.
        """
        function = self.function
        index_of = {node.name: index for index, node in enumerate(function.nodes)}
        outputs = {value.name for value in function.outputs} - copied.keys()
        update_nodes: set[int] = set()
        # From the last node to the first: all users of a node in an update must belong to updates.
        for index in reversed(range(len(function.nodes))):
            node, candidates = function.nodes[index], self.candidates[index]
            if target not in candidates or node.control or self.devices[target] != self.devices[candidates[0]]:
                continue
            users = {index_of[use.node.name] for name in node.outputs for use in function.users(name)}
            is_used = bool(users) or not copied.keys().isdisjoint(node.outputs)
            is_used_elsewhere = not users <= update_nodes or not outputs.isdisjoint(node.outputs)
            if not is_used or is_used_elsewhere:
                continue
            if self._is_mutable(node, target) or all(self._is_scalar(name) for name in node.outputs):
                update_nodes.add(index)
        return update_nodes

    def explain_exclusions(self, update_nodes: set[int], target: int, nbytes: int) -> dict[tuple[int, int], str]:
        """Map (node index, engine index) to the reason why an update node is not on an engine before ``target``."""
        updating_spec = self.engines[target].spec
        exclusions = {}
        for node_index in update_nodes:
            for engine in self.candidates[node_index]:
                if engine < target:
                    text = f"it updates state, of which engine {self.engines[engine].spec!r} would copy {nbytes:,} bytes per call"
                    exclusions[node_index, engine] = f"{text}; engine {updating_spec!r} updates it in place"
        return exclusions

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
    device_map: DeviceMap = DeviceMap(),
    capability: SupportMatrix | None = None,
) -> Plan:
    """Partition a Function: a node runs on the first engine that supports it and that no pin, refusal or `minimum_nodes` forbids.

    ``engines`` are in order of priority. ``implicit`` is the spec of the engine that was added although the user did not list it;
    the Plan records it. ``strict`` says that the user does not want such an engine, which changes an error text. ``refused`` are
    (node, engine spec, reason) triples of nodes that engines refused to compile in an earlier Plan. ``device_map`` has
    the devices of nodes that require none; no device is accessed. ``capability`` is the support of nodes, if the engines were
    queried already.

    Raises OptionError for an engine that is listed twice, and for an unlisted engine in a pin, ``implicit`` or ``refused``.
    Raises PlanError if a pin cannot be satisfied or no engine supports a node. Linear in nodes and edges.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    specs = [spec for _, spec in names]
    check_engines(specs, implicit)
    _check_pins(options.pins, names)
    with pause_gc(len(function.nodes)):
        choices = EligibleEngines.of(function, engines, options.pins, refused, device_map, capability)
        if function.aliases and len(engines) > 1:
            choices = place_updates(function, engines, choices, list(map(device_map.get_device, specs)))
        candidates = choices.candidates()
        check_all_supported(function, choices, candidates, options.pins, strict)
        clustering = cluster(function, candidates, options, NodeDevices.query(function, engines, device_map))
        engine_of = clustering.list_engines()
        folded = fold(function, clustering.clusters, names)

        def explain_dissolved(node: int, engine: int) -> str:
            size = clustering.dissolved[node, engine]
            count = "1 node" if size == 1 else f"{size} nodes"
            return f"its cluster of {count} is smaller than minimum_nodes={options.minimum_nodes}"

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
        hint = did_you_mean(implicit, specs)
        raise OptionError(f"implicit={implicit!r} is not in the list of engines: {', '.join(specs)}.{hint}")


def _check_pins(pins: Sequence[Pin], engines: Sequence[tuple[str, str]]) -> None:
    """Raise OptionError for a pin to an engine that is not among the (name, spec) pairs."""
    names = {name for pair in engines for name in pair}
    for pin in pins:
        if pin.engine not in names:
            hint = did_you_mean(pin.engine, sorted(names))
            listed = ", ".join(sorted(names))
            raise OptionError(f"pin {str(pin)!r} names engine {pin.engine!r}, which is not in the list: {listed}.{hint}")


def _explain(
    function: Function, choices: EligibleEngines, engine_of: Sequence[int], explain_eligible: Callable[[int, int], str]
) -> Iterator[Reason]:
    """Yield for each node and each engine with higher priority than the node's engine why the node is not on that engine.

    ``engine_of`` has the engine index of each node. ``explain_eligible(node index, engine index)`` explains why a node is not on
    an engine that may run it: its cluster was too small, or a measurement chose another engine.
    """
    for index, (node, engine) in enumerate(zip(function.nodes, engine_of, strict=True)):
        for other in range(engine):
            text = choices.reason(index, other) or explain_eligible(index, other)
            yield Reason(node.name, node.op, choices.engines[other], text, choices.updating_engines.get((index, other), ""))


MEASURED_REASON = "placed by measurement"
"""Why a node is not on an engine of higher priority that supports it: a measurement chose another engine."""


def plan_from_assignment(
    function: Function,
    engines: Sequence[GraphCompiler],
    assignment: Mapping[str, str],
    *,
    groups: Mapping[str, int] | None = None,
    implicit: str | None = None,
    device_map: DeviceMap = DeviceMap(),
    capability: SupportMatrix | None = None,
) -> Plan:
    """Create a Plan from an explicit ``assignment`` of node names to engine specs.

    Without ``groups``, nodes are clustered into few regions, as in `partition`. Otherwise ``groups`` maps node names to region
    numbers. To reproduce a Plan, pass the results of `map_nodes_to_engines` and `map_nodes_to_regions`. ``implicit``,
    ``device_map`` and ``capability`` have the same meaning as in `partition`.

    Raises OptionError for an invalid list of engines. Raises PlanError if a node has no engine, if its engine is not listed or
    does not support it, or if groups form a cycle or mix engines or devices.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    check_engines([spec for _, spec in names], implicit)
    with pause_gc(len(function.nodes)):
        choices = EligibleEngines.of(function, engines, (), (), device_map, capability)
        engine_of = _index_engines(function, choices, assignment)
        node_devices = NodeDevices.query(function, engines, device_map)
        if groups is None:
            candidates = [(engine,) for engine in engine_of]
            clusters = cluster(function, candidates, ClusteringOptions(), node_devices).clusters
        else:
            clusters = _make_clusters(function, engine_of, groups, node_devices.list_devices(engine_of))
        folded = fold(function, clusters, names)
        reasons = tuple(_explain(function, choices, engine_of, lambda node, engine: MEASURED_REASON))
        return Plan(folded, choices.engines, reasons, ClusteringOptions(), implicit, normalize_device(device_map.device))


def map_nodes_to_engines(plan: Plan) -> dict[str, str]:
    """Map each node of the model to the spec of its engine."""
    return {name: launch.engine for launch in plan.launches for name in launch.nodes}


def map_nodes_to_regions(plan: Plan) -> dict[str, int]:
    """Map each node of the model to the index of its region in execution order."""
    return {name: index for index, launch in enumerate(plan.launches) for name in launch.nodes}


def _index_engines(function: Function, choices: EligibleEngines, assignment: Mapping[str, str]) -> list[int]:
    """Convert an assignment to an engine index per node. Raises PlanError if an engine is missing or does not support a node."""
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
        engines = {engine_of[index] for index in nodes}
        group_devices = {devices[index] for index in nodes} - {""}
        if len(engines) > 1 or len(group_devices) > 1:
            names = ", ".join(repr(function.nodes[index].name) for index in nodes[:6])
            raise PlanError(f"nodes {names} are in one group but differ in engine or device")
        clusters.append(Cluster(tuple(nodes), engines.pop(), max(group_devices, default="")))
    cluster_of = {index: cluster_index for cluster_index, group in enumerate(clusters) for index in group.nodes}
    predecessors: dict[int, set[int]] = {cluster_index: set() for cluster_index in range(len(clusters))}
    for index, needed_nodes in enumerate(DependencyGraph.of(function).predecessors):
        cluster_index = cluster_of[index]
        predecessors[cluster_index].update({cluster_of[needed] for needed in needed_nodes} - {cluster_index})
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        count = len(error.args[1]) - 1  # the list of the cycle begins and ends with the same group
        raise PlanError(f"{count} groups depend on each other in a cycle; split one of them") from error
    return tuple(clusters)
