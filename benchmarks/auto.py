"""Does placement by measurement find the quickest engine, or a mixture that is quicker than each?

On every shipped model: auto searches within its budget, and keeps what it decides. Then, in a fresh process, it takes turns with
every single engine that is installed; an engine that is hopeless, or fails, is left out and told. Each model has processes of
its own.

    python benchmarks/auto.py [--quick] [--json] [--budget S] [--seconds S] [--model MODEL]... [--engines ort,xla] [--store DIR]

With ``--store`` decisions and what each step found are kept in a directory: a run that was stopped goes on there, and
``--judge-anew`` repeats the judged runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also where this is imported by a test

from auto_figures import figures_of, sorted_out, with_probes

from xrt.bench import machine
from xrt.engines.contract.registry import probe_all
from xrt.engines.contract.spec import split_specs
from xrt.measure.statistics import compute_geometric_mean
from xrt.models import names
from xrt.runtime import available_cores

STEPS = Path(__file__).with_name("auto_steps.py")
QUICK_MODELS = ("mlp{layers=2,features=64,hidden=64,classes=10}", "softmax_chain{length=4,batch=64,columns=64}")
ORDER = ("ort", "openvino", "xla", "tvm", "iree", "toy")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for."""

    models: tuple[str, ...]
    engines: tuple[str, ...]
    threads: int
    store: str
    """A directory for decisions, compiled engines and what each step found."""
    budget: float = 40.0
    """Seconds of a search."""
    seconds: float = 5.0
    """Of the turns of one model."""
    limit: float = 15.0
    """Seconds that an engine may take to import, compile and be called twice, where the search found no time for it."""
    patience: float = 150.0
    """Seconds over the budget after which a step's process is ended."""

    def step(self, model: str, **more: Any) -> dict[str, Any]:
        """Return what a process is told."""
        own = {name: getattr(self, name) for name in ("threads", "store", "budget", "seconds")}
        return {"model": model, "engines": list(self.engines), **own, **more}


# ---------------------------------------------------------------------- one process


def process(step: str, asked: Mapping[str, Any], limit: float, **environment: str) -> dict[str, Any]:
    """Run a step in a process of its own; one that fails or takes too long is a ``failed`` with the reason."""
    command = [sys.executable, str(STEPS), step, json.dumps(asked)]
    try:
        done = subprocess.run(
            command, env=environment_of(asked, environment), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {limit:g} s"}
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"failed": f"the process ended with code {done.returncode}: {said[:300]}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def environment_of(asked: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment: thread pools that no engine sets are held to the budget, and this XRT is the one imported."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(asked["threads"]))
    path = os.pathsep.join(filter(None, [str(STEPS.parents[1]), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **pools, **more}


def kept(store: str, name: str, find: Any, *, anew: bool = False) -> dict[str, Any]:
    """Return what was found under that name before, or find it now and keep it."""
    path = place_of(store, name)
    if path.exists() and not anew:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    found: dict[str, Any] = find()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def place_of(store: str, name: str) -> Path:
    return Path(store, "found", "".join(c if c.isalnum() else "-" for c in name) + ".json")


def found_before(asked: Asked, *, anew: bool) -> list[str]:
    """Return the models whose figures are those of an earlier run with the same store."""
    return [] if anew else [model for model in asked.models if place_of(asked.store, f"judge {model}").exists()]


# ---------------------------------------------------------------------- one model


def measured(model: str, asked: Asked, *, anew: bool) -> dict[str, Any]:
    """Return the record of one model: what the search said, who was tried on their own, and the judged run."""
    limit = asked.budget + asked.patience
    tuned = kept(asked.store, f"tune {model}", lambda: process("tune", asked.step(model), limit))
    contenders = tuned.get("contenders", [])
    judged, hopeless, unknown = sorted_out(asked.engines, contenders)
    probes = {} if "failed" in tuned else kept(asked.store, f"probe {model}", lambda: probed(model, unknown, asked))
    sound = [one for one in contenders if one["verdict"] not in ("wrong", "failed")]
    singles, more = with_probes(judged, probes, sound)
    order = [name for name in asked.engines if name in singles]
    step = asked.step(model, singles=order)
    found = {"failed": "nothing was decided"}
    if "failed" not in tuned:
        found = kept(asked.store, f"judge {model}", lambda: judged_of(step, limit), anew=anew)
    return {"model": model, "tuned": tuned, "hopeless": {**hopeless, **more}, "judged": found}


def probed(model: str, engines: Sequence[str], asked: Asked) -> dict[str, Any]:
    """Try engines on their own, as many at once as there are cores: what counts is only who is far too slow."""
    steps = [replace(asked, engines=(engine,)).step(model) for engine in engines]
    with ThreadPoolExecutor(max(1, available_cores())) as pool:
        found = pool.map(lambda step: process("probe", step, asked.limit), steps)
    return dict(zip(engines, found, strict=True))


def judged_of(step: dict[str, Any], limit: float) -> dict[str, Any]:
    """Judge; where the process dies of one engine's library beside another's, once more with ort alone beside auto."""
    found = process("judge", step, limit)
    fewer = [name for name in step["singles"] if name == "ort"]
    if "failed" not in found or fewer == step["singles"]:
        return found
    again = process("judge", {**step, "singles": fewer}, limit)
    reason = f"the judged run with all engines failed: {found['failed']}"
    left = {name: reason for name in step["singles"] if name not in fewer}
    return {**again, "left": {**left, **again.get("left", {})}}


# ---------------------------------------------------------------------- all of it


def figures(asked: Asked, *, anew: bool = False) -> dict[str, Any]:
    """Measure everything, and return what the page needs."""
    began, load = time.perf_counter(), os.getloadavg()[0]
    records, before = [], found_before(asked, anew=anew)
    for number, model in enumerate(asked.models, 1):
        told(f"[{number}/{len(asked.models)}] {model}", began)
        records.append(measured(model, asked, anew=anew))
        told(f"    {line(figures_of(records[-1]))}", began)
    rows = [figures_of(record) for record in records]
    return {
        "machine": machine(),
        "threads": asked.threads,
        "budget": asked.budget,
        "engines": list(asked.engines),
        "versions": next((r["tuned"]["versions"] for r in records if "versions" in r["tuned"]), {}),
        "models": rows,
        "to_best": mean_of(records, rows, "best"),
        "to_ort": mean_of(records, rows, "ort"),
        "kept": before,
        "run": {"date": datetime.now(UTC).date().isoformat(), "load": load, "seconds": time.perf_counter() - began},
    }


def mean_of(records: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], other: str) -> dict[str, Any] | None:
    """Return the geometric mean of the gains over an engine, or over each model's best one, and of how many models."""
    pairs = []
    for record, row in zip(records, rows, strict=True):
        rounds, name = record["judged"].get("rounds", {}), row.get("best") if other == "best" else other
        if "auto" in rounds and name in rounds:
            pairs.append((rounds[name], rounds["auto"]))
    found = compute_geometric_mean(pairs)
    return None if found is None else {**asdict(found), "models": len(pairs)}


def told(words: str, began: float) -> None:
    print(f"{time.perf_counter() - began:6.0f} s  {words}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- as text


def line(row: Mapping[str, Any]) -> str:
    """Return a model's figures in one line."""
    if row["verdict"] == "none":
        return f"no figure: {row['why']}"
    left = f"; left out: {', '.join(row['left'])}" if row["left"] else ""
    ms = ", ".join(f"{name} {taken:.3g}" for name, taken in sorted(row["ms"].items(), key=lambda item: item[1]))
    return f"{row['verdict']:4} {spread(row['gain'])} x {row['best']}; plan {row['plan']}; ms: {ms}{left}"


def spread(found: Mapping[str, float]) -> str:
    return f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def report(found: Mapping[str, Any]) -> str:
    lines = [f"{found['machine']}; {found['threads']} threads, a budget of {found['budget']:g} s", ""]
    lines += [f"{row['model']:16} {line(row)}" for row in found["models"]]
    for what, mean in (("the best single engine", found["to_best"]), ("ort alone", found["to_ort"])):
        if mean:
            lines.append(f"geometric mean of the gains over {what}: {spread(mean)} on {mean['models']} models")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="two tiny models on ort and toy: it works, no more")
    parser.add_argument("--model", action="append", help="a model, again for another (default: all shipped ones)")
    parser.add_argument("--engines", help="which engines (default: all that are ready)")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of each search (default 40)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of turns for each model (default 5)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="what all engines may use (default: all cores)")
    parser.add_argument("--store", help="a directory to keep what is found, and to go on from")
    parser.add_argument("--judge-anew", action="store_true", help="with --store: repeat the judged runs")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xrt-auto-") as folder:
        found = figures(asked_of(a, a.store or folder), anew=a.judge_anew)
    print(json.dumps(found, indent=1) if a.json else report(found))


def asked_of(a: argparse.Namespace, store: str) -> Asked:
    store = str(Path(store).absolute())
    if a.quick:
        engines, quick = ("ort", "toy"), tuple(a.model or QUICK_MODELS)
        return Asked(quick, engines, 1, store, budget=3.0, seconds=0.5, patience=60.0)
    engines = tuple(split_specs(a.engines)) if a.engines else ready_engines()
    return Asked(tuple(a.model or names()), engines, a.threads, store, budget=a.budget, seconds=a.seconds)


def ready_engines() -> tuple[str, ...]:
    """Return the engines that are ready here, in the order that auto gives them."""
    ready = [status.name for status in probe_all() if status.state == "ready"]
    return tuple(sorted(ready, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)))


if __name__ == "__main__":
    main()
