"""What do several replicas of one model take of a host's memory, and when does a new one give its first result?

A replica is a fresh process: imports, the model, one result. It then waits until all are up, and the proportional set sizes are
read (PSS of ``/proc/PID/smaps_rollup``: a page that four processes share counts a quarter in each). The replicas of a kind are
started one after the other: ONNX Runtime from the model's file, and XRT from a bundle, per engine. Medians are over the replicas
of a kind. Results must agree. One replica before them has run the bundle's self-test, as a service does before it is ready: later
processes of the host then do not read the file through to check it.

    python -m benchmarks.replicas [--json] [--quick] [--model bert] [--replicas 4] [--threads 1] [--engines ort,openvino]
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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

QUICK = {"layers": 2}
"""Sizes of the model with ``--quick``."""
SELF_TEST = "import sys, xrt; xrt.load(sys.argv[1], strict=True, cache=sys.argv[2]).run_self_test()"
TARGET_MEGABYTES, TARGET_SECONDS = 700, 0.35
"""What four replicas of BERT-base on ``ort`` may take in all, and the first result of a new one."""


# ---------------------------------------------------------------------- in a process of its own


def open_plain(folder: Path, threads: int) -> Callable[[Any], Any]:
    """Open a session of ONNX Runtime over the model's file, as its documents say."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def open_bundle(folder: Path, engine: str, threads: int) -> Callable[[Any], Any]:
    import xrt

    module = xrt.load(folder / f"{engine}.xrt", threads=threads, strict=True, cache=folder / "cache")
    return lambda inputs: module(**inputs)


def serve(folder: Path, kind: str, threads: int) -> None:
    """Give a first result, say what it took, and wait for the end of the input."""
    began, before = time.perf_counter(), time.process_time()
    import numpy as np

    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    call = open_plain(folder, threads) if kind == "plain" else open_bundle(folder, kind, threads)
    loaded = time.perf_counter() - began
    results = call(inputs)
    figures = {"loaded": loaded, "wall": time.perf_counter() - began, "processor": time.process_time() - before}
    for _ in range(5):
        results = call(inputs)
    total = sum(float(np.abs(result).sum()) for result in (results if isinstance(results, list | tuple) else [results]))
    print(json.dumps({**figures, "sum": total}), flush=True)
    sys.stdin.read()


# ---------------------------------------------------------------------- all of them


def prepare(name: str, sizes: dict[str, int], engines: list[str], threads: int, folder: Path) -> None:
    """Write a model with its inputs, and a bundle per engine."""
    import numpy as np

    import xrt
    from xrt import models
    from xrt.formats.onnx import save

    function = models.load(name, **sizes)
    save(function, folder / "model.onnx")
    inputs = models.sample_inputs(function)
    np.savez(folder / "inputs.npz", **inputs)
    for engine in engines:
        with xrt.XRTModule(folder / "model.onnx", engine, strict=True, threads=threads, cache=folder / "first") as module:
            module.save(folder / f"{engine}.xrt", **inputs)


def read_sizes(process: int) -> dict[str, int]:
    """Return the bytes of a process by kind: ``Pss``, ``Private_Dirty`` and others."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    return {name.rstrip(":"): 1024 * int(size) for name, size, *_ in map(str.split, lines)}


def measure(kind: str, count: int, threads: int, folder: Path) -> dict[str, Any]:
    """Return what replicas of a kind take, all up at once."""
    command = [sys.executable, "-m", "benchmarks.replicas", "--child", str(folder), kind, str(threads)]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with ExitStack() as stack:
        started, found = [], []
        for _ in range(count):
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            stack.callback(child.communicate)
            started.append(child)
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"a replica of {kind} failed: {child.communicate()[1][-2000:]}")
            found.append(json.loads(line))
        sizes = [read_sizes(child.pid) for child in started]
    private = [size["Private_Clean"] + size["Private_Dirty"] for size in sizes]
    return {
        "kind": kind,
        "pss": sum(size["Pss"] for size in sizes),
        "private": int(statistics.median(private)),
        **{name: statistics.median(one[name] for one in found) for name in ("loaded", "wall", "processor", "sum")},
    }


def figures(arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    sizes = QUICK if arguments.quick else {}
    engines = arguments.engines.split(",")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        prepare(arguments.model, sizes, engines, arguments.threads, folder)
        time.sleep(2.5)  # a file's times tell a change from then on, and what is known of it is remembered
        for engine in engines:
            subprocess.run([sys.executable, "-c", SELF_TEST, str(folder / f"{engine}.xrt"), str(folder / "cache")], check=True)
            measure(engine, 1, arguments.threads, folder)  # which fills the caches
        rows = [measure(kind, arguments.replicas, arguments.threads, folder) for kind in ("plain", *engines)]
    for row in rows:
        row["agrees"] = bool(np.isclose(row["sum"], rows[0]["sum"], rtol=1e-3))
    return {"model": arguments.model, "sizes": sizes, "replicas": arguments.replicas, "threads": arguments.threads, "rows": rows}


def report(found: dict[str, Any]) -> str:
    lines = [f"{found['replicas']} replicas of {found['model']} {found['sizes'] or ''}, {found['threads']} thread(s) each"]
    for row in found["rows"]:
        name = "ONNX Runtime, model file" if row["kind"] == "plain" else f"XRT bundle, {row['kind']}"
        lines.append(
            f"  {name:26} PSS {row['pss'] / 1e6:7.0f} MB in all, private {row['private'] / 1e6:6.0f} MB each; loaded "
            f"{row['loaded']:.2f} s, first result {row['wall']:.2f} s ({row['processor']:.2f} s of processor)"
            + ("" if row["agrees"] else "; the RESULTS DIFFER")
        )
    lines.append(f"  target of four BERT-base on ort: {TARGET_MEGABYTES} MB in all, first result {TARGET_SECONDS} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help=f"a small model: {QUICK}")
    parser.add_argument("--model", default="bert", help="a shipped model (default bert)")
    parser.add_argument("--replicas", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--threads", type=int, default=1, help="thread budget of each (default 1)")
    parser.add_argument("--engines", default="ort", help="engines of the bundles (default ort)")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "KIND", "THREADS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, kind, threads = arguments.child
        serve(Path(folder), kind, int(threads))
        return
    found = figures(arguments)
    print(json.dumps(found, indent=2) if arguments.json else report(found))


if __name__ == "__main__":
    main()
