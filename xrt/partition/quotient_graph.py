"""What is grouped: numbered units, each of a kind that says with which others it may share a region."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["DependencyGraph", "QuotientGraph", "Targets"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The distinct (engine, device) pairs of a graph, sorted; an empty device is any device."""

    pairs: tuple[tuple[int, str], ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def find_compatible(self, region: int) -> frozenset[int]:
        """Return the kinds whose units may join a region of that kind: same engine, and same device or none."""
        engine, device = self.pairs[region]
        return frozenset(k for k, pair in enumerate(self.pairs) if pair == (engine, device) or pair == (engine, ""))

    def phases(self) -> tuple[int, ...]:
        """Return the kinds that a region need be of: without those that any other of their engine accepts."""
        placed = {engine for engine, device in self.pairs if device}
        return tuple(k for k, (engine, device) in enumerate(self.pairs) if device or engine not in placed)

    def shareable(self) -> list[list[bool]]:
        """Return for each two kinds whether units of them may ever share a region."""
        accepted = [self.find_compatible(k) for k in range(len(self))]
        return [[any({a, b} <= own for own in accepted) for b in range(len(self))] for a in range(len(self))]


@dataclass(frozen=True, slots=True)
class QuotientGraph:
    """Numbered units with their dependencies and kinds: nodes at first, later groups of them."""

    graph: DependencyGraph
    kind: Sequence[int]
    """For each unit the number of its kind."""
    kinds: Targets

    @classmethod
    def of(cls, graph: DependencyGraph, engines: Sequence[int], devices: Sequence[str]) -> QuotientGraph:
        """Return one unit per node, from each node's engine and device."""
        pairs = list(zip(engines, devices, strict=True))
        kinds = Targets(tuple(sorted(set(pairs))))
        number = {pair: k for k, pair in enumerate(kinds.pairs)}
        return cls(graph, [number[pair] for pair in pairs], kinds)

    def __len__(self) -> int:
        return len(self.kind)

    def reverse(self) -> QuotientGraph:
        """Return the same with every dependency turned round; unit ``i`` becomes ``len - 1 - i``."""
        return QuotientGraph(self.graph.reverse(), list(reversed(self.kind)), self.kinds)

    def merge(self, group: Sequence[int]) -> QuotientGraph:
        """Return the groups as units; the caller guarantees that one of each group's kinds accepts all others in it.

        That kind is the greatest, because kinds are sorted and an empty device comes first.
        """
        graph = self.graph.make_quotient(group)
        kind = [0] * len(graph)
        for unit, own in enumerate(group):
            kind[own] = max(kind[own], self.kind[unit])
        return QuotientGraph(graph, kind, self.kinds)

    def tails(self) -> list[int]:
        """Return for each unit how many regions the longest way from it on needs at least, its own included. Linear."""
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
    """For each number its direct predecessors: each once, all of them lower numbers. It is acyclic by construction."""

    predecessors: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, function: Function) -> DependencyGraph:
        """Return the dependencies between a Function's nodes, numbered as they stand in it.

        Data, values captured by bodies and control edges count alike. Linear.
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
        """Return for each number its direct successors, ascending."""
        after: list[list[int]] = [[] for _ in self.predecessors]
        for number, before in enumerate(self.predecessors):
            for earlier in before:
                after[earlier].append(number)
        return after

    def reverse(self) -> DependencyGraph:
        """Return the graph with every edge turned round; number ``i`` becomes ``len - 1 - i``."""
        last = len(self) - 1
        return DependencyGraph([tuple(last - later for later in after) for after in reversed(self.successors())])

    def make_quotient(self, group: Sequence[int]) -> DependencyGraph:
        """Return the graph between groups of numbers.

        The caller guarantees that no edge leads from a higher group to a lower one, which is what makes the quotient
        acyclic; raises ValueError otherwise. Groups are numbered from 0, without gaps. Linear.
        """
        rows: list[set[int]] = [set() for _ in range(max(group, default=-1) + 1)]
        for number, before in enumerate(self.predecessors):
            rows[group[number]].update([group[earlier] for earlier in before])
        for own, row in enumerate(rows):
            row.discard(own)
            if row and max(row) > own:
                raise ValueError(f"group {own} needs the later group {max(row)}")
        return DependencyGraph([tuple(row) for row in rows])


def renumber(groups: Iterable[int]) -> list[int]:
    """Return the same groups numbered from 0 without gaps, in the same order."""
    groups = list(groups)
    rank = {group: number for number, group in enumerate(sorted(set(groups)))}
    return [rank[group] for group in groups]
