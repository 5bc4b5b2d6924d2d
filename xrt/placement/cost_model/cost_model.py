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

from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.placement.cost_model.bitset_graph import BitsetGraph, iter_bits, to_mask
from xrt.placement.cost_model.cost_attribution import NodeCosts
from xrt.placement.search.coarsening import coarsen

__all__ = [
    "EngineRegion",
    "PartitionCostModel",
    "Partitioning",
    "SearchBudget",
]

EngineRegion: TypeAlias = tuple[int, int]
"""An engine, by its place in the list, and the set of its atoms."""

Partitioning: TypeAlias = tuple[EngineRegion, ...]
"""Regions in an order in which they can run; every atom is in one."""

SMALL = 64
"""The most nodes of a model every region of which is looked up in the table as it comes up; in larger ones only parts that
are measured on purpose and the regions of plans that are proposed."""


@dataclass(slots=True)
class SearchBudget:
    """How much may still be done; counted, so that it is the same on every machine."""

    nodes: int
    """Nodes that may be hashed."""

    def spend(self, nodes: int) -> bool:
        """Take so many nodes off what is left, and return whether there was enough."""
        self.nodes -= nodes
        return self.nodes >= 0


@dataclass(frozen=True)
class PartitionCostModel:
    """Atoms, their costs, and what has been found out about sets of them."""

    ground: BitsetGraph
    table: CostTable
    shares: NodeCosts
    atoms: tuple[tuple[int, ...], ...]
    """For each atom its nodes."""
    effort: SearchBudget
    _seconds: dict[EngineRegion, float] = field(default_factory=dict, repr=False)
    _crossing: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _nodes: dict[int, int] = field(default_factory=dict, repr=False)
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)
    _totals: dict[Partitioning, float] = field(default_factory=dict, repr=False)

    @classmethod
    def at_node_level(cls, ground: BitsetGraph, table: CostTable, effort: SearchBudget, hope: float = 0.0) -> PartitionCostModel:
        """Return the board whose atoms are the nodes; ``hope`` is as for `NodeCosts.fit`."""
        shares = NodeCosts.fit(ground, table, hope)
        return cls(ground, table, shares, tuple((place,) for place in range(len(ground))), effort)

    def coarsen(self, most: int) -> PartitionCostModel:
        """Return the board with about so many atoms, each a stretch of this one's; the same board where it has no more."""
        if len(self) <= most:
            return self
        joined = coarsen(self.alone, self.takes, self.named, most)
        atoms = tuple(tuple(node for atom in stretch for node in self.atoms[atom]) for stretch in joined)
        return PartitionCostModel(self.ground, self.table, self.shares, atoms, self.effort)

    def to_nodes(self, layout: Partitioning) -> Partitioning:
        """Return the layout in nodes instead of atoms."""
        return tuple((engine, self.nodes(mask)) for engine, mask in layout)

    def to_atoms(self, layout: Partitioning) -> Partitioning:
        """Return a layout in nodes in atoms, none of which it may cut."""
        return tuple((engine, to_mask(sorted({self.atom_of_node[node] for node in iter_bits(mask)}))) for engine, mask in layout)

    def __len__(self) -> int:
        return len(self.atoms)

    # ------------------------------------------------------------------ atoms

    @cached_property
    def atom_of_node(self) -> tuple[int, ...]:
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
                rows[self.atom_of_node[place]] |= 1 << self.atom_of_node[earlier]
        return tuple(row & ~(1 << own) for own, row in enumerate(rows))

    @cached_property
    def takes(self) -> tuple[int, ...]:
        """For each engine the set of atoms that it takes."""
        masks = [to_mask(atom) for atom in self.atoms]
        return tuple(to_mask([a for a, mask in enumerate(masks) if not mask & ~takes]) for takes in self.ground.takes)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """For each device that nodes name the set of its atoms; a region may touch one of these sets."""
        return tuple(
            to_mask(sorted({self.atom_of_node[place] for place in iter_bits(mask)})) for mask in self.ground.devices.values()
        )

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
        before = [to_mask(earlier) for earlier in self.ground.graph.predecessors]
        masks = [to_mask(atom) for atom in self.atoms]
        return tuple(tuple(self.shares.seconds(e, mask, before) for mask in masks) for e in range(len(self.ground.engines)))

    @cached_property
    def _savings(self) -> tuple[tuple[tuple[tuple[int, float], ...], ...], ...]:
        """For each engine and atom (the set of an earlier atom, what it saves to be in one region with that)."""
        return tuple(self._by_atom(links) for links in self.shares.links)

    def _by_atom(self, links: Mapping[tuple[int, int], float]) -> tuple[tuple[tuple[int, float], ...], ...]:
        found: list[dict[int, float]] = [{} for _ in self.atoms]
        for (earlier, later), saving in links.items():
            source, target = self.atom_of_node[earlier], self.atom_of_node[later]
            if source != target:
                found[target][1 << source] = found[target].get(1 << source, 0.0) + saving
        return tuple(tuple(sorted(row.items())) for row in found)

    # ------------------------------------------------------------------ regions

    def nodes(self, mask: int) -> int:
        """Return the set of nodes of a set of atoms."""
        known = self._nodes.get(mask)
        if known is None:
            known = self._nodes[mask] = _union(to_mask(self.atoms[a]) for a in iter_bits(mask))
        return known

    def allows(self, region: EngineRegion) -> bool:
        """Whether the engine takes all of the atoms, and they are of one device."""
        engine, mask = region
        return not mask & ~self.takes[engine] and sum(1 for device in self.devices if device & mask) < 2

    def seconds(self, region: EngineRegion) -> float:
        """Return what a region costs: as measured, or estimated; infinite where it is impossible."""
        known = self._seconds.get(region)
        if known is None:
            known = self._seconds[region] = self._found(region) if self.allows(region) else math.inf
        return known

    def estimate(self, region: EngineRegion) -> float:
        """Return what a region would cost by its shares."""
        engine, mask = region
        alone, savings = self.alone[engine], self._savings[engine]
        total = 0.0
        for atom in iter_bits(mask):
            total += alone[atom]
            for earlier, saving in savings[atom]:
                if earlier & mask:
                    total -= saving
        return max(total, 0.0) + self.table.launch(self.ground.engines[engine])

    def cost(self, region: EngineRegion) -> MeasuredCost | str | None:
        """Return what the table has of a region, whatever its size; None where that is nothing."""
        return self.table.region(self.ground.key(self.nodes(region[1])), self.ground.engines[region[0]])

    def _found(self, region: EngineRegion) -> float:
        mask = self.nodes(region[1])
        if mask not in self.ground.list_known():
            if len(self.ground) > SMALL or not self.effort.spend(mask.bit_count()):
                return self.estimate(region)
        cost = self.cost(region)
        if isinstance(cost, MeasuredCost):
            return cost.seconds
        return self.estimate(region) if cost is None else math.inf

    # ------------------------------------------------------------------ boundaries

    def find_boundary_values(self, mask: int) -> tuple[int, int]:
        """Return the values that a set of atoms reads from elsewhere, and those that it makes."""
        known = self._crossing.get(mask)
        if known is None:
            makes = reads = 0
            for atom in iter_bits(mask):
                makes |= self._makes[atom]
                reads |= self._reads[atom]
            known = self._crossing[mask] = (reads & ~makes, makes)
        return known

    def total(self, layout: Partitioning) -> float:
        """Return what a layout costs: its regions, and what crosses between them. Linear in regions times engines."""
        known = self._totals.get(layout)
        if known is None:
            made = self.made(layout)
            known = self._totals[layout] = sum(self.seconds(region) + self.inflow(region, made) for region in layout)
        return known

    def made(self, layout: Partitioning) -> list[int]:
        """Return for each engine the values that its regions make."""
        made = [0] * len(self.takes)
        for engine, mask in layout:
            made[engine] |= self.find_boundary_values(mask)[1]
        return made

    def inflow(self, region: EngineRegion, made: Sequence[int]) -> float:
        """Return what it costs that a region reads its inputs, each made on some engine."""
        inputs = self.find_boundary_values(region[1])[0]
        return self._entering(inputs, made, region[0]) if inputs else 0.0

    def _entering(self, inputs: int, made: Sequence[int], target: int) -> float:
        """Return what it costs that an engine reads those values, each of them made by some engine."""
        total = 0.0
        for source, values in enumerate(made):
            if values := values & inputs:
                fixed, per_byte = self._pairs[source][target]
                total += fixed * values.bit_count() + per_byte * self.size(values)
        return total

    def compute_transfer_cost(self, mask: int, source: int, target: int) -> float:
        """Return what it costs that a set of atoms on one engine reads from another engine; nothing comes from -1."""
        values = self.find_boundary_values(mask)[0]
        if source < 0 or not values:
            return 0.0
        fixed, per_byte = self._pairs[source][target]
        return fixed * values.bit_count() + per_byte * self.size(values)

    def size(self, values: int) -> int:
        """Return the bytes of a set of values."""
        known = self._sizes.get(values)
        if known is None:
            known = self._sizes[values] = sum(self.ground.sizes[value] for value in iter_bits(values))
        return known

    @cached_property
    def _pairs(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        specs = self.ground.engines
        return tuple(tuple(self.table.boundary(a, b) for b in specs) for a in specs)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
