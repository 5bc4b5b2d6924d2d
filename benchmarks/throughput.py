"""Does tuning for throughput find the best configuration?

Three models: a perceptron (batches pay), MobileNet v2 at 96 x 96 and a small BERT. The tuner has a budget and chooses. Then every
cell of the grid, batch sizes by divisions of the thread budget, is put under open-loop loads of other arrivals than the tuner's,
and the highest rate within the bound on the 99th percentile is searched for in each. The chosen cell and the best one are then
compared again, in rounds: the median ratio of their rates is to be at least 0.95. Last, what instances in threads of one process
serve, over the same in processes of their own: the cost of the interpreter lock.

    python -m benchmarks.throughput [--quick] [--json] [--engine ort] [--models bert] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from functools import partial
from typing import Any

import xrt
from benchmarks.throughput_models import MODELS
from xrt.bench import machine
from xrt.measure.queueing import Batching, LoadResult, draw_arrivals, summarize_load
from xrt.measure.rate_search import search_rate
from xrt.module.throughput import ModuleBench
from xrt.module.tuning import open_throughput_bench
from xrt.placement.throughput.prediction import ServiceTimes, predict_rate
from xrt.placement.throughput.request import Split, ThroughputRequest
from xrt.placement.throughput.session import ThroughputSession

TARGET = 0.95
HELD_OUT = 77
"""The seed of the grid's arrivals."""


def measure(name: str, terms: argparse.Namespace) -> dict[str, Any]:
    model, quick = MODELS[name], terms.quick
    bound = terms.bound or model.bound
    batches, budget = ((1, 4, 16), 10.0) if quick else ((1, 2, 4, 8, 16, 32), 45.0)
    options: dict[str, Any] = {"batches": batches, "instances": None, "batch_dim": None, "seed": 0}
    with (
        xrt.XRTModule(model.make(), engine=terms.engine.split("+")) as module,
        open_throughput_bench(module, (), {}, budget=budget, **options) as (bench, found),
    ):
        request = ThroughputRequest(found["splits"], found["batches"], bound, budget)
        began = time.perf_counter()
        chosen = ThroughputSession(bench, request).run().configuration
        spent = time.perf_counter() - began
        if chosen is None:
            return {"model": name, "bound": bound, "chosen": None, "cells": []}
        own = Split(chosen.instances, chosen.threads), chosen.batch
        grid = [(split, batch) for split in request.splits for batch in request.batches]
        cells = {cell: measure_cell(bench, *cell, request.batches, bound, quick) for cell in grid}
        rounds = [contest(bench, own, cells, request.batches, bound, quick, seed) for seed in range(terms.rounds)]
    rows = [{"batch": batch, "instances": split.instances, "rate": rate} for (split, batch), rate in cells.items()]
    ratio = statistics.median(rounds)
    return {
        "model": name,
        "bound": bound,
        "spent": spent,
        "chosen": chosen.to_dict(),
        "cells": rows,
        "rounds": rounds,
        "ratio": ratio,
    }


def contest(bench: ModuleBench, own: Any, cells: dict[Any, float], batches: Any, bound: float, quick: bool, seed: int) -> float:
    """Return the rate of the chosen cell over that of the best one, measured one right after the other."""
    best = max(cells, key=lambda cell: cells[cell])
    if best == own:
        return 1.0
    mine, theirs = (measure_cell(bench, *cell, batches, bound, quick, HELD_OUT + 1 + seed) for cell in (own, best))
    return mine / theirs if theirs else 1.0


def measure_cell(
    bench: ModuleBench, split: Split, batch: int, batches: Any, bound: float, quick: bool, seed: int = HELD_OUT
) -> float:
    """Return the highest rate within the bound; 0 where none is."""
    times = ServiceTimes({size: bench.sample_calls(split, size) for size in batches if size <= batch})
    if times.medians[batch] > bound:
        return 0.0
    sizes = tuple(size for size in batches if size <= batch) if bench.is_exact else ()
    guess, batching = predict_rate(times, batch, split.instances, bound, sizes, seed)
    capacity = split.instances * batch / times.medians[batch]
    load = partial(run_load, bench, split, batching, bound, 0.4 if quick else 1.2, seed)
    best = search_rate(load, 0.9 * (guess or capacity / 2), capacity, bound, 5 if quick else 8).best
    return best.rate if best else 0.0


def run_load(
    bench: ModuleBench, split: Split, batching: Batching, bound: float, length: float, seed: int, rate: float
) -> LoadResult:
    arrivals = draw_arrivals(rate, int(max(200, length * rate)), seed)
    return summarize_load(rate, arrivals, bench.run_load(split, batching, arrivals, 3 * bound))


# ---------------------------------------------------------------------- threads or processes


def call_for(seconds: float, rows: int, barrier: Any) -> float:
    """Return the requests per second that a module with one thread serves without a pause, once all are ready."""
    import numpy as np

    from xrt.cache import CompileCache

    with xrt.XRTModule(MODELS["perceptron"].make(), engine="ort", threads=1, cache=CompileCache()) as module:
        x = np.ones((rows, 1024), "float32")
        module(x)
        barrier.wait()
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            module(x)
            count += rows
    return count / seconds


def compare_processes(rows: int, instances: int, seconds: float) -> dict[str, float]:
    """Return the rates of instances in threads and in processes."""
    import threading
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    found: dict[str, float] = {}
    with ThreadPoolExecutor(instances) as pool:
        barrier = threading.Barrier(instances)
        runs = [pool.submit(call_for, seconds, rows, barrier) for _ in range(instances)]
        found["threads"] = sum(run.result() for run in runs)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(instances, context) as workers:
        shared = manager.Barrier(instances)
        runs = [workers.submit(call_for, seconds, rows, shared) for _ in range(instances)]
        found["processes"] = sum(run.result() for run in runs)
    return found


# ---------------------------------------------------------------------- the report


def report(found: dict[str, Any]) -> str:
    lines = [found["machine"]]
    for row in found["rows"]:
        if row["chosen"] is None:
            lines.append(f"{row['model']}: nothing within {1e3 * row['bound']:g} ms")
            continue
        one, verdict = row["chosen"], "ok" if row["ratio"] >= TARGET else f"under {TARGET}"
        cells = ", ".join(f"{cell['instances']}x{cell['batch']}: {cell['rate']:.0f}" for cell in row["cells"])
        lines.append(
            f"{row['model']}: chose {one['instances']}x{one['batch']} ({one['rate']:.0f}/s, p99 {1e3 * one['p99']:.1f} of "
            f"{1e3 * row['bound']:g} ms) in {row['spent']:.0f} s; {row['ratio']:.3f} of the best, {verdict}"
        )
        lines.append(f"  instances x batch, requests/s: {cells}")
    for row in found["processes"]:
        ratio = row["threads"] / row["processes"]
        lines.append(f"calls of {row['rows']}: threads serve {ratio:.2f} of what processes serve ({row['processes']:.0f}/s)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three batch sizes and short loads: under two minutes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--engine", default="ort+openvino+auto", help="engines, separated by + (default: ort+openvino+auto)")
    parser.add_argument("--models", default=",".join(MODELS), help="which models (default: all)")
    parser.add_argument("--bound", type=float, help="seconds of the bound in place of each model's, for a busy machine")
    parser.add_argument("--rounds", type=int, default=3, help="comparisons of the chosen cell with the best one (default 3)")
    terms = parser.parse_args()
    rows = [measure(name, terms) for name in terms.models.split(",")]
    processes = [
        {"rows": size, **compare_processes(size, 2, 1.0 if terms.quick else 3.0)}
        for size in ((1,) if terms.quick else (1, 8, 32))
    ]
    found = {"machine": machine("onnxruntime", "openvino"), "rows": rows, "processes": processes}
    print(json.dumps(found, indent=2) if terms.json else report(found))


if __name__ == "__main__":
    main()
