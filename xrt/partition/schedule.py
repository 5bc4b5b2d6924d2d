"""The fewest regions: a schedule that runs whole batches of one kind."""

from __future__ import annotations

from collections.abc import Sequence

from xrt.partition.dependencies import renumbered
from xrt.partition.units import Units

__all__ = ["batches"]


def batches(units: Units) -> list[int]:
    """Return for each unit its region, such that there are few regions and no edge leads to a lower one.

    Regions that hang together without a cycle have an order in which they can run; so the fewest regions are the fewest
    batches, each of one kind, in which all units can be run.
    """
    phases = units.kinds.phases()
    turns = [phases[i:] + phases[:i] for i in range(len(phases))] or [()]
    return min((_take_turns(units, turn) for turn in turns), key=lambda batch: max(batch, default=-1))


def _take_turns(units: Units, turn: Sequence[int]) -> list[int]:
    """Return each unit's batch when the phases take turns, and each takes all that it can reach."""
    wait = _waits(units, turn)
    place: list[int] = []
    for kind, before in zip(units.kind, units.graph.predecessors, strict=True):
        at = max([place[unit] for unit in before], default=0)
        place.append(at + wait[at % len(turn)][kind])
    return renumbered(place)


def _waits(units: Units, turn: Sequence[int]) -> list[list[int]]:
    """Return for each place in the turn and each kind how many places further the next phase is that accepts it."""
    accepts = [units.kinds.accepted(phase) for phase in turn]
    count = len(turn)
    return [
        [next(d for d in range(count) if kind in accepts[(at + d) % count]) for kind in range(len(units.kinds.pairs))]
        for at in range(count)
    ]
