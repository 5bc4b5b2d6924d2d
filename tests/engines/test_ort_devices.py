"""ort on devices: what is declined, and the bound calls, which run here over memory of the host."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import xrt
from tests.devices.models import Net, numbers, odd
from tests.devices.worlds import World, traffic
from tests.engines.emulated_cuda.device import EmulatedDevice
from xrt.builder.tracing import trace
from xrt.cache import CompileCache
from xrt.engines import CompileContext
from xrt.engines.contract.options import ExecutionOptions
from xrt.engines.contract.registry import probe
from xrt.engines.ort import Ort
from xrt.engines.ort.cuda import DeviceBuffer, OrtOnDevice, check_assigned, check_opened
from xrt.engines.ort.export import export_model, rewrite_for_session
from xrt.engines.ort.session import make_quiet_options, open_session
from xrt.errors import CompileRefused, EngineUnavailable, OptionError, PlanError, RunFailed
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Function
from xrt.operators import ensure_computed_outputs
from xrt.passes import infer_shapes
from xrt.testing import node_cases
from xrt.testing.corpus.entry import graph, node

X, W = numbers(3, 4), numbers(4, 5, seed=1)


@pytest.mark.parametrize(
    ("more", "devices", "lacks"), [([], ("cpu",), "no cuda, since"), (["CUDAExecutionProvider"], ("cpu", "cuda"), "")]
)
def test_the_devices_are_those_of_the_installed_build(
    more: list[str], devices: tuple[str, ...], lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, *more)
    status = probe("ort")
    assert (status.available or ", ".join(status.devices)) == ", ".join(devices)
    assert status.lacks[:14] == lacks


class Host(EmulatedDevice):
    """The host behind the interface of a device: what is bound, and in which order streams follow, can be tried anywhere."""

    name, hardware, xp = "cpu", "the host", np

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[tuple[str, str]] = []
        self.waited: list[str] = []

    def wait(self, streams: Sequence[Any]) -> None:
        self.waited += streams

    def view_memory(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        memory = (ctypes.c_uint8 * (int(np.prod(shape)) * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(tuple(shape))

    def follow(self, later: Any, earlier: Any) -> None:
        self.followed.append((later, earlier))


def bound(function: Function, host: Host, opened: list[weakref.ref[Any]] | None = None) -> OrtOnDevice:
    function = ensure_computed_outputs(function)
    export = export_model(rewrite_for_session(function))
    session = open_session(export, make_quiet_options(), ["CPUExecutionProvider"])
    result = OrtOnDevice(function, session, host, "own", DeviceBuffer("cpu"), export.files)
    result.prepare()
    if opened is not None:
        opened.append(weakref.ref(session))
    return result


def traced() -> Function:
    return infer_shapes(Net().trace(X, W))


def offer(monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
    """Let the installed build have these execution providers, besides the CPU's."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, "CPUExecutionProvider"])


def test_a_session_is_bound_to_arrays_and_streams_follow() -> None:
    host = Host()
    executable = bound(traced(), host)
    for seed in (1, 2):
        x = numbers(3, 4, seed=seed)
        results = executable.run([x, W], xrt.RunOptions(stream="callers"))
        for got, want in zip(results, xrt.XRTModule(Net(), "ort")(x, W), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert host.followed == [("own", "callers"), ("callers", "own")] * 2
    assert "keeps scratch memory and staging buffers" in str(executable.why_not_capturable())


def test_inputs_that_do_not_lie_in_order_are_laid_so() -> None:
    results = bound(traced(), Host()).run([np.asfortranarray(X), W])
    np.testing.assert_allclose(results[0], xrt.XRTModule(Net(), "ort")(X, W)[0], rtol=1e-6)


def test_outputs_of_every_kind() -> None:
    x = np.array([[1.0, 0.0], [0.0, 2.0]], "float32")
    function = trace(lambda x: {"places": xrt.ops.NonZero(x), **odd(x)}, x, inference=infer_node_types)
    executable = bound(infer_shapes(function), Host())
    results = executable.run([x])
    for got, want in zip(results, [np.nonzero(x), -x, x, -x, [1, 2]], strict=True):
        np.testing.assert_array_equal(got, want)
    assert all(not np.shares_memory(a, b) for i, a in enumerate(results) for b in [x, *results[:i]])


def test_a_failure_is_reported_and_a_closed_executable_refuses() -> None:
    executable = bound(traced(), Host())
    with pytest.raises(RunFailed, match=r"^ONNX Runtime [\d.]+ failed while it ran 'Net': "):
        executable.run([X, numbers(7, 7)])
    executable.close()
    with pytest.raises(RunFailed, match=r"^the executable of 'Net' is closed$"):
        executable.run([X, W])


def test_a_session_is_released_after_the_work_on_its_stream() -> None:
    host, function = Host(), traced()
    executable = bound(function, host)
    executable.run([X, W])
    executable.close()
    executable.close()
    assert host.waited == ["own"]
    dropped = bound(function, host)
    dropped.run([X, W])
    del dropped
    gc.collect()
    assert host.waited == ["own", "own"]


def test_a_forked_child_leaves_the_session_and_the_device_to_its_parent() -> None:
    host, opened = Host(), list[weakref.ref[Any]]()
    executable = bound(traced(), host, opened)
    if (child := os.fork()) == 0:
        code = 1
        try:
            executable.close()
            code = int(bool(host.waited) or opened[0]() is None)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    executable.close()
    assert host.waited == ["own"]


def test_a_session_whose_run_failed_is_never_released() -> None:
    opened: list[weakref.ref[Any]] = []
    executable, failed = bound(traced(), Host(), opened), bound(traced(), Host(), opened)
    executable.run([X, W])
    with pytest.raises(RunFailed):
        failed.run([X, numbers(7, 7)])
    executable.close()
    failed.close()
    gc.collect()
    assert [reference() is not None for reference in opened] == [False, True]


def test_a_session_without_the_provider_is_refused() -> None:
    session = open_session(export_model(traced()), make_quiet_options(), ["CPUExecutionProvider"])
    check_opened(session, "CPUExecutionProvider")
    with pytest.raises(CompileRefused, match=r"could not load its CUDAExecutionProvider: it needs CUDA 13 .* and cuDNN 9"):
        check_opened(session, "CUDAExecutionProvider")


def test_the_provider_multiplies_in_float32_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "CUDAExecutionProvider")
    opened: list[list[Any]] = []

    def open_on_host(export: Any, options: Any, providers: list[Any]) -> Any:
        opened.append(providers)
        return open_session(export, options, ["CPUExecutionProvider"])

    monkeypatch.setattr("xrt.engines.ort.engine.open_session", open_on_host)
    providers = ("CUDAExecutionProvider", "CPUExecutionProvider")
    in_tf32 = Ort(providers=providers, provider_options={"CUDAExecutionProvider.use_tf32": "1"})
    for engine, index, expected in ((Ort(), 0, "0"), (in_tf32, 1, "1")):
        host = Host()
        host.name = f"cuda:{index}"
        with pytest.raises(CompileRefused, match="could not load"):
            engine.compile(traced(), CompileContext(device=host.name, accelerator=host))
        name, options = opened.pop()[0]
        assert (name, options["use_tf32"]) == ("CUDAExecutionProvider", expected)
        assert options.get("device_id") == ("1" if index else None)


def test_a_replay_by_the_library_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "CUDAExecutionProvider")
    message = r"^CUDAExecutionProvider.enable_cuda_graph replays a run at the addresses of the first"
    with pytest.raises(OptionError, match=message):
        Ort(providers=("CUDAExecutionProvider",), provider_options={"CUDAExecutionProvider.enable_cuda_graph": True})


def test_tensorrt_is_there_with_its_libraries_and_computes_fp32_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "TensorrtExecutionProvider")
    with pytest.raises(
        EngineUnavailable, match=r"TensorRT does not load: libnvinfer.*; TensorRT itself comes as 'tensorrt-cu13<11'$"
    ):
        xrt.engines.contract.registry.create("tensorrt")
    monkeypatch.setattr("xrt.engines.ort.cuda.why_no_tensorrt", lambda: None)
    engine = xrt.engines.contract.registry.create("tensorrt")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert "multiplies fp32 in TF32" in str(engine.unsupported_options(CompileContext(device="cuda:0")))
    half = CompileContext(device="cuda:0", options=ExecutionOptions(precision="fp16"))
    assert engine.unsupported_options(half) is None
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert engine.unsupported_options(CompileContext(device="cuda:0")) is None


def test_nodes_that_the_library_leaves_to_the_cpu_are_refused_by_name() -> None:
    function = traced()
    options = make_quiet_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = open_session(export_model(function), options, ["CPUExecutionProvider"])
    with pytest.raises(CompileRefused, match=r"^ONNX Runtime [\d.]+ has no device kernel for ") as caught:
        check_assigned(session, function)
    assert "matmul_1" in caught.value.nodes


def test_a_build_without_cuda_says_so_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    m = xrt.XRTModule(Net(), "ort", "cuda", cache=CompileCache())
    plan = m.plan_for(X, W)
    assert all(launch.engine == "toy" for launch in plan.launches)
    assert "has no CUDAExecutionProvider: pip install 'xrt-engine[cuda]'" in plan.reasons[0].text
    with pytest.raises(PlanError, match="has no CUDAExecutionProvider"):
        xrt.XRTModule(Net(), "ort", "cuda", strict=True, cache=CompileCache()).plan_for(X, W)
    with pytest.raises(EngineUnavailable, match=r"^engine 'tensorrt' cannot serve: this build of .* has no Tensorrt"):
        xrt.engines.contract.registry.create("tensorrt")


def test_what_the_provider_gets_wrong_or_cannot_bind_is_declined_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ort, "on_device", "CPUExecutionProvider")  # one that every build has

    def why_not(function: Function) -> list[str]:
        return [Ort().why_not(replace(node, device="cuda"), function) or "" for node in function.nodes]

    assert not any(why_not(traced()))
    texts = graph({"x": "string[1]"}, {"y": "bool[1]"}, node("Equal", "x x", "y"), opset=20)
    assert "is string[1], which cannot be bound to device memory" in why_not(texts)[0]
    for name, is_declined in (("with_qk_matmul", False), ("with_qk_matmul_softcap", True)):
        (case,) = node_cases(f"test_attention_4d_{name}")
        assert ("only as before softcap and mask" in why_not(case.function)[0]) == is_declined


@pytest.mark.cuda
class TestOnCuda:
    def test_results_and_no_copies_to_the_host(self) -> None:
        world = World(None)
        m = world.module(Net(), "ort", strict=True)
        x, w = world.up(X), world.up(W)
        for _ in range(3):
            results = m(x, w)
        for got, want in zip(world.down(results), xrt.XRTModule(Net(), "ort")(X, W), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert (traffic(m).copies_in, traffic(m).copies_out, traffic(m).waits) == (0, 0, 0)
