"""What do thousands of sizes cost a process that lives long?

A dense layer, a Softmax and a Relu over rows of 16 numbers, whose count is open: each call has a row more than the one before.
An engine has a process of its own. Figures are resident memory, open handles and threads after the first tenth of the calls and
after all, when all that was dropped is closed; and the calls that took more than three times what their ten neighbors on each
side took at the median. A call counts by the processor time of its thread, since others may use the machine, and by the least of
several rounds, each with a module of its own, since they disturb the caches too. What the garbage collector took of it is left
out and shown: the calls before have caused it. Calls in which something was compiled are left out too.

    python -m benchmarks.many_sizes [--json] [--engines toy,ort,openvino] [--sizes 5000] [--rounds 3]
        [--dynamic auto|always|never] [--first wanted|quickest]

With ``--dynamic never`` each size has a program of its own, of which the module drops most.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import xrt
from xrt.cache.closing import wait_until_closed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

LEAST = 256
"""Rows of the first call: with fewer, a row more or less makes a difference."""
WIDTH = 16
NEIGHBORS = 10
LIMIT = 3.0
"""How many times its neighbors' time a call may take."""


def make_model() -> Function:
    """Return the model, over an open number of rows."""
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype("float32")
    nodes = (
        Node("MatMul", ("x", "w"), ("h",), name="dense"),
        Node("Softmax", ("h",), ("p",), name="softmax"),
        Node("Relu", ("p",), ("y",), name="relu"),
    )
    inputs = (Value("x", TensorType(DType.FLOAT32, ("rows", WIDTH))),)
    return Function(inputs, (Value("y"),), nodes, {"w": Constant(weight)}, {"": 20}, name="rows")


class Collector:
    """The processor time that the garbage collector has taken of a thread."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


def describe_process() -> dict[str, int]:
    """Return what the process holds, when all that was dropped is closed and collected."""
    gc.collect()
    wait_until_closed(60)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    handles = len(list(Path("/proc/self/fd").iterdir()))
    return {"resident": 1024 * int(status["VmRSS"].split()[0]), "handles": handles, "threads": int(status["Threads"])}


def call_all(engine: str, sizes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Call a module with so many sizes; return the seconds of each call, and what was held."""
    collector, seconds, collected, compiled = Collector(), [], [], []
    early: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, xrt.XRTModule(make_model(), engine, cache=folder, **options) as module:
        for number in range(sizes):
            x = np.ones((LEAST + number, WIDTH), "float32")
            before, misses, began = collector.seconds, module._cache.statistics.misses, time.thread_time()
            module(x)
            seconds.append(time.thread_time() - began)
            collected.append(collector.seconds - before)
            compiled.append(module._cache.statistics.misses > misses)
            if number + 1 == sizes // 10:
                early = describe_process()
                module(x)  # what was looked at has left nothing in the caches
        module.settle()
        late, programs = describe_process(), len(module._specializations)
    own = [spent - less for spent, less in zip(seconds, collected, strict=True)]
    held = {"early": early, "late": late, "programs": programs, "compiles": sum(compiled)}
    return {"own": own, "compiled": compiled, "held": held, "collection_ms": 1e3 * max(collected)}


def measure(engine: str, sizes: int, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a module held in the first round, and which calls were slow in all."""
    found = [call_all(engine, sizes, options) for _ in range(rounds)]
    least = [min(times) for times in zip(*(one["own"] for one in found), strict=True)]
    compiled = [any(flags) for flags in zip(*(one["compiled"] for one in found), strict=True)]
    return {
        "engine": engine,
        "sizes": sizes,
        **found[0]["held"],
        "median_ms": 1e3 * median(least),
        "slow": [[number, 1e3 * least[number], ratio] for number, ratio in find_slow(least, compiled)],
        "largest_collection_ms": max(one["collection_ms"] for one in found),
    }


def find_slow(seconds: list[float], leave_out: list[bool]) -> list[tuple[int, float]]:
    """Return the calls that took more than `LIMIT` times the median of their neighbors, with the ratio."""
    found = []
    for number, spent in enumerate(seconds):
        near = range(max(number - NEIGHBORS, 0), min(number + NEIGHBORS + 1, len(seconds)))
        ratio = spent / median(seconds[one] for one in near if one != number)
        if ratio > LIMIT and not leave_out[number]:
            found.append((number, ratio))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engines", default="toy,ort,openvino")
    parser.add_argument("--sizes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dynamic", default="auto")
    parser.add_argument("--first", default="wanted")
    asked = parser.parse_args()
    rows = []
    options = {"threads": 1, "dynamic": asked.dynamic, "first": asked.first, "progress": False}
    if not asked.json:
        counts = "  handles      threads  programs  compiles  median ms"
        print(f"{'engine':10} {'MB early':>9} {'late':>7}{counts}  slow calls (worst)  gc ms")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for engine in asked.engines.split(","):
            rows.append(pool.submit(measure, engine, asked.sizes, asked.rounds, options).result())
            if not asked.json:
                print(_format(rows[-1]), flush=True)
    if asked.json:
        print(json.dumps({"load": os.getloadavg()[0], "results": rows}, indent=1))


def _format(row: dict[str, Any]) -> str:
    early, late, worst = row["early"], row["late"], max((ratio for *_, ratio in row["slow"]), default=0.0)
    memory = f"{early['resident'] / 1e6:9.1f} {late['resident'] / 1e6:7.1f}"
    counts = "  ".join(f"{early[name]:5d} {late[name]:5d}" for name in ("handles", "threads"))
    slow = f"{len(row['slow']):6d} ({worst:.1f} x)".ljust(18)
    rest = f"{row['programs']:9d} {row['compiles']:9d} {row['median_ms']:10.3f}  {slow} {row['largest_collection_ms']:6.1f}"
    return f"{row['engine']:10} {memory}  {counts} {rest}"


if __name__ == "__main__":
    main()
