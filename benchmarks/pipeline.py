"""How near does a model in parts come to the throughput of its slowest part, and how much memory does each part take?

A model is cut into stages (`Plan.stages`), which run as actors of Ray with one processor each, one for each node. In turns: the
pipeline over many micro-batches, each stage alone in this process with one thread, and all stages at once in this process in as
many threads as there are cores.

The *ideal* is the time of a micro-batch by the slowest stage. With fewer cores than stages no more stages compute at once than
there are cores: it is then at least the times of all stages divided by the cores, whatever the order. It knows of no cost of
messages, and of no cache and memory that stages share; *at once* has the latter, without messages. Figures are micro-batches
per second, the ratio to both within each round, and of each stage's process the memory that is its own share (PSS), the
anonymous pages, the pages of the model's file, and the peak.

With ``--node-memory`` all processes of a node are in a control group of that size (root), so that a node cannot hold more.

    python -m benchmarks.pipeline [--json] [--quick] [--stages 4] [--layers 16] [--width 1024] [--micro-batch 32] [--rounds 5]
    python -m benchmarks.pipeline --layers 32 --width 4096 --batches 40 --node-memory 1000   # 2.1 GB over four nodes of 1 GB
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import xrt
from benchmarks.memory_groups import limit_memory
from benchmarks.ray_models import start_cluster
from xrt.graph import DType, TensorType
from xrt.measure.interleave import take_turns
from xrt.module.stages import compile_stage
from xrt.partition.stages import cut_plan
from xrt.ray import pipeline
from xrt.runtime import available_cores


class Perceptron(xrt.Graph):
    """Products of one width with rectifiers between them."""

    def __init__(self, layers: int, width: int) -> None:
        rng = np.random.default_rng(0)
        self._weights = [rng.standard_normal((width, width), "float32") / np.float32(np.sqrt(width)) for _ in range(layers)]

    def build(self, x: Any) -> Any:
        for weight in self._weights:
            x = xrt.ops.Relu(xrt.ops.MatMul(x, weight))
        return x


def write_model(path: Path, layers: int, width: int, engine: str) -> None:
    graph = Perceptron(layers, width).trace(x=TensorType(DType.FLOAT32, ("n", width)))
    with xrt.XRTModule(graph, engine=engine, threads=1) as module:
        module.save(path)


def time_stages(model: Path, ends: list[int], x: Any) -> dict[str, Callable[[], float]]:
    """Return turns that run each stage alone, and all of them at once; each returns seconds for a micro-batch."""
    module = xrt.load(model, threads=1)
    calls, values = [], [x]
    for stage in cut_plan(module.plan, ends, {"n": len(x)}):
        program = compile_stage(module, stage)
        calls.append(partial(program, values))
        values = program(values)
    turns: dict[str, Callable[[], float]] = {f"stage {place}": partial(_time_alone, call) for place, call in enumerate(calls)}
    return {**turns, "at once": partial(_time_at_once, calls)}


def _time_alone(call: Callable[[], Any], least: float = 0.3) -> float:
    call()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < least:
        call()
        count += 1
    return (time.perf_counter() - began) / count


def _time_at_once(calls: Sequence[Callable[[], Any]], least: float = 0.6) -> float:
    """Run the stages in turn in threads, without order or messages."""
    with ThreadPoolExecutor(min(available_cores(), len(calls))) as pool:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < least:
            list(pool.map(lambda call: call(), [*calls] * 4))
            count += 4
        return (time.perf_counter() - began) / count


def measure_process(pid: int, model: Path) -> dict[str, float]:
    """Return the memory of a process of this machine, in MB."""
    facts = Path(f"/proc/{pid}/smaps_rollup").read_text() + Path(f"/proc/{pid}/status").read_text()
    found = {
        name: int(re.search(rf"^{field}:\s+(\d+)", facts, re.MULTILINE)[1]) / 1000  # type: ignore[index]  # it is in every such file
        for name, field in {"pss": "Pss", "anonymous": "RssAnon", "peak": "VmHWM"}.items()
    }
    mapped, here = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(str(model))
        elif here and line.startswith("Rss:"):
            mapped += int(line.split()[1])
    return {**found, "model file": mapped / 1000}


def measure(arguments: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.random((arguments.micro_batch, arguments.width), "float32")
    size, count = arguments.node_memory, arguments.stages
    limits: Any = limit_memory(size * 1_000_000, count) if size else nullcontext([])
    with tempfile.TemporaryDirectory() as name, limits as groups, start_cluster(count, groups):
        model = Path(name) / "model.xrt"
        writer = multiprocessing.get_context("spawn").Process(
            target=write_model, args=(model, arguments.layers, arguments.width, arguments.engine)
        )
        writer.start()  # a process of its own, so that this one does not hold the model
        writer.join()
        options = {"micro_batch": arguments.micro_batch, "channel": arguments.channel}
        with pipeline(model, count, memory=size and size * 600_000, **options) as piped:
            turns = time_stages(model, [stage.stop for stage in piped.stages], x)

            items = [x] * arguments.batches

            def run() -> float:
                began = time.perf_counter()
                for _ in piped.map(items):
                    pass
                return (time.perf_counter() - began) / len(items)

            run()
            with xrt.load(model, threads=1) as module:
                np.testing.assert_allclose(piped(x), module(x), rtol=1e-3, atol=1e-4)
            seconds = take_turns({"pipeline": run, **turns}, arguments.rounds)
            stages, channel = [str(stage) for stage in piped.stages], piped.channel
            memory = [measure_process(process.pid, model) for process in piped.processes]
            nodes = [group.count_bytes() / 1e6 for group in groups]
            killed = sum(group.count_killed() for group in groups)
    return {"stages": stages, "channel": channel, "memory": memory, "nodes": nodes, "killed": killed, **summarize(seconds, count)}


def summarize(seconds: dict[str, list[float]], count: int) -> dict[str, Any]:
    cores = min(available_cores(), count)
    rounds = list(zip(*(seconds[f"stage {place}"] for place in range(count)), strict=True))
    ideals = [max(*one, sum(one) / cores) for one in rounds]
    medians = {name: statistics.median(taken) for name, taken in {**seconds, "ideal": ideals}.items()}
    taken = seconds["pipeline"]
    return {
        "cores": cores,
        "per_second": {name: 1 / medians[name] for name in ("pipeline", "ideal", "at once")},
        "ratio": statistics.median(ideal / mine for ideal, mine in zip(ideals, taken, strict=True)),
        "ratio_at_once": statistics.median(other / mine for other, mine in zip(seconds["at once"], taken, strict=True)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two stages of 4 layers, 20 micro-batches, one round")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="ort")
    parser.add_argument("--channel", choices=("auto", "calls", "graph"), default="auto")
    parser.add_argument("--node-memory", type=int, metavar="MB", help="what all processes of a node may use (needs root)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.stages, arguments.layers, arguments.batches, arguments.rounds = 2, 4, 20, 1
    found = measure(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    for stage, memory in zip(found["stages"], found["memory"], strict=True):
        print(f"  {stage}; MB of its process: {', '.join(f'{name} {size:.0f}' for name, size in memory.items())}")
    rates = ", ".join(f"{name} {rate:.1f}/s" for name, rate in found["per_second"].items())
    print(f"{found['channel']}, {found['cores']} cores: {rates}; processes killed for want of memory: {found['killed']}")
    alone = ", ".join(f"{1e3 * statistics.median(found['seconds'][f'stage {n}']):.1f}" for n in range(arguments.stages))
    if found["nodes"]:
        print(f"all processes of each node hold {', '.join(f'{size:.0f}' for size in found['nodes'])} MB")
    print(f"stages alone take {alone} ms")
    print(f"pipeline to ideal {found['ratio']:.3f} x, to stages at once {found['ratio_at_once']:.3f} x")


if __name__ == "__main__":
    main()
