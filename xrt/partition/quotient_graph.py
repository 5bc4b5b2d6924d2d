"""Dependency graphs of numbered units, each with a kind that determines which units may share a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Function


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
        """The kinds that regions may have: without those that another kind of the same engine accepts."""
        # A region on a device also accepts units of the engine that require none.
        placed = {engine for engine, device in self.pairs if device}
        return tuple(k for k, (engine, device) in enumerate(self.pairs) if device or engine not in placed)

    def shareable(self) -> list[list[bool]]:
        """For each two kinds, whether their units can share a region."""
        accepted = [self.find_compatible(k) for k in range(len(self))]
        return [[any({a, b} <= own for own in accepted) for b in range(len(self))] for a in range(len(self))]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """Numbered units with dependencies and kinds: nodes at first, later groups of nodes."""

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

    def reverse(self) -> QuotientGraph:
        """Reverse all dependencies; unit ``i`` becomes ``len - 1 - i``."""
        return QuotientGraph(self.graph.reverse(), list(reversed(self.kind)), self.kinds)

    def tails(self) -> list[int]:
        """For each unit, a lower bound on the regions along any path from it, including its own. Linear."""
        apart = [[0 if share else 1 for share in row] for row in self.kinds.shareable()]
        tail = [1] * len(self)
        for unit in range(len(self) - 1, -1, -1):
            mine, cost = tail[unit], apart[self.kind[unit]]
            for earlier in self.graph.predecessors[unit]:
                through = mine + cost[self.kind[earlier]]
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

    def reverse(self) -> DependencyGraph:
        """Reverse every edge; number ``i`` becomes ``len - 1 - i``."""
        last = len(self) - 1
        return DependencyGraph([tuple(last - later for later in after) for after in reversed(self.successors())])
