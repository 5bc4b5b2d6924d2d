"""How do the stages before the first compile grow with the model?

Chains, residual networks and random graphs (those of `partition.py`) of 10,000, 100,000 and 1,000,000 nodes. For each stage
the processor time (every stage is one thread), per node too, and its growth: the time per node against that of the
smallest graph. The stages: making the Function, checking it, inferring its types, folding constants and dropping what is dead,
its fingerprint, partitioning and folding it into regions (a tenth of the nodes on another engine), printing and
explaining the plan; and writing and reading the model as text and as ONNX, and storing the plan, which above ``--written``
nodes are left out, because the texts have gigabytes. Medians of ``--rounds``, above
``MOST`` nodes one run; garbage is collected before each stage.

    python benchmarks/scale.py [--json] [--graphs chain,residual,random] [--sizes 10000,100000,1000000] [--rounds N] [--written N]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from partition import GRAPHS

from xrt import passes
from xrt.bench import machine
from xrt.engines import CompileContext, GraphCompiler
from xrt.formats import onnx, text
from xrt.graph import Function, Node
from xrt.graph.verify import verify
from xrt.measure.timing import time_call
from xrt.module.explain import explain
from xrt.module.specialization import optimize
from xrt.partition import Plan, partition
from xrt.placement.engine_list import EngineList

MOST = 100_000
"""Nodes over all rounds of one size, where there is more than one round."""


@dataclass
class Clock:
    """The seconds of each stage, one entry per round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, stage: str, call: Callable[[], Any]) -> Any:
        """Do the stage and return what it gives."""
        gc.collect()
        result, seconds = time_call(call, time.process_time)
        self.seconds.setdefault(stage, []).append(seconds)
        return result


def measure(name: str, size: int, written: int, clock: Clock) -> None:
    """Take a graph through all stages once."""
    make, engines = GRAPHS[name]
    marked = make(size)  # with the operators that the first engine does not take; their domains have no types to infer
    nodes = tuple(Node(n.op_type, n.inputs, n.outputs, n.attributes) for n in marked.nodes)
    plain = clock.time("make", lambda: marked.replace(nodes=nodes))
    clock.time("verify", lambda: verify(plain))
    inferred = clock.time("infer", lambda: passes.infer_shapes(plain))
    clock.time("simplify", lambda: optimize(inferred, fold=True))
    clock.time("fingerprint", lambda: plain.fingerprint)
    plan = clock.time("partition", lambda: partition(marked, engines))
    clock.time("print the plan", lambda: str(plan))
    clock.time("explain", lambda: explained(plan, engines))
    if size <= written:
        through_text(plain, clock)
        through_onnx(plain, clock)
        through_bytes(plan, clock)


def explained(plan: Plan, engines: Sequence[GraphCompiler]) -> str:
    return str(explain(plan, EngineList(tuple(engines), None, CompileContext())))


def through_text(function: Function, clock: Clock) -> None:
    described = clock.time("write text", lambda: text.to_text(function))
    clock.time("read text", lambda: text.parse(described))


def through_onnx(function: Function, clock: Clock) -> None:
    model = clock.time("write ONNX", lambda: onnx.to_model(function).SerializeToString())
    clock.time("read ONNX", lambda: onnx.load(model))


def through_bytes(plan: Plan, clock: Clock) -> None:
    stored = clock.time("store the plan", plan.to_bytes)
    clock.time("read the plan", lambda: Plan.from_bytes(stored))


def rows(name: str, sizes: Sequence[int], rounds: int, written: int) -> list[dict[str, Any]]:
    """Return a row per stage and size."""
    smallest: dict[str, float] = {}
    found = []
    for size in sizes:
        clock = Clock()
        for _ in range(rounds_for(size, rounds)):
            measure(name, size, written, clock)
        for stage, seconds in clock.seconds.items():
            median = statistics.median(seconds)
            per_node = median / size
            growth = per_node / smallest.setdefault(stage, per_node)
            found.append(
                {
                    "graph": name,
                    "stage": stage,
                    "nodes": size,
                    "median_s": median,
                    "slowest_s": max(seconds),
                    "us_per_node": 1e6 * per_node,
                    "growth": growth,
                }
            )
    return found


def rounds_for(size: int, rounds: int) -> int:
    """Return how often a size is measured: the largest take minutes, and processor time hardly differs between two of them."""
    return max(1, min(rounds, MOST // size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--graphs", default="chain,residual,random", help="which graphs (default chain,residual,random)")
    parser.add_argument("--sizes", default="10000,100000,1000000", help="numbers of nodes (default 10000,100000,1000000)")
    parser.add_argument(
        "--rounds", type=int, default=3, help=f"how often each is measured, at most {MOST:,} nodes together (default 3)"
    )
    parser.add_argument("--written", type=int, default=100_000, help="the most nodes that are written and read (default 100000)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    stages = [row for name in arguments.graphs.split(",") for row in rows(name, sizes, arguments.rounds, arguments.written)]
    figures = {"machine": machine(), "stages": stages}
    print(json.dumps(figures, indent=2) if arguments.json else report(figures))


def report(figures: dict[str, Any]) -> str:
    """Return a line per graph and stage, with what it takes at each size."""
    lines = [figures["machine"], "", "processor time; growth: time per node against the smallest graph"]
    for graph, stage in dict.fromkeys((row["graph"], row["stage"]) for row in figures["stages"]):
        cells = [
            f"{row['nodes']:8d}: {row['median_s']:8.3f} s, {row['us_per_node']:6.2f} us/node, growth {row['growth']:4.2f}"
            for row in figures["stages"]
            if (row["graph"], row["stage"]) == (graph, stage)
        ]
        lines.append(f"  {graph:9} {stage:15} {' | '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
