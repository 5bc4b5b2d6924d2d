"""What does XRT cost, and reach, on a GPU?

Four questions, on arrays that lie on the device. (1) ResNet-50 and a BERT-shaped model: a call of the module, with and without
a recorded graph, against the engine's own call over bound device buffers. (2) Fifty elementwise operators on a large matrix:
which part of the bandwidth that a copy reaches. (3) What crosses between host and device in a call, counted. (4) A mixture of
toy and each other engine on one device: what it copies to the host, which must be nothing.

    python benchmarks/cuda.py [--json] [--quick] [--rounds N]

Ends with code 3, and measures nothing, where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

import xrt
from xrt.bench import Timing, interleave, ratio
from xrt.engines.contract import registry
from xrt.errors import DeviceError, XRTError
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.models import load, sample_inputs
from xrt.runtime.devices import Device, device

NO_DEVICE = 3
ENGINES = ("toy", "ort", "tensorrt", "tvm")
Figures = dict[str, Any]


def chain(extent: int, length: int = 50) -> Function:
    """Return elementwise operators in a row over a square matrix."""
    type_ = TensorType(DType.FLOAT32, (extent, extent))
    ops = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh")
    names = ["x", *(f"v{i}" for i in range(length))]
    nodes = tuple(Node(ops[i % len(ops)], (names[i],), (names[i + 1],), name=f"n{i}") for i in range(length))
    return Function((Value("x", type_),), (Value(names[-1], type_),), nodes, opsets={"": 20}, name="chain")


def tiny() -> Function:
    type_ = TensorType(DType.FLOAT32, (2, 3))
    return Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",), name="relu"),), opsets={"": 14})


# ---------------------------------------------------------------------- calls


def blocking(call: Callable[[], Any], there: Device) -> Callable[[], Any]:
    """Return the call with a wait for what it has put on the current stream."""

    def run() -> Any:
        result = call()
        there.wait([there.current_stream()])
        return result

    return run


def called(function: Function, engine: Any, inputs: dict[str, Any], there: Device, **options: Any) -> Callable[[], Any]:
    """Return a module's call over arrays of the device; every region is on that engine, or PlanError is raised."""
    module = xrt.XRTModule(function, engine, there.name, strict=True, **options)
    return blocking(lambda: module(**inputs), there)


def own_ort(function: Function, inputs: dict[str, Any], there: Device) -> Callable[[], Any]:
    """Return the library's own call: its defaults, inputs and outputs bound to memory of the device."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    from xrt.formats import onnx

    model = onnx.lowest_model(function, 26, 13).SerializeToString()
    providers: list[Any] = [("CUDAExecutionProvider", {"device_id": there.name.partition(":")[2]}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model, providers=providers)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cuda", 0, array.dtype.type, list(array.shape), there.address(array))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)
    return lambda: session.run_with_iobinding(binding)


def uploaded(function: Function, there: Device) -> dict[str, Any]:
    with there.activate(there.current_stream()):
        return {name: there.upload(np.asarray(array)) for name, array in sample_inputs(function, seed=0).items()}


# ---------------------------------------------------------------------- questions


def status(there: Device) -> Figures:
    """Return, by engine, ``ready`` or why it computes nothing on the device."""
    return {name: _why_not(name, there) or "ready" for name in ENGINES}


def _why_not(name: str, there: Device) -> str:
    if (found := registry.probe(name)).state != "ready":
        return found.cause
    try:
        called(tiny(), name, uploaded(tiny(), there), there)()
    except XRTError as error:
        return " ".join(str(error).split())
    return ""


def latencies(models: dict[str, Function], there: Device, ready: list[str], rounds: int) -> Iterator[Figures]:
    """Yield, per model and engine, the seconds of a call and their ratio to the engine's own call, or why there are none."""
    for model, function in models.items():
        inputs = uploaded(function, there)
        for engine in ready:
            try:
                yield {"model": model, "engine": engine, **_timed(_candidates(function, engine, inputs, there), rounds)}
            except XRTError as error:
                yield {"model": model, "engine": engine, "seconds": {}, "to_own": {}, "said": " ".join(str(error).split())}


def _candidates(function: Function, engine: str, inputs: dict[str, Any], there: Device) -> dict[str, Callable[[], Any]]:
    found = {"call": called(function, engine, inputs, there), "graph": called(function, engine, inputs, there, cuda_graph=True)}
    return found | ({"own": own_ort(function, inputs, there)} if engine == "ort" else {})


def _timed(candidates: dict[str, Callable[[], Any]], rounds: int) -> Figures:
    for call in candidates.values():
        call(), call()
    timings = interleave(candidates, rounds=rounds)
    ratios = {
        name: asdict(ratio(timings[name], [timings["own"]])) for name in ("call", "graph") if name in timings and "own" in timings
    }
    return {"seconds": {name: timing.median for name, timing in timings.items()}, "to_own": ratios}


def bandwidth(there: Device, extent: int, rounds: int) -> Figures:
    """Return bytes per second of a copy on the device, and of fifty elementwise operators as one region of toy."""
    inputs = uploaded(chain(extent), there)
    nbytes = 2 * inputs["x"].nbytes
    candidates = {
        "copy": blocking(inputs["x"].copy, there),
        "chain": called(chain(extent), "toy", inputs, there),
        "graph": called(chain(extent), "toy", inputs, there, cuda_graph=True),
    }
    for call in candidates.values():
        call(), call()
    timings: dict[str, Timing] = interleave(candidates, rounds=rounds)
    reached = {name: nbytes / timing.median for name, timing in timings.items()}
    share = {name: asdict(ratio(timings["copy"], [timings[name]])) for name in ("chain", "graph")}
    return {"extent": extent, "bytes_per_second": reached, "of_the_copy": share}


def copies(function: Function, there: Device) -> Figures:
    """Return what one call copies with arrays of the host and with arrays of the device."""
    found = {}
    for name, inputs in (("host", sample_inputs(function, seed=0)), ("device", uploaded(function, there))):
        module = xrt.XRTModule(function, "toy", there.name)
        module(**inputs)
        traffic = module.profile().traffic
        found[name] = None if traffic is None else asdict(traffic)
    return found


def mixtures(function: Function, there: Device, ready: list[str], operators: str) -> Iterator[Figures]:
    """Yield what each mixture of toy and another engine on the device copies."""
    for name in ready:
        if name != "toy":
            module = xrt.XRTModule(function, [name, "toy"], there.name, pins=[f"{operators}=toy"], strict=True)
            for _ in range(2):
                module(**uploaded(function, there))
            traffic = module.profile().traffic
            engines = [launch.engine for launch in module.plan.launches]
            yield {"engines": [name, "toy"], "regions": engines, "traffic": None if traffic is None else asdict(traffic)}


def measured(there: Device, *, quick: bool, rounds: int) -> Figures:
    """Answer the questions."""
    sizes = {"layers": 1, "hidden": 64, "heads": 2, "vocabulary": 100} if quick else {}
    models = {"squeezenet": load("squeezenet")} if quick else {"resnet50": load("resnet50"), "bert": load("bert", **sizes)}
    found = status(there)
    ready = [name for name, said in found.items() if said == "ready"]
    first = next(iter(models.values()))
    return {
        "device": there.hardware,
        "engines": found,
        "latency": list(latencies(models, there, [name for name in ready if name != "tensorrt"], rounds)),
        "chain": bandwidth(there, 64 if quick else 4096, rounds) if "toy" in ready else None,
        "copies": copies(first, there),
        "mixtures": list(mixtures(chain(256, 6), there, ready, "Relu")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small models, to see that it works")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    try:
        there = device("cuda")
    except DeviceError as error:
        print(error, file=sys.stderr)
        return NO_DEVICE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = measured(there, quick=asked.quick, rounds=asked.rounds)
    print(json.dumps(figures, indent=None if asked.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
