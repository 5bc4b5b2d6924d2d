"""How long does it take to partition and fold a model, and how does that grow?

Chains, residual networks and random graphs of 1,000, 10,000 and 100,000 nodes, of which the first engine does not support a
tenth. Measured is the processor time of `partition` (support, clustering and folding), which uses one thread: per graph, per
node, and the time per node relative to the smallest graph. The sizes take turns; figures are medians and quartiles.

    python benchmarks/partition.py [--json] [--rounds N] [--sizes 1000,10000,100000,1000000]
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from output import make_parser, print_figures

from xrt.bench import RatioInterval, compute_ratio, interleave, machine
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.partition import partition

UNSUPPORTED_SHARE = 0.1
MAX_DISTANCE = 64
"""In a random graph, a node reads from this many preceding nodes: models are long, not wide."""
SHAPE = TensorType(DType.FLOAT32, (1, 8, 8, 8))


@dataclass(frozen=True)
class PartialEngine(GraphCompiler):
    """Supports all nodes except those of the domains in ``unsupported``, separated by commas."""

    name: ClassVar[str] = "partial"
    unsupported: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return f"no kernel for {node.op}" if node.domain and node.domain in self.unsupported.split(",") else None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise CompileRefused("nothing is compiled here")


NARROW, MIDDLE, COMPLETE = PartialEngine("odd,rare"), PartialEngine("rare"), PartialEngine()
"""Engines that support all nodes but a tenth, all but a twentieth, and all."""


# ---------------------------------------------------------------------- graphs


def make_function(nodes: Sequence[Node], constants: dict[str, Constant]) -> Function:
    """Create a Function from nodes, a tenth of which get an unsupported domain. The values that no node reads are the outputs."""
    generator = random.Random(len(nodes))
    domains = ["" if generator.random() >= UNSUPPORTED_SHARE else generator.choice(["odd", "rare"]) for _ in nodes]
    marked = tuple(Node(n.op_type, n.inputs, n.outputs, n.attributes, domain) for n, domain in zip(nodes, domains, strict=True))
    read = {name for node in nodes for name in node.inputs}
    made = [name for node in nodes for name in node.outputs]
    outputs = tuple(Value(name, SHAPE) for name in made if name not in read)
    opsets = {"": 20, "odd": 1, "rare": 1}
    return Function((Value("x", SHAPE),), outputs, marked, constants, opsets, types=dict.fromkeys(made, SHAPE))


def make_chain(count: int) -> Function:
    names = ["x", *(f"v{i}" for i in range(count))]
    return make_function([Node("Relu", (names[i],), (names[i + 1],)) for i in range(count)], {})


def make_residual(count: int) -> Function:
    """Create residual blocks of convolution, Relu and convolution, each with its own weights."""
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
    return make_function(nodes, constants)


def make_random(count: int) -> Function:
    """Create a random graph: each node reads one or two of the preceding `MAX_DISTANCE` values."""
    generator = random.Random(0)
    names = ["x", *(f"v{i}" for i in range(count))]
    nodes = []
    for i in range(count):
        near = names[max(0, i + 1 - MAX_DISTANCE) : i + 1]
        reads = tuple(generator.choice(near) for _ in range(generator.randint(1, 2)))
        nodes.append(Node("Sum", reads, (names[i + 1],)))
    return make_function(nodes, {})


GRAPHS: dict[str, tuple[Callable[[int], Function], tuple[GraphCompiler, ...]]] = {
    "chain": (make_chain, (NARROW, COMPLETE)),
    "residual": (make_residual, (NARROW, COMPLETE)),
    "random": (make_random, (NARROW, COMPLETE)),
    "random, 3 engines": (make_random, (NARROW, MIDDLE, COMPLETE)),
}


# ---------------------------------------------------------------------- time


def measure(name: str, sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure one kind of graph in all sizes, and count its regions."""
    make, engines = GRAPHS[name]
    graphs = {size: make(size) for size in sizes}
    calls = {str(size): lambda graph=graph: partition(graph, engines) for size, graph in graphs.items()}
    gc.collect()
    gc.freeze()  # garbage collection during one size would scan the graphs of the others
    times = interleave(calls, rounds=rounds, clock=time.process_time)
    gc.unfreeze()
    smallest = times[str(sizes[0])]
    rows = []
    for size, graph in graphs.items():
        timing = times[str(size)]
        growth = compute_ratio(timing, [smallest])
        scale = sizes[0] / size
        rows.append(
            {
                "graph": name,
                "nodes": size,
                "median_s": timing.median,
                "slowest_s": max(timing.seconds),
                "us_per_node": 1e6 * timing.median / size,
                "per_node_to_smallest": asdict(RatioInterval(growth.median * scale, growth.low * scale, growth.high * scale)),
                "regions": len(partition(graph, engines).launches),
            }
        )
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of nodes (default 1000,10000,100000)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    figures = {
        "machine": machine(),
        "partition": [row for name in GRAPHS for row in measure(name, sizes, arguments.rounds)],
    }
    print_figures("partition", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
