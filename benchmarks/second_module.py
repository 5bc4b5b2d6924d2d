"""What does the first call of a second module cost, in a process that has used XRT before?

Each round is a fresh process that runs another small model first, through XRT and through ONNX Runtime. Then the model
itself, from its path to the first result, in turns: `onnxruntime.InferenceSession(path)` and one run; a module on an empty
cache (*cold*); a module on a cache whose directory that one has filled (*disk*); and a module on that cache itself, which
still has the executables (*memory*). The figure is processor time, of all threads and of processes that were started, and
its ratio to ONNX Runtime's own of the same round. Models are scikit-learn's (by skl2onnx) and those of transformers, as
`benchmarks/zoo` exports them, and those that XRT ships.

    python -m benchmarks.second_module [--json] [--rounds N] [--models sk_ridge,squeezenet,...] [--profile]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

LEARNED = ("sk_ridge", "sk_logistic_arrays", "sk_logistic", "sk_forest_arrays", "sk_forest", "sk_svr", "sk_pca_kmeans", "sk_mlp")
TRANSFORMERS = ("bert", "gpt2", "vit", "llama")
SHIPPED = ("squeezenet", "shufflenet", "resnet50", "mobilenet", "dlrm")
WAYS = ("cold", "disk", "memory")
ZOO = Path(__file__).parents[1] / "build" / "zoo"
Arrays = Mapping[str, Any]


# ---------------------------------------------------------------------- one round, in a process of its own


def spend(call: Callable[[], Any]) -> float:
    """Return the seconds of processor time of a call, children's included."""
    gc.collect()
    began, before = time.process_time(), os.times()
    call()
    after = os.times()
    children = after.children_user + after.children_system - before.children_user - before.children_system
    return time.process_time() - began + children


def run_engine(path: Path, inputs: Arrays) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def run_module(path: Path, inputs: Arrays, cache: Any) -> Any:
    from xrt import XRTModule

    return XRTModule(path, engine="ort", cache=cache)(**inputs)


def measure_round(folder: Path, warm_up: Path, number: int, profile: str | None) -> dict[str, float]:
    """Return the processor time of each way, after another model has been run."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from xrt.cache import CompileCache, open_disk_tier

    inputs, other = read_inputs(folder), read_inputs(warm_up)
    with tempfile.TemporaryDirectory(prefix="xrt-second-") as name:
        for _ in range(2):  # the second one finds what the first one has written
            run_module(warm_up / "model.onnx", other, Path(name, "other"))
        run_engine(warm_up / "model.onnx", other)
        path = folder / "model.onnx"
        path.read_bytes()
        cache = CompileCache(disk=open_disk_tier(directory=Path(name, "cache")))
        again = CompileCache(disk=open_disk_tier(directory=Path(name, "cache")))
        caches = {"cold": cache, "disk": again, "memory": again}
        found: dict[str, float] = {}
        if number % 2:
            found["engine"] = spend(lambda: run_engine(path, inputs))
        for way in WAYS:
            call = show_profile(way) if profile == way else spend
            found[way] = call(lambda way=way: run_module(path, inputs, caches[way])) or 0.0  # type: ignore[misc]
        if not number % 2:
            found["engine"] = spend(lambda: run_engine(path, inputs))
    return found


def show_profile(way: str) -> Callable[[Callable[[], Any]], None]:
    """Return a call that prints on standard error where a way spends its time."""

    def run(call: Callable[[], Any]) -> None:
        import cProfile
        import pstats

        profile = cProfile.Profile(time.process_time)
        profile.runcall(call)
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile, stream=sys.stderr).sort_stats(order).print_stats(60)

    return run


def read_inputs(folder: Path) -> dict[str, Any]:
    with np.load(folder / "inputs.npz") as file:
        return dict(file)


# ---------------------------------------------------------------------- all of them


def prepare(names: list[str], folder: Path) -> None:
    """Write every model with its inputs, and the one that warms up."""
    for name in names:
        target = folder / name
        target.mkdir()
        if name in (*LEARNED, *TRANSFORMERS):
            write_exported(name, target)
        else:
            write_shipped(name, target)
    write_warm_up(folder)


def write_exported(name: str, target: Path) -> None:
    """Link a model of the zoo, which is exported where it is not there yet."""
    from benchmarks.zoo.model import load_case

    if not (ZOO / name / "case.npz").exists():
        subprocess.run([sys.executable, "-m", "benchmarks.zoo.build", name], check=True, stdout=sys.stderr)
    case = load_case(ZOO / name)
    (target / "model.onnx").write_bytes(case.path.read_bytes())
    np.savez(target / "inputs.npz", **case.calls[0])  # type: ignore[arg-type]  # the stub takes the names for its own option


def write_shipped(name: str, target: Path) -> None:
    from xrt import models
    from xrt.formats.onnx import save

    function = models.load(name)
    save(function, target / "model.onnx")
    np.savez(target / "inputs.npz", **models.sample_inputs(function))


def write_warm_up(folder: Path) -> None:
    from xrt.formats.onnx import save
    from xrt.graph import Constant, DType, Function, Node, TensorType, Value

    x = TensorType(DType.FLOAT32, (2, 3))
    nodes = (Node("MatMul", ("x", "w"), ("h",)), Node("Relu", ("h",), ("y",)))
    weights = {"w": Constant(np.ones((3, 4), "float32"))}
    function = Function((Value("x", x),), (Value("y", x.with_shape((2, 4))),), nodes, weights, {"": 17})
    (folder / "warm_up").mkdir()
    save(function, folder / "warm_up" / "model.onnx")
    np.savez(folder / "warm_up" / "inputs.npz", x=np.ones((2, 3), "float32"))


def measure(name: str, folder: Path, rounds: int, profile: str | None) -> dict[str, Any]:
    """Return the medians, in seconds, of one model, and its ratios to ONNX Runtime's own in the same round."""
    found = [start_round(folder / name, folder / "warm_up", number, profile) for number in range(rounds)]
    seconds = {way: statistics.median(one[way] for one in found) for way in ("engine", *WAYS)}
    ratios = {way: sorted(one[way] / one["engine"] for one in found) for way in WAYS}
    return {"model": name, "seconds": seconds, "ratios": ratios}


def start_round(folder: Path, warm_up: Path, number: int, profile: str | None) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.second_module", "--child", str(folder), str(warm_up), str(number)]
    command += ["--profile", profile] if profile else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder.name} failed: {done.stderr[-2000:]}")
    sys.stderr.write(done.stderr if profile else "")
    return dict(json.loads(done.stdout))


def report(found: dict[str, Any]) -> str:
    lines = [found["machine"], f"processor time, medians of {found['rounds']} processes; ratios of the same process", ""]
    lines.append(f"{'model':20} {'ort, ms':>8} " + " ".join(f"{way + ', ms':>11} {'x':>5} {'(range)':>13}" for way in WAYS))
    for row in found["rows"]:
        cells = [f"{row['seconds'][way] * 1e3:11.2f} {show_ratios(row['ratios'][way])}" for way in WAYS]
        lines.append(f"{row['model']:20} {row['seconds']['engine'] * 1e3:8.2f} {' '.join(cells)}")
    medians = {way: [statistics.median(row["ratios"][way]) for row in found["rows"]] for way in WAYS}
    for way, each in medians.items():
        lines.append(f"{way}: median over the models {statistics.median(each):.2f} x, at worst {max(each):.2f} x")
    return "\n".join(lines)


def show_ratios(ratios: list[float]) -> str:
    spread = f"({ratios[0]:.1f} to {ratios[-1]:.1f})"
    return f"{statistics.median(ratios):5.2f} {spread:>13}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="processes per model (default 5)")
    parser.add_argument("--models", help="which models (default: all)")
    parser.add_argument("--profile", choices=WAYS, help="print where that way spends its time, of one process")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, warm_up, number = arguments.child
        print(json.dumps(measure_round(Path(folder), Path(warm_up), int(number), arguments.profile)))
        return
    from xrt.bench import machine

    names = arguments.models.split(",") if arguments.models else [*LEARNED, *TRANSFORMERS, *SHIPPED]
    rounds = 1 if arguments.profile else arguments.rounds
    with tempfile.TemporaryDirectory(prefix="xrt-second-") as folder:
        prepare(names, Path(folder))
        rows = [measure(name, Path(folder), rounds, arguments.profile) for name in names]
    found = {"machine": machine("onnxruntime"), "rounds": rounds, "rows": rows}
    print(json.dumps(found, indent=2) if arguments.json else report(found))


if __name__ == "__main__":
    main()
