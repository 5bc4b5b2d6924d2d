"""What does the disk cache, or a bundle, save at the start?

Each start is a fresh process that loads one of the light models from an ONNX file (or a bundle) and runs it once. Starts
take turns: without the cache, with an empty one (which it fills), with a full one, and from a bundle. Two times are told:
*compile*, from the plan to executables, with the hashing of weights; and *start*, from `XRTModule(path)` to the first
result. Importing Python, NumPy, XRT and the engine's library comes on top of both, and is the same for all.

    python benchmarks/warm_start.py [--json] [--rounds N] [--engines ort,tvm,toy] [--models squeezenet,...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

WAYS = ("off", "cold", "warm", "bundle")
"""Without the disk cache; with an empty one; with the one that the start before has filled; from a bundle."""

QUICK = {
    "ort": (),
    "tvm": ("squeezenet", "shufflenet"),
    "toy": ("squeezenet", "shufflenet"),
}
"""Models per engine, where not all: untuned, tvm and toy take minutes for the others."""


# ---------------------------------------------------------------------- one start, in a process of its own


def start(path: str, engine: str, way: str) -> dict[str, float]:
    import numpy as np

    from xrt import XRTModule, load
    from xrt.engines.contract import registry

    registry.create(engine)
    began = time.perf_counter()
    module = load(path, strict=True) if way == "bundle" else XRTModule(path, engine=engine, strict=True)
    _ = module.plan
    planned = time.perf_counter()
    module.compile()
    compiled = time.perf_counter()
    module(*[np.ones(value.type.shape, "float32") for value in module.inputs])  # type: ignore[union-attr]  # static tensors
    ended = time.perf_counter()
    return {
        "load and plan": planned - began,
        "compile": compiled - planned,
        "first run": ended - compiled,
        "start": ended - began,
    }


def started(path: Path, engine: str, way: str, cache: Path) -> dict[str, float]:
    """Start in a fresh process, and return what it measured."""
    switch = {"XRT_CACHE": "off"} if way == "off" else {"XRT_CACHE": "on", "XRT_CACHE_DIR": str(cache)}
    switch["PYTHONDONTWRITEBYTECODE"] = ""  # what is installed has its bytecode beside it
    command = [sys.executable, __file__, "--child", str(path), engine, way]
    done = subprocess.run(command, env={**os.environ, **switch}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{engine} on {path.name} ({way}) failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


# ---------------------------------------------------------------------- all of them


def prepare(asked: list[tuple[str, str]], folder: Path) -> None:
    """Write every model and every bundle."""
    from xrt.formats.onnx import save
    from xrt.models import load_light

    for name in dict.fromkeys(model for _, model in asked):
        save(load_light(name), folder / f"{name}.onnx")
    for engine, name in asked:
        files = [str(folder / f"{name}.onnx"), "-o", str(folder / f"{name}-{engine}.xrt")]
        command = [sys.executable, "-m", "xrt.cli", "compile", *files, "-e", engine, "--strict"]
        subprocess.run(command, env={**os.environ, "XRT_CACHE": "off"}, capture_output=True, check=True)
    time.sleep(2.5)  # so that the hashes of a file that has just been written may be remembered


def measure(name: str, engine: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the medians, in seconds, of one model on one engine, and the ratios to a start without the cache."""
    model, bundle, cache = folder / f"{name}.onnx", folder / f"{name}-{engine}.xrt", folder / "cache"
    times: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    started(bundle, engine, "bundle", folder / "bundles")
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for way in WAYS:
            place = (bundle, folder / "bundles") if way == "bundle" else (model, cache)
            times[way].append(started(place[0], engine, way, place[1]))
    medians = {way: {what: statistics.median(one[what] for one in found) for what in found[0]} for way, found in times.items()}
    ratios = {what: {way: beside(times[way], times["off"], what) for way in WAYS[1:]} for what in ("compile", "start")}
    return {"model": name, "engine": engine, "seconds": medians, "ratios": ratios}


def beside(found: list[dict[str, float]], off: list[dict[str, float]], what: str) -> dict[str, float]:
    """Return the ratio to the start without the cache of the same round: median and quartiles."""
    from xrt.measure.statistics import compute_quartiles  # here, so that a start imports nothing for the sake of the benchmark

    return asdict(compute_quartiles([mine[what] / base[what] for mine, base in zip(found, off, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind (default 3)")
    parser.add_argument("--engines", default="ort,tvm,toy", help="which engines (default ort,tvm,toy)")
    parser.add_argument("--models", help="which light models (default: all on ort, two on the others)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(start(*arguments.child)))
        return
    print(json.dumps(figures(arguments), indent=2) if arguments.json else report(figures(arguments)))


def figures(arguments: argparse.Namespace) -> dict[str, Any]:
    from xrt.bench import machine
    from xrt.models import light_models

    named = arguments.models.split(",") if arguments.models else ()
    engines = arguments.engines.split(",")
    asked = [(engine, model) for engine in engines for model in named or QUICK.get(engine) or light_models()]
    with tempfile.TemporaryDirectory(prefix="xrt-warm-") as name:
        prepare(asked, Path(name))
        rows = [measure(model, engine, Path(name), arguments.rounds) for engine, model in asked]
    return {"machine": machine("onnxruntime", "apache-tvm"), "rounds": arguments.rounds, "rows": rows}


def report(found: dict[str, Any]) -> str:
    lines = [found["machine"], f"medians of {found['rounds']} starts; ratios to a start without the cache", ""]
    columns = f"{'compile x':>10} {'start x':>8} {'bundle x':>9} {'filling x':>10}"
    lines.append(f"{'engine':6} {'model':14} {'off, s':>8} {'warm, s':>8} {columns}")
    for row in found["rows"]:
        seconds, ratios = row["seconds"], row["ratios"]
        lines.append(
            f"{row['engine']:6} {row['model']:14} {seconds['off']['start']:8.3f} {seconds['warm']['start']:8.3f} "
            f"{ratios['compile']['warm']['median']:10.3f} {ratios['start']['warm']['median']:8.3f} "
            f"{ratios['start']['bundle']['median']:9.3f} {ratios['start']['cold']['median']:10.3f}"
        )
    for engine in dict.fromkeys(row["engine"] for row in found["rows"]):
        mine = [row["ratios"] for row in found["rows"] if row["engine"] == engine]
        warm = [statistics.median(r[what]["warm"]["median"] for r in mine) for what in ("compile", "start")]
        bundle = statistics.median(r["start"]["bundle"]["median"] for r in mine)
        lines.append(
            f"{engine}: median over its models: compile {warm[0]:.3f} x, start {warm[1]:.3f} x, from a bundle {bundle:.3f} x"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
