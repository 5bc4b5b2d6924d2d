"""Does placement by measurement choose the fastest engine, or a mixture that is faster than any engine?

For every shipped model, auto searches in a new process and stores its decision. In another process it takes turns with every
single engine that is installed. Engines that fail, or are far slower, are skipped and listed with the reason.

    python benchmarks/auto.py [--quick] [--json] [--budget S] [--seconds S] [--model MODEL]... [--engines ort,xla]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also if a test imports this module

from auto_figures import add_probes, make_row, select_engines
from output import ChildFailed, limit_pools, make_parser, print_figures, run_python

from xrt.bench import machine
from xrt.engines.contract.registry import probe_all
from xrt.engines.contract.spec import split_specs
from xrt.measure.statistics import compute_geometric_mean
from xrt.models import names
from xrt.runtime import count_available_cores

STEPS = Path(__file__).with_name("auto_steps.py")
QUICK_MODELS = ("mlp{layers=2,features=64,hidden=64,classes=10}", "softmax_chain{length=4,batch=64,columns=64}")
ENGINE_ORDER = ("ort", "openvino", "xla", "tvm", "iree", "toy")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run."""

    models: tuple[str, ...]
    engines: tuple[str, ...]
    threads: int
    store: str
    """Directory for decisions and compiled engines."""
    budget: float = 40.0
    """Seconds per search."""
    seconds: float = 5.0
    """Seconds of the rounds of one model."""
    limit: float = 15.0
    """Time limit in seconds for an engine that the search did not measure: import, compile and two calls."""
    patience: float = 150.0
    """Seconds after the end of the budget until the process of a step is killed."""

    def make_request(self, model: str, **more: Any) -> dict[str, Any]:
        """The request for the process of a step."""
        shared = {name: getattr(self, name) for name in ("threads", "store", "budget", "seconds")}
        return {"model": model, "engines": list(self.engines), **shared, **more}


# ---------------------------------------------------------------------- one process


def run_step(step: str, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Run a step in a new process; return its result, or ``{"failed": reason}`` if it fails or exceeds ``limit`` seconds."""
    try:
        return run_python([str(STEPS), step, json.dumps(request)], limit_pools(request["threads"]), limit)
    except ChildFailed as error:
        return {"failed": str(error)}


# ---------------------------------------------------------------------- one model


def measure_model(model: str, options: Options) -> dict[str, Any]:
    """Let auto search, measure the engines that the search left out, and compare auto with the engines."""
    limit = options.budget + options.patience
    tuned = run_step("tune", options.make_request(model), limit)
    contenders = tuned.get("contenders", [])
    fast, slow, unmeasured = select_engines(options.engines, contenders)
    probes = {} if "failed" in tuned else probe(model, unmeasured, options)
    correct = [contender for contender in contenders if contender["verdict"] not in ("wrong", "failed")]
    singles, more = add_probes(fast, probes, correct)
    request = options.make_request(model, singles=[name for name in options.engines if name in singles])
    compared = {"failed": "nothing was decided"} if "failed" in tuned else compare(request, limit)
    return {"model": model, "tuned": tuned, "slow": {**slow, **more}, "compared": compared}


def probe(model: str, engines: Sequence[str], options: Options) -> dict[str, Any]:
    """Measure single engines, as many at once as there are cores, to find those that are far too slow."""
    requests = [replace(options, engines=(engine,)).make_request(model) for engine in engines]
    with ThreadPoolExecutor(max(1, count_available_cores())) as pool:
        results = pool.map(lambda request: run_step("probe", request, options.limit), requests)
        return dict(zip(engines, results, strict=True))


def compare(request: dict[str, Any], limit: float) -> dict[str, Any]:
    """Compare auto with the engines; if two libraries crash in one process, compare with ort only."""
    result = run_step("compare", request, limit)
    fewer = [name for name in request["singles"] if name == "ort"]
    if "failed" not in result or fewer == request["singles"]:
        return result
    second = run_step("compare", {**request, "singles": fewer}, limit)
    reason = f"the comparison with all engines failed: {result['failed']}"
    left = {name: reason for name in request["singles"] if name not in fewer}
    return {**second, "left": {**left, **second.get("left", {})}}


# ---------------------------------------------------------------------- all models


def measure_all(options: Options) -> dict[str, Any]:
    start, load = time.perf_counter(), os.getloadavg()[0]
    records = []
    for number, model in enumerate(options.models, 1):
        elapsed = time.perf_counter() - start
        print(f"{elapsed:6.0f} s  [{number}/{len(options.models)}] {model}", file=sys.stderr, flush=True)
        records.append(measure_model(model, options))
    rows = [make_row(record) for record in records]
    return {
        "machine": machine(),
        "threads": options.threads,
        "budget": options.budget,
        "engines": list(options.engines),
        "versions": next((r["tuned"]["versions"] for r in records if "versions" in r["tuned"]), {}),
        "models": rows,
        "to_best": compute_mean(records, rows, "best"),
        "to_ort": compute_mean(records, rows, "ort"),
        "run": {"date": datetime.now(UTC).date().isoformat(), "load": load, "seconds": time.perf_counter() - start},
    }


def compute_mean(records: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], other: str) -> dict[str, Any] | None:
    """Compute the geometric mean of the gains over the engine ``other``, or over the best engine of each model."""
    pairs = []
    for record, row in zip(records, rows, strict=True):
        rounds, name = record["compared"].get("rounds", {}), row.get("best") if other == "best" else other
        if "auto" in rounds and name in rounds:
            pairs.append((rounds[name], rounds["auto"]))
    mean = compute_geometric_mean(pairs)
    return None if mean is None else {**asdict(mean), "models": len(pairs)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two small models on ort and toy: shows that it works")
    parser.add_argument("--model", action="append", help="a model; repeat for several (default: all shipped models)")
    parser.add_argument("--engines", help="engines (default: all that are ready)")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of each search (default 40)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of rounds per model (default 5)")
    parser.add_argument(
        "--threads", type=int, default=count_available_cores(), help="threads of each engine (default: all cores)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xrt-auto-") as folder:
        figures = measure_all(make_options(arguments, folder))
    print_figures("auto", figures, as_json=arguments.json)


def make_options(arguments: argparse.Namespace, store: str) -> Options:
    if arguments.quick:
        engines, quick = ("ort", "toy"), tuple(arguments.model or QUICK_MODELS)
        return Options(quick, engines, 1, store, budget=3.0, seconds=0.5, patience=60.0)
    engines = tuple(split_specs(arguments.engines)) if arguments.engines else list_ready_engines()
    models = tuple(arguments.model or names())
    return Options(models, engines, arguments.threads, store, budget=arguments.budget, seconds=arguments.seconds)


def list_ready_engines() -> tuple[str, ...]:
    """The engines that are ready, in the order of auto."""
    ready = [status.name for status in probe_all() if status.state == "ready"]
    return tuple(sorted(ready, key=lambda name: (ENGINE_ORDER.index(name) if name in ENGINE_ORDER else len(ENGINE_ORDER), name)))


if __name__ == "__main__":
    main()
