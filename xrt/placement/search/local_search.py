"""Small changes to a layout, and how far they lead: recolour a region, merge two, take some atoms out of one.

Every change gives a layout again, so the graph between regions never has a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

from xrt.placement.cost_model.bitset_graph import iter_bits, to_mask
from xrt.placement.cost_model.cost_model import SMALL, EngineRegion, IncrementalCost, PartitionCostModel, Partitioning

__all__ = ["hill_climb", "hill_climb_with_lookahead", "iter_neighbors", "merge_regions", "reassign_regions", "split_region"]

FEW = 16
"""The most atoms of a region of which every stretch is tried apart; of larger ones single atoms, ends and likely stretches. Also
the most regions of a layout in which any two are tried together, on any engine; in longer ones those that a value connects."""

SWEEPS = 12
"""The most times that all changes are gone through."""

ENOUGH = 1e-4
"""The part of the cost that a change must save at least."""


def hill_climb(board: PartitionCostModel, layout: Partitioning) -> Partitioning:
    """Return the layout after as many changes as make it cheaper, region by region, within the board's effort."""
    for _ in range(SWEEPS):
        before = layout
        layout = _swept(board, layout)
        if layout == before:
            break
    return layout


def hill_climb_with_lookahead(board: PartitionCostModel, layout: Partitioning, width: int) -> Partitioning:
    """Return the layout improved, and further where a change that does not pay by itself leads to ones that do.

    The cheapest ``width`` layouts that are one change away are improved in their turn, as long as that leads anywhere.
    """
    best, seen = hill_climb(board, layout), set[Partitioning]()
    while board.effort.changes > 0:
        costs = {
            other: board.total(other) for other in iter_neighbors(board, best) if other not in seen and board.effort.change()
        }
        near = sorted(costs, key=lambda other: (costs[other], other))[:width]
        seen.update(near)
        found = min((hill_climb(board, other) for other in near), key=board.total, default=best)
        if board.total(found) >= board.total(best) * (1 - ENOUGH):
            break
        best = found
    return best


def iter_neighbors(board: PartitionCostModel, layout: Partitioning) -> Iterator[Partitioning]:
    """Yield every layout that is one change away."""
    for at in range(len(layout)):
        yield from _changes_of(board, layout, at)


def _swept(board: PartitionCostModel, layout: Partitioning) -> Partitioning:
    """Go over the regions once, and change each as long as that makes the layout cheaper."""
    at = 0
    while at < len(layout):
        better = _better(board, layout, at)
        layout, at = (layout, at + 1) if better is None else (better, min(at, len(better) - 1))
    return layout


def _better(board: PartitionCostModel, layout: Partitioning, at: int) -> Partitioning | None:
    """Return the best change of a region; the first that is found where there are many atoms; None where none pays."""
    account = IncrementalCost(board, layout)
    most = account.total * (1 - ENOUGH) if math.isfinite(account.total) else math.inf
    better = None
    for other in _changes_of(board, layout, at):
        if not board.effort.change():
            break
        if (cost := account.after(other)) < most:
            most, better = cost, other
            if len(board) > SMALL:
                break
    return better


def _changes_of(board: PartitionCostModel, layout: Partitioning, at: int) -> Iterator[Partitioning]:
    yield from _recoloured(board, layout, at)
    yield from _joined(board, layout, at)
    yield from _taken_out(board, layout, at)
    if len(layout) <= FEW:
        yield from _cleared(board, layout, at)


# ------------------------------------------------------------------ recolour, merge


def _recoloured(board: PartitionCostModel, layout: Partitioning, at: int) -> Iterator[Partitioning]:
    engine, mask = layout[at]
    for other in range(len(board.takes)):
        if other != engine and board.allows((other, mask)):
            yield (*layout[:at], (other, mask), *layout[at + 1 :])


def reassign_regions(board: PartitionCostModel, layout: Partitioning) -> Iterator[Partitioning]:
    """Yield the layouts with the same regions in which one of them, or all that an engine has, are on another engine."""
    for at in range(len(layout)):
        yield from _recoloured(board, layout, at)
    for mine, other in product(dict.fromkeys(engine for engine, _ in layout), range(len(board.takes))):
        moved = tuple((other if engine == mine else engine, mask) for engine, mask in layout)
        if other != mine and all(map(board.allows, moved)):
            yield moved


def _joined(board: PartitionCostModel, layout: Partitioning, second: int) -> Iterator[Partitioning]:
    for first in _partners(board, layout, second, range(second)):
        few = len(layout) <= FEW
        engines = range(len(board.takes)) if few else dict.fromkeys([layout[first][0], layout[second][0]])
        for engine in engines:
            if (other := merge_regions(board, layout, first, second, engine)) is not None:
                yield other


def _partners(board: PartitionCostModel, layout: Partitioning, at: int, among: Iterable[int]) -> Iterator[int]:
    """Yield the regions with which one may be worth merging: in a long layout those that it reads from or that read from it."""
    mask = layout[at][1]
    for other in among:
        theirs = layout[other][1]
        if other != at and (len(layout) <= FEW or board.needs(mask) & theirs or board.needs(theirs) & mask):
            yield other


def merge_regions(board: PartitionCostModel, layout: Partitioning, first: int, second: int, engine: int) -> Partitioning | None:
    """Return the layout with two regions merged on that engine; None if a path connects them through a third.

    ``first`` is before ``second``. Regions between them that wait for the first come after both.
    """
    region = (engine, layout[first][1] | layout[second][1])
    if not board.allows(region):
        return None
    waiting = layout[first][1]
    early: list[EngineRegion] = []
    late: list[EngineRegion] = []
    for between in layout[first + 1 : second]:
        if board.needs(between[1]) & waiting:
            waiting |= between[1]
            late.append(between)
        else:
            early.append(between)
    if board.needs(layout[second][1]) & waiting & ~layout[first][1]:
        return None
    return (*layout[:first], *early, region, *late, *layout[second + 1 :])


# ------------------------------------------------------------------ take atoms out


def _taken_out(board: PartitionCostModel, layout: Partitioning, at: int) -> Iterator[Partitioning]:
    """Yield the layouts in which some atoms of a region are one of their own, or go to another."""
    for some in _subsets(board, layout[at]):
        for parts, own in split_region(board, layout, at, some):
            yield from _placed(board, parts, own)


def _placed(board: PartitionCostModel, layout: Partitioning, own: int) -> Iterator[Partitioning]:
    """Yield the layout with one region on every engine that takes it, alone or together with another."""
    mask = layout[own][1]
    for other in range(len(board.takes)):
        if board.allows((other, mask)):
            yield (*layout[:own], (other, mask), *layout[own + 1 :])
    for at in _partners(board, layout, own, range(len(layout))):
        if (joined := merge_regions(board, layout, min(at, own), max(at, own), layout[at][0])) is not None:
            yield joined


def _cleared(board: PartitionCostModel, layout: Partitioning, at: int) -> Iterator[Partitioning]:
    """Yield the layouts in which a region goes to an engine, and what that declines or is worse at goes elsewhere."""
    for engine in range(len(board.takes)):
        for some in _unfit(board, layout[at], engine):
            for parts, own in split_region(board, layout, at, some):
                for placed in _placed(board, parts, own):
                    yield from _moved_on(board, placed, layout[at][1] & ~some, engine)


def _unfit(board: PartitionCostModel, region: EngineRegion, engine: int) -> Iterator[int]:
    """Yield what an engine declines of a region, alone, with each atom that costs more on it than where it is, and with all."""
    now, mask = region
    declined = mask & ~board.takes[engine]
    dearer = [atom for atom in iter_bits(mask & ~declined) if board.alone[engine][atom] > board.alone[now][atom]]
    sets = [declined, *(declined | 1 << atom for atom in dearer), declined | to_mask(dearer)]
    yield from (some for some in dict.fromkeys(sets) if some and some != mask and engine != now)


def _moved_on(board: PartitionCostModel, layout: Partitioning, some: int, engine: int) -> Iterator[Partitioning]:
    """Yield the layouts in which a region of nothing but some atoms goes to an engine, alone or with a region of that."""
    for at, (_, mask) in enumerate(layout):
        if not mask & ~some:
            moved = (*layout[:at], (engine, mask), *layout[at + 1 :])
            yield moved
            for other in range(len(moved)):
                if other != at and moved[other][0] == engine:
                    joined = merge_regions(board, moved, min(at, other), max(at, other), engine)
                    yield from [joined] if joined is not None else []


def split_region(board: PartitionCostModel, layout: Partitioning, at: int, some: int) -> Iterator[tuple[Partitioning, int]]:
    """Yield the layouts in which those atoms of a region are one of their own, with its place; none where they cannot be.

    What is left of the region is one where it can be. Otherwise it is two, before and after; what has nothing to do with
    the atoms goes with either.
    """
    engine, mask = layout[at]
    rest = mask & ~some
    if not rest:
        return
    up, down = _upstream(board, some, rest), _downstream(board, some, rest)
    if up & down:
        return
    splits = [(rest & ~down, down)] if not up or not down else [(rest & ~down, down), (up, rest & ~up)]
    for early, late in dict.fromkeys(splits):
        parts = [(engine, part) for part in (early, some, late) if part]
        yield (*layout[:at], *parts, *layout[at + 1 :]), at + bool(early)


def _upstream(board: PartitionCostModel, some: int, among: int) -> int:
    """Return those of a set that the atoms need, directly or through others of the set."""
    found, fresh = 0, some
    while fresh:
        fresh = board.needs(fresh) & among & ~found
        found |= fresh
    return found


def _downstream(board: PartitionCostModel, some: int, among: int) -> int:
    """Return those of a set that need the atoms, directly or through others of the set."""
    reached = some
    for atom in iter_bits(among):  # in an order in which they can run: one pass reaches all
        if board.before[atom] & reached:
            reached |= 1 << atom
    return reached & ~some


def _subsets(board: PartitionCostModel, region: EngineRegion) -> Iterator[int]:
    """Yield sets of a region's atoms that might be better off elsewhere."""
    atoms = list(iter_bits(region[1]))
    found: Iterator[int]
    if len(atoms) <= FEW:
        found = (to_mask(atoms[i:j]) for i in range(len(atoms)) for j in range(i + 1, len(atoms) + 1))
    else:
        found = _likely(board, region, atoms)
    yield from dict.fromkeys(found)


def _likely(board: PartitionCostModel, region: EngineRegion, atoms: list[int]) -> Iterator[int]:
    yield from (1 << atom for atom in atoms)
    for engine in range(len(board.takes)):
        if engine != region[0]:
            yield from _cheaper(board, region[0], engine, atoms)
    for cut in range(1, len(atoms)):
        yield to_mask(atoms[:cut])
        yield to_mask(atoms[cut:])


def _cheaper(board: PartitionCostModel, mine: int, other: int, atoms: list[int]) -> Iterator[int]:
    """Yield the stretches in which each atom costs less on the other engine."""
    run = 0
    for atom in atoms:
        if board.takes[other] >> atom & 1 and board.alone[other][atom] < board.alone[mine][atom]:
            run |= 1 << atom
        elif run:
            yield run
            run = 0
    if run:
        yield run
