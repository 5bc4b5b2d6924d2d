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
LEAST_COPIED = 1 << 18


def place_updates(
    function: Function, engines: Sequence[GraphCompiler], choices: EligibleEngines, devices: Sequence[str]
) -> EligibleEngines:
    """Exclude choices that would copy state which another engine of the list updates in place.

    A state is an alias. Its update consists of the node that writes the output and, before it, all nodes that only updates read:
    those whose result an engine may write over an input, and those of one element. They are assigned together to the first engine
    on the same device that supports them and declares in-place updates (`GraphCompiler.list_mutable_inputs`). Nothing changes if
    the engines would copy less than `LEAST_COPIED` bytes. Linear in nodes and edges.
    """
    search = _UpdateSearch(function, tuple(engines), choices.candidates(), tuple(devices))
    copied = {result: size for result, size in search.list_copied() if size is not None}
    nbytes = sum(copied.values())
    if nbytes < LEAST_COPIED:
        return choices
    # Nodes are already on the first engine if it supports them, so only later engines can avoid a copy.
    for target in range(1, len(engines)):
        part = search.find_part(copied, target)
        if sum(size for result, size in copied.items() if function.position(result) in part) >= LEAST_COPIED:
            exclusions = search.make_exclusions(part, target, nbytes)
            updating = dict.fromkeys(exclusions, engines[target].spec)
            return replace(choices, exclusions={**choices.exclusions, **exclusions}, updating_engines=updating)
    return choices


@dataclass(frozen=True, slots=True)
class _UpdateSearch:
    """Finds the nodes that update state, and the engines that would copy it."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    candidates: Sequence[tuple[int, ...]]
    devices: tuple[str, ...]

    def list_copied(self) -> Iterator[tuple[str, int | None]]:
        """Yield the outputs of aliases that the first engine of their node would copy, with their bytes."""
        for _, result in self.function.aliases:
            place, type_ = self.function.position(result), self.function.get_type(result)
            if place is not None and isinstance(type_, TensorType) and self.candidates[place]:
                if not self._is_mutable(self.function.nodes[place], self.candidates[place][0]):
                    yield result, type_.nbytes

    def find_part(self, copied: dict[str, int], target: int) -> set[int]:
        """Positions of the nodes to assign to the engine."""
        function = self.function
        index = {node.name: number for number, node in enumerate(function.nodes)}
        outputs = {value.name for value in function.outputs} - copied.keys()
        part: set[int] = set()
        # Readers first: a node can join only if all its users have.
        for number in reversed(range(len(function.nodes))):
            node = function.nodes[number]
            if target not in self.candidates[number] or node.control or self.devices[target] != self.devices[self._first(number)]:
                continue
            users = {index[use.node.name] for name in node.outputs for use in function.users(name)}
            is_update = not copied.keys().isdisjoint(node.outputs) or bool(users)
            if not is_update or not users <= part or not outputs.isdisjoint(node.outputs):
                continue
            if self._is_mutable(node, target) or all(self._is_scalar(name) for name in node.outputs):
                part.add(number)
        return part

    def make_exclusions(self, part: set[int], target: int, nbytes: int) -> dict[tuple[int, int], str]:
        """The reasons why the nodes of the part are not on the engines before the target."""
        spec = self.engines[target].spec
        exclusions = {}
        for number in part:
            for engine in self.candidates[number]:
                if engine < target:
                    text = f"it updates state, of which engine {self.engines[engine].spec!r} would copy {nbytes:,} bytes per call"
                    exclusions[number, engine] = f"{text}; engine {spec!r} updates it in place"
        return exclusions

    def _first(self, number: int) -> int:
        return self.candidates[number][0]

    def _is_mutable(self, node: Node, engine: int) -> bool:
        """Whether the engine may write the result over an input of the same type."""
        function = self.function
        type_ = function.get_type(node.outputs[0]) if node.outputs else None
        places = self.engines[engine].list_mutable_inputs(node, function)
        return type_ is not None and any(function.get_type(node.inputs[place]) == type_ for place in places)

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
    """Partition a Function: each node on the first engine that supports it, unless a pin, refusal or `minimum_nodes` forbids it.

    ``engines`` are ordered by priority. ``implicit`` is the spec of the one that the user did not list, recorded in the Plan;
    ``strict`` means that there is none. ``refused`` are (node, engine spec, reason) triples: nodes that engines refused at
    compile after an earlier Plan. ``device`` is the default device of nodes, or a DeviceMap with devices of
    single engines. No device is accessed. ``capability`` contains the engines' answers if already known.

    Raises OptionError for an engine listed twice, or for an unlisted one in a pin, ``implicit`` or ``refused``; PlanError if a
    pin cannot be satisfied or no engine supports a node. Linear in nodes and edges.
    """
    names, specs = [(engine.name, engine.spec) for engine in engines], [engine.spec for engine in engines]
    check_engines(specs, implicit)
    options.check_pins(names)
    with pause_gc(len(function.nodes)):
        homes = DeviceMap.at(device)
        choices = EligibleEngines.of(function, engines, options.pins, refused, homes, capability)
        if function.aliases and len(engines) > 1:
            choices = place_updates(function, engines, choices, list(map(homes.of, specs)))
        candidates = choices.candidates()
        check_all_supported(function, choices, candidates, options.pins, strict)
        clustering = cluster(function, candidates, options, NodeDevices.of(function, engines, homes).devices)
        numbers = clustering.engines()
        folded = fold(function, clustering.clusters, names)

        def why_dissolved(node: int, engine: int) -> str:
            size = clustering.dissolved[node, engine]
            return f"its cluster of {size} node{'s' * (size != 1)} is smaller than minimum_nodes={options.minimum_nodes}"

        reasons = tuple(_explain(function, choices, numbers, why_dissolved))
        return Plan(folded, choices.engines, reasons, options, implicit, normalize_device(homes.device))


def check_engines(specs: Sequence[str], implicit: str | None) -> None:
    """Raise OptionError for a list of engines that is empty, has one twice or lacks the implicit one."""
    if not specs:
        raise OptionError("the list of engines is empty; list at least one")
    twice = next((spec for spec in specs if specs.count(spec) > 1), None)
    if twice is not None:
        raise OptionError(f"engine {twice!r} stands twice in the list {', '.join(specs)}; list each once")
    if implicit is not None and implicit not in specs:
        raise OptionError(
            f"implicit={implicit!r} is not in the list of engines: {', '.join(specs)}.{did_you_mean(implicit, specs)}"
        )


def _explain(
    function: Function, choices: EligibleEngines, home: Sequence[int], explain_eligible: Callable[[int, int], str]
) -> Iterator[Reason]:
    """Yield for each node, in order, why it is not on each engine before its own.

    ``explain_eligible`` returns the reason if the node may run on that engine: a cluster that was too small, or a measurement.
    """
    for number, (node, engine) in enumerate(zip(function.nodes, home, strict=True)):
        for earlier in range(engine):
            text = choices.reason(number, earlier) or explain_eligible(number, earlier)
            yield Reason(node.name, node.op, choices.engines[earlier], text, choices.updating_engines.get((number, earlier), ""))


MEASURED_REASON = "placed by measurement"
"""The reason for a node that an earlier engine of the list supports."""


def plan_from_assignment(
    function: Function,
    engines: Sequence[GraphCompiler],
    homes: Mapping[str, str],
    *,
    groups: Mapping[str, int] | None = None,
    implicit: str | None = None,
    device: str | DeviceMap = "cpu",
    capability: SupportMatrix | None = None,
) -> Plan:
    """Create a Plan from an explicit assignment ``homes``: node name to engine spec.

    Regions are clustered as in `partition`, as few as possible. With ``groups`` (node name to number), nodes with the same number
    form a region instead, so `map_nodes_to_engines` and `map_nodes_to_regions` of a Plan reproduce it. ``implicit`` and
    ``capability`` are as in `partition`; ``device`` is a device or a DeviceMap.

    Raises PlanError if a node has no engine, its engine is not listed or does not support it, or if groups form a cycle or mix
    engines or devices; OptionError for an invalid list of engines.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    check_engines([spec for _, spec in names], implicit)
    with pause_gc(len(function.nodes)):
        places = DeviceMap.at(device)
        choices = EligibleEngines.of(function, engines, (), (), places, capability)
        home = _number_engines(function, choices, homes)
        devices = NodeDevices.of(function, engines, places).devices
        if groups is None:
            clusters = cluster(function, [(engine,) for engine in home], ClusteringOptions(), devices).clusters
        else:
            clusters = _make_clusters(function, home, groups, devices(home))
        folded = fold(function, clusters, names)
        reasons = tuple(_explain(function, choices, home, lambda node, engine: MEASURED_REASON))
        return Plan(folded, choices.engines, reasons, ClusteringOptions(), implicit, normalize_device(places.device))


def map_nodes_to_engines(plan: Plan) -> dict[str, str]:
    """Map each node of the model to the spec of its engine."""
    return {name: launch.engine for launch in plan.launches for name in launch.nodes}


def map_nodes_to_regions(plan: Plan) -> dict[str, int]:
    """Map each node of the model to the index of its region in execution order."""
    return {name: number for number, launch in enumerate(plan.launches) for name in launch.nodes}


# ------------------------------------------------------------------ assigned engines


def _number_engines(function: Function, choices: EligibleEngines, homes: Mapping[str, str]) -> list[int]:
    """The index of each node's engine; raises PlanError for a node without an engine that is listed and supports it."""
    numbers = {spec: number for number, spec in enumerate(choices.engines)}
    indices = []
    for place, node in enumerate(function.nodes):
        spec = homes.get(node.name)
        if spec is None:
            raise PlanError(
                f"node {node.name!r} ({node.op}) has no home; name an engine for each of the {len(function.nodes)} nodes"
            )
        if spec not in numbers:
            listed = ", ".join(choices.engines)
            hint = did_you_mean(spec, choices.engines)
            raise PlanError(f"node {node.name!r} is assigned to {spec!r}, which is not in the list of engines: {listed}.{hint}")
        if (reason := choices.reason(place, numbers[spec])) is not None:
            raise PlanError(f"node {node.name!r} ({node.op}) is assigned to {spec!r}, which does not take it: {reason}")
        indices.append(numbers[spec])
    return indices


# ------------------------------------------------------------------ regions


def _make_clusters(
    function: Function, home: Sequence[int], groups: Mapping[str, int], devices: Sequence[str]
) -> tuple[Cluster, ...]:
    """Convert groups to clusters; raises PlanError if they mix engines or devices, or wait for each other."""
    members: dict[int, list[int]] = {}
    for place, node in enumerate(function.nodes):
        if node.name not in groups:
            raise PlanError(f"node {node.name!r} ({node.op}) is in no group; give each node a group, or leave groups out")
        members.setdefault(groups[node.name], []).append(place)
    clusters = []
    for _, nodes in sorted(members.items()):
        engines, where = {home[place] for place in nodes}, {devices[place] for place in nodes} - {""}
        if len(engines) > 1 or len(where) > 1:
            shown = ", ".join(repr(function.nodes[place].name) for place in nodes[:6])
            raise PlanError(f"nodes {shown} are one group, but not of one engine and one device; a region is")
        clusters.append(Cluster(tuple(nodes), engines.pop(), max(where, default="")))
    owner = {place: number for number, group in enumerate(clusters) for place in group.nodes}
    before: dict[int, set[int]] = {number: set() for number in range(len(clusters))}
    for place, needed in enumerate(DependencyGraph.of(function).predecessors):
        before[owner[place]].update(owner[earlier] for earlier in needed if owner[earlier] != owner[place])
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        count = len(error.args[1]) - 1  # the first group of the cycle is listed at its end too
        raise PlanError(f"{count} groups wait for each other in a cycle; cut one of them where another stands between") from error
    return tuple(clusters)
