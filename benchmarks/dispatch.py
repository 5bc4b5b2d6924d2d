"""What does XRT cost on top of an engine?

Three questions, each in rounds in which the candidates take turns. (1) A tiny graph, a 2x3 Relu: one call of the module, by
position, by name, into a buffer and bound, against one call of the engine's own Python API with its defaults and the same
threads, NumPy in and fresh NumPy out. (2) An output of 4 MB: a fresh one, and one computed into the caller's buffer, against
the engine's own call and a copy of its result to that buffer. (3) Eight threads that call one module, against eight threads
that call the engine.

    python benchmarks/dispatch.py [--json] [--rounds N] [--engines toy,ort,tvm] [--floats N] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

import xrt
from xrt.bench import RatioInterval, Timing, interleave, machine, ratio
from xrt.formats import onnx as onnx_format
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.measure.statistics import take_turns
from xrt.measure.timing import time_call
from xrt.runtime import available_cores

CALLERS = 8
Call = Callable[[Any], Any]


def relu(*shape: int) -> Function:
    value = TensorType(DType.FLOAT32, shape or (2, 3))
    return Function((Value("x", value),), (Value("y", value),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}, name="relu")


# ---------------------------------------------------------------------- the engines' own calls


def own_ort(function: Function, threads: int) -> Call:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = onnx_format.lowest_model(function).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = function.inputs[0].name
    return lambda x: session.run(None, {name: x})[0]


def own_tvm(function: Function, threads: int) -> Call:
    """A machine per thread: two threads in one would mix up its registers."""
    import threading

    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    code = tvm.compile(from_onnx(onnx_format.lowest_model(function)), target="llvm")
    mine = threading.local()

    def call(x: Any) -> Any:
        if not hasattr(mine, "main"):
            mine.main = relax.VirtualMachine(code, tvm.cpu())["main"]
        return mine.main(tvm.runtime.tensor(x)).numpy()

    return call


def own_toy(function: Function, threads: int) -> Call:
    """The same thing written by hand in NumPy."""
    return lambda x: np.maximum(x, 0)


OWN: Mapping[str, Callable[[Function, int], Call]] = {"toy": own_toy, "ort": own_ort, "tvm": own_tvm}


# ---------------------------------------------------------------------- the questions


def tiny(engine: str, rounds: int, threads: int) -> dict[str, Any]:
    """Time the module's ways to call against the engine's own call on a 2x3 Relu."""
    function = relu()
    x, out = np.random.default_rng(0).standard_normal((2, 3)).astype("float32"), np.empty((2, 3), "float32")
    module, own = xrt.XRTModule(function, engine=engine, strict=True, threads=threads), OWN[engine](function, threads)
    bound = module.bind(x)
    np.testing.assert_allclose(module(x), own(x))
    np.testing.assert_allclose(bound(), own(x))
    ways: dict[str, Callable[[], Any]] = {
        "module": lambda: module(x),
        "named": lambda: module(x=x),
        "out": lambda: module(x, out=out),
        "bound": bound,
        "own": lambda: own(x),
    }
    return {"engine": engine, **against_own(interleave(ways, rounds=rounds))}


def large(engine: str, rounds: int, threads: int, floats: int) -> dict[str, Any]:
    """Time a fresh large output and one in the caller's buffer against the engine's own call, alone and with a copy."""
    function = relu(floats)
    x, out = np.random.default_rng(0).standard_normal(floats).astype("float32"), np.empty(floats, "float32")
    module, own = xrt.XRTModule(function, engine=engine, strict=True, threads=threads), OWN[engine](function, threads)
    np.testing.assert_allclose(module(x, out=out), own(x))
    ways: dict[str, Callable[[], Any]] = {
        "module": lambda: module(x),
        "out": lambda: module(x, out=out),
        "bound": module.bind(x, out=out),
        "own": lambda: own(x),
        "own and copy": lambda: np.copyto(out, own(x)),
    }
    return {"engine": engine, **against_own(interleave(ways, rounds=rounds))}


def against_own(times: Mapping[str, Timing]) -> dict[str, Any]:
    """Return each way's median and its ratio to the engine's own call."""
    return {name: {"us": 1e6 * timing.median, "ratio": asdict(ratio(timing, [times["own"]]))} for name, timing in times.items()}


def threaded(engine: str, rounds: int, threads: int, floats: int) -> dict[str, Any]:
    """Time eight threads that call the module against eight that call the engine, on a tiny and on a large output."""
    found: dict[str, Any] = {"engine": engine}
    for size in (6, floats):
        function = relu(size)
        module, own = xrt.XRTModule(function, engine=engine, strict=True, threads=threads), OWN[engine](function, threads)
        calls = max(1, min(2000, 20_000_000 // size))
        with ThreadPoolExecutor(CALLERS) as pool:
            times = in_turn({"module": module, "own": own}, pool, size, calls, rounds)
        rate = {name: CALLERS / timing.median for name, timing in times.items()}
        found[f"{size} floats"] = {"per_s": rate, "ratio": asdict(ratio(times["own"], [times["module"]]))}
    return found


def in_turn(ways: Mapping[str, Call], pool: ThreadPoolExecutor, size: int, calls: int, rounds: int) -> dict[str, Timing]:
    """Return, per round, the seconds in which every thread makes one call: the time of many, divided by their number."""
    inputs = [np.random.default_rng(i).standard_normal(size).astype("float32") for i in range(CALLERS)]

    def serve(way: Call, x: Any) -> Any:
        for _ in range(calls):
            result = way(x)
        return result

    def serve_all(way: Call) -> float:
        results, seconds = time_call(lambda: list(pool.map(serve, [way] * CALLERS, inputs)))
        np.testing.assert_array_equal(results, np.maximum(inputs, 0))
        return seconds / calls

    turns = {name: partial(serve_all, way) for name, way in ways.items()}
    take_turns(turns, 1)  # for warmth
    return {name: Timing(tuple(seconds)) for name, seconds in take_turns(turns, rounds).items()}


# ---------------------------------------------------------------------- report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default 20)")
    parser.add_argument("--engines", default="toy,ort,tvm", help="which engines (default toy,ort,tvm)")
    parser.add_argument("--floats", type=int, default=1 << 20, help="elements of the large output (default 2**20)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="what an engine may use (default: all cores)")
    a = parser.parse_args()
    engines = a.engines.split(",")
    figures = {
        "machine": machine("onnxruntime", "apache-tvm"),
        "tiny": [tiny(engine, a.rounds, a.threads) for engine in engines],
        "large": [large(engine, a.rounds, a.threads, a.floats) for engine in engines],
        "threaded": [threaded(engine, a.rounds, a.threads, a.floats) for engine in engines],
    }
    print(json.dumps(figures, indent=2) if a.json else report(figures))


def report(figures: dict[str, Any]) -> str:
    lines = [figures["machine"]]
    for title, key in (("a 2x3 Relu: each way to call, over the engine's own call", "tiny"), ("a large output", "large")):
        lines += ["", title]
        lines += [line for row in figures[key] for line in ways(row)]
    lines += ["", f"{CALLERS} threads: calls per second of the module over those of the engine called the same way"]
    for row in figures["threaded"]:
        for size, found in row.items():
            if size != "engine":
                rates = f"{found['per_s']['module']:12,.0f} over {found['per_s']['own']:12,.0f} per s"
                lines.append(f"  {row['engine']:4} {size:>15} {rates}: {RatioInterval(**found['ratio'])} x")
    return "\n".join(lines)


def ways(row: dict[str, Any]) -> list[str]:
    return [
        f"  {row['engine']:4} {name:12} {found['us']:10.2f} us: {RatioInterval(**found['ratio'])} x"
        for name, found in row.items()
        if name != "engine"
    ]


if __name__ == "__main__":
    main()
