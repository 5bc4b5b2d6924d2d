"""Small changes to a layout, and how far they lead: recolour a region, merge two, take some atoms out of one.

Every change gives a layout again, so the graph between regions never has a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator

from xrt.partition.planner.board import Board, Layout, Region
from xrt.partition.planner.ground import bits, places_of

__all__ = ["changes", "improved", "merged", "parted"]

FEW = 16
"""The most atoms of a region of which every stretch is tried apart; of larger ones single atoms, ends and likely stretches."""

SWEEPS = 12
"""The most times that all changes are gone through."""

ENOUGH = 1e-4
"""The part of the cost that a change must save at least."""


def improved(board: Board, layout: Layout, sweeps: int = SWEEPS) -> Layout:
    """Return the layout after as many changes as make it cheaper; each is made as soon as it is found."""
    best = board.total(layout)
    for _ in range(sweeps):
        before = layout
        layout, best = _swept(board, layout, best)
        if layout == before:
            break
    return layout


def changes(board: Board, layout: Layout) -> Iterator[Layout]:
    """Yield every layout that is one change away."""
    for change in (_recoloured, _joined, _taken_out):
        yield from change(board, layout)


def _swept(board: Board, layout: Layout, best: float) -> tuple[Layout, float]:
    """Go through all changes once, from the start again after none."""
    for change in (_recoloured, _joined, _taken_out):
        again = True
        while again:
            again = False
            for other in change(board, layout):
                cost = board.total(other)
                if cost < best * (1 - ENOUGH) or (best == float("inf") and cost < best):
                    layout, best, again = other, cost, True
                    break
    return layout, best


# ------------------------------------------------------------------ recolour, merge


def _recoloured(board: Board, layout: Layout) -> Iterator[Layout]:
    for at, (engine, mask) in enumerate(layout):
        for other in range(len(board.takes)):
            if other != engine and board.allows((other, mask)):
                yield (*layout[:at], (other, mask), *layout[at + 1 :])


def _joined(board: Board, layout: Layout) -> Iterator[Layout]:
    for second in range(1, len(layout)):
        for first in range(second):
            for engine in range(len(board.takes)):
                if (other := merged(board, layout, first, second, engine)) is not None:
                    yield other


def merged(board: Board, layout: Layout, first: int, second: int, engine: int) -> Layout | None:
    """Return the layout with two regions made one, on that engine; None where a way leads from one to the other through a third.

    ``first`` is before ``second``. What stands between them and waits for the first comes after both.
    """
    region = (engine, layout[first][1] | layout[second][1])
    if not board.allows(region):
        return None
    waiting = layout[first][1]
    early: list[Region] = []
    late: list[Region] = []
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


def _taken_out(board: Board, layout: Layout) -> Iterator[Layout]:
    """Yield the layouts in which some atoms of a region are one of their own, or go to another."""
    for at, region in enumerate(layout):
        for some in _handfuls(board, region):
            for parts, own in parted(board, layout, at, some):
                yield from _placed(board, parts, own, region[0])


def _placed(board: Board, layout: Layout, own: int, engine: int) -> Iterator[Layout]:
    """Yield the layout with one region on every engine that takes it, alone or together with another."""
    mask = layout[own][1]
    for other in range(len(board.takes)):
        if board.allows((other, mask)):
            yield (*layout[:own], (other, mask), *layout[own + 1 :])
    for at, (other, _) in enumerate(layout):
        if at != own and (joined := merged(board, layout, min(at, own), max(at, own), other)) is not None:
            yield joined


def parted(board: Board, layout: Layout, at: int, some: int) -> Iterator[tuple[Layout, int]]:
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


def _upstream(board: Board, some: int, among: int) -> int:
    """Return those of a set that the atoms need, directly or through others of the set."""
    found, fresh = 0, some
    while fresh:
        fresh = board.needs(fresh) & among & ~found
        found |= fresh
    return found


def _downstream(board: Board, some: int, among: int) -> int:
    """Return those of a set that need the atoms, directly or through others of the set."""
    reached = some
    for atom in places_of(among):  # in an order in which they can run: one pass reaches all
        if board.before[atom] & reached:
            reached |= 1 << atom
    return reached & ~some


def _handfuls(board: Board, region: Region) -> Iterator[int]:
    """Yield sets of a region's atoms that might be better off elsewhere."""
    atoms = list(places_of(region[1]))
    found: Iterator[int]
    if len(atoms) <= FEW:
        found = (bits(atoms[i:j]) for i in range(len(atoms)) for j in range(i + 1, len(atoms) + 1))
    else:
        found = _likely(board, region, atoms)
    yield from dict.fromkeys(found)


def _likely(board: Board, region: Region, atoms: list[int]) -> Iterator[int]:
    yield from (1 << atom for atom in atoms)
    for engine in range(len(board.takes)):
        if engine != region[0]:
            yield from _cheaper(board, region[0], engine, atoms)
    for cut in range(1, len(atoms)):
        yield bits(atoms[:cut])
        yield bits(atoms[cut:])


def _cheaper(board: Board, mine: int, other: int, atoms: list[int]) -> Iterator[int]:
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
