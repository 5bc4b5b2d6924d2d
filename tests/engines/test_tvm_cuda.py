"""tvm on CUDA: its source, what NVRTC makes of it, and how it runs, on an emulated device and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import xrt
from tests.devices.models import Net, numbers
from tests.devices.worlds import World, listed, traffic
from tests.engines.emulated_cuda import run_child
from tests.engines.emulated_cuda.device import EmulatedDevice
from tests.engines.emulated_cuda.models import MODELS
from xrt import ops
from xrt.builder.tracing import trace
from xrt.cache import CompileCache
from xrt.engines import CompileContext
from xrt.engines.tvm import Tvm, cuda
from xrt.engines.tvm.export import import_function
from xrt.engines.tvm.target import make_target
from xrt.errors import CompileRefused, PlanError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Function
from xrt.passes import infer_shapes
from xrt.testing.generate import rename_values


def traced(build: Any, *inputs: Any) -> Function:
    return infer_shapes(trace(build, *inputs, inference=infer_node_types))


def top(x: Any) -> Any:
    return ops.TopK(x, np.array([2], "int64"))


def built(function: Function, architecture: str = "sm_90") -> cuda.DeviceProgram:
    imported = import_function(function, polynomials=False)
    return cuda.build(imported, cuda.make_target(architecture, make_target(None, 3)), 3)


def source(name: str) -> str:
    return cuda.list_kernel_sources(built(MODELS[name][0]))


def kernels(text: str) -> list[str]:
    return re.findall(r"__global__ void __launch_bounds__\(\d+\) (\w+)\([^;{]*\) \{", text)


@pytest.mark.slow
def test_a_chain_is_one_kernel_of_cudas_own_functions_without_names_that_are_not_cs() -> None:
    function = rename_values(MODELS["chain"][0], {"x": "gpu_0/conv1-w"})
    text = cuda.list_kernel_sources(built(function))
    assert len(kernels(text)) == 1 and "tanhf(" in text and "threadIdx.x" in text and "gpu_0" not in text


def test_tvms_own_compiler_is_in_its_place_again() -> None:
    before = tvm.get_global_func("tvm_callback_cuda_compile")
    built(MODELS["chain"][0])
    with pytest.raises(CompileRefused, match=r"^not today$"), cuda.use_nvrtc(refuse):
        tvm.get_global_func("tvm_callback_cuda_compile")("source")
    assert tvm.get_global_func("tvm_callback_cuda_compile").same_as(before)


def refuse(_: str) -> bytes:
    raise CompileRefused("not today")


ELF = b"\x7fELF"


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture"), [*((name, "sm_80") for name in MODELS), *(("net", f"sm_{n}") for n in (75, 90, 120))]
)
def test_nvrtc_makes_machine_code_of_every_source(name: str, architecture: str) -> None:
    code = cuda.compile_with_nvrtc(source(name), architecture)
    assert code[:4] == ELF and all(kernel.encode() in code for kernel in kernels(source(name)))


def test_what_nvrtc_refuses_is_reported() -> None:
    with pytest.raises(CompileRefused, match=r"^NVRTC cannot compile TVM's code: tvm.cu\(\d+\): error: .*nothing"):
        cuda.compile_with_nvrtc("__global__ void f() { nothing; }", "sm_90")
    with pytest.raises(CompileRefused, match=r"^NVRTC cannot compile TVM's code: nvrtc: error: invalid value"):
        cuda.compile_with_nvrtc("", "sm_1")


@pytest.mark.slow
def test_narrow_floats_compile_with_cudas_headers() -> None:
    halved = traced(lambda x: ops.Softmax(ops.Max(ops.Cast(x, to=10), ops.Cast(-x, to=10)), axis=-1), numbers(3, 40))
    text = cuda.list_kernel_sources(built(halved))
    assert "#include <cuda_fp16.h>" in text and cuda.compile_with_nvrtc(text, "sm_90")[:4] == ELF


def why_not(function: Function, device: str = "cuda") -> list[str | None]:
    return [Tvm().why_not(replace(node, device=device), function) for node in function.nodes]


@pytest.mark.slow
def test_what_the_schedules_cannot_do_is_a_reason() -> None:
    x = numbers(4, 8)
    (reason,) = why_not(traced(top, x))
    assert reason == (
        "TVM does not support this TopK on CUDA: TVM's schedule allocates memory that ignores streams, "
        "as its schedules for sorting and scanning do"
    )
    assert why_not(traced(top, x), device="cpu") == [None]
    (reason,) = why_not(traced(lambda x: ops.CumSum(x, np.array(0, "int64")), x))
    assert reason is not None and reason.startswith("TVM does not support this CumSum on CUDA: ")


@pytest.mark.slow
def test_what_serves_the_cpu_serves_the_device() -> None:
    for name in ("net", "convolution", "moved"):
        assert set(why_not(MODELS[name][0])) == {None}


def test_a_plan_needs_no_gpu() -> None:
    m = xrt.XRTModule(Net(), ["tvm", "toy"], "cuda", cache=CompileCache())
    plan = m.plan_for(numbers(3, 4), numbers(4, 5))
    assert [launch.engine for launch in plan.launches] == ["tvm"] and "; device cuda:0" in str(plan)
    with pytest.raises(PlanError, match="ignores streams"):
        xrt.XRTModule(traced(top, numbers(4, 8)), "tvm", "cuda", strict=True, cache=CompileCache()).plan_for(numbers(4, 8))


def test_a_runtime_that_does_not_load_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str, *_: Any) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing=False: None)
    monkeypatch.setattr(ctypes, "CDLL", fails)
    context = CompileContext(device="cuda:0", accelerator=EmulatedDevice())
    with pytest.raises(CompileRefused, match=r"^TVM's runtime for CUDA does not load: libcuda.so.1: .*; it needs the driver"):
        Tvm().compile(MODELS["chain"][0], context)
    monkeypatch.setattr(cuda, "package_lib_paths", list)
    with pytest.raises(CompileRefused, match=r"^this build of TVM has no runtime for CUDA: there is no libtvm_runtime_cuda.so"):
        cuda.load_runtime()


@pytest.mark.full
def test_kernels_launches_and_saved_executables_are_right_on_an_emulated_device(tmp_path: Path) -> None:
    run_child(tmp_path)


def close_to_toys(world: World, results: Any, model: Function, inputs: Any) -> None:
    expected = xrt.XRTModule(model, "toy")(*inputs)
    for got, want in zip(listed(world.down(results)), listed(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.cuda
class TestOnCuda:
    @pytest.mark.parametrize("name", MODELS)
    def test_results_and_no_copies_to_the_host(self, name: str) -> None:
        model, inputs = MODELS[name]
        world = World(None)
        m = world.module(model, "tvm", strict=True)
        items = [world.up(array) for array in inputs]
        for _ in range(3):
            results = m(*items)
        close_to_toys(world, results, model, inputs)
        constants = 3 if name == "odd" else 0  # a result that is a constant is copied by each call
        assert (traffic(m).copies_in, traffic(m).copies_out, traffic(m).waits) == (constants, 0, 0)

    def test_a_call_is_recorded_and_replayed(self) -> None:
        model, inputs = MODELS["net"]
        world = World(None)
        m = world.module(model, "tvm", strict=True, cuda_graph=True)
        for _ in range(3):
            results = m(*map(world.up, inputs))
        close_to_toys(world, results, model, inputs)
        assert "\na graph of the device" in str(m.explain())

    @pytest.mark.parametrize("other", ["toy", "ort"])
    def test_a_mixture_on_one_device_copies_nothing_to_the_host(self, other: str) -> None:
        model, inputs = MODELS["net"]
        world = World(None)
        m = world.module(model, ["tvm", other], pins=[f"Tanh={other}"], strict=True)
        close_to_toys(world, m(*map(world.up, inputs)), model, inputs)
        assert {*m.plan.used_engines} == {"tvm", other}
        assert (traffic(m).copies_in, traffic(m).copies_out) == (0, 0)

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bool"])
    def test_element_types_cross(self, dtype: str) -> None:
        x = (numbers(3, 4) > 0).astype(dtype)
        world = World(None)
        m = world.module(traced(lambda x: ops.Concat(x, x, axis=0), x), "tvm", strict=True)
        np.testing.assert_array_equal(world.down(m(world.up(x))), np.concatenate([x, x]))
