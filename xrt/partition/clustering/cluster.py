"""Clustering: which nodes go to which engine together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph.device_names import normalize_device
from xrt.partition.clustering.cut_refinement import minimize_cut
from xrt.partition.clustering.scheduling import find_engine_sequence
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.quotient_graph import QuotientGraph

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.partition.options import ClusteringOptions

__all__ = ["Cluster", "Clustering", "cluster"]

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
