"""Run models on the emulated device, and print as JSON what came of it."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import xrt
from tests.devices.worlds import TOY
from tests.engines.emulated_cuda import binary
from tests.engines.emulated_cuda.device import EmulatedDevice
from tests.engines.emulated_cuda.models import MODELS
from xrt.engines import CompileContext, RunOptions
from xrt.engines.tvm import Tvm, cuda
from xrt.graph import Function
from xrt.testing.running import run_outputs

STREAM = 4660
compiled: list[str] = []


def main(folder: Path) -> None:
    def compiler(source: str, architecture: str) -> bytes:
        compiled.append(architecture)
        return binary(source, folder)

    cuda.compile_with_nvrtc = compiler
    driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
    for log in (driver.cuEmulatedLog, runtime.cudaEmulatedLog):
        log.restype = ctypes.c_char_p
    results: dict[str, Any] = {name: outcome(*MODELS[name], TOY) for name in MODELS}
    results["driver"] = driver.cuEmulatedLog().decode().splitlines()
    results["runtime"] = runtime.cudaEmulatedLog().decode().splitlines()
    results |= {"saved": saved(), "misplaced": misplaced(), "alone": alone()}
    results["architectures"] = sorted(set(compiled))
    sys.stdout.write(json.dumps(results))


def made(function: Function, device: EmulatedDevice) -> Any:
    executable = Tvm().compile(function, context(device))
    executable.prepare()
    return executable


def context(device: EmulatedDevice, workdir: Path | None = None) -> CompileContext:
    return CompileContext(device="cuda:0", accelerator=device, workdir=workdir)


def outcome(model: Function, inputs: Any, engine: str) -> dict[str, Any]:
    """Return how far results lie from an engine's on the CPU, and whether any is memory of another."""
    device = EmulatedDevice()
    items = [device.upload(array) for array in inputs]
    executable = made(model, device)
    results = executable.run(items, RunOptions(stream=STREAM))
    expected = reference(model, inputs, engine)
    apart = all(not np.shares_memory(a, b) for k, a in enumerate(results) for b in [*items, *results[:k]])
    return {
        "differs": [differs(*pair) for pair in zip(results, expected, strict=True)],
        "apart": apart,
        "waits": device.waits - 1,
    }


def reference(model: Function, inputs: Any, engine: str = TOY) -> list[Any]:
    with np.errstate(all="ignore"):
        return run_outputs(xrt.XRTModule(model, engine)(*inputs), model)


def differs(got: Any, want: Any) -> str:
    try:
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-6, strict=True)
    except AssertionError as error:
        return str(error)
    return ""


def saved() -> dict[str, Any]:
    """Save an executable, and run what is loaded: without a compile."""
    model, inputs = MODELS["net"]
    device, engine = EmulatedDevice(), Tvm()
    with tempfile.TemporaryDirectory() as workdir:
        data = engine.save(made(model, device), context(device, Path(workdir)))
    before = len(compiled)
    with tempfile.TemporaryDirectory() as workdir:
        executable = engine.load(memoryview(data), model, context(device, Path(workdir)))
        executable.prepare()
    results = executable.run([device.upload(array) for array in inputs], RunOptions(stream=STREAM))
    worst = [differs(*pair) for pair in zip(results, reference(model, inputs), strict=True)]
    return {"differs": worst, "compiles": len(compiled) - before}


def misplaced() -> list[str]:
    """Hand over arrays that lie at odd addresses, or not in order."""
    model, (x, w) = MODELS["product"]
    device = EmulatedDevice()
    executable = made(model, device)
    odd = device.upload(x, gap=4), device.upload(np.ascontiguousarray(w.T)).T
    (result,) = executable.run(odd, RunOptions(stream=STREAM))
    return [differs(result, reference(model, (x, w))[0])]


def alone() -> list[Any]:
    """Return how often a run without a stream of the caller's waits, and what a closed executable says."""
    model, inputs = MODELS["chain"]
    device = EmulatedDevice()
    executable, items = made(model, device), [device.upload(array) for array in inputs]
    before = device.waits
    executable.run(items)
    waits = device.waits - before
    executable.close()
    try:
        executable.run(items)
    except xrt.errors.RunFailed as error:
        return [waits, str(error)]
    return [waits, ""]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
