"""Build a Plan from an explicit node-to-engine assignment, instead of from the order of the list of engines."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from xrt.errors import PlanError, did_you_mean
from xrt.graph.device_names import normalize_device
from xrt.graph.gc_pause import pause_gc
from xrt.partition.clustering.cluster import Cluster, Devices, cluster
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.device_map import DeviceMap, NodeDevices
from xrt.partition.eligible_engines import EligibleEngines
from xrt.partition.fold import fold
from xrt.partition.options import ClusteringOptions
from xrt.partition.partitioner import check_engines
from xrt.partition.plan import Plan, Reason

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.support_matrix import SupportMatrix

__all__ = ["MEASURED_REASON", "map_nodes_to_engines", "map_nodes_to_regions", "plan_from_assignment"]

MEASURED_REASON = "placed by measurement"
"""The reason for a node that an earlier engine of the list would have taken."""


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
    """Return the Plan with each node on the engine that ``homes`` gives it: node name to spec.

    Regions come of the same clustering as `partition`'s, the fewest there can be. With ``groups`` (node name to number)
    they are the nodes of equal number instead, so that `map_nodes_to_engines` and `map_nodes_to_regions` of a Plan give that Plan
    back.
    ``implicit``, ``device`` and ``capability`` are as for `partition`, and Homes its ``device`` and ``devices``.

    Raises PlanError where a node has no home, its engine is not in the list or does not take it, or where groups hang
    together in a cycle or mix engines or devices; OptionError for an impossible list of engines.
    """
    names = [(engine.name, engine.spec) for engine in engines]
    check_engines([spec for _, spec in names], implicit)
    with pause_gc(len(function.nodes)):
        places = DeviceMap.at(device)
        choices = EligibleEngines.of(function, engines, (), (), [places.of(spec) for _, spec in names], capability)
        home = _numbered(function, choices, homes)
        devices = NodeDevices.of(function, engines, places).devices
        clusters = _clustered(function, home, devices) if groups is None else _grouped(function, home, groups, devices(home))
        folded = fold(function, clusters, names)
        reasons = tuple(_reasons(function, choices, home))
        return Plan(folded, choices.engines, reasons, ClusteringOptions(), implicit, normalize_device(places.device))


def map_nodes_to_engines(plan: Plan) -> dict[str, str]:
    """Return for each node of the model the spec of the engine that has it."""
    return {name: launch.engine for launch in plan.launches for name in launch.nodes}


def map_nodes_to_regions(plan: Plan) -> dict[str, int]:
    """Return for each node of the model the number of its region, in the order in which regions run."""
    return {name: number for number, launch in enumerate(plan.launches) for name in launch.nodes}


# ------------------------------------------------------------------ homes


def _numbered(function: Function, choices: EligibleEngines, homes: Mapping[str, str]) -> list[int]:
    """Return for each node the position of its engine."""
    numbers = {spec: number for number, spec in enumerate(choices.engines)}
    found = []
    for place, node in enumerate(function.nodes):
        spec = homes.get(node.name)
        if spec is None:
            raise PlanError(
                f"node {node.name!r} ({node.op}) has no home; name an engine for each of the {len(function.nodes)} nodes"
            )
        if spec not in numbers:
            known = ", ".join(choices.engines)
            near = did_you_mean(spec, choices.engines)
            raise PlanError(f"node {node.name!r} is assigned to {spec!r}, which is not in the list of engines: {known}.{near}")
        if (reason := choices.reason(place, numbers[spec])) is not None:
            raise PlanError(f"node {node.name!r} ({node.op}) is assigned to {spec!r}, which does not take it: {reason}")
        found.append(numbers[spec])
    return found


def _reasons(function: Function, choices: EligibleEngines, home: Sequence[int]) -> Iterator[Reason]:
    for place, (node, engine) in enumerate(zip(function.nodes, home, strict=True)):
        for earlier in range(engine):
            yield Reason(node.name, node.op, choices.engines[earlier], choices.reason(place, earlier) or MEASURED_REASON)


# ------------------------------------------------------------------ regions


def _clustered(function: Function, home: Sequence[int], devices: Devices) -> tuple[Cluster, ...]:
    return cluster(function, [(engine,) for engine in home], ClusteringOptions(), devices).clusters


def _grouped(function: Function, home: Sequence[int], groups: Mapping[str, int], devices: Sequence[str]) -> tuple[Cluster, ...]:
    """Return the groups as clusters, in an order in which they can run."""
    members: dict[int, list[int]] = {}
    for place, node in enumerate(function.nodes):
        if node.name not in groups:
            raise PlanError(f"node {node.name!r} ({node.op}) is in no group; give each node a group, or leave groups out")
        members.setdefault(groups[node.name], []).append(place)
    found = [_cluster(function, home, members[number], devices) for number in sorted(members)]
    return tuple(found[number] for number in _runnable(function, found))


def _cluster(function: Function, home: Sequence[int], nodes: Sequence[int], where: Sequence[str]) -> Cluster:
    engines = {home[place] for place in nodes}
    devices = {where[place] for place in nodes} - {""}
    if len(engines) > 1 or len(devices) > 1:
        shown = ", ".join(repr(function.nodes[place].name) for place in nodes[:6])
        raise PlanError(f"nodes {shown} are one group, but not of one engine and one device; a region is")
    return Cluster(tuple(nodes), engines.pop(), max(devices, default=""))


def _runnable(function: Function, clusters: Sequence[Cluster]) -> Iterator[int]:
    """Yield the clusters in an order in which each runs after all that it waits for, the first that can run first.

    Raises PlanError where there is no such order: that is the law that no plan may break.
    """
    before = _waits(function, clusters)
    after: list[list[int]] = [[] for _ in clusters]
    for number, needed in enumerate(before):
        for earlier in needed:
            after[earlier].append(number)
    waiting = [len(needed) for needed in before]
    ready = [number for number, count in enumerate(waiting) if not count]
    left = len(clusters)
    while ready:
        number = heapq.heappop(ready)
        left -= 1
        yield number
        for later in after[number]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, later)
    if left:
        raise PlanError(f"{left} groups wait for each other in a cycle; cut one of them where another stands between")


def _waits(function: Function, clusters: Sequence[Cluster]) -> list[set[int]]:
    """Return for each cluster those that it waits for."""
    own = {place: number for number, one in enumerate(clusters) for place in one.nodes}
    before: list[set[int]] = [set() for _ in clusters]
    for place, needed in enumerate(DependencyGraph.of(function).predecessors):
        before[own[place]].update(own[earlier] for earlier in needed if own[earlier] != own[place])
    return before
