"""Executables in use: sizes of symbolic dims, buffers of the caller, threads, files, and refusals."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import written
from xrt.engines import Executable, GraphCompiler, RunOptions
from xrt.engines.contract import registry
from xrt.engines.openvino import OpenVino
from xrt.engines.ort import Ort
from xrt.errors import RunFailed
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, i64, node

ENGINES = ["openvino", "tvm", "iree"]
PAIR = infer_shapes(
    graph(
        {"x": "float32[N,4]", "z": "float32[N,4]"},
        {"y": "float32[N,4]", "s": "float32[N,1]"},
        *(node("Tanh", "x", "a"), node("Mul", "a z", "y"), node("ReduceSum", "y k", "s")),
        constants={"k": i64([1])},
    )
)
SIZES = (5, 1, 300, 5, 17)


def make(rows: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Return inputs of so many rows, of which one is read-only, and what must come out."""
    x, z = np.random.default_rng(seed).standard_normal((2, rows, 4)).astype("float32")
    y = np.tanh(x) * z
    return [np.broadcast_to(x, x.shape), z], [y, y.sum(1, keepdims=True)]


def check(results: Any, expected: list[Any]) -> None:
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=ENGINES, scope="module")
def engine(request: pytest.FixtureRequest) -> GraphCompiler:
    return registry.create(request.param)


@pytest.fixture(scope="module")
def executable(engine: GraphCompiler) -> Executable:
    assert engine.supports_dynamic_shapes
    return written.compiled(engine, PAIR, is_supported=True)


@pytest.mark.slow
def test_every_size_is_served_and_results_stay(executable: Executable) -> None:
    runs = []
    for rows in SIZES:
        inputs, expected = make(rows, rows)
        runs += [(executable.run(values), expected) for values in (inputs, [*map(np.asfortranarray, inputs)])]
        runs.append((executable.fast_call()(*inputs), expected))
    for results, expected in runs:
        check(results, expected)


@pytest.mark.slow
def test_given_buffers_are_filled_and_must_fit(executable: Executable) -> None:
    for rows in SIZES:
        inputs, expected = make(rows, rows)
        buffers = [np.empty_like(value) for value in expected]
        results = executable.run(inputs, RunOptions(out=tuple(buffers)))
        assert all(result is buffer for result, buffer in zip(results, buffers, strict=True))
        check(buffers, expected)
        for buffer in buffers:
            buffer[...] = 0
        executable.bind(inputs, buffers)()
        check(buffers, expected)
    inputs, _ = make(1)
    with pytest.raises(RunFailed):
        executable.run(inputs, RunOptions(out=(np.empty((5, 4), "float32"), np.empty((5, 1), "float32"))))


@pytest.mark.slow
def test_inputs_of_two_sizes_for_one_name_are_refused(executable: Executable) -> None:
    x, _ = make(5)[0]
    for rows in (6, 1, 4):
        with pytest.raises(RunFailed):
            executable.run([x, make(rows)[0][1]])
    check(executable.run(make(5)[0]), make(5)[1])


@pytest.mark.slow
def test_threads_run_different_sizes(executable: Executable) -> None:
    def work(seed: int) -> None:
        for rows in (seed + 1, 40, 3 * seed + 1):
            inputs, expected = make(rows, seed)
            check(executable.run(inputs), expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))


@pytest.mark.slow
def test_a_saved_one_serves_every_size(engine: GraphCompiler, executable: Executable, tmp_path: Path) -> None:
    context = replace(written.CONTEXT, workdir=tmp_path)
    loaded = engine.load(memoryview(bytes(engine.save(executable, context))), PAIR, context)
    loaded.prepare()
    for rows in SIZES:
        check(loaded.run(make(rows)[0]), make(rows)[1])


@pytest.mark.slow
def test_what_has_no_elements_is_refused(executable: Executable) -> None:
    with pytest.raises(RunFailed, match="elements"):
        executable.run(make(0)[0])


@pytest.fixture(params=[Ort(), OpenVino()], ids=["ort", "openvino"])
def filling(request: pytest.FixtureRequest) -> Executable:
    """What computes the larger of each number and zero, and its negative."""
    type_ = "float32[2,3]"
    nodes = node("Relu", "x", "y"), node("Neg", "x", "z")
    return written.compiled(request.param, graph({"x": type_}, {"y": type_, "z": type_}, *nodes, opset=21))


@pytest.mark.parametrize("buffer", [np.empty((2, 3)), np.empty((1, 3), np.float32), np.empty(6, np.float32)])
def test_a_buffer_of_another_type_or_shape_is_refused(filling: Executable, buffer: np.ndarray[Any, Any]) -> None:
    reason = f"a result is float32[2, 3], but the buffer for it is {buffer.dtype}{list(buffer.shape)}"
    with pytest.raises(RunFailed, match=f"{re.escape(reason)}$"):
        filling.run([np.ones((2, 3), np.float32)], RunOptions(out=[buffer, None]))


def test_a_closed_executable_says_so_and_leaves_its_results(filling: Executable) -> None:
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    y, z = filling.run([x])
    filling.close()
    assert np.array_equal(y, np.maximum(x, 0))
    for options in (RunOptions(), RunOptions(out=[y, z])):
        with pytest.raises(RunFailed, match="the executable is closed"):
            filling.run([x], options)
