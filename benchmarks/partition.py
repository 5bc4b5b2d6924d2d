"""How long does it take to partition and fold a model, and into how few regions?

Three questions. (1) Chains, residual networks and random graphs of 1,000, 10,000 and 100,000 nodes, a tenth of which the
first engine does not take: the processor time of `partition`, which uses one thread (capability, clustering and folding;
the Function is there before), per node too, and its growth: the time per node against that of the smallest. The sizes
take turns; medians and quartiles. (2)
The same graphs: regions beside the plain algorithm, which merges each child into its parents wherever that closes no
cycle. (3) Random graphs of up to 12 nodes, two to four engines: regions beside the true minimum, found by going
through every order in which the nodes can run.

    python benchmarks/partition.py [--json] [--rounds N] [--sizes 1000,10000,100000] [--seeds N]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from xrt.bench import RatioInterval, interleave, machine, ratio
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.partition import DependencyGraph, partition
from xrt.partition.clustering import merge_greedily
from xrt.partition.quotient_graph import QuotientGraph

UNSUPPORTED = 0.1
WINDOW = 64
"""In a random graph a node reads from this many before it: models are long, not wide."""
SHAPE = TensorType(DType.FLOAT32, (1, 8, 8, 8))


@dataclass(frozen=True)
class Picky(GraphCompiler):
    """Takes what is supported."""

    name: ClassVar[str] = "picky"

    def why_not(self, node: Node, function: Function) -> str | None:
        return f"no kernel for {node.op}" if node.domain else None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise CompileRefused("nothing is compiled here")


@dataclass(frozen=True)
class Middle(Picky):
    """Takes half of what is not supported."""

    name: ClassVar[str] = "middle"

    def why_not(self, node: Node, function: Function) -> str | None:
        return f"no kernel for {node.op}" if node.domain == "rare" else None


@dataclass(frozen=True)
class Willing(Picky):
    """Takes everything."""

    name: ClassVar[str] = "willing"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None


# ---------------------------------------------------------------------- graphs


def function_of(nodes: Sequence[Node], constants: dict[str, Constant]) -> Function:
    """Return the Function over the nodes, a tenth of them made unsupported; what nobody reads is an output."""
    chance = random.Random(len(nodes))
    domains = ["" if chance.random() >= UNSUPPORTED else chance.choice(["odd", "rare"]) for _ in nodes]
    marked = tuple(Node(n.op_type, n.inputs, n.outputs, n.attributes, domain) for n, domain in zip(nodes, domains, strict=True))
    read = {name for node in nodes for name in node.inputs}
    made = [name for node in nodes for name in node.outputs]
    outputs = tuple(Value(name, SHAPE) for name in made if name not in read)
    opsets = {"": 20, "odd": 1, "rare": 1}
    return Function((Value("x", SHAPE),), outputs, marked, constants, opsets, types=dict.fromkeys(made, SHAPE))


def chain(count: int) -> Function:
    names = ["x", *(f"v{i}" for i in range(count))]
    return function_of([Node("Relu", (names[i],), (names[i + 1],)) for i in range(count)], {})


def residual(count: int) -> Function:
    """Blocks of convolution, Relu, convolution with weights of their own, added to what came in."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    pads = read_attributes({"pads": [1, 1, 1, 1]})
    before = "x"
    for i in range(count // 4):
        for k in "ac":
            constants[f"{k}w{i}"] = Constant(np.zeros((8, 8, 3, 3), "float32"))
        nodes += [
            Node("Conv", (before, f"aw{i}"), (f"a{i}",), pads),
            Node("Relu", (f"a{i}",), (f"b{i}",)),
            Node("Conv", (f"b{i}", f"cw{i}"), (f"c{i}",), pads),
            Node("Add", (f"c{i}", before), (f"d{i}",)),
        ]
        before = f"d{i}"
    return function_of(nodes, constants)


def scattered(count: int) -> Function:
    """A random graph: each node reads one or two values made shortly before it."""
    chance = random.Random(0)
    names = ["x", *(f"v{i}" for i in range(count))]
    nodes = []
    for i in range(count):
        near = names[max(0, i + 1 - WINDOW) : i + 1]
        reads = tuple(chance.choice(near) for _ in range(chance.randint(1, 2)))
        nodes.append(Node("Sum", reads, (names[i + 1],)))
    return function_of(nodes, {})


GRAPHS: dict[str, tuple[Callable[[int], Function], tuple[GraphCompiler, ...]]] = {
    "chain": (chain, (Picky(), Willing())),
    "residual": (residual, (Picky(), Willing())),
    "random": (scattered, (Picky(), Willing())),
    "random, 3 engines": (scattered, (Picky(), Middle(), Willing())),
}


# ---------------------------------------------------------------------- time, and regions beside the plain algorithm


def measured(name: str, sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Time one sort of graph in all sizes, and count its regions."""
    make, engines = GRAPHS[name]
    graphs = {size: make(size) for size in sizes}
    calls = {str(size): lambda graph=graph: partition(graph, engines) for size, graph in graphs.items()}
    gc.collect()
    gc.freeze()  # a collection that falls into one size would go over the graphs of all the others
    times = interleave(calls, rounds=rounds, clock=time.process_time)
    gc.unfreeze()
    smallest = times[str(sizes[0])]
    rows = []
    for size, graph in graphs.items():
        mine = times[str(size)]
        growth = ratio(mine, [smallest])
        scale = sizes[0] / size
        rows.append(
            {
                "graph": name,
                "nodes": size,
                "median_s": mine.median,
                "slowest_s": max(mine.seconds),
                "us_per_node": 1e6 * mine.median / size,
                "per_node_to_smallest": asdict(RatioInterval(growth.median * scale, growth.low * scale, growth.high * scale)),
                "regions": len(partition(graph, engines).launches),
                "plain_regions": len(set(merge_greedily(units_of(graph, engines)))),
            }
        )
    return rows


def units_of(graph: Function, engines: Sequence[GraphCompiler]) -> QuotientGraph:
    first = [next(i for i, e in enumerate(engines) if e.why_not(node, graph) is None) for node in graph.nodes]
    return QuotientGraph.of(DependencyGraph.of(graph), first, [""] * len(first))


# ---------------------------------------------------------------------- regions beside the true minimum


def against_minimum(kinds: int, seeds: int) -> dict[str, Any]:
    """Compare region counts with the true minimum over seeded graphs of 4 to 12 nodes."""
    own, plain, least = [], [], []
    for seed in range(seeds):
        graph, engines = small(kinds, seed)
        own.append(len(partition(graph, engines).launches))
        units = units_of(graph, engines)
        plain.append(len(set(merge_greedily(units))))
        least.append(minimum(units))
    return {"engines": kinds, "graphs": seeds, "own": beside(own, least), "plain": beside(plain, least)}


def beside(found: Sequence[int], least: Sequence[int]) -> dict[str, float]:
    pairs = list(zip(found, least, strict=True))
    return {
        "optimal": sum(a == b for a, b in pairs) / len(pairs),
        "mean_ratio": sum(a / b for a, b in pairs) / len(pairs),
        "worst_ratio": max(a / b for a, b in pairs),
    }


def small(kinds: int, seed: int) -> tuple[Function, list[GraphCompiler]]:
    """Return a random graph and engines, each of which takes one sort of node."""
    chance = random.Random(seed)
    count, density = chance.randint(4, 12), chance.choice([0.15, 0.3, 0.5])
    nodes = []
    for i in range(count):
        reads = tuple(f"v{k}" for k in range(i) if chance.random() < density) or ("x",)
        nodes.append(Node("Sum", reads, (f"v{i}",), domain=f"sort{chance.randrange(kinds)}"))
    opsets = {f"sort{k}": 1 for k in range(kinds)}
    graph = Function((Value("x", SHAPE),), tuple(Value(f"v{i}", SHAPE) for i in range(count)), tuple(nodes), opsets=opsets)
    return graph, [one_sort(k) for k in range(kinds)]


def one_sort(k: int) -> GraphCompiler:
    @dataclass(frozen=True)
    class OneSort(Picky):
        name: ClassVar[str] = f"sort{k}"

        def why_not(self, node: Node, function: Function) -> str | None:
            return None if node.domain == self.name else f"takes {self.name} only"

    return OneSort()


def minimum(units: QuotientGraph) -> int:
    """Return the fewest regions that any order of the nodes needs: a region ends where the kind changes.

    Regions without a cycle have an order in which they run, so this is the least over all acyclic groupings. Node by
    node and breadth first over (what has run, the last kind), without any assumption about good orders.
    """
    needs = [sum(1 << earlier for earlier in before) for before in units.graph.predecessors]
    everything = (1 << len(units)) - 1
    states, regions = {(0, -1)}, 0
    while True:
        states = closed(states, needs, units.kind)
        if any(ran == everything for ran, _ in states):
            return regions
        states = {(ran, kind) for ran, _ in states for kind in set(units.kind)}
        regions += 1


def closed(states: set[tuple[int, int]], needs: Sequence[int], kind: Sequence[int]) -> set[tuple[int, int]]:
    """Return the states with all that can be reached from them by nodes of their kind."""
    found, stack = set(states), list(states)
    while stack:
        ran, last = stack.pop()
        for unit, need in enumerate(needs):
            then = (ran | 1 << unit, last)
            if kind[unit] == last and not need & ~ran and then not in found:
                found.add(then)
                stack.append(then)
    return found


# ---------------------------------------------------------------------- report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of nodes (default 1000,10000,100000)")
    parser.add_argument("--seeds", type=int, default=300, help="graphs of up to 12 nodes, per number of engines (default 300)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    figures = {
        "machine": machine(),
        "partition": [row for name in GRAPHS for row in measured(name, sizes, arguments.rounds)],
        "minimum": [against_minimum(kinds, arguments.seeds) for kinds in (2, 3, 4)],
    }
    print(json.dumps(figures, indent=2) if arguments.json else report(figures))


def report(figures: dict[str, Any]) -> str:
    head = f"  {'graph':18} {'nodes':>7} {'median':>9} {'slowest':>9} {'us/node':>8} {'growth':>24} {'regions':>8} {'plain':>7}"
    lines = [figures["machine"], "", "partition and fold, a tenth unsupported; growth: time per node against the smallest", head]
    lines += [
        f"  {row['graph']:18} {row['nodes']:7d} {1e3 * row['median_s']:6.0f} ms {1e3 * row['slowest_s']:6.0f} ms "
        f"{row['us_per_node']:8.2f} {RatioInterval(**row['per_node_to_smallest'])!s:>24} {row['regions']:8d} "
        f"{row['plain_regions']:7d}"
        for row in figures["partition"]
    ]
    lines += ["", "regions beside the true minimum, random graphs of 4 to 12 nodes"]
    for row in figures["minimum"]:
        for who in ("own", "plain"):
            found = row[who]
            lines.append(
                f"  {row['engines']} engines, {row['graphs']} graphs, {who:5}: optimal {found['optimal']:6.1%}, "
                f"mean ratio {found['mean_ratio']:.3f}, worst {found['worst_ratio']:.2f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
