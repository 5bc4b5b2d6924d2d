"""One bundle for every thread budget: the threads of `xrt.load`, and what a scheduler grants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.module.test_bundle import perceptron
from xrt.cache import CompileCache
from xrt.engines import CompileContext
from xrt.errors import BundleError, FallbackWarning
from xrt.graph import Function
from xrt.runtime import set_budget_source
from xrt.testing.corpus.entry import graph, node

pytestmark = pytest.mark.slow
ENGINES = ["ort", "openvino", "iree", "tvm", "xla", "torch{mode=eager}"]
X = np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32)


def wide() -> Function:
    """Return a perceptron that is large enough for engines to share its loops among threads."""
    weights = {"w": np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)}
    nodes = node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("Softmax", "b", "y")
    return graph({"x": "float32[256,128]"}, {"y": "float32[256,128]"}, *nodes, constants=weights)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have as many cores as the tests ask for, whatever the machine has."""
    monkeypatch.setattr("xrt.runtime.threads.count_available_cores", lambda: 4)


@pytest.fixture
def granted() -> Iterator[list[int | None]]:
    """What a scheduler grants: the last of the list."""
    results: list[int | None] = [None]
    set_budget_source(lambda: results[-1])
    yield results
    set_budget_source(None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def save(path: Path, engine: str, threads: int | None) -> np.ndarray:
    with xrt.XRTModule(wide(), engine, strict=True, cache=CompileCache(), threads=threads) as module:
        module.save(path)
        return np.asarray(module(X))


@pytest.mark.parametrize(
    ("engine", "saved", "budgets"),
    [*((engine, 4, (1, 2, 4)) for engine in ENGINES), *((engine, 1, (4,)) for engine in ("ort", "openvino", "iree"))],
)
def test_one_bundle_serves_every_budget(engine: str, saved: int, budgets: tuple[int, ...], path: Path) -> None:
    """Strictly: nothing is compiled and the results are the same, also on more threads than a form without any was saved with."""
    expected = save(path, engine, saved)
    for threads in budgets:
        with xrt.load(path, threads=threads, strict=True, cache=CompileCache()) as loaded:
            np.testing.assert_allclose(loaded(X), expected, rtol=1e-5, atol=1e-6)
            assert loaded.threads == threads
            assert "its compiled form comes from the bundle" in str(loaded.explain())
            assert loaded.run_self_test() is not None


@pytest.mark.parametrize("engine", ["tvm", "xla"])
def test_loops_that_are_not_shared_are_compiled_again_for_more_threads(engine: str, path: Path) -> None:
    expected = save(path, engine, 1)
    with pytest.raises(BundleError, match=r"threads was '1' and is '2'; load without strict=True to compile them$"):
        xrt.load(path, threads=2, strict=True, cache=CompileCache())
    with pytest.warns(FallbackWarning, match="threads was '1' and is '2'"):
        loaded = xrt.load(path, threads=2, cache=CompileCache())
    np.testing.assert_allclose(loaded(X), expected, rtol=1e-5, atol=1e-6)
    assert loaded.threads == 2


def test_a_loaded_session_has_as_many_threads_as_the_budget(path: Path) -> None:
    """Of the process: those that ONNX Runtime has started when the module is loaded and has run."""
    save(path, "ort", 2)
    script = f"""
import os, numpy as np, xrt
from xrt.runtime import threads
threads.count_available_cores = lambda: 4
x = np.ones((256, 128), "f4")
counts = []
for budget in (1, 2, 4):
    with xrt.load({os.fspath(path)!r}, threads=budget, strict=True) as m:
        before = set(os.listdir("/proc/self/task"))  # perhaps with threads of the last module, which end meanwhile
        m(x)
        counts.append(len(set(os.listdir("/proc/self/task")) - before))
print(counts)
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout == "[0, 1, 3]\n"


@pytest.mark.parametrize("threads", [1, 2])
def test_openvino_computes_with_the_threads_of_the_load(threads: int) -> None:
    engine, context, other = xrt.engines.create("openvino"), CompileContext(threads=threads), CompileContext(threads=3 - threads)
    saved = memoryview(engine.save(engine.compile(wide(), other), other))
    models = [executable.compiled.model for executable in (engine.load(saved, wide(), context), engine.compile(wide(), context))]
    for name in ("INFERENCE_NUM_THREADS", "NUM_STREAMS"):
        assert models[0].get_property(name) == models[1].get_property(name)


def test_without_a_number_the_bundle_has_that_of_its_module(path: Path) -> None:
    save(path, "ort", 2)
    assert xrt.load(path).threads == 2
    save(path, "ort", None)
    assert xrt.load(path).threads == 4


def test_a_scheduler_grants_the_budget(path: Path, granted: list[int | None]) -> None:
    save(path, "ort", 2)
    granted.append(1)
    assert xrt.load(path, strict=True).threads == 1
    assert xrt.load(path, strict=True, threads=2).threads == 2  # what a user names goes first
    assert xrt.XRTModule(perceptron(), "ort").threads == 1
    granted.append(64)
    assert xrt.XRTModule(perceptron(), "ort").threads == 4
    granted.append(0)
    assert xrt.XRTModule(perceptron(), "ort").threads == 1
    xrt.configure(threads=3)
    try:
        assert xrt.XRTModule(perceptron(), "ort").threads == 3
    finally:
        xrt.configure()
