"""A made-up world in which every region has a known cost, and a search in it.

A region costs its engine's launch, its nodes, and less where engines fuse: in one sort of world every edge inside saves
something, in the other every region gains with its size. The planner never sees these rules: it may only have pieces measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.partition.drawn import engine
from xrt.engines import GraphCompiler
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.partition import CostTable, MeasuredCost, Plan, RegionCost
from xrt.placement import ProfilingRequest, choose_requests, propose_plans

OPERATORS = ("Conv", "Gemm", "Relu", "Add", "Softmax", "Transpose")
SIZES = (64, 4096, 65536, 262144)


@dataclass(frozen=True)
class World:
    """A model, engines, and what everything costs."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    launches: dict[str, float]
    """Spec to the seconds of a launch."""
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
        launches = {spec: chance.uniform(2e-6, 30e-6) for spec in specs}
        rates = {(spec, op): 10 ** chance.uniform(-10.3, -8.9) for spec in specs for op in OPERATORS}
        savings = {
            (spec, a, b): chance.choice([0.0, 0.0, chance.uniform(0, 0.9)]) if pairwise else 0.0
            for spec in specs
            for a in OPERATORS
            for b in OPERATORS
        }
        gains = {spec: 1.0 if pairwise else chance.uniform(0.5, 1.0) for spec in specs}
        return cls(_function(chance, nodes), _engines(chance, specs), launches, rates, savings, gains)

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
        return self.launches[spec] + max(sum(cost.values()) * keeps - saved, 1e-9)

    def node(self, spec: str, node: Node, function: Function) -> float:
        """Return what a node costs alone, without the launch."""
        return self.rates[spec, node.op_type] * (function.get_type(node.outputs[0]).nbytes + 256)

    def saving(self, spec: str, function: Function, earlier: str, later: str) -> float:
        """Return what an edge saves whose ends are in one region: less than its later end costs, however many edges that has."""
        a, b = function.node(earlier), function.node(later)
        cheaper = min(self.node(spec, a, function), self.node(spec, b, function))
        return self.savings[spec, a.op_type, b.op_type] * cheaper / 3


def _function(chance: random.Random, count: int) -> Function:
    """Return a graph of that many nodes, most of which read one or two of the latest values."""
    nodes, types = [], {}
    width = chance.choice([1, 2, 3, 5])
    for i in range(count):
        earlier = [f"v{j}" for j in range(max(0, i - width), i)]
        reads = chance.sample(earlier, min(len(earlier), chance.choice([1, 1, 2]))) or ["x"]
        nodes.append(Node(chance.choice(OPERATORS), tuple(reads), (f"v{i}",), name=f"n{i}"))
        types[f"v{i}"] = TensorType(DType.FLOAT32, (chance.choice(SIZES),))
    read = {name for node in nodes for name in node.inputs}
    ends = tuple(Value(name, type_) for name, type_ in types.items() if name not in read)
    x = Value("x", TensorType(DType.FLOAT32, (64,)))
    return Function((x,), ends, tuple(nodes), types=types, opsets={"": 20}, constants={"c": Constant(np.zeros(4, np.float32))})


def _engines(chance: random.Random, specs: list[str]) -> tuple[GraphCompiler, ...]:
    """Return engines that take most operators; the last one takes all."""
    partial = [engine(spec, *[op for op in OPERATORS if chance.random() < 0.85], "none") for spec in specs[:-1]]
    return (*partial, engine(specs[-1]))


# ------------------------------------------------------------------ the optimum


def worlds(seeds: range, most: int, engines: tuple[int, ...] = (2, 3, 4)) -> Iterator[World]:
    """Yield worlds of up to so many nodes, one for each seed."""
    for seed in seeds:
        chance = random.Random(seed)
        yield World.drawn(seed, chance.randint(3, most), chance.choice(engines))


@dataclass(frozen=True)
class SearchResult:
    """Plans, the best predicted first; what was measured; and whether nothing was left to measure."""

    plans: tuple[Plan, ...]
    table: CostTable
    measured: int
    is_finished: bool


def run_search(
    function: Function,
    engines: Sequence[GraphCompiler],
    measure: Callable[[ProfilingRequest], RegionCost | None],
    *,
    rounds: int = 32,
) -> SearchResult:
    """Measure what the planner asks for, round by round, and return what it proposes; None from ``measure`` stops it."""
    table, count, is_finished = CostTable(), 0, False
    for _ in range(rounds):
        requests = choose_requests(function, engines, table)
        costs: dict[tuple[str, str], RegionCost] = {}
        for piece in requests:
            if (cost := measure(piece)) is None:
                break
            costs[piece.key, piece.spec] = cost
        table, count, is_finished = table.merge(CostTable(costs)), count + len(costs), not requests
        if len(costs) < len(requests) or is_finished:
            break
    plans = propose_plans(function, engines, table)
    return SearchResult(plans, table, count, is_finished)
