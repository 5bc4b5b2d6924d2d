"""How long does a call of a network of PyTorch take: eager, Inductor, ONNX Runtime, OpenVINO, and XRT?

Each network is in a process of its own, where all ways take turns within rounds with the same number of threads; a ratio is of
one round. A turn begins when the threads of the turn before sleep, with a call that does not count. ONNX Runtime gets what
``torch.onnx.export`` writes, OpenVINO what its own converter makes of the module; Inductor is measured as it is by default, and
frozen, images with channels last. XRT is measured as `XRTModule` and as a backend of `torch.compile`, both with
``engine="auto"``. Everything runs a second time with the processor check of PyTorch's MKL answered with yes: on processors that
are not Intel's, the library takes a slow path otherwise.

Then what is not a call: seconds of capturing and lowering against `torch.export` alone; the cost of a call of ``Linear(3, 3)``;
how many times batches of 4, 5, 6 and 7 compile, and 1,000 calls of threads with other sizes; and the peak of memory of BERT-base
against the module and ONNX Runtime alone.

    python -m benchmarks.pytorch [--json] [--rounds N] [--threads N] [--models bert,...] [--budget SECONDS] [--parts calls,...]

Needs the extras `all`, `torch` and `zoo`, and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.output import print_figures
from benchmarks.pytorch_ways import compile_ways
from xrt.bench import Timing, interleave, machine, ratio
from xrt.measure.statistics import take_turns
from xrt.measure.timing import LONGEST_WAIT

NAMES = ("bert", "gpt2", "convnext", "resnet50", "vit", "lstm")
OTHERS = ("eager", "inductor", "inductor frozen", "onnxruntime", "openvino")
OURS = ("xrt", "torch.compile")
PARTS = ("calls", "capture", "dispatch", "recompiles", "sizes", "memory")
MKL_SOURCE = 'extern "C" int mkl_serv_intel_cpu_true() { return 1; }\n'


# ---------------------------------------------------------------------- in a process of its own


def measure_calls(name: str, threads: int, budget: float, rounds: int, ways: tuple[str, ...]) -> dict[str, Any]:
    """Return seconds per way and round."""
    import torch

    with torch.no_grad():
        calls = compile_ways(name, threads, budget, ways)
        timings = interleave(calls, rounds=rounds, idle=LONGEST_WAIT)
    return summarize(timings, OURS)


def summarize(timings: Mapping[str, Timing], bases: Iterable[str] = ()) -> dict[str, Any]:
    """Return the median seconds per way, and for each base how many times as long the other ways take, round by round."""
    found: dict[str, Any] = {"seconds": {way: statistics.median(timing.seconds) for way, timing in timings.items()}}
    for base in (base for base in bases if base in timings):
        others = (way for way in timings if way != base)
        found[base] = {way: asdict(ratio(timings[way], [timings[base]])) for way in others}
    return found


def measure_capture(name: str, rounds: int) -> dict[str, Any]:
    """Return seconds of `torch.export.export` alone, and of `from_torch`, in turns; the first round does not count."""
    import torch

    import xrt
    from benchmarks.pytorch_models import make_model

    module, inputs = make_model(name)

    def clocked(call: Callable[[], Any]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    with torch.no_grad():
        turns = {
            "torch.export": lambda: clocked(lambda: torch.export.export(module, inputs, strict=False)),
            "from_torch": lambda: clocked(lambda: xrt.from_torch(module, inputs)),
        }
        taken = take_turns(turns, rounds + 1)
    return summarize({way: Timing(tuple(seconds[1:])) for way, seconds in taken.items()})["seconds"]


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
    return summarize(timings)["seconds"]


def measure_recompiles() -> dict[str, Any]:
    """Return how many graphs batches of 4, 5, 6 and 7 compile, by default and with ``dynamic=True``."""
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend

    found = {}
    for way, dynamic in (("by default", None), ("dynamic=True", True)):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("xrt")
        call = torch.compile(torch.nn.Linear(3, 3).eval().requires_grad_(False), backend=counter, dynamic=dynamic)
        with torch.no_grad():
            for batch in (4, 5, 6, 7):
                call(torch.randn(batch, 3))
        found[way] = counter.frame_count
    return found


def measure_sizes(calls: int = 1000, workers: int = 8) -> dict[str, Any]:
    """Return how many graphs and executables three sizes compile with ``dynamic=True``, and how many more calls of threads do.

    The calls have batches of 2 to 33 and lengths of 2 to 65; a result counts as wrong unless it is eager's.
    """
    import random
    from concurrent.futures import ThreadPoolExecutor

    import torch
    from torch._dynamo.testing import CompileCounterWithBackend

    from xrt.cache import CompileCache
    from xrt.frontends.torch.backend import xrt_backend

    torch._dynamo.reset()
    module = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval().requires_grad_(False)
    cache = CompileCache()
    counter = CompileCounterWithBackend(partial(xrt_backend, options={"engine": "ort", "threads": 1, "cache": cache}))
    call = torch.compile(module, backend=counter, dynamic=True)
    sizes = random.Random(0)

    def is_right(shape: tuple[int, int]) -> bool:
        with torch.no_grad():
            x = torch.randn(*shape, 32)
            return torch.allclose(call(x), module(x), rtol=1e-4, atol=1e-5)

    shapes = [(4, 16), (5, 16), (5, 19), *((sizes.randint(2, 33), sizes.randint(2, 65)) for _ in range(calls))]
    right = [is_right(shape) for shape in shapes[:3]]
    before = {"graphs": counter.frame_count, "executables": cache.statistics.misses}
    with ThreadPoolExecutor(workers) as pool:
        right += pool.map(is_right, shapes[3:])
    after = {"graphs": counter.frame_count, "executables": cache.statistics.misses}
    return {"calls": calls, "threads": workers, "before": before, "after": after, "wrong": right.count(False)}


def measure_memory(way: str) -> dict[str, Any]:
    """Return the peak of memory in bytes: of the module with ONNX Runtime alone, or with XRT on `ort`."""
    import torch

    from benchmarks.pytorch_models import make_model

    module, inputs = make_model("bert")
    with torch.no_grad():
        if way == "xrt":
            import xrt

            call: Callable[[], Any] = partial(xrt.XRTModule(module, engine="ort", threads=1), *inputs)
        else:
            call = _saved_onnxruntime(inputs)
        for _ in range(3):
            call()
    return {"peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def _saved_onnxruntime(inputs: Any) -> Callable[[], Any]:
    """Return a call of the file that `export_bert` wrote: an export in this process would be part of the peak."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(os.environ["XRT_BENCHMARK_ONNX"], options, providers=["CPUExecutionProvider"])
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)


def export_bert(path: Path) -> dict[str, Any]:
    import torch

    from benchmarks.pytorch_models import make_model

    module, inputs = make_model("bert")
    with torch.no_grad():
        torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)
    return {}


def run_child(a: argparse.Namespace) -> dict[str, Any]:
    part, subject = a.child
    if part == "calls":
        return measure_calls(subject, a.threads, a.budget, a.rounds, tuple(a.ways.split(",")))
    if part == "capture":
        return measure_capture(subject, min(a.rounds, 5))
    if part == "dispatch":
        return measure_dispatch(a.threads, a.rounds)
    if part == "recompiles":
        return measure_recompiles()
    if part == "sizes":
        return measure_sizes()
    return export_bert(Path(subject)) if part == "export" else measure_memory(subject)


# ---------------------------------------------------------------------- all of them


def start(a: argparse.Namespace, part: str, subject: str, **environment: str) -> dict[str, Any]:
    """Return what a process of its own measured; raises SystemExit where it failed."""
    command = [sys.executable, "-m", "benchmarks.pytorch", "--child", part, subject, "--rounds", str(a.rounds)]
    command += ["--threads", str(a.threads), "--budget", str(a.budget), "--ways", a.ways]
    environment = {**os.environ, "OMP_NUM_THREADS": str(a.threads), **environment}
    top = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{part} {subject} failed: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(a: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": machine("torch", "onnxruntime", "openvino"),
        "threads": a.threads,
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="xrt-pytorch-") as work:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(work, "inductor")), "XRT_CACHE_DIR": str(Path(work, "xrt"))}
        override = {"LD_PRELOAD": str(compile_override(Path(work)))}
        for part in a.parts.split(","):
            if part == "calls":
                for mkl, more in (("as installed", {}), ("MKL's check overridden", override)):
                    rows = {name: start(a, part, name, **caches, **more) for name in a.models.split(",")}
                    figures.setdefault(part, {})[mkl] = rows
            elif part == "capture":
                figures[part] = {name: start(a, part, name) for name in a.models.split(",")}
            elif part == "memory":
                path = Path(work, "bert.onnx")
                start(a, "export", str(path))
                figures[part] = {
                    way: start(a, part, way, XRT_BENCHMARK_ONNX=str(path), **caches) for way in ("onnxruntime", "xrt")
                }
            else:
                figures[part] = start(a, part, "-", **caches)
    return figures


def compile_override(folder: Path) -> Path:
    """Compile a library that overrides the function by which MKL checks the vendor of the processor."""
    source, library = folder / "mkl.cpp", folder / "libmkl_intel.so"
    source.write_text(MKL_SOURCE, encoding="utf-8")
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def mean_over_eager(rows: Mapping[str, Any], way: str) -> float:
    """The geometric mean of the speedup over eager."""
    return statistics.geometric_mean(row[way]["eager"]["median"] for row in rows.values())


def find_worst(rows: Mapping[str, Any], way: str) -> tuple[str, float]:
    """The model with the smallest speedup over the best of the others, and that speedup."""
    best = {name: min(row[way][other]["median"] for other in OTHERS if other in row[way]) for name, row in rows.items()}
    return min(best.items(), key=lambda item: item[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="what all may use (default: all cores)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of XRT's search per model (default 20)")
    parser.add_argument("--models", default=",".join(NAMES), help=f"which models (default {','.join(NAMES)})")
    parser.add_argument("--ways", default=",".join((*OTHERS, *OURS)), help="which ways of a call (default: all)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which parts (default {','.join(PARTS)})")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        print(json.dumps(run_child(a)))
        return
    print_figures("pytorch", measure(a), as_json=a.json)


if __name__ == "__main__":
    main()
