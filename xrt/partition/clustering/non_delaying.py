"""Grouping that delays nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.partition.quotient_graph import QuotientGraph

__all__ = ["cluster_without_delay"]

STEPS = 32
"""Groups looked at, at most, to find that waiting for one group implies waiting for another; missing it only merges less."""


def cluster_without_delay(units: QuotientGraph) -> list[int]:
    """Return for each unit its group, such that no group waits for more than each of its first units waits for.

    A unit joins the group that it waits for when that one, directly or through others, waits for all else that the unit
    waits for; or else a group of its kind that waits for exactly the same. Both leave what the group waits for as it is,
    so no merge delays a start or closes a cycle (a path out of the group and back would have to enter through something
    that the group itself waits for), and one pass in topological order finds them. No edge leads to a lower group.
    Linear.
    """
    joins = [units.kinds.find_compatible(k) for k in range(len(units.kinds))]
    group: list[int] = []
    kind: list[int] = []
    waits: list[frozenset[int]] = []
    alike: dict[tuple[int, frozenset[int]], int] = {}
    for own, before in zip(units.kind, units.graph.predecessors, strict=True):
        needed = frozenset([group[unit] for unit in before])
        if len(needed) > 1:
            needed -= _implied(needed, waits)
        if len(needed) == 1:
            (only,) = needed
            if own in joins[kind[only]]:
                group.append(only)
                continue
        mine = alike.setdefault((own, needed), len(waits))
        if mine == len(waits):
            kind.append(own)
            waits.append(needed)
        group.append(mine)
    return group


def _implied(needed: frozenset[int], waits: Sequence[frozenset[int]]) -> set[int]:
    """Return those of the groups that others of them wait for, directly or not."""
    first = min(needed)
    found: set[int] = set()
    stack = list(needed)
    for _ in range(STEPS):
        if not stack:
            break
        fresh = {earlier for earlier in waits[stack.pop()] if earlier >= first} - found
        found |= fresh
        stack += fresh
    return found & needed
