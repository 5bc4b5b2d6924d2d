"""What m.memory() tells: weights once, the arena, and what each engine holds, before and after the compile."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache
from xrt.engines import CompileContext, compute_peak_of_values
from xrt.engines.contract import registry
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType
from xrt.module.explain import Memory
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import ObservedExecutable, RecordingEngine

N = 512
F32 = TensorType(DType.FLOAT32, (N, N))


def products(count: int, *, same: bool = False) -> Function:
    """x -> product with a weight of its own -> tanh -> ... ; with ``same`` all with one weight."""
    rng = np.random.default_rng(0)
    nodes: list[Node] = []
    weights: dict[str, Any] = {}
    for i in range(count):
        name = "w" if same else f"w{i}"
        weights.setdefault(name, rng.standard_normal((N, N)).astype(np.float32) / 32)
        nodes += [node("MatMul", f"x{i} {name}", f"m{i}"), node("Tanh", f"m{i}", f"x{i + 1}")]
    return infer_shapes(graph({"x0": F32}, {f"x{count}": F32}, *nodes, constants=weights))


WEIGHT = N * N * 4


def test_before_the_compile_the_plan_is_reported_and_nothing_is_compiled() -> None:
    m = xrt.XRTModule(products(2), engine="ort", strict=True, maximum_nodes=2)
    memory = m.memory()
    assert (memory.weights, memory.unused, memory.mapped, memory.crossing, memory.unknown) == (2 * WEIGHT, 0, 0, 2 * WEIGHT, 0)
    assert (memory.arena, memory.is_compiled) == (None, False)
    assert [(region.weights, region.uses) for region in memory.regions] == [(WEIGHT, None)] * 2
    assert str(memory).splitlines() == [
        "weights                          2.1 MB  held once; 0 B of all constants in mapped files",
        "between regions                  2.1 MB  per call: values, each in separate memory",
        "xrt_ort_0 on ort                 1.0 MB  of the weights",
        "xrt_ort_1 on ort                 1.0 MB  of the weights",
        "held between calls               2.1 MB  before the compile; m.compile() adds what the engines report",
    ]


def compiled_alone() -> Memory:
    """Return what three products on ort hold."""
    with xrt.XRTModule(products(3), engine="ort", strict=True, maximum_nodes=2) as m:
        m.compile()
        return m.memory()


@pytest.mark.slow
def test_after_the_compile_engines_tell_what_they_hold() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # what others here let go of meanwhile would count
        result = fresh.submit(compiled_alone).result()
    assert result.arena == WEIGHT * 2
    uses = [use for region in result.regions for use in region.uses or ()]
    assert [use.name for use in uses] == ["session", "workspace"] * 3
    assert [use.per_call for use in uses] == [False, True] * 3
    packed = sum(use.nbytes or 0 for use in uses)
    assert 3 * WEIGHT <= packed <= 6 * WEIGHT  # each product has packed its weight
    assert result.held == result.weights + packed
    assert result.to_dict()["held"] == result.held
    assert result.to_dict()["regions"][0]["uses"][0]["name"] == "session"


def test_a_weight_that_several_regions_read_is_held_once() -> None:
    m = xrt.XRTModule(products(4, same=True), engine="toy", strict=True, maximum_nodes=2)
    m.compile()
    memory = m.memory()
    assert [region.weights for region in memory.regions] == [WEIGHT] * 4
    assert memory.weights == memory.held == WEIGHT
    assert [region.same_as for region in memory.regions] == ["", "xrt_toy_0", "xrt_toy_0", "xrt_toy_0"]
    assert str(memory).count("that of xrt_toy_0, which is equal") == 1, "a reason is reported once"


def test_weights_in_files_and_weights_that_were_folded_away(tmp_path: Path) -> None:
    turned = (Node("Transpose", ("w0",), ("t",)), *products(1).nodes)
    function = products(1).replace(nodes=(turned[0], Node("MatMul", ("x0", "t"), ("m0",)), turned[2]))
    onnx.save(function, tmp_path / "m.onnx", external_data=True)
    m = xrt.XRTModule(tmp_path / "m.onnx", engine="toy")
    memory = m.memory()
    assert (memory.weights, memory.unused, memory.mapped) == (WEIGHT, WEIGHT, WEIGHT)
    assert str(memory).splitlines()[:2] == [
        "weights                          1.0 MB  held once; 1.0 MB of all constants in mapped files",
        "  unused                         1.0 MB  constants of the model that were folded into others",
    ]


def test_an_engine_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObservedExecutable, "memory", lambda executable: None)
    m = xrt.XRTModule(products(1), engine=RecordingEngine(), strict=True)
    m.compile()
    assert m.memory().regions[0].uses is None
    assert "between regions                  1.0 MB  per call: no arena; values, each in separate memory" in str(m.memory())
    assert "  memory of the engine                ?  the engine reports none" in str(m.memory()).splitlines()


@pytest.mark.slow
def test_tvm_copies_no_weight() -> None:
    m = xrt.XRTModule(products(1), engine="tvm", strict=True)
    m.compile()
    (use,) = m.memory().regions[0].uses or ()
    assert (use.name, use.per_call) == ("workspace", False)
    assert use.nbytes is not None and use.nbytes <= 2 * WEIGHT


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_tvm_frees_its_workspace_when_it_is_closed() -> None:
    """TVM's pool would hold it for a later call that needs as much, which never comes if each executable has another size."""
    pairs = pairwise(("x", "a", "b", "c", "y"))
    nodes = [node(op, *ends) for op, ends in zip(("Softmax", "Transpose") * 2, pairs, strict=True)]
    function = infer_shapes(graph({"x": "float32[4096,4096]"}, {"y": "float32[4096,4096]"}, *nodes))
    executable = registry.create("tvm").compile(function, CompileContext(threads=1))
    (use,) = executable.memory() or ()
    assert use.nbytes is not None and use.nbytes >= 4 * 4096**2
    results = executable.run([np.ones((4096, 4096), np.float32)])
    before = read_resident_bytes()
    executable.close()
    # Blocks of so many bytes are unmapped at once when they are freed. Half, because other parts of the process allocate, too.
    assert before - read_resident_bytes() > use.nbytes // 2
    del results


def test_the_peak_of_values() -> None:
    nodes = node("Neg", "x", "a"), node("Neg", "a", "b"), node("Add", "a b", "c"), node("Neg", "c", "y")
    function = infer_shapes(graph({"x": F32}, {"y": F32}, *nodes))
    assert compute_peak_of_values(function) == 3 * WEIGHT  # a, b and c at the sum; the output is the caller's
    assert compute_peak_of_values(function.replace(types={})) is None
    assert compute_peak_of_values(graph({"x": F32}, {"x": F32})) == 0


@pytest.mark.slow
def test_shared_and_private_memory_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bundle the weights, and what an engine has mapped: packed ones, a blob."""
    monkeypatch.setattr("xrt.formats.container.MIN_MAPPED_BYTES", 1)
    for engine in ("ort", "openvino", "toy"):
        with xrt.XRTModule(products(1), engine, strict=True, cache=CompileCache()) as m:
            m.save(tmp_path / "m.xrt")
            here = m.memory()
        assert (here.shared, here.private) == (0, here.held)
        with xrt.load(tmp_path / "m.xrt", strict=True, cache=CompileCache()) as m:
            m.compile()
            memory = m.memory()
        mapped = WEIGHT if engine == "toy" else 2 * WEIGHT
        assert mapped <= memory.shared < mapped + WEIGHT / 2
        assert memory.shared + memory.private == memory.held
        names = [line.split("  ")[1].strip() for line in str(memory).splitlines()[-2:]]
        assert names == ["shared", "private"]
        assert memory.to_dict()["shared"] == memory.shared
        assert memory.to_dict()["private"] == memory.private
