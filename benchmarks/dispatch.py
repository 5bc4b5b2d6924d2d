"""What does XRT cost on top of an engine?

Three questions, each in rounds in which the candidates take turns.

1. A tiny graph, a 2x3 Relu: a call of the module by position, by name, into a buffer and bound, against a call of the engine's
   own Python API with its defaults and the same threads, from a NumPy array to a new NumPy array.
2. An output of 4 MB, new or computed into the caller's buffer, against the engine's own call and a copy of the result to the
   buffer.
3. Eight threads that call one module, against eight threads that call the engine.

    python benchmarks/dispatch.py [--json] [--rounds N] [--engines toy,ort,tvm] [--floats N] [--threads N]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from output import make_parser, open_session, print_figures

import xrt
from xrt.bench import Timing, compute_ratio, interleave, machine
from xrt.formats import onnx as onnx_format
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.measure.statistics import take_turns
from xrt.measure.timing import time_call
from xrt.runtime import count_available_cores

CALLING_THREADS = 8
Call = Callable[[Any], Any]


def make_relu(*shape: int) -> Function:
    value = TensorType(DType.FLOAT32, shape or (2, 3))
    return Function((Value("x", value),), (Value("y", value),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}, name="relu")


# ---------------------------------------------------------------------- the engines' own calls


def make_ort_call(function: Function, threads: int) -> Call:
    session = open_session(onnx_format.to_lowest_model(function).SerializeToString(), threads)
    name = function.inputs[0].name
    return lambda x: session.run(None, {name: x})[0]


def make_tvm_call(function: Function, threads: int) -> Call:
    """Call TVM's virtual machine, one per thread: threads that share one would overwrite each other's registers."""
    import threading

    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    code = tvm.compile(from_onnx(onnx_format.to_lowest_model(function)), target="llvm")
    machines = threading.local()

    def call(x: Any) -> Any:
        if not hasattr(machines, "main"):
            machines.main = relax.VirtualMachine(code, tvm.cpu())["main"]
        return machines.main(tvm.runtime.tensor(x)).numpy()

    return call


def make_numpy_call(function: Function, threads: int) -> Call:
    """Compute the model of `make_relu` directly in NumPy."""
    return lambda x: np.maximum(x, 0)


MAKE_OWN_CALL: Mapping[str, Callable[[Function, int], Call]] = {
    "toy": make_numpy_call,
    "ort": make_ort_call,
    "tvm": make_tvm_call,
}


# ---------------------------------------------------------------------- measurements


def measure_tiny(engine: str, rounds: int, threads: int) -> dict[str, Any]:
    """Measure calls of the module against the engine's own call on a 2x3 Relu."""
    function = make_relu()
    x, out = np.random.default_rng(0).standard_normal((2, 3)).astype("float32"), np.empty((2, 3), "float32")
    module, own_call = (
        xrt.XRTModule(function, engine=engine, strict=True, threads=threads),
        MAKE_OWN_CALL[engine](function, threads),
    )
    bound = module.bind(x)
    np.testing.assert_allclose(module(x), own_call(x))
    np.testing.assert_allclose(bound(), own_call(x))
    variants: dict[str, Callable[[], Any]] = {
        "module": lambda: module(x),
        "named": lambda: module(x=x),
        "out": lambda: module(x, out=out),
        "bound": bound,
        "own": lambda: own_call(x),
    }
    return {"engine": engine, **compare_to_own(interleave(variants, rounds=rounds))}


def measure_large(engine: str, rounds: int, threads: int, floats: int) -> dict[str, Any]:
    """Measure a large output, new and in the caller's array, against the engine's own call, without and with a copy."""
    function = make_relu(floats)
    x, out = np.random.default_rng(0).standard_normal(floats).astype("float32"), np.empty(floats, "float32")
    module, own_call = (
        xrt.XRTModule(function, engine=engine, strict=True, threads=threads),
        MAKE_OWN_CALL[engine](function, threads),
    )
    np.testing.assert_allclose(module(x, out=out), own_call(x))
    variants: dict[str, Callable[[], Any]] = {
        "module": lambda: module(x),
        "out": lambda: module(x, out=out),
        "bound": module.bind(x, out=out),
        "own": lambda: own_call(x),
        "own and copy": lambda: np.copyto(out, own_call(x)),
    }
    return {"engine": engine, **compare_to_own(interleave(variants, rounds=rounds))}


def compare_to_own(times: Mapping[str, Timing]) -> dict[str, Any]:
    """Compute the median of each call and its ratio to the engine's own call."""
    return {
        name: {"us": 1e6 * timing.median, "ratio": asdict(compute_ratio(timing, [times["own"]]))}
        for name, timing in times.items()
    }


def measure_threads(engine: str, rounds: int, threads: int, floats: int) -> dict[str, Any]:
    """Measure eight threads that call the module against eight that call the engine, on a small and on a large output."""
    row: dict[str, Any] = {"engine": engine}
    for size in (6, floats):
        function = make_relu(size)
        module, own_call = (
            xrt.XRTModule(function, engine=engine, strict=True, threads=threads),
            MAKE_OWN_CALL[engine](function, threads),
        )
        calls = max(1, min(2000, 20_000_000 // size))
        with ThreadPoolExecutor(CALLING_THREADS) as pool:
            times = time_in_turns({"module": module, "own": own_call}, pool, size, calls, rounds)
        rate = {name: CALLING_THREADS / timing.median for name, timing in times.items()}
        row[f"{size} floats"] = {"per_s": rate, "ratio": asdict(compute_ratio(times["own"], [times["module"]]))}
    return row


def time_in_turns(
    variants: Mapping[str, Call], pool: ThreadPoolExecutor, size: int, calls: int, rounds: int
) -> dict[str, Timing]:
    """Measure the variants in turns; return, per round, the seconds per call of each thread."""
    inputs = [np.random.default_rng(i).standard_normal(size).astype("float32") for i in range(CALLING_THREADS)]

    def serve(call: Call, x: Any) -> Any:
        for _ in range(calls):
            result = call(x)
        return result

    def serve_all(call: Call) -> float:
        results, seconds = time_call(lambda: list(pool.map(serve, [call] * CALLING_THREADS, inputs)))
        np.testing.assert_array_equal(results, np.maximum(inputs, 0))
        return seconds / calls

    turns = {name: partial(serve_all, call) for name, call in variants.items()}
    take_turns(turns, 1)  # warm up
    return {name: Timing(tuple(seconds)) for name, seconds in take_turns(turns, rounds).items()}


# ---------------------------------------------------------------------- report


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default 20)")
    parser.add_argument("--engines", default="toy,ort,tvm", help="which engines (default toy,ort,tvm)")
    parser.add_argument("--floats", type=int, default=1 << 20, help="elements of the large output (default 2**20)")
    parser.add_argument(
        "--threads", type=int, default=count_available_cores(), help="what an engine may use (default: all cores)"
    )
    arguments = parser.parse_args()
    engines = arguments.engines.split(",")
    figures = {
        "machine": machine("onnxruntime", "apache-tvm"),
        "tiny": [measure_tiny(engine, arguments.rounds, arguments.threads) for engine in engines],
        "large": [measure_large(engine, arguments.rounds, arguments.threads, arguments.floats) for engine in engines],
        "threaded": [measure_threads(engine, arguments.rounds, arguments.threads, arguments.floats) for engine in engines],
    }
    print_figures("dispatch", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
