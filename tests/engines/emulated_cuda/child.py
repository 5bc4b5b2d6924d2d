"""Run models on the emulated device; an assertion that fails ends the process."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    for model, inputs in MODELS.values():
        check_results(model, inputs)
    launches = [line.split() for line in driver.cuEmulatedLog().decode().splitlines() if line.startswith("launch")]
    assert len(launches) >= len(MODELS) and {stream for _, stream, _ in launches} == {str(STREAM)}, launches
    assert runtime.cudaEmulatedLog() == b"", "nothing is allocated, copied or waited for"
    check_saved()
    check_misplaced_arrays()
    check_a_run_without_a_stream()
    assert set(compiled) == {"sm_90"}, "code is for the device that is there"


def make(function: Function, device: EmulatedDevice) -> Any:
    executable = Tvm().compile(function, context(device))
    executable.prepare()
    return executable


def context(device: EmulatedDevice, workdir: Path | None = None) -> CompileContext:
    return CompileContext(device="cuda:0", accelerator=device, workdir=workdir)


def check(results: Sequence[Any], model: Function, inputs: Sequence[Any]) -> None:
    with np.errstate(all="ignore"):
        expected = run_outputs(xrt.XRTModule(model, TOY)(*inputs), model)
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-6, strict=True, err_msg=model.name)


def check_results(model: Function, inputs: Sequence[Any]) -> None:
    """The kernels compute what the reference does, into arrays of their own, and the call waits for nothing."""
    device = EmulatedDevice()
    items, executable = [device.upload(array) for array in inputs], make(model, device)
    results = executable.run(items, RunOptions(stream=STREAM))
    check(results, model, inputs)
    assert not any(np.shares_memory(a, b) for k, a in enumerate(results) for b in [*items, *results[:k]]), model.name
    assert device.waits == 1, f"{model.name}: only the compile waits"


def check_saved() -> None:
    """What was saved runs without a compile."""
    model, inputs = MODELS["net"]
    device, engine = EmulatedDevice(), Tvm()
    with tempfile.TemporaryDirectory() as workdir:
        data = engine.save(make(model, device), context(device, Path(workdir)))
    before = len(compiled)
    with tempfile.TemporaryDirectory() as workdir:
        executable = engine.load(memoryview(data), model, context(device, Path(workdir)))
        executable.prepare()
    check(executable.run([device.upload(array) for array in inputs], RunOptions(stream=STREAM)), model, inputs)
    assert len(compiled) == before


def check_misplaced_arrays() -> None:
    """Arrays that lie at odd addresses, or not in order, are copied first."""
    model, (x, w) = MODELS["product"]
    device = EmulatedDevice()
    odd = device.upload(x, gap=4), device.upload(np.ascontiguousarray(w.T)).T
    check(make(model, device).run(odd, RunOptions(stream=STREAM)), model, (x, w))


def check_a_run_without_a_stream() -> None:
    """Without a stream the call waits; a closed executable refuses."""
    model, inputs = MODELS["chain"]
    device = EmulatedDevice()
    executable, items = make(model, device), [device.upload(array) for array in inputs]
    before = device.waits
    executable.run(items)
    assert device.waits == before + 1
    executable.close()
    with pytest.raises(xrt.errors.RunFailed, match=r"^the executable of 'chain' is closed$"):
        executable.run(items)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
