"""Grouping that delays nothing."""

from __future__ import annotations

from xrt.partition.units import Units

__all__ = ["prompt_groups"]


def prompt_groups(units: Units) -> list[int]:
    """Return for each unit its group, such that no group waits for more than each of its first units waits for.

    A unit joins the group that it waits for last, when that one waits for all the others that the unit waits for; or
    else a group of its kind that waits for exactly the same groups. Both leave what the group waits for as it is, so no
    merge delays a start or closes a cycle (a path out of the group and back would have to enter through something that
    the group itself waits for), and one pass in topological order finds all of them. No edge leads to a lower group.
    Linear.
    """
    joins = [units.kinds.accepted(k) for k in range(len(units.kinds.pairs))]
    group: list[int] = []
    kind: list[int] = []
    waits: list[frozenset[int]] = []
    alike: dict[tuple[int, frozenset[int]], int] = {}
    for own, before in zip(units.kind, units.graph.predecessors, strict=True):
        needed = frozenset([group[unit] for unit in before])
        if needed:
            last = max(needed)
            if own in joins[kind[last]] and (len(needed) == 1 or needed - {last} <= waits[last]):
                group.append(last)
                continue
        mine = alike.setdefault((own, needed), len(waits))
        if mine == len(waits):
            kind.append(own)
            waits.append(needed)
        group.append(mine)
    return group
