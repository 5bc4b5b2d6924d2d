"""What does XRT cost on a GPU?

Four measurements with arrays on the device. (1) ResNet-50 and BERT: a call of the module, with and without a CUDA graph,
against the engine's own call with bound device buffers. (2) Fifty elementwise operators on a large matrix: their share of
the bandwidth of a copy, on each engine. (3) The number of copies between host and device in a call. (4) A mixture of toy
and each other engine on one device, which must copy nothing to the host.

    python benchmarks/gpu.py [--json] [--quick] [--rounds N]

Exit code 3, without measuring, if there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import xrt
from xrt.bench import Timing, compute_ratio, interleave
from xrt.engines.contract import registry
from xrt.errors import DeviceError, XRTError
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.models import load, sample_inputs
from xrt.runtime.devices import Device, device

NO_DEVICE = 3
ENGINES = ("toy", "ort", "tensorrt", "tvm")
Figures = dict[str, Any]


def make_chain(extent: int, length: int = 50) -> Function:
    """A chain of elementwise operators on a square matrix."""
    type_ = TensorType(DType.FLOAT32, (extent, extent))
    ops = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh")
    names = ["x", *(f"v{i}" for i in range(length))]
    nodes = tuple(Node(ops[i % len(ops)], (names[i],), (names[i + 1],), name=f"n{i}") for i in range(length))
    return Function((Value("x", type_),), (Value(names[-1], type_),), nodes, opsets={"": 20}, name="chain")


def make_tiny() -> Function:
    type_ = TensorType(DType.FLOAT32, (2, 3))
    return Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",), name="relu"),), opsets={"": 14})


# ---------------------------------------------------------------------- calls


def make_blocking(call: Callable[[], Any], gpu: Device) -> Callable[[], Any]:
    """Wrap a call so that it waits for the current stream."""

    def run() -> Any:
        result = call()
        gpu.wait([gpu.current_stream()])
        return result

    return run


def make_call(function: Function, engine: Any, inputs: dict[str, Any], gpu: Device) -> Callable[[], Any]:
    """Make a call of a module with arrays of the device; raises PlanError if the engine does not support a node."""
    module = xrt.XRTModule(function, engine, gpu.name, strict=True)
    return make_blocking(lambda: module(**inputs), gpu)


def make_graph_call(function: Function, engine: Any, inputs: dict[str, Any], gpu: Device) -> dict[str, Callable[[], Any]]:
    """Make a call that is recorded and replayed, under the name ``graph``; nothing if it cannot be recorded."""
    module = xrt.XRTModule(function, engine, gpu.name, strict=True, cuda_graph=True)
    call = make_blocking(lambda: module(**inputs), gpu)
    call(), call()
    return {"graph": call} if "\na graph of the device" in str(module.explain()) else {}


def make_ort_call(function: Function, inputs: dict[str, Any], gpu: Device) -> Callable[[], Any]:
    """Make the library's own call on cuda:0: float32 without TF32, as in XRT; inputs and outputs bound to device memory."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    from xrt.formats import onnx

    model = onnx.to_lowest_model(function, 26, 13).SerializeToString()
    providers: list[Any] = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model, providers=providers)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cuda", 0, array.dtype.type, list(array.shape), gpu.address(array))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)
    return lambda: session.run_with_iobinding(binding)


def upload_inputs(function: Function, gpu: Device) -> dict[str, Any]:
    with gpu.activate(gpu.current_stream()):
        return {name: gpu.upload(np.asarray(array)) for name, array in sample_inputs(function, seed=0).items()}


# ---------------------------------------------------------------------- measurements


def probe_engines(gpu: Device) -> Figures:
    """Map each engine to ``ready``, or to the reason why it does not run on the device."""
    return {name: _why_not(name, gpu) or "ready" for name in ENGINES}


def _why_not(name: str, gpu: Device) -> str:
    if (probe := registry.probe(name)).state != "ready":
        return probe.cause
    try:
        make_call(make_tiny(), name, upload_inputs(make_tiny(), gpu), gpu)()
    except XRTError as error:
        return " ".join(str(error).split())
    return ""


def measure_latencies(models: dict[str, Function], gpu: Device, ready: list[str], rounds: int) -> Iterator[Figures]:
    """Yield, per model and engine, the seconds of a call and their ratio to the engine's own call, or why there are none."""
    for model, function in models.items():
        inputs = upload_inputs(function, gpu)
        for engine in ready:
            try:
                yield {
                    "model": model,
                    "engine": engine,
                    **_measure_calls(_make_candidates(function, engine, inputs, gpu), rounds),
                }
            except XRTError as error:
                yield {"model": model, "engine": engine, "seconds": {}, "to_own": {}, "said": " ".join(str(error).split())}


def _make_candidates(function: Function, engine: str, inputs: dict[str, Any], gpu: Device) -> dict[str, Callable[[], Any]]:
    calls = {"call": make_call(function, engine, inputs, gpu), **make_graph_call(function, engine, inputs, gpu)}
    return calls | ({"own": make_ort_call(function, inputs, gpu)} if engine == "ort" else {})


def _measure_calls(candidates: dict[str, Callable[[], Any]], rounds: int) -> Figures:
    for call in candidates.values():
        call(), call()
    timings = interleave(candidates, rounds=rounds)
    ratios = {
        name: asdict(compute_ratio(timings[name], [timings["own"]]))
        for name in ("call", "graph")
        if name in timings and "own" in timings
    }
    return {"seconds": {name: timing.median for name, timing in timings.items()}, "to_own": ratios}


def measure_bandwidth(gpu: Device, extent: int, rounds: int, engines: Sequence[str]) -> Figures:
    """Measure bytes per second of a copy on the device, and of fifty elementwise operators on each engine."""
    inputs = upload_inputs(make_chain(extent), gpu)
    nbytes = 2 * inputs["x"].nbytes
    candidates = {"copy": make_blocking(inputs["x"].copy, gpu)}
    candidates |= {name: make_call(make_chain(extent), name, inputs, gpu) for name in engines}
    for call in candidates.values():
        call(), call()
    timings: dict[str, Timing] = interleave(candidates, rounds=rounds)
    rates = {name: nbytes / timing.median for name, timing in timings.items()}
    share = {name: asdict(compute_ratio(timings["copy"], [timings[name]])) for name in engines}
    return {"extent": extent, "bytes_per_second": rates, "of_the_copy": share}


def count_copies(function: Function, gpu: Device) -> Figures:
    """Count the copies of one call with host arrays and with device arrays."""
    counts = {}
    for name, inputs in (("host", sample_inputs(function, seed=0)), ("device", upload_inputs(function, gpu))):
        module = xrt.XRTModule(function, "toy", gpu.name)
        module(**inputs)
        traffic = module.profile().traffic
        counts[name] = None if traffic is None else asdict(traffic)
    return counts


def measure_mixtures(function: Function, gpu: Device, ready: list[str], operators: str) -> Iterator[Figures]:
    """Count the copies of each mixture of toy and another engine on the device."""
    for name in ready:
        if name != "toy":
            module = xrt.XRTModule(function, [name, "toy"], gpu.name, pins=[f"{operators}=toy"], strict=True)
            for _ in range(2):
                module(**upload_inputs(function, gpu))
            traffic = module.profile().traffic
            engines = [launch.engine for launch in module.plan.launches]
            yield {"engines": [name, "toy"], "regions": engines, "traffic": None if traffic is None else asdict(traffic)}


def measure(gpu: Device, *, quick: bool, rounds: int) -> Figures:
    """Run all measurements."""
    sizes = {"layers": 1, "hidden": 64, "heads": 2, "vocabulary": 100} if quick else {}
    models = {"squeezenet": load("squeezenet")} if quick else {"resnet50": load("resnet50"), "bert": load("bert", **sizes)}
    states = probe_engines(gpu)
    ready = [name for name, state in states.items() if state == "ready"]
    first = next(iter(models.values()))
    return {
        "device": gpu.hardware,
        "engines": states,
        "latency": list(measure_latencies(models, gpu, [name for name in ready if name != "tensorrt"], rounds)),
        "chain": measure_bandwidth(gpu, 64 if quick else 4096, rounds, ready) if ready else None,
        "copies": count_copies(first, gpu),
        "mixtures": list(measure_mixtures(make_chain(256, 6), gpu, ready, "Relu")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="small models: shows that it works")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    try:
        gpu = device("cuda")
    except DeviceError as error:
        print(error, file=sys.stderr)
        return NO_DEVICE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = measure(gpu, quick=arguments.quick, rounds=arguments.rounds)
    print(json.dumps(figures, indent=None if arguments.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
