"""The best layout whose regions are stretches of one order: a shortest path over (place, engine)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.placement.cost_model.cost_model import PartitionCostModel, Partitioning

__all__ = ["find_best_intervals", "pick_cheapest_engines"]


@dataclass(frozen=True, slots=True)
class _Step:
    """The cheapest way to have run all atoms before a place, the last of them on an engine."""

    seconds: float
    start: int
    """Where its last region starts."""
    previous: int
    """The engine of the region before; -1 where it is the first."""


def find_best_intervals(board: PartitionCostModel) -> Partitioning | None:
    """Return the cheapest sequence of stretches; None where some atom has no engine.

    What a stretch reads is taken to come from the engine before it, which is right where no value passes over a region.
    Quadratic in atoms and in engines.
    """
    steps: list[dict[int, _Step]] = [{-1: _Step(0.0, 0, -1)}]
    for end in range(1, len(board) + 1):
        steps.append({})
        for engine in range(len(board.takes)):
            found = min(_ways(board, steps, end, engine), key=lambda step: step.seconds, default=None)
            if found is not None and math.isfinite(found.seconds):
                steps[end][engine] = found
    if not len(board) or not steps[-1]:
        return None
    engine = min(steps[-1], key=lambda e: (steps[-1][e].seconds, e))
    return tuple(_backwards(steps, engine))[::-1]


def _ways(board: PartitionCostModel, steps: list[dict[int, _Step]], end: int, engine: int) -> Iterator[_Step]:
    """Yield the ways to end a region of that engine at that place."""
    mask = 0
    for start in range(end - 1, -1, -1):
        mask |= 1 << start
        if not board.takes[engine] >> start & 1:
            return
        own = board.seconds((engine, mask))
        for previous, step in steps[start].items():
            yield _Step(step.seconds + own + board.compute_transfer_cost(mask, previous, engine), start, previous)


def _backwards(steps: list[dict[int, _Step]], engine: int) -> Iterator[tuple[int, int]]:
    end = len(steps) - 1
    while end:
        step = steps[end][engine]
        yield engine, (1 << end) - (1 << step.start)
        end, engine = step.start, step.previous


def pick_cheapest_engines(board: PartitionCostModel) -> list[int] | None:
    """Return for each atom the engine on which it costs least by itself; None where one has none."""
    homes = []
    for atom in range(len(board)):
        willing = [engine for engine, takes in enumerate(board.takes) if takes >> atom & 1]
        if not willing:
            return None
        homes.append(min(willing, key=lambda engine: (board.alone[engine][atom], engine)))
    return homes
