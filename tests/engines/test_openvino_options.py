"""The options of the openvino engine: precision, arithmetic, exactness, threads; what it honours and what it refuses."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.engines.openvino_running import CONTEXT, SQUARE, function, node, relu, run, tensor
from xrt.engines import CompileContext, ExecutionOptions, create
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.library import LIBRARY, core
from xrt.errors import OptionError
from xrt.graph import Function, Node


def product(columns: int) -> tuple[Function, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, columns), np.float32), rng.standard_normal((columns, 64), np.float32)
    f = function({"x": tensor(64, columns)}, {"y": tensor(64, 64)}, [node("MatMul", "x w", "y")], {"w": w})
    return f, x, w


@pytest.mark.slow
def test_it_computes_in_fp32_unless_a_lower_precision_is_allowed() -> None:
    f, x, w = product(512)
    exact = x.astype(np.float64) @ w

    def error(precision: Any) -> float:
        context = CompileContext(ExecutionOptions(precision=precision), threads=2)
        (y,) = OpenVino().compile(f, context).run([x])
        return float(np.abs(y - exact).max())

    assert error("fp32") < 1e-3
    has_bfloat16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    reason = OpenVino().unsupported_options(CompileContext(ExecutionOptions(precision="bf16")))
    assert (reason is None) is has_bfloat16
    assert 1e-3 < error("bf16") < 5 if has_bfloat16 else (reason or "").endswith("it does not honour precision='bf16'")


@pytest.mark.parametrize(
    ("engine", "precision"), [("openvino", "fp16"), ("openvino", "int8"), ("openvino{precision=bf16}", "fp16")]
)
def test_options_that_it_does_not_honour_are_refused(engine: str, precision: Any) -> None:
    assert create(engine).unsupported_options(CompileContext(ExecutionOptions(precision=precision))) == (
        f"engine 'openvino' computes in the model's own types or, where it sees fit, in bf16: it does not honour {precision=}"
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_the_thread_budget_is_the_librarys(threads: int) -> None:
    executable = OpenVino(streams=4).compile(relu(), CompileContext(threads=threads))
    assert executable.compiled is not None
    model = executable.compiled.model
    most = min(threads, len(os.sched_getaffinity(0)))  # the library takes no more than there are
    streams = most if threads > 1 else 0  # none: the thread that calls computes
    assert model.get_property("INFERENCE_NUM_THREADS") == streams
    assert model.get_property("NUM_STREAMS") == streams
    assert executable.idle_threads == (streams + 1 if streams else 0)
    assert executable.concurrent_runs == max(1, streams)
    assert not model.get_property("ENABLE_CPU_PINNING")


@pytest.mark.parametrize("spec", ["openvino", "openvino{streams=2}", "openvino{pinning=true}"])
def test_a_spec_makes_the_engine_whose_spec_it_is(spec: str) -> None:
    engine = create(spec)
    assert engine.spec == spec
    (y,) = engine.compile(relu(), CONTEXT).run([SQUARE])
    assert np.array_equal(y, np.maximum(SQUARE, 0))


@pytest.mark.parametrize("length", [8, 60, 1024, 1000])
def test_transforms_are_taken_by_how_exact_they_are(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, length, 1)).astype(np.float32)
    f = function({"x": tensor(2, length, 1)}, {"y": tensor(2, length, 2)}, [node("DFT", "x", "y", axis=1)], opset=17)
    if length == 1000:
        assert OpenVino().why_not(f.nodes[0], f) == (
            f"{LIBRARY} computes the angles of this transform in float32, so that its error is beyond 1e-4 of the largest element"
        )
        return
    found = run(f, x)[0]
    expected = np.fft.fft(x[..., 0].astype(np.float64))
    assert np.abs(found[..., 0] + 1j * found[..., 1] - expected).max() / np.abs(expected).max() <= 1e-4


def test_a_transform_along_an_axis_that_is_an_input_or_negative_is_declined() -> None:
    nodes = [Node("DFT", ("x", "", "axis"), ("y",))]
    f = [
        function({"x": tensor(4, 8, 2, 1)}, {"y": tensor(4, 8, 2, 2)}, nodes, {"axis": np.array(axis)}, opset=20)
        for axis in (1, 2)
    ]
    f.append(function({"x": tensor(2, 8, 1)}, {"y": tensor(2, 8, 2)}, [node("DFT", "x", "y", axis=-2)], opset=17))
    assert OpenVino().why_not(nodes[0], f[0]) is None
    assert OpenVino().why_not(f[2].nodes[0], f[2]) == OpenVino().why_not(nodes[0], f[1])
    assert OpenVino().why_not(nodes[0], f[1]) == (
        f"{LIBRARY} transforms another axis than a DFT says where that is counted from the end, or is an input"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"streams": True}, "streams of engine 'openvino' must be a positive integer; got True"),
        ({"pinning": "no"}, "pinning of engine 'openvino' must be True or False; got 'no'"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        OpenVino(**fields)
    assert str(error.value) == text
