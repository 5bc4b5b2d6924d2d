"""How long does a new process wait for its first result, with everything cached?

Each measurement is a fresh process: import, the model from its path, one run. XRT with a cache directory, XRT with a bundle,
and each engine by itself with the cache that its documents advise: ONNX Runtime opens the model that it has optimized and
saved; OpenVINO has a ``CACHE_DIR``. They take turns within rounds, and a ratio is of one round. The first round fills the
caches and does not count. Models are the light ones of the `onnx` package and three transformers, as XRT ships them.

    python -m benchmarks.first_result [--json] [--rounds N] [--engines ort,openvino] [--models squeezenet,bert,...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ENGINES = ("ort", "openvino")
TRANSFORMERS = ("bert", "gpt", "vit")
SIZES = {"bert": {"layers": 4}, "gpt": {"layers": 4}, "vit": {"layers": 4}}
"""A third of their layers: the whole ones are mostly the reading of weights."""
WAYS = ("engine", "cache", "bundle")
SETTLED = 2.5
"""Seconds after which a file's times tell a change, so that it may be remembered."""


# ---------------------------------------------------------------------- in a process of its own


def run_ort(folder: Path, inputs: Any) -> None:
    """Open the model that was optimized before, or optimize and save it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    saved, options = folder / "optimized.onnx", onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if saved.exists():
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(saved), options, providers=["CPUExecutionProvider"])
    else:
        options.optimized_model_filepath = str(saved)
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)


def run_openvino(folder: Path, inputs: Any) -> None:
    """Compile the model with a cache directory, for the least latency."""
    import openvino

    core = openvino.Core()
    core.set_property({"CACHE_DIR": str(folder / "openvino")})
    compiled = core.compile_model(str(folder / "model.onnx"), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    compiled(inputs)


def run_xrt(folder: Path, inputs: Any, engine: str, way: str) -> None:
    import xrt

    bundle = folder / f"{engine}.xrt"
    if way == "bundle" and bundle.exists():
        xrt.load(bundle, cache=folder / "bundled")(**inputs)
        return
    module = xrt.XRTModule(folder / "model.onnx", engine=engine, cache=folder / "cache")
    module(**inputs)
    if way == "bundle":
        module.save(bundle)


def measure_process(folder: Path, engine: str, way: str) -> dict[str, float]:
    """Return seconds and seconds of processor time from before the first import to the first result."""
    began, before = time.perf_counter(), time.process_time()
    import numpy as np

    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    if way == "engine":
        (run_ort if engine == "ort" else run_openvino)(folder, inputs)
    else:
        run_xrt(folder, inputs, engine, way)
    return {"wall": time.perf_counter() - began, "processor": time.process_time() - before}


# ---------------------------------------------------------------------- all of them


def prepare(name: str, folder: Path) -> None:
    """Write a model with its inputs."""
    import numpy as np

    from xrt import models
    from xrt.formats.onnx import save

    function = models.load(name, **SIZES.get(name, {}))
    folder.mkdir()
    save(function, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **models.sample_inputs(function))


def start(folder: Path, engine: str, way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.first_result", "--child", str(folder), engine, way]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder.name}, {engine}, {way} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, engine: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return medians in seconds, and the ratios to the engine's own of the same rounds."""
    from xrt.measure.statistics import take_turns  # here, so that a start imports nothing for the sake of the benchmark

    for way in WAYS:
        start(folder, engine, way)
    time.sleep(SETTLED)
    for way in WAYS:  # what was too new to be remembered is not any more
        start(folder, engine, way)
    found = take_turns({way: partial(start, folder, engine, way) for way in WAYS}, rounds)
    row: dict[str, Any] = {"model": name, "engine": engine}
    for clock in ("wall", "processor"):
        taken = {way: [one[clock] for one in found[way]] for way in WAYS}
        row[clock] = {way: statistics.median(seconds) for way, seconds in taken.items()}
        row[f"{clock} ratios"] = {
            way: sorted(mine / own for mine, own in zip(taken[way], taken["engine"], strict=True)) for way in WAYS[1:]
        }
    return row


def report(found: dict[str, Any]) -> str:
    lines = [found["machine"], f"medians of {found['rounds']} processes each; ratios to the engine's own of the same round", ""]
    lines.append(f"{'model':14} {'engine':9} {'own, s':>7} {'cache, s':>8} {'x (range)':>19} {'bundle, s':>9} {'x (range)':>19}")
    for clock in ("wall", "processor"):
        lines.append(f"{clock} time:")
        for row in found["rows"]:
            cells = [f"{row[clock][way]:8.3f} {show(row[f'{clock} ratios'][way])}" for way in WAYS[1:]]
            lines.append(f"{row['model']:14} {row['engine']:9} {row[clock]['engine']:7.3f} {' '.join(cells)}")
        for engine in dict.fromkeys(row["engine"] for row in found["rows"]):
            for way in WAYS[1:]:
                each = [statistics.median(row[f"{clock} ratios"][way]) for row in found["rows"] if row["engine"] == engine]
                lines.append(
                    f"{engine}, {way}: median over the models {statistics.median(each):.2f} x, at worst {max(each):.2f} x"
                )
    return "\n".join(lines)


def show(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):5.2f} {f'({ratios[0]:.2f} to {ratios[-1]:.2f})':>16}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind per model (default 7)")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which engines (default: all)")
    parser.add_argument("--models", help="which models (default: the light ones and three transformers)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, engine, way = arguments.child
        print(json.dumps(measure_process(Path(folder), engine, way)))
        return
    from xrt.bench import machine
    from xrt.models import light_models

    names = arguments.models.split(",") if arguments.models else [*light_models(), *TRANSFORMERS]
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="xrt-first-") as work:
            prepare(name, Path(work, name))
            rows += [measure(name, engine, Path(work, name), arguments.rounds) for engine in arguments.engines.split(",")]
    found = {"machine": machine("onnxruntime", "openvino"), "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(found, indent=2) if arguments.json else report(found))


if __name__ == "__main__":
    main()
