"""How long does a new process wait for its first result, with everything cached?

Each measurement is a new process that imports the library, loads the model from its path and runs it once. The candidates take
turns: XRT with a cache directory, XRT with a bundle, and each engine alone with the cache that its documentation recommends (the
optimized model that ONNX Runtime saved, OpenVINO's ``CACHE_DIR``). A ratio is of one round. The first rounds, which fill the
caches, are not counted. Models are the light models of the `onnx` package and three transformers that XRT ships.

    python -m benchmarks.first_result [--json] [--rounds N] [--engines ort,openvino] [--models squeezenet,bert,...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.output import ChildFailed, make_parser, print_figures, run_python

ENGINES = ("ort", "openvino")
TRANSFORMERS = ("bert", "gpt", "vit")
SIZES = {"bert": {"layers": 4}, "gpt": {"layers": 4}, "vit": {"layers": 4}}
"""A third of the layers: with all of them, reading weights takes most of the time."""
MODES = ("engine", "cache", "bundle")
SETTLE_SECONDS = 2.5
"""After these seconds, an equal modification time proves that a file is unchanged."""


# ---------------------------------------------------------------------- in a new process


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


def run_xrt(folder: Path, inputs: Any, engine: str, mode: str) -> None:
    import xrt

    bundle = folder / f"{engine}.xrt"
    if mode == "bundle" and bundle.exists():
        xrt.load(bundle, cache=folder / "bundled")(**inputs)
        return
    module = xrt.XRTModule(folder / "model.onnx", engine=engine, cache=folder / "cache")
    module(**inputs)
    if mode == "bundle":
        module.save(bundle)


def measure_process(folder: Path, engine: str, mode: str) -> dict[str, float]:
    """Return seconds and seconds of processor time from before the first import to the first result."""
    began, before = time.perf_counter(), time.process_time()
    import numpy as np

    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    if mode == "engine":
        (run_ort if engine == "ort" else run_openvino)(folder, inputs)
    else:
        run_xrt(folder, inputs, engine, mode)
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


def run_process(folder: Path, engine: str, mode: str) -> dict[str, float]:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    command = ["-m", "benchmarks.first_result", "--child", str(folder), engine, mode]
    try:
        return run_python(command, {"PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}, shows_errors=True)
    except ChildFailed as error:
        raise SystemExit(f"{folder.name}, {engine}, {mode} failed: {error}") from error


def measure(name: str, engine: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return medians in seconds, and the ratios to the engine's own of the same rounds."""
    from xrt.measure.statistics import take_turns  # not imported by the processes that are measured

    for mode in MODES:
        run_process(folder, engine, mode)
    time.sleep(SETTLE_SECONDS)
    for mode in MODES:  # times of files are trusted only after some seconds
        run_process(folder, engine, mode)
    rounds_of = take_turns({mode: partial(run_process, folder, engine, mode) for mode in MODES}, rounds)
    row: dict[str, Any] = {"model": name, "engine": engine}
    for clock in ("wall", "processor"):
        seconds = {mode: [entry[clock] for entry in rounds_of[mode]] for mode in MODES}
        row[clock] = {mode: statistics.median(values) for mode, values in seconds.items()}
        row[f"{clock} ratios"] = {
            mode: sorted(a / b for a, b in zip(seconds[mode], seconds["engine"], strict=True)) for mode in MODES[1:]
        }
    return row


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind per model (default 7)")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which engines (default: all)")
    parser.add_argument("--models", help="which models (default: the light ones and three transformers)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, engine, mode = arguments.child
        print(json.dumps(measure_process(Path(folder), engine, mode)))
        return
    from xrt.bench import machine
    from xrt.models import light_models

    names = arguments.models.split(",") if arguments.models else [*light_models(), *TRANSFORMERS]
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="xrt-first-") as work:
            prepare(name, Path(work, name))
            rows += [measure(name, engine, Path(work, name), arguments.rounds) for engine in arguments.engines.split(",")]
    figures = {"machine": machine("onnxruntime", "openvino"), "rounds": arguments.rounds, "rows": rows}
    print_figures("first_result", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
