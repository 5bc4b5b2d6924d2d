"""How near does a model in parts come to the throughput of its slowest part?

A model is cut into stages (`Plan.stages`), which run as actors of Ray with one processor each. In turns: the pipeline over many
micro-batches, and each stage alone in this process with one thread. The *ideal* is one micro-batch in the time of the slowest
stage; with fewer processors than stages it is the time of all stages divided by the processors. Figures are micro-batches per
second, the ratio to the ideal within each round, and the memory (PSS) of each stage's process, which has the weights
of its stage alone.

    python -m benchmarks.pipeline [--json] [--quick] [--stages 4] [--layers 16] [--width 1024] [--micro-batch 32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import xrt
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
        self._weights = [(rng.standard_normal((width, width)) / np.sqrt(width)).astype("float32") for _ in range(layers)]

    def build(self, x: Any) -> Any:
        for weight in self._weights:
            x = xrt.ops.Relu(xrt.ops.MatMul(x, weight))
        return x


def time_stages(model: Path, ends: list[int], x: Any) -> list[Callable[[], float]]:
    """Return for each stage a function that runs it alone, with the values that it receives, and returns the seconds of a run."""
    module = xrt.load(model, threads=1)
    calls, values = [], [x]
    for stage in cut_plan(module.plan, ends, {"n": len(x)}):
        program = compile_stage(module, stage)
        calls.append(partial(_time_alone, program, values))
        values = program(values)
    return calls


def _time_alone(program: Any, values: Any, least: float = 0.3) -> float:
    program(values)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < least:
        program(values)
        count += 1
    return (time.perf_counter() - began) / count


def count_megabytes(pid: int) -> float:
    """Return the memory of a process of this machine, with its share of what several map."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def measure(arguments: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.random((arguments.micro_batch, arguments.width), "float32")
    with tempfile.TemporaryDirectory() as name, start_cluster(arguments.stages):
        graph = Perceptron(arguments.layers, arguments.width).trace(x=TensorType(DType.FLOAT32, ("n", arguments.width)))
        model = Path(name) / "model.xrt"
        with xrt.XRTModule(graph, engine=arguments.engine, threads=1) as module:
            module.save(model)
        with pipeline(model, arguments.stages, micro_batch=arguments.micro_batch) as piped:
            alone = time_stages(model, [stage.stop for stage in piped.stages], x)
            turns: dict[str, Callable[[], float]] = {f"stage {place}": call for place, call in enumerate(alone)}

            def run() -> float:
                began = time.perf_counter()
                for _ in piped.map([x] * arguments.batches):
                    pass
                return (time.perf_counter() - began) / arguments.batches

            run()
            with xrt.load(model, threads=1) as module:
                np.testing.assert_allclose(piped(x), module(x), rtol=1e-4, atol=1e-5)
            seconds = take_turns({"pipeline": run, **turns}, arguments.rounds)
            stages = [str(stage) for stage in piped.stages]
            memory = [count_megabytes(process.pid) for process in piped.processes]
    rounds = list(zip(*(seconds[f"stage {place}"] for place in range(arguments.stages)), strict=True))
    ideals = [max(*one, sum(one) / min(available_cores(), arguments.stages)) for one in rounds]
    return {
        "stages": stages,
        "megabytes": memory,
        "pipeline_per_second": 1 / statistics.median(seconds["pipeline"]),
        "ideal_per_second": 1 / statistics.median(ideals),
        "ratio": statistics.median(ideal / taken for ideal, taken in zip(ideals, seconds["pipeline"], strict=True)),
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
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.stages, arguments.layers, arguments.batches, arguments.rounds = 2, 4, 20, 1
    found = measure(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    for stage, size in zip(found["stages"], found["megabytes"], strict=True):
        print(f"  {stage}; its process has {size:.0f} MB")
    print(f"pipeline {found['pipeline_per_second']:.1f}/s, ideal {found['ideal_per_second']:.1f}/s: {found['ratio']:.3f} x")


if __name__ == "__main__":
    main()
