"""Who must run before whom, as integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["DependencyGraph"]


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
