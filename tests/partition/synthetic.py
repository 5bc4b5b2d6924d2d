"""A made-up world in which every region has a known cost, and the true optimum in it.

A region costs its engine's launch, its nodes, and less where engines fuse: in one sort of world every edge inside saves
something, in the other every region gains with its size. The planner never sees these rules: it may only have pieces measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.partition.drawn import engine
from xrt.engines import GraphCompiler
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, shape_key
from xrt.partition import CostTable, DependencyGraph, MeasuredCost, Plan
from xrt.partition.subgraph import extract_subgraph
from xrt.placement import ProfilingRequest

OPERATORS = ("Conv", "Gemm", "Relu", "Add", "Softmax", "Transpose")
SIZES = (64, 4096, 65536, 262144)


@dataclass(frozen=True)
class World:
    """A model, engines, and what everything costs."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    table: CostTable
    """Launches and boundaries; no region."""
    rates: dict[tuple[str, str], float]
    """(spec, operator) to seconds per byte."""
    savings: dict[tuple[str, str, str], float]
    """(spec, earlier operator, later operator) to the part of the cheaper one that an edge inside of a region saves."""
    gains: dict[str, float]
    """Spec to the part of its cost that a region of any size keeps; one of a single node keeps all."""

    @classmethod
    def drawn(cls, seed: int, nodes: int, engines: int) -> World:
        """Return a world by chance: the graph, who takes what, and all costs."""
        chance = random.Random(seed)
        specs = [f"e{i}" for i in range(engines)]
        pairwise = chance.random() < 0.6
        table = CostTable()
        for spec in specs:
            table = table.with_launch(spec, chance.uniform(2e-6, 30e-6))
        for one in specs:
            for other in specs:
                table = table.with_boundary(one, other, chance.uniform(1e-6, 20e-6), chance.choice([0.0, 2e-11, 1e-10]))
        rates = {(spec, op): 10 ** chance.uniform(-10.3, -8.9) for spec in specs for op in OPERATORS}
        savings = {
            (spec, a, b): chance.choice([0.0, 0.0, chance.uniform(0, 0.9)]) if pairwise else 0.0
            for spec in specs
            for a in OPERATORS
            for b in OPERATORS
        }
        gains = {spec: 1.0 if pairwise else chance.uniform(0.5, 1.0) for spec in specs}
        return cls(_function(chance, nodes), _engines(chance, specs), table, rates, savings, gains)

    # ------------------------------------------------------------------ what things cost

    def measure(self, piece: ProfilingRequest) -> MeasuredCost:
        """Return what a piece costs: all that a search may ask."""
        return MeasuredCost.exactly(self.region(piece.spec, piece.function))

    def region(self, spec: str, function: Function) -> float:
        """Return what a region costs, its launch included."""
        cost = {node.name: self.node(spec, node, function) for node in function.nodes}
        edges = {(producer.name, node.name) for node in function.nodes for v in node.uses if (producer := function.producer(v))}
        saved = sum(self.saving(spec, function, a, b) for a, b in sorted(edges))
        keeps = self.gains[spec] + (1 - self.gains[spec]) / len(function.nodes)
        return self.table.launch(spec) + max(sum(cost.values()) * keeps - saved, 1e-9)

    def node(self, spec: str, node: Node, function: Function) -> float:
        """Return what a node costs alone, without the launch."""
        return self.rates[spec, node.op_type] * (function.get_type(node.outputs[0]).nbytes + 256)

    def saving(self, spec: str, function: Function, earlier: str, later: str) -> float:
        """Return what an edge saves whose ends are in one region: less than its later end costs, however many edges that has."""
        a, b = function.node(earlier), function.node(later)
        cheaper = min(self.node(spec, a, function), self.node(spec, b, function))
        return self.savings[spec, a.op_type, b.op_type] * cheaper / 3

    def total(self, plan: Plan) -> float:
        """Return what a plan truly costs."""
        makers = {name: launch.engine for launch in plan.launches for name in launch.outputs}
        total = 0.0
        for launch in plan.launches:
            total += self.region(launch.engine, launch.function)
            for name in launch.inputs:
                if name in makers:
                    total += self.boundary(makers[name], launch.engine, self.function.get_type(name).nbytes)
        return total

    def boundary(self, source: str, target: str, size: int) -> float:
        """Return what it costs that a value of that many bytes goes from one engine to another."""
        fixed, per_byte = self.table.boundary(source, target)
        return fixed + per_byte * size


def _function(chance: random.Random, count: int) -> Function:
    """Return a graph of that many nodes, most of which read one or two of the latest values."""
    nodes, types = [], {}
    width = chance.choice([1, 2, 3, 5])
    for i in range(count):
        made = [f"v{j}" for j in range(max(0, i - width), i)]
        reads = chance.sample(made, min(len(made), chance.choice([1, 1, 2]))) or ["x"]
        nodes.append(Node(chance.choice(OPERATORS), tuple(reads), (f"v{i}",), name=f"n{i}"))
        types[f"v{i}"] = TensorType(DType.FLOAT32, (chance.choice(SIZES),))
    read = {name for node in nodes for name in node.inputs}
    ends = tuple(Value(name, type_) for name, type_ in types.items() if name not in read)
    x = Value("x", TensorType(DType.FLOAT32, (64,)))
    return Function((x,), ends, tuple(nodes), types=types, opsets={"": 20}, constants={"c": Constant(np.zeros(4, np.float32))})


def _engines(chance: random.Random, specs: list[str]) -> tuple[GraphCompiler, ...]:
    """Return engines that take most operators; the last one takes all."""
    found = [engine(spec, *[op for op in OPERATORS if chance.random() < 0.85], "none") for spec in specs[:-1]]
    return (*found, engine(specs[-1]))


# ------------------------------------------------------------------ the optimum


@dataclass(frozen=True)
class Optimum:
    """The true optimum of a world, by dynamic programming over the sets of nodes that can have run.

    Any plan is a sequence of regions, each of which adds to what has run; what is still to come depends on that set and
    on which engines hold the values that are still to be read. States that cannot beat a known plan are dropped.
    """

    world: World

    def seconds(self, known: float) -> float:
        """Return the cost of the best plan there is; ``known`` is what some plan costs."""
        best: dict[int, dict[tuple[int, ...], float]] = {0: {(): 0.0}}
        found = known
        order = {0}
        for count in range(len(self.nodes)):
            for ran in sorted(done for done in order if done.bit_count() == count):
                for holders, cost in sorted(best.pop(ran, {}).items()):
                    if cost + self._least(ran) < found:
                        found = self._extended(ran, holders, cost, found, best, order)
        return found

    def _extended(self, ran, holders, cost, found, best, order) -> float:
        where = dict(zip(self._live(ran), holders, strict=True))
        for home, taken in self._steps(ran):
            now = cost + self.region(home, taken) + self._entering(home, taken, where)
            then = ran | taken
            if now + self._least(then) >= found:
                continue
            if then == self._all:
                found = now
                continue
            held = tuple(home if taken >> n & 1 else where[n] for n in self._live(then))
            states = best.setdefault(then, {})
            if now < states.get(held, math.inf):
                states[held] = now
                order.add(then)
        return found

    @cached_property
    def nodes(self):
        return self.world.function.nodes

    @cached_property
    def specs(self) -> list[str]:
        return [one.spec for one in self.world.engines]

    @cached_property
    def _all(self) -> int:
        return (1 << len(self.nodes)) - 1

    @cached_property
    def before(self) -> list[int]:
        return [sum(1 << e for e in before) for before in DependencyGraph.of(self.world.function).predecessors]

    @cached_property
    def _after(self) -> list[int]:
        return [sum(1 << j for j, before in enumerate(self.before) if before >> i & 1) for i in range(len(self.nodes))]

    @cached_property
    def takes(self) -> list[int]:
        function = self.world.function
        return [sum(1 << i for i, n in enumerate(self.nodes) if not e.why_not(n, function)) for e in self.world.engines]

    @cached_property
    def _costs(self) -> list[list[float]]:
        return [[self.world.node(spec, n, self.world.function) for n in self.nodes] for spec in self.specs]

    @cached_property
    def _saved(self) -> list[dict[tuple[int, int], float]]:
        names = [n.name for n in self.nodes]
        edges = [(e, i) for i in range(len(names)) for e in range(i) if self.before[i] >> e & 1]
        function = self.world.function
        return [{(a, b): self.world.saving(spec, function, names[a], names[b]) for a, b in edges} for spec in self.specs]

    @cached_property
    def _floors(self) -> list[float]:
        """For each node the least that it can cost in any region, all of its edges inside."""
        floors = []
        for i in range(len(self.nodes)):
            ways = []
            for home, spec in enumerate(self.specs):
                if self.takes[home] >> i & 1:
                    saved = sum(s for (_, b), s in self._saved[home].items() if b == i)
                    ways.append(max(self._costs[home][i] * self.world.gains[spec] - saved, 0.0))
            floors.append(min(ways))
        return floors

    def _least(self, ran: int) -> float:
        left = [i for i in range(len(self.nodes)) if not ran >> i & 1]
        return sum(self._floors[i] for i in left) + (min(map(self.world.table.launch, self.specs)) if left else 0.0)

    def _live(self, ran: int) -> tuple[int, ...]:
        known = self.__dict__.setdefault("_lives", {})
        if ran not in known:
            known[ran] = tuple(i for i in range(len(self.nodes)) if ran >> i & 1 and self._after[i] & ~ran)
        return known[ran]

    def _steps(self, ran: int) -> list[tuple[int, int]]:
        """Return every (engine, nodes) that can run next."""
        return [(engine, taken) for engine in range(len(self.specs)) for taken in self._sets(ran, self.takes[engine])]

    def _sets(self, ran: int, takes: int) -> list[int]:
        known = self.__dict__.setdefault("_known_sets", {})
        if (ran, takes) not in known:
            found = [0]
            for i in range(len(self.nodes)):
                if takes >> i & 1 and not ran >> i & 1:
                    found += [taken | 1 << i for taken in found if not self.before[i] & ~(ran | taken)]
            known[ran, takes] = found[1:]
        return known[ran, takes]

    def region(self, engine: int, taken: int) -> float:
        known = self.__dict__.setdefault("_regions", {})
        if (engine, taken) not in known:
            inside = [i for i in range(len(self.nodes)) if taken >> i & 1]
            gain = self.world.gains[self.specs[engine]]
            cost = sum(self._costs[engine][i] for i in inside) * (gain + (1 - gain) / len(inside))
            cost -= sum(s for (a, b), s in self._saved[engine].items() if taken >> a & 1 and taken >> b & 1)
            known[engine, taken] = self.world.table.launch(self.specs[engine]) + max(cost, 1e-9)
        return known[engine, taken]

    def _entering(self, engine: int, taken: int, where: dict[int, int]) -> float:
        return sum(
            self.world.boundary(self.specs[home], self.specs[engine], self._bytes[node])
            for node, home in where.items()
            if self._after[node] & taken
        )

    @cached_property
    def _bytes(self) -> list[int]:
        return [self.world.function.get_type(n.outputs[0]).nbytes for n in self.nodes]


def complete(world: World) -> CostTable:
    """Return the table in which every region is that any plan may have, on each engine that takes it."""
    optimum, count = Optimum(world), len(world.function.nodes)
    regions: dict[tuple[str, str], MeasuredCost | str] = {}
    for taken in _convex(optimum.before):
        key = shape_key(extract_subgraph(world.function, tuple(place for place in range(count) if taken >> place & 1), "part"))
        for home, spec in enumerate(optimum.specs):
            if not taken & ~optimum.takes[home]:
                regions[key, spec] = MeasuredCost.exactly(optimum.region(home, taken))
    return world.table.merge(CostTable(regions))


def _convex(before: list[int]) -> Iterator[int]:
    """Yield the sets of nodes through the outside of which no way leads from one of them to another."""
    above = [0] * len(before)
    for node, needs in enumerate(before):
        above[node] = needs | _joint(above, needs)
    below = [sum(1 << other for other, row in enumerate(above) if row >> node & 1) for node in range(len(before))]
    around = [(0, 0)]
    for taken in range(1, 1 << len(before)):
        first, rest = (taken & -taken).bit_length() - 1, taken & taken - 1
        around.append((around[rest][0] | above[first], around[rest][1] | below[first]))
        if not around[taken][0] & around[taken][1] & ~taken:
            yield taken


def _joint(rows: list[int], taken: int) -> int:
    found = 0
    for place, row in enumerate(rows):
        if taken >> place & 1:
            found |= row
    return found


def worlds(seeds: range, most: int, engines: tuple[int, ...] = (2, 3, 4)) -> Iterator[World]:
    """Yield worlds of up to so many nodes, one for each seed."""
    for seed in seeds:
        chance = random.Random(seed)
        yield World.drawn(seed, chance.randint(3, most), chance.choice(engines))
