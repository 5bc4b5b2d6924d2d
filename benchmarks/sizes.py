"""How long does a call wait because its size is new, and what does a size cost that is met often?

Models with open sizes (`benchmarks.sizes_models`) get calls of random sizes, half of them of a few that return. Each engine
serves them twice: as it is, and with ``first="quickest"``, where a program for all sizes serves until that of a size is ready.
"auto" has a budget for each search; with tiers, further ranges of sizes are measured in the background. A module may hold
4 GiB of programs, so that those of sizes that return are not dropped. The pause of a call is its time beyond that of the same sizes once everything is ready; the
first call is left out, since it must compile something. A size that was met ten times is called again, in turns with a program
for that size alone: of the same engine, and for "auto" the quickest of `ort` and `openvino`. Results are compared with those of
`ort`.

    python -m benchmarks.sizes [--json] [--models encoder,bert-base,...] [--engines ort,openvino,...,auto] [--calls N]
        [--first wanted,quickest] [--budget SECONDS] [--threads N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

import xrt
from benchmarks.sizes_models import MODELS
from xrt import passes
from xrt.bench import machine
from xrt.graph import Function, TensorType

ENGINES = ("ort", "openvino", "auto")
LIMIT_MS = 20
"""Milliseconds of a pause that are allowed."""
PROGRAMS = 4 << 30
"""Bytes of programs that a module may hold; one of BERT-base takes 340 MB on `openvino`."""
OFTEN = 10
"""Calls after which a size has to be served as quickly as by a program of its own."""
RETURNING = 6
"""Sets of sizes that half of the calls have."""
TURNS = 15

Shape: TypeAlias = tuple[int, ...]


def draw_shapes(function: Function, step: int, longest: int, calls: int, seed: int) -> list[Shape]:
    """Return the shape of the input of each call."""
    type_ = function.inputs[0].type
    assert isinstance(type_, TensorType)
    rng = np.random.default_rng(seed)

    def draw() -> Shape:
        return tuple(d if isinstance(d, int) else step * int(rng.integers(1, longest // step + 1)) for d in type_.shape or ())

    returning = [draw() for _ in range(RETURNING)]
    return [returning[int(rng.integers(RETURNING))] if rng.random() < 0.5 else draw() for _ in range(calls)]


def time_call(module: xrt.XRTModule, x: Any) -> float:
    """Return the milliseconds of a call."""
    began = perf_counter()
    module(x)
    return 1e3 * (perf_counter() - began)


def measure(model: str, engine: str, first: str, asked: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Return the pauses of the calls, the rate of sizes met often, and how far the results are from those of ort."""
    function = MODELS[model].make()
    shapes = draw_shapes(function, MODELS[model].step, MODELS[model].longest, asked.calls, asked.seed)
    rng = np.random.default_rng(asked.seed)
    inputs = {shape: rng.standard_normal(shape).astype("float32") for shape in dict.fromkeys(shapes)}
    options: dict[str, Any] = {"threads": asked.threads, "cache": f"{folder}/{model}-{engine}-{first}", "progress": False}
    options["max_specialization_bytes"] = PROGRAMS
    if engine == "auto":
        options |= {"budget": asked.budget, "background": first == "quickest"}
    times, results = [], {}
    with xrt.XRTModule(function, engine, first=first, **options) as module:
        for shape in shapes:
            began = perf_counter()
            results[shape] = module(inputs[shape])
            times.append(1e3 * (perf_counter() - began))
        served = module.profile().stand_in_calls if first == "quickest" else 0
        module.settle()
        ready = {shape: median(time_call(module, x) for _ in range(3)) for shape, x in inputs.items()}
        module.settle()
        often = [shape for shape, count in Counter(shapes).items() if count >= OFTEN]
        rates = [_compare(module, function, engine, inputs[shape], asked.threads) for shape in often]
    pauses = [spent - ready[shape] for spent, shape in zip(times, shapes, strict=True)][1:]
    with xrt.XRTModule(function, "ort", threads=asked.threads) as exact:
        differences = [_relative(results[shape], exact(x)) for shape, x in inputs.items()]
    return {
        "model": model,
        "engine": engine,
        "first": first,
        "sizes": len(inputs),
        "first_call_ms": times[0],
        "longest_pause_ms": max(pauses),
        "median_pause_ms": median(pauses),
        "above_limit": sum(pause > LIMIT_MS for pause in pauses),
        "stand_in_calls": served,
        "rate_of_sizes_met_often": {"lowest": min(rates), "median": median(rates), "sizes": len(rates)} if rates else None,
        "largest_difference": max(differences),
    }


def _relative(result: Any, other: Any) -> float:
    return float(np.abs(result - other).max() / np.abs(other).max())


def _compare(module: xrt.XRTModule, function: Function, engine: str, x: Any, threads: int | None) -> float:
    """Return the calls per second over those of a program for that size alone, both called in turns."""
    static = passes.specialize(function, {"x": x.shape})
    others = [xrt.XRTModule(static, name, threads=threads) for name in (("ort", "openvino") if engine == "auto" else (engine,))]
    mine: list[float] = []
    theirs: list[list[float]] = [[] for _ in others]
    for _ in range(TURNS):
        mine.append(time_call(module, x))
        for other, spent in zip(others, theirs, strict=True):
            spent.append(time_call(other, x))
    for other in others:
        other.close()
    return min(median(spent[1:]) for spent in theirs) / median(mine[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--first", default="wanted,quickest")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = []
    if not asked.json:
        times = f"{'first':>9} {'longest':>9} {'median':>7} >20ms"
        print(f"{'model':10} {'engine':9} {'first':9} {times}  {'rate (least)':13}  difference (times in ms)")
    for model in asked.models.split(","):
        for engine in asked.engines.split(","):
            for first in asked.first.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(measure(model, engine, first, asked, folder))
                if not asked.json:
                    print(_format(found[-1]), flush=True)
    if asked.json:
        print(json.dumps({"machine": machine(), "load": os.getloadavg()[0], "calls": asked.calls, "results": found}, indent=1))


def _format(one: dict[str, Any]) -> str:
    ms = f"{one['first_call_ms']:9.1f} {one['longest_pause_ms']:9.1f} {one['median_pause_ms']:7.2f}"
    often = one["rate_of_sizes_met_often"]
    rate = "" if often is None else f"{often['median']:.2f} ({often['lowest']:.2f})"
    named = f"{one['model']:10} {one['engine']:9} {one['first']:9}"
    return f"{named} {ms} {one['above_limit']:5d}  {rate:13} {one['largest_difference']:11.1e}"


if __name__ == "__main__":
    main()
