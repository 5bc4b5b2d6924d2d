"""How long does a call of a network of PyTorch take: eager, Inductor, ONNX Runtime, OpenVINO, and XRT?

Each network has a new process, in which the ways to call it take turns with the same number of threads; a ratio is of one round.
A turn begins after the threads of the previous turn sleep, with a call that does not count. ONNX Runtime gets the model that
``torch.onnx.export`` writes, OpenVINO the model that its own converter makes. Inductor is measured with its defaults, and frozen,
with channels last for images. XRT is measured as `XRTModule` and as a backend of `torch.compile`, both with ``engine="auto"``.
All is measured again with MKL's check of the processor overridden: without it, MKL takes a slow path on processors that are not
Intel's.

Then seconds of capturing and lowering against `torch.export` alone, and the cost of a call of ``Linear(3, 3)``.

    python -m benchmarks.pytorch [--json] [--rounds N] [--threads N] [--models bert,...] [--budget SECONDS] [--parts calls,...]

Needs the extras `all`, `torch` and `zoo`, and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.output import ChildFailed, make_parser, print_figures, run_python
from benchmarks.pytorch_ways import compile_ways
from xrt.bench import Timing, compute_ratio, interleave, machine
from xrt.measure.statistics import take_turns
from xrt.measure.timing import MAX_IDLE_WAIT, measure_call

MODELS = ("bert", "gpt2", "convnext", "resnet50", "vit", "lstm")
OTHER_WAYS = ("eager", "inductor", "inductor frozen", "onnxruntime", "openvino")
XRT_WAYS = ("xrt", "torch.compile")
PARTS = ("calls", "capture", "dispatch")
MKL_SOURCE = 'extern "C" int mkl_serv_intel_cpu_true() { return 1; }\n'


# ---------------------------------------------------------------------- in a process of its own


def measure_calls(name: str, threads: int, budget: float, rounds: int, ways: tuple[str, ...]) -> dict[str, Any]:
    """Measure calls of a network; return the seconds of each way and round."""
    import torch

    with torch.no_grad():
        calls = compile_ways(name, threads, budget, ways)
        timings = interleave(calls, rounds=rounds, idle=MAX_IDLE_WAIT)
    return summarize(timings, XRT_WAYS)


def summarize(timings: Mapping[str, Timing], bases: Iterable[str] = ()) -> dict[str, Any]:
    """Return the median seconds per way, and for each base how many times as long the other ways take, round by round."""
    figures: dict[str, Any] = {"seconds": {way: statistics.median(timing.seconds) for way, timing in timings.items()}}
    for base in (base for base in bases if base in timings):
        others = (way for way in timings if way != base)
        figures[base] = {way: asdict(compute_ratio(timings[way], [timings[base]])) for way in others}
    return figures


def measure_capture(name: str, rounds: int) -> dict[str, Any]:
    """Measure `torch.export.export` alone and `from_torch` in turns; return the seconds of both, without the first round."""
    import torch

    import xrt
    from benchmarks.pytorch_models import make_model

    module, inputs = make_model(name)

    calls = {
        "torch.export": partial(torch.export.export, module, inputs, strict=False),
        "from_torch": partial(xrt.from_torch, module, inputs),
    }
    with torch.no_grad():
        times = take_turns({name: partial(measure_call, call) for name, call in calls.items()}, rounds + 1)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def measure_dispatch(threads: int, rounds: int) -> dict[str, Any]:
    """Return seconds of a call of ``Linear(3, 3)``: of eager, of Dynamo with a backend that does nothing, and of XRT's ways."""
    import torch

    import xrt

    torch.set_num_threads(threads)
    module, x = torch.nn.Linear(3, 3).eval().requires_grad_(False), torch.randn(1, 3)

    calls = {"eager": partial(module, x)}
    for way, options in {
        "Dynamo alone": {"backend": "eager"},
        "inductor": {},
        "torch.compile": {"backend": "xrt", "options": {"engine": "ort", "threads": threads, "freeze": True}},
    }.items():
        calls[way] = partial(torch.compile(module, **options), x)
    calls["xrt"] = partial(xrt.XRTModule(module, engine="ort", threads=threads), x)
    with torch.no_grad():
        for call in calls.values():
            call()
        timings = interleave(calls, rounds=rounds)
    return {name: timing.median for name, timing in timings.items()}


def run_child(options: argparse.Namespace) -> dict[str, Any]:
    part, subject = options.child
    if part == "calls":
        return measure_calls(subject, options.threads, options.budget, options.rounds, tuple(options.ways.split(",")))
    if part == "capture":
        return measure_capture(subject, min(options.rounds, 5))
    return measure_dispatch(options.threads, options.rounds)


# ---------------------------------------------------------------------- all of them


def run_process(options: argparse.Namespace, part: str, subject: str, **environment: str) -> dict[str, Any]:
    """Measure a part in a new process and return its result; raises SystemExit if the process fails."""
    command = ["-m", "benchmarks.pytorch", "--child", part, subject, "--rounds", str(options.rounds)]
    command += ["--threads", str(options.threads), "--budget", str(options.budget), "--ways", options.ways]
    try:
        return run_python(command, {"OMP_NUM_THREADS": str(options.threads), **environment}, shows_errors=True)
    except ChildFailed as error:
        raise SystemExit(f"{part} {subject} failed: {error}") from error


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": machine("torch", "onnxruntime", "openvino"),
        "threads": options.threads,
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="xrt-pytorch-") as work:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(work, "inductor")), "XRT_CACHE_DIR": str(Path(work, "xrt"))}
        override = {"LD_PRELOAD": str(compile_override(Path(work)))}
        for part in options.parts.split(","):
            if part == "calls":
                for mkl, more in (("as installed", {}), ("MKL's check overridden", override)):
                    rows = {name: run_process(options, part, name, **caches, **more) for name in options.models.split(",")}
                    figures.setdefault(part, {})[mkl] = rows
            elif part == "capture":
                figures[part] = {name: run_process(options, part, name) for name in options.models.split(",")}
            else:
                figures[part] = run_process(options, part, "-", **caches)
    return figures


def compile_override(folder: Path) -> Path:
    """Compile a library that overrides the function by which MKL checks the vendor of the processor."""
    source, library = folder / "mkl.cpp", folder / "libmkl_intel.so"
    source.write_text(MKL_SOURCE, encoding="utf-8")
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def mean_over_eager(rows: Mapping[str, Any], way: str) -> float:
    """Compute the geometric mean of the speedup of a way over eager."""
    return statistics.geometric_mean(row[way]["eager"]["median"] for row in rows.values())


def find_worst(rows: Mapping[str, Any], way: str) -> tuple[str, float]:
    """Find the model with the smallest speedup over the best other way; return it and the speedup."""
    best = {name: min(row[way][other]["median"] for other in OTHER_WAYS if other in row[way]) for name, row in rows.items()}
    return min(best.items(), key=lambda item: item[1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="what all may use (default: all cores)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of XRT's search per model (default 20)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"which models (default {','.join(MODELS)})")
    parser.add_argument("--ways", default=",".join((*OTHER_WAYS, *XRT_WAYS)), help="which ways of a call (default: all)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which parts (default {','.join(PARTS)})")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options)))
        return
    print_figures("pytorch", measure(options), as_json=options.json)


if __name__ == "__main__":
    main()
