"""What any region of a model costs on any engine, and what any sequence of regions does: the planner's arithmetic.

Regions are made of *atoms*, numbered in an order in which they can run: nodes, or stretches of nodes where the model has many.
A sequence of regions in which no atom runs before one that it needs is a *layout*; the graph between its regions has no cycle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from xrt.partition.costs import CostTable, Measured
from xrt.partition.planner.grains import grains
from xrt.partition.planner.ground import Ground, bits, places_of
from xrt.partition.planner.shares import Shares, kept

__all__ = ["PLAIN", "SMALL", "TINY", "Account", "Board", "Effort", "Layout", "Region", "View"]

Region: TypeAlias = tuple[int, int]
"""An engine, by its place in the list, and the set of its atoms."""

Layout: TypeAlias = tuple[Region, ...]
"""Regions in an order in which they can run; every atom is in one."""

SMALL = 64
"""The most nodes of a model every region of which is looked up in the table as it comes up; in larger ones only parts that
are measured on purpose and the regions of plans that are proposed."""


TINY = 16
"""The most nodes of a model of which every cut in two is a start, and whose best plan is held in doubt until nothing that was not
measured could be much better."""


@dataclass(slots=True)
class Effort:
    """How much may still be done; counted, so that it is the same on every machine."""

    nodes: int
    """Nodes that may be hashed."""
    changes: int
    """Changes of layouts that may be tried."""

    def spend(self, nodes: int) -> bool:
        """Take so many nodes off what is left, and return whether there was enough."""
        self.nodes -= nodes
        return self.nodes >= 0

    def change(self) -> bool:
        """Take off a change, and return whether there was one."""
        self.changes -= 1
        return self.changes >= 0


@dataclass(frozen=True, slots=True)
class View:
    """How what was not measured is looked at."""

    hope: float = 0.0
    """What an edge is taken to save that was inside of no measured part, as a part of its cheaper end."""
    at_best: bool = False
    """Whether a region is taken to gain as much as the one that gained the most of those measured on its engine."""


PLAIN = View()
"""What was not measured costs what the shares say."""


@dataclass(frozen=True)
class Board:
    """Atoms, their costs, and what has been found out about sets of them."""

    ground: Ground
    table: CostTable
    shares: Shares
    atoms: tuple[tuple[int, ...], ...]
    """For each atom its nodes."""
    effort: Effort
    keeps: tuple[float, ...] = ()
    """For each engine the least that a region is taken to keep of what its nodes cost alone, where it was not measured: for
    whoever asks what a plan might cost at best. Empty for whoever asks what it probably costs."""
    _seconds: dict[Region, float] = field(default_factory=dict, repr=False)
    _crossing: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _nodes: dict[int, int] = field(default_factory=dict, repr=False)
    _needs: dict[int, int] = field(default_factory=dict, repr=False)
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)
    _totals: dict[Layout, float] = field(default_factory=dict, repr=False)

    @classmethod
    def fine(cls, ground: Ground, table: CostTable, effort: Effort, view: View = PLAIN) -> Board:
        """Return the board whose atoms are the nodes."""
        shares = Shares.fitted(ground, table, view.hope)
        keeps = kept(ground, table, shares) if view.at_best else ()
        return cls(ground, table, shares, tuple((place,) for place in range(len(ground))), effort, keeps)

    def coarse(self, most: int) -> Board:
        """Return the board with about so many atoms, each a stretch of this one's; the same board where it has no more."""
        if len(self) <= most:
            return self
        joined = grains(self.alone, self.takes, self.named, most)
        atoms = tuple(tuple(node for atom in stretch for node in self.atoms[atom]) for stretch in joined)
        return Board(self.ground, self.table, self.shares, atoms, self.effort, self.keeps)

    def on_nodes(self, layout: Layout) -> Layout:
        """Return the layout in nodes instead of atoms."""
        return tuple((engine, self.nodes(mask)) for engine, mask in layout)

    def of_nodes(self, layout: Layout) -> Layout:
        """Return a layout in nodes in atoms, none of which it may cut."""
        return tuple((engine, bits(sorted({self.home[node] for node in places_of(mask)}))) for engine, mask in layout)

    def __len__(self) -> int:
        return len(self.atoms)

    # ------------------------------------------------------------------ atoms

    @cached_property
    def home(self) -> tuple[int, ...]:
        """For each node its atom."""
        found = [0] * len(self.ground)
        for number, atom in enumerate(self.atoms):
            for place in atom:
                found[place] = number
        return tuple(found)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each atom the set of those that it directly needs."""
        rows = [0] * len(self)
        for place, earliers in enumerate(self.ground.graph.predecessors):
            for earlier in earliers:
                rows[self.home[place]] |= 1 << self.home[earlier]
        return tuple(row & ~(1 << own) for own, row in enumerate(rows))

    @cached_property
    def after(self) -> tuple[int, ...]:
        """For each atom the set of those that directly need it."""
        rows = [0] * len(self)
        for own, before in enumerate(self.before):
            for earlier in places_of(before):
                rows[earlier] |= 1 << own
        return tuple(rows)

    @cached_property
    def takes(self) -> tuple[int, ...]:
        """For each engine the set of atoms that it takes."""
        masks = [bits(atom) for atom in self.atoms]
        return tuple(bits([a for a, mask in enumerate(masks) if not mask & ~takes]) for takes in self.ground.takes)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """For each device that nodes name the set of its atoms; a region may touch one of these sets."""
        return tuple(bits(sorted({self.home[place] for place in places_of(mask)})) for mask in self.ground.devices.values())

    @cached_property
    def named(self) -> tuple[str, ...]:
        """For each atom the device that its nodes name; empty where none names one."""
        nodes = self.ground.function.nodes
        return tuple(max(nodes[place].device for place in atom) for atom in self.atoms)

    @cached_property
    def _makes(self) -> tuple[int, ...]:
        return tuple(_union(self.ground.makes[place] for place in atom) for atom in self.atoms)

    @cached_property
    def _reads(self) -> tuple[int, ...]:
        return tuple(_union(self.ground.reads[place] for place in atom) for atom in self.atoms)

    @cached_property
    def alone(self) -> tuple[tuple[float, ...], ...]:
        """For each engine what each atom costs in one region."""
        before = [bits(earlier) for earlier in self.ground.graph.predecessors]
        masks = [bits(atom) for atom in self.atoms]
        return tuple(tuple(self.shares.seconds(e, mask, before) for mask in masks) for e in range(len(self.ground.engines)))

    @cached_property
    def _savings(self) -> tuple[tuple[tuple[tuple[int, float], ...], ...], ...]:
        """For each engine and atom (the set of an earlier atom, what it saves to be in one region with that)."""
        return tuple(self._by_atom(links) for links in self.shares.links)

    def _by_atom(self, links: Mapping[tuple[int, int], float]) -> tuple[tuple[tuple[int, float], ...], ...]:
        found: list[dict[int, float]] = [{} for _ in self.atoms]
        for (earlier, later), saving in links.items():
            source, target = self.home[earlier], self.home[later]
            if source != target:
                found[target][1 << source] = found[target].get(1 << source, 0.0) + saving
        return tuple(tuple(sorted(row.items())) for row in found)

    def needs(self, mask: int) -> int:
        """Return the atoms outside of a set that it directly needs."""
        known = self._needs.get(mask)
        if known is None:
            known = self._needs[mask] = _union(self.before[atom] for atom in places_of(mask)) & ~mask
        return known

    # ------------------------------------------------------------------ regions

    def nodes(self, mask: int) -> int:
        """Return the set of nodes of a set of atoms."""
        known = self._nodes.get(mask)
        if known is None:
            known = self._nodes[mask] = _union(bits(self.atoms[a]) for a in places_of(mask))
        return known

    def allows(self, region: Region) -> bool:
        """Whether the engine takes all of the atoms, and they are of one device."""
        engine, mask = region
        return not mask & ~self.takes[engine] and sum(1 for device in self.devices if device & mask) < 2

    def seconds(self, region: Region) -> float:
        """Return what a region costs: as measured, or estimated; infinite where it is impossible."""
        known = self._seconds.get(region)
        if known is None:
            known = self._seconds[region] = self._found(region) if self.allows(region) else math.inf
        return known

    def estimate(self, region: Region) -> float:
        """Return what a region would cost by its shares."""
        engine, mask = region
        alone, savings = self.alone[engine], self._savings[engine]
        total = 0.0
        for atom in places_of(mask):
            total += alone[atom]
            for earlier, saving in savings[atom]:
                if earlier & mask:
                    total -= saving
        return max(total, 0.0) + self.table.launch(self.ground.engines[engine])

    def guess(self, region: Region) -> float:
        """Return what a region that was not measured is taken to cost: its estimate, or what it might cost at best."""
        estimate = self.estimate(region)
        if not self.keeps:
            return estimate
        engine, mask = region
        apart = sum(self.alone[engine][atom] for atom in places_of(mask))
        return min(estimate, self.table.launch(self.ground.engines[engine]) + self.keeps[engine] * apart)

    def cost(self, region: Region) -> Measured | str | None:
        """Return what the table has of a region, whatever its size; None where that is nothing."""
        return self.table.region(self.ground.key(self.nodes(region[1])), self.ground.engines[region[0]])

    def _found(self, region: Region) -> float:
        mask = self.nodes(region[1])
        if mask not in self.ground.known():
            if len(self.ground) > SMALL or not self.effort.spend(mask.bit_count()):
                return self.guess(region)
        cost = self.cost(region)
        if isinstance(cost, Measured):
            return cost.seconds
        return self.guess(region) if cost is None else math.inf

    # ------------------------------------------------------------------ boundaries

    def crossing(self, mask: int) -> tuple[int, int]:
        """Return the values that a set of atoms reads from elsewhere, and those that it makes."""
        known = self._crossing.get(mask)
        if known is None:
            makes = reads = 0
            for atom in places_of(mask):
                makes |= self._makes[atom]
                reads |= self._reads[atom]
            known = self._crossing[mask] = (reads & ~makes, makes)
        return known

    def total(self, layout: Layout) -> float:
        """Return what a layout costs: its regions, and what crosses between them. Linear in regions times engines."""
        known = self._totals.get(layout)
        if known is None:
            made = self.made(layout)
            known = self._totals[layout] = sum(self.seconds(region) + self.inflow(region, made) for region in layout)
        return known

    def made(self, layout: Layout) -> list[int]:
        """Return for each engine the values that its regions make."""
        made = [0] * len(self.takes)
        for engine, mask in layout:
            made[engine] |= self.crossing(mask)[1]
        return made

    def inflow(self, region: Region, made: Sequence[int]) -> float:
        """Return what it costs that a region reads its inputs, each made on some engine."""
        inputs = self.crossing(region[1])[0]
        return self._entering(inputs, made, region[0]) if inputs else 0.0

    def _entering(self, inputs: int, made: Sequence[int], target: int) -> float:
        """Return what it costs that an engine reads those values, each of them made by some engine."""
        total = 0.0
        for source, values in enumerate(made):
            if values := values & inputs:
                fixed, per_byte = self._pairs[source][target]
                total += fixed * values.bit_count() + per_byte * self.size(values)
        return total

    def entering(self, mask: int, source: int, target: int) -> float:
        """Return what it costs that a set of atoms on one engine reads from another engine; nothing comes from -1."""
        values = self.crossing(mask)[0]
        if source < 0 or not values:
            return 0.0
        fixed, per_byte = self._pairs[source][target]
        return fixed * values.bit_count() + per_byte * self.size(values)

    def size(self, values: int) -> int:
        """Return the bytes of a set of values."""
        known = self._sizes.get(values)
        if known is None:
            known = self._sizes[values] = sum(self.ground.sizes[value] for value in places_of(values))
        return known

    @cached_property
    def _pairs(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        specs = self.ground.engines
        return tuple(tuple(self.table.boundary(a, b) for b in specs) for a in specs)


class Account:
    """What a layout costs, itemised, so that what a change costs is found without adding all up."""

    def __init__(self, board: Board, layout: Layout) -> None:
        self._board, self._layout = board, layout
        self._made = board.made(layout)
        self._own = {region: board.seconds(region) + board.inflow(region, self._made) for region in layout}
        self.total = sum(self._own.values())

    def after(self, other: Layout) -> float:
        """Return the total of another layout of the same atoms; quick where it differs in few regions."""
        board = self._board
        kept = set(other)
        gone = [region for region in self._layout if region not in kept]
        come = [region for region in other if region not in self._own]
        made = self._made_after(gone, come)
        total = self.total - sum(self._own[region] for region in gone)
        for region in come:
            total += board.seconds(region) + board.inflow(region, made)
        if moved := _union(a ^ b for a, b in zip(made, self._made, strict=True)):
            for region in self._layout:
                if board.crossing(region[1])[0] & moved and region in kept:
                    total += board.seconds(region) + board.inflow(region, made) - self._own[region]
        return total if math.isfinite(total) else board.total(other)

    def _made_after(self, gone: Sequence[Region], come: Sequence[Region]) -> list[int]:
        made = list(self._made)
        for engine, mask in gone:
            made[engine] &= ~self._board.crossing(mask)[1]
        for engine, mask in come:
            made[engine] |= self._board.crossing(mask)[1]
        return made


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
