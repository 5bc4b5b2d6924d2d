"""How long does a step of training take: PyTorch eager, Inductor, and XRT?

A step is the loss of a batch, its gradient, and Adam's update of every parameter. The networks of `benchmarks.training_models`
are each in a process of its own, where all ways take turns within rounds with the same number of threads; a ratio is of one
round. PyTorch steps with its fused Adam, in eager mode and with the loss compiled by Inductor. XRT is a `TrainModule` on `ort`
and one placed by measurement. Everything runs a second time with the processor check of PyTorch's MKL answered with yes.

Then the update alone: Adam on a parameter of 4 million elements, by a gradient that is an input as for PyTorch, and as part of a
step. And the peak of memory of steps of the GPT, eager and by XRT,
each in a process of its own.

    python -m benchmarks.training [--json] [--rounds N] [--threads N] [--models mlp,...] [--budget SECONDS]
        [--parts steps,...] [--elements N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pytorch import compile_override, summarize
from xrt.bench import interleave, machine
from xrt.measure.timing import LONGEST_WAIT

SIZES = {"mlp": 4, "resnet": 4, "gpt": 8, "lstm": 8}
WAYS = ("eager", "inductor", "xrt on ort", "xrt on auto")
XRT = "xrt on "
PARTS = ("steps", "update", "memory")
ELEMENTS = 4_000_000
TOLERANCE = 1e-3
"""Of the loss of the tenth step."""


# ---------------------------------------------------------------------- in a process of its own


def make_torch_step(name: str, is_compiled: bool) -> Callable[[], float]:
    """Return a call that makes one step and returns the loss."""
    import torch

    from benchmarks.training_models import MODELS

    torch.manual_seed(0)
    module, batch = MODELS[name].make(SIZES[name]), MODELS[name].inputs(SIZES[name])
    optimizer = torch.optim.Adam(module.parameters(), 1e-3, fused=True)
    call = torch.compile(module) if is_compiled else module

    def step() -> float:
        optimizer.zero_grad()
        loss = call(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def make_xrt_step(name: str, engine: str, threads: int, budget: float) -> Callable[[], float]:
    """Return a call that makes one step and returns the loss, from the same weights and batch."""
    import torch

    import xrt
    from benchmarks.training_models import MODELS
    from xrt import training

    torch.manual_seed(0)
    module, batch = MODELS[name].make(SIZES[name]), MODELS[name].inputs(SIZES[name])
    names = [key for key, _ in module.named_parameters()]
    options: dict[str, Any] = {"budget": budget, "progress": False} if engine == "auto" else {}
    function = xrt.from_torch(module, batch)
    trained = xrt.TrainModule(function, engine, optimizer=training.Adam(), parameters=names, threads=threads, **options)
    buffers = {key: value.numpy() for key, value in module.named_buffers() if key in trained.session.state}
    trained.session.state.update(buffers)
    arrays = [x.numpy() for x in batch]
    return lambda: float(trained(*arrays))


def make_step(way: str, name: str, a: argparse.Namespace) -> Callable[[], float]:
    """Return a call that makes one step in a way: ``eager``, ``inductor``, or ``xrt on`` an engine."""
    if way.startswith(XRT):
        return make_xrt_step(name, way.removeprefix(XRT), a.threads, a.budget)
    if way not in WAYS:
        raise SystemExit(f"there is no way {way!r}; there are eager, inductor, and {XRT}ENGINE")
    return make_torch_step(name, way == "inductor")


def measure_steps(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """Return seconds per way; raises SystemExit where the tenth loss of one is another than eager's."""
    import torch

    torch.set_num_threads(a.threads)
    calls = {way: make_step(way, name, a) for way in a.ways.split(",")}
    losses = {way: [call() for _ in range(10)][-1] for way, call in calls.items()}
    first = next(iter(losses.values()))
    for way, loss in losses.items():
        if not abs(loss / first - 1) <= TOLERANCE:
            raise SystemExit(f"{name}, {way}: the loss of the tenth step is {loss}, not {first}")
    return summarize(interleave(calls, rounds=a.rounds, idle=LONGEST_WAIT), [way for way in calls if way.startswith("xrt")])


def measure_update(a: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of Adam on one parameter: of PyTorch's fused update, and of XRT's, in two functions.

    The first takes the gradient as an input, as PyTorch's does. The second is a step whose loss is a sum.
    """
    import numpy as np
    import torch

    import xrt
    from xrt import ops, training
    from xrt.graph import DType, TensorType
    from xrt.graph.aligned_arrays import make_aligned_array

    torch.set_num_threads(a.threads)
    parameter = torch.nn.Parameter(torch.zeros(a.elements))
    parameter.grad = torch.ones(a.elements)
    optimizer = torch.optim.Adam([parameter], 1e-3, fused=True)
    size = a.elements

    class Sum(xrt.Graph):
        def __init__(self) -> None:
            self.w = np.zeros(size, "float32")

        def build(self, x: Any) -> Any:
            return {"loss": ops.ReduceSum(x * self.w, keepdims=0)}

    update = training.update({"w": TensorType(DType.FLOAT32, (size,))}, optimizer=training.Adam())
    x, rate, gradient = np.ones(1, "float32"), np.float32(1e-3), make_aligned_array((size,), np.dtype("float32"))
    gradient.fill(1)
    calls: dict[str, Callable[[], Any]] = {"PyTorch, fused": optimizer.step}
    copied = {}
    for engine in ("toy", "ort"):
        module = xrt.XRTModule(update, engine, threads=a.threads)
        session = module.new_session()
        trained = xrt.TrainModule(Sum().trace(x), engine, optimizer=training.Adam(), threads=a.threads)
        calls[f"xrt on {engine}"] = partial(session, w_gradient=gradient, learning_rate=rate)
        calls[f"xrt on {engine}, a step"] = partial(trained, x)
        calls[f"xrt on {engine}"]()
        trained(x)
        copied[engine] = sum(one.nbytes for m in (module, trained.module) for one in m.profile().copies)
    return {**summarize(interleave(calls, rounds=a.rounds, idle=LONGEST_WAIT)), "copied": copied}


def measure_memory(way: str, a: argparse.Namespace) -> dict[str, Any]:
    """Return the peak of memory in bytes after ten steps."""
    import torch

    torch.set_num_threads(a.threads)
    call = make_torch_step("gpt", False) if way == "eager" else make_xrt_step("gpt", "ort", a.threads, a.budget)
    for _ in range(10):
        call()
    return {"peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def run_child(a: argparse.Namespace) -> dict[str, Any]:
    part, subject = a.child
    if part == "steps":
        return measure_steps(subject, a)
    return measure_update(a) if part == "update" else measure_memory(subject, a)


# ---------------------------------------------------------------------- all of them


def start(a: argparse.Namespace, part: str, subject: str, **environment: str) -> dict[str, Any]:
    """Return what a process of its own measured; raises SystemExit where it failed."""
    command = [sys.executable, "-m", "benchmarks.training", "--child", part, subject, "--rounds", str(a.rounds)]
    command += ["--threads", str(a.threads), "--budget", str(a.budget), "--ways", a.ways, "--elements", str(a.elements)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(a.threads), **environment}
    top = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{part} {subject} failed: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all parts that were asked for."""
    found: dict[str, Any] = {"machine": machine("torch", "onnxruntime"), "threads": a.threads, "load": os.getloadavg()[0]}
    found["elements"] = a.elements
    with tempfile.TemporaryDirectory(prefix="xrt-training-") as work:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(work, "inductor")), "XRT_CACHE_DIR": str(Path(work, "xrt"))}
        override = {"LD_PRELOAD": str(compile_override(Path(work)))}
        for part in a.parts.split(","):
            if part == "steps":
                for mkl, more in (("as installed", {}), ("MKL's check overridden", override)):
                    rows = {name: start(a, part, name, **caches, **more) for name in a.models.split(",")}
                    found.setdefault(part, {})[mkl] = rows
            elif part == "update":
                found[part] = start(a, part, "-", **caches)
            else:
                found[part] = {way: start(a, part, way, **caches) for way in ("eager", "xrt")}
    return found


def report(found: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [str(found["machine"]), f"{found['threads']} threads, load {found['load']:.1f} at the beginning"]
    for mkl, rows in found.get("steps", {}).items():
        ways = list(next(iter(rows.values()))["seconds"])
        lines += ["", f"milliseconds per step, {mkl}:", f"{'model':10}" + "".join(f"{way:>17}" for way in ways)]
        for name, row in rows.items():
            ratios = (f"{way} {1 / row[way]['eager']['median']:.2f} x eager" for way in ways if "eager" in row.get(way, {}))
            lines.append(f"{name:10}" + "".join(f"{1e3 * row['seconds'][way]:17.2f}" for way in ways) + f"   {', '.join(ratios)}")
    if "update" in found:
        row = found["update"]
        lines += ["", f"milliseconds of Adam on {found['elements'] / 1e6:g} million elements:"]
        lines += [f"{way}: {1e3 * seconds:.2f}" for way, seconds in row["seconds"].items()]
        lines += [f"bytes of the state copied on {engine}: {count}" for engine, count in row["copied"].items()]
    if "memory" in found:
        mine, other = (found["memory"][way]["peak"] for way in ("xrt", "eager"))
        lines.append(f"peak of steps of the GPT: xrt {mine / 1e6:.0f} MB, eager {other / 1e6:.0f} MB: {mine / other:.2f} x")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="what all may use (default: all cores)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of XRT's search per model (default 20)")
    parser.add_argument("--models", default=",".join(SIZES), help=f"which models (default {','.join(SIZES)})")
    parser.add_argument(
        "--ways",
        default=",".join(WAYS),
        help="which ways of a step: eager, inductor, 'xrt on ENGINE' (default: both, ort and auto)",
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which parts (default {','.join(PARTS)})")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help=f"of the parameter of the update (default {ELEMENTS})")
    parser.add_argument("--quick", action="store_true", help="whether it runs: one model, few rounds, a small parameter")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.quick:
        a.rounds, a.budget, a.models, a.elements = 3, 5.0, a.models.partition(",")[0], 100_000
    if a.child:
        print(json.dumps(run_child(a)))
        return
    found = measure(a)
    print(json.dumps(found, indent=2) if a.json else report(found))


if __name__ == "__main__":
    main()
