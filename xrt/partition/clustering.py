"""Clustering: which nodes go to which engine together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xrt.partition.dependencies import DependencyGraph
from xrt.partition.fold import Cluster
from xrt.partition.options import ClusteringOptions
from xrt.partition.pipeline import prompt_groups
from xrt.partition.schedule import batches
from xrt.partition.units import Units

__all__ = ["Clustering", "cluster"]


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters in an order in which they can run, and what became of those that were too small."""

    clusters: tuple[Cluster, ...]
    dissolved: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, engine) to the size of the cluster in which the node left the engine."""


def cluster(
    graph: DependencyGraph, open_: Sequence[tuple[int, ...]], devices: Sequence[str], options: ClusteringOptions
) -> Clustering:
    """Return the clusters, each node on the first of its open engines whose cluster is large enough.

    ``open_`` and ``devices`` say for each node which engines may take it, by priority, and where it must run.
    """
    turn = [0] * len(open_)
    dissolved: dict[tuple[int, int], int] = {}
    while True:
        engines = [choices[at] for choices, at in zip(open_, turn, strict=True)]
        found = _grouped(Units.of(graph, engines, devices), engines, devices, options)
        small = _small(found, open_, turn, options.minimum_nodes)
        if not small:
            return Clustering(tuple(found), dissolved)
        for one in small:
            for node in one.nodes:
                if turn[node] + 1 < len(open_[node]):
                    dissolved[node, one.engine] = len(one.nodes)
                    turn[node] += 1


def _small(found: Sequence[Cluster], open_: Sequence[tuple[int, ...]], turn: Sequence[int], least: int) -> list[Cluster]:
    """Return the clusters that dissolve now: those too small of the first engine that has any whose nodes can go on."""
    small = [c for c in found if len(c.nodes) < least and any(turn[n] + 1 < len(open_[n]) for n in c.nodes)]
    first = min((c.engine for c in small), default=None)
    return [c for c in small if c.engine == first]


def _grouped(units: Units, engines: Sequence[int], devices: Sequence[str], options: ClusteringOptions) -> list[Cluster]:
    groups = batches(units) if options.ignore_pipeline else prompt_groups(units)
    members: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for node, group in enumerate(groups):
        members[group].append(node)
    parts = [part for nodes in members for part in _parts(nodes, options.maximum_nodes)]
    return [Cluster(tuple(part), engines[part[0]], max(devices[node] for node in part)) for part in parts]


def _parts(nodes: list[int], most: int | None) -> list[list[int]]:
    """Cut nodes in topological order into as few, and as equal, parts as the limit allows.

    The parts run one after the other, so a cut closes no cycle.
    """
    count = 1 if most is None else -(-len(nodes) // most)
    return [nodes[len(nodes) * i // count : len(nodes) * (i + 1) // count] for i in range(count)]
