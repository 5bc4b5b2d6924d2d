"""What does a cut cost?

One model of about 10 ms: 16 blocks of convolution, Relu and addition.

1. Cut into 2, 4, 8 and 16 regions of one engine: the module's call against the sum of the same regions, each called alone, and
   against the uncut model. The time that the regions alone take longer than the uncut model is lost fusion, not a cost of the
   cut.
2. The convolutions on one engine and the other nodes on another engine, against the sum of the same regions alone.
3. Every pair of engines on five kinds of region, and each engine's region alone (`region_pairs`); the pairs run on one thread
   too, where no engine has threads to wake.

After 1 and 2: the processor time that this process takes in an idle second.

    python benchmarks/regions.py [--json] [--rounds N] [--counts 2,4,8,16] [--channels N] [--size N] [--threads N]
        [--engines ort,tvm,...] [--kinds chain,softmax,...] [--side N] [--pair-rounds N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from output import make_parser, print_figures
from region_pairs import ENGINES, KINDS, measure_memory_kinds, measure_pairs

import xrt
from xrt.bench import RatioInterval, Timing, compute_ratio, interleave, machine
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.engines.native import why_not_shipped
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.runtime import count_available_cores

BLOCKS = 16
ALTERNATIONS = ("tvm", "toy")
"""Engines that alternate with ort: they run all nodes except convolutions."""


def make_convolutions(channels: int, size: int) -> Function:
    """Create a chain of blocks, each a 3x3 convolution, a Relu and an addition of the block's input."""
    rng = np.random.default_rng(0)
    shape = TensorType(DType.FLOAT32, (1, channels, size, size))
    nodes, constants = [], {}
    for i in range(BLOCKS):
        constants[f"w{i}"] = Constant((rng.standard_normal((channels, channels, 3, 3)) * 0.03).astype("float32"))
        nodes += [
            Node("Conv", (f"x{i}", f"w{i}"), (f"c{i}",), read_attributes({"pads": [1, 1, 1, 1]})),
            Node("Relu", (f"c{i}",), (f"r{i}",)),
            Node("Add", (f"r{i}", f"x{i}"), (f"x{i + 1}",)),
        ]
    types = {name: shape for node in nodes for name in node.outputs}
    ends = (Value("x0", shape),), (Value(f"x{BLOCKS}", shape),)
    return Function(*ends, tuple(nodes), constants, {"": 14}, types=types, name="convolutions")


def regions_alone(module: xrt.XRTModule, x: Any, threads: int) -> list[Callable[[], Any]]:
    """Return a call per region of the module's plan, whose arguments are the values that the region has in a run of ``x``."""
    values = {module.inputs[0].name: x}
    calls = []
    for launch in module.plan.launches:
        executable = registry.create(launch.engine).compile(launch.function, CompileContext(threads=threads))
        executable.prepare()
        given = [values[name] for name in launch.inputs]
        values.update(zip(launch.outputs, executable.run(given), strict=True))
        calls.append(lambda executable=executable, given=given: executable.run(given))
    return calls


def measure_cut(what: str, cut: xrt.XRTModule, whole: xrt.XRTModule, x: Any, threads: int, rounds: int) -> dict[str, Any]:
    """Measure a module cut into regions against its regions alone and the uncut model, and its processor time when idle."""
    np.testing.assert_allclose(cut(x), whole(x), rtol=1e-3, atol=1e-4)
    calls = {f"region {i}": call for i, call in enumerate(regions_alone(cut, x, threads))}
    times = interleave({"cut": lambda: cut(x), "bound": cut.bind(x), "whole": lambda: whole(x), **calls}, rounds=rounds)
    alone = [times[name] for name in calls]
    lost = [sum(t.seconds[i] for t in alone) - whole for i, whole in enumerate(times["whole"].seconds)]
    return {
        "what": what,
        "regions": len(cut.plan.launches),
        "cut_ms": 1e3 * times["cut"].median,
        "whole_ms": 1e3 * times["whole"].median,
        "lost_fusion_ms": 1e3 * float(np.median(lost)),
        "to_regions_alone": asdict(compute_ratio(times["cut"], alone)),
        "bound_to_regions_alone": asdict(compute_ratio(times["bound"], alone)),
        "to_one_region": asdict(compute_ratio(times["cut"], [times["whole"]])),
        "lost_fusion": compute_lost_fusion(alone, times["whole"]),
        "idle_cpu": measure_idle_cpu(),
    }


def compute_lost_fusion(alone: list[Timing], whole: Timing) -> dict[str, float]:
    """Compute how much longer the regions alone take than the uncut model, as a share of the latter."""
    more = compute_ratio(Timing(tuple(map(sum, zip(*(timing.seconds for timing in alone), strict=True)))), [whole])
    return asdict(RatioInterval(more.median - 1, more.low - 1, more.high - 1))


def measure_idle_cpu(seconds: float = 1.0) -> float:
    """Measure the share of one core that this process uses while it is idle."""
    time.sleep(0.05)  # until threads that finish their work are asleep
    began, wall = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return (time.process_time() - began) / (time.perf_counter() - wall)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default 20)")
    parser.add_argument("--counts", default="2,4,8,16", help="numbers of regions (default 2,4,8,16)")
    parser.add_argument("--others", default=",".join(ALTERNATIONS), help="what alternates with ort (default tvm,toy)")
    parser.add_argument("--channels", type=int, default=64, help="channels of the convolutions (default 64)")
    parser.add_argument("--size", type=int, default=40, help="height and width (default 40)")
    parser.add_argument(
        "--threads", type=int, default=count_available_cores(), help="what all engines may use (default: all cores)"
    )
    parser.add_argument("--engines", type=_words, default=ENGINES, help=f"whose pairs (default {','.join(ENGINES)})")
    parser.add_argument("--kinds", type=_words, default=KINDS, help=f"kinds of their regions (default {','.join(KINDS)})")
    parser.add_argument("--side", type=int, default=512, help="rows and columns of their values (default 512)")
    parser.add_argument("--pair-rounds", type=int, default=15, help="interleaved rounds of each (default 15)")
    options = parser.parse_args()
    figures = {
        "machine": machine("onnxruntime", "apache-tvm"),
        "native": why_not_shipped() is None,
        "cuts": measure_cuts(options),
        "alternations": measure_alternations(options),
        "memory": list(measure_memory_kinds(options)),
        "pairs": list(measure_pairs(options)),
        "pairs_on_one_thread": list(measure_pairs(replace_threads(options, 1))) if options.threads > 1 else [],
    }
    print_figures("regions", figures, as_json=options.json)


def replace_threads(options: argparse.Namespace, threads: int) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), "threads": threads})


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def prepare(options: argparse.Namespace) -> tuple[Function, Any, xrt.XRTModule]:
    """Return the model, an input for it, and the model in one region of ort."""
    function = make_convolutions(options.channels, options.size)
    x = np.random.default_rng(0).standard_normal((1, options.channels, options.size, options.size)).astype("float32")
    return function, x, xrt.XRTModule(function, engine="ort", strict=True, threads=options.threads)


def measure_cuts(options: argparse.Namespace) -> list[dict[str, Any]]:
    function, x, whole = prepare(options)
    rows = []
    for count in map(int, _words(options.counts)):
        most = len(function.nodes) // count
        cut = xrt.XRTModule(function, engine="ort", strict=True, maximum_nodes=most, threads=options.threads)
        rows.append(measure_cut("ort", cut, whole, x, options.threads, options.rounds))
    return rows


def measure_alternations(options: argparse.Namespace) -> list[dict[str, Any]]:
    function, x, whole = prepare(options)
    rows = []
    for other in filter(None, options.others.split(",")):
        pins = ["Conv=ort", f"Relu|Add={other}"]
        cut = xrt.XRTModule(function, engine=["ort", other], strict=True, pins=pins, threads=options.threads)
        rows.append(measure_cut(f"ort, {other}", cut, whole, x, options.threads, options.rounds))
    return rows


if __name__ == "__main__":
    main()
