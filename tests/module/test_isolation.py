"""Engines in a process of their own: what hangs, dies or takes all memory is one more fault, and nothing is left over."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.hanging import Announcing, end_limits_at_hangs, is_running, wait_until
from tests.module.test_faults import RIGHT, X, chain, lines, module
from xrt.cache import CompileCache
from xrt.comparison import BIT_EQUAL, compare_all
from xrt.engines import CompileContext, ExecutionOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.shared_values import put_values, read_values
from xrt.errors import CompileFailed, EngineError, FallbackWarning, OptionError, RunFailed
from xrt.processes.ipc import SharedBuffer
from xrt.processes.spawn import kill, list_descendants
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine
from xrt.worker.isolated_engine import IsolatedEngine, RemoteExecutable, WorkerLimits

pytestmark = [pytest.mark.slow, pytest.mark.sample(3)]

ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "hang": ({"time_limit": 600}, "it gave no answer within 600 s, and its process was killed"),
    "kill": ({}, "its process was ended by SIGKILL: a crash, or the system had no memory left"),
    "memory": ({"memory_limit": 4 << 30}, "MemoryError"),
}


@pytest.fixture(autouse=True)
def hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have limits end where something hangs: none is waited for, and none ends because a worker starts slowly."""
    end_limits_at_hangs(monkeypatch, tmp_path)


def isolated(engine: FaultyEngine, behind: str, **options: Any) -> xrt.XRTModule:
    limits = {name: options.pop(name) for name in ("time_limit", "memory_limit") if name in options}
    return module(engine, behind, isolate=xrt.Isolation("faulty", run=True, **limits), **options)


@pytest.mark.sample(18)
@pytest.mark.parametrize("place", ["Abs", "Exp", "Sqrt"])
@pytest.mark.parametrize("how", list(ENDS))
@pytest.mark.parametrize("where", ["compile", "run"])
@pytest.mark.parametrize("behind", ["ort", "tvm", "toy"])
def test_the_call_completes_whatever_the_worker_does(where: Any, how: Any, place: str, behind: str) -> None:
    options, text = ENDS[how]
    with (
        isolated(Announcing(where=where, how=how, takes=place), behind, **options) as m,
        pytest.warns(FallbackWarning, match=text) as caught,
    ):
        for _ in range(2):
            np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert m.plan.used_engines == (behind,)
    (line,) = lines(caught)
    assert "xrt_faulty_" in line
    assert "\n" not in line


@pytest.mark.sample(6)
@pytest.mark.parametrize("how", list(ENDS))
@pytest.mark.parametrize("where", ["compile", "run"])
def test_an_end_of_the_worker_is_one_error_where_the_module_is_strict(where: Any, how: Any) -> None:
    options, text = ENDS[how]
    engine = Announcing(where=where, how=how, takes="Exp")
    with isolated(engine, "ort", strict=True, **options) as m, pytest.raises(EngineError) as caught:
        m(X)
    assert type(caught.value) is (CompileFailed if where == "compile" else RunFailed)
    assert str(caught.value).startswith(f"engine {m.engines[0]!r} failed to {where} xrt_faulty_1: {text}")


def test_regions_that_did_no_harm_are_compiled_again_in_the_next_worker() -> None:
    """The second worker counts its runs from one again, so that it outlives the call in which the first one died."""
    with isolated(FaultyEngine(how="kill", nth=3, takes="Abs|Exp"), "ort", function=chain("Abs", "Neg", "Exp")) as m:
        first = m(X)
        with pytest.warns(FallbackWarning):
            second = m(X)
        np.testing.assert_allclose(first, second, rtol=1e-6)
        assert [launch.engine for launch in m.plan.launches][-1] == m.engines[0]


@pytest.mark.parametrize("request_", ["run", "measure", "save"])
def test_no_request_reaches_the_executable_of_another_region(request_: str) -> None:
    """In the next worker, the number of a lost executable is that of the one that was compiled first there."""
    engine = IsolatedEngine(registry.create("ort"), WorkerLimits(), runs=True)
    context = CompileContext(ExecutionOptions(), threads=1)
    try:
        before = {*list_descendants(os.getpid())}
        first = engine.compile(chain("Abs"), context)
        assert isinstance(first, RemoteExecutable)
        kill({*list_descendants(os.getpid())} - before)
        with pytest.raises(RunFailed, match="SIGKILL"):
            first.run([X])
        engine.compile(chain("Exp"), context)
        if request_ == "run":
            result = first.run([X])
        elif request_ == "measure":
            result = first.measure([X], 0.0)[0]
        else:
            result = engine.inner.load(first.save(), chain("Abs"), context).run([X])
        np.testing.assert_allclose(result[0], np.abs(X))
    finally:
        engine.close()


def test_a_worker_closes_an_executable_that_its_user_only_drops() -> None:
    """A worker may serve many modules: executables of those that are gone must not fill its memory."""
    before = {*list_descendants(os.getpid())}
    engine = IsolatedEngine(FaultyEngine(where="close", how="kill"), WorkerLimits(), runs=True)
    context = CompileContext(ExecutionOptions(), threads=1)
    try:
        dropped, used = (engine.compile(chain(op), context) for op in ("Abs", "Neg"))
        workers = {*list_descendants(os.getpid())} - before
        del dropped
        np.testing.assert_allclose(used.run([X])[0], -X)
        assert workers.isdisjoint(list_descendants(os.getpid()))  # the close ended it
    finally:
        engine.close()


@pytest.mark.parametrize("runs", [False, True])
def test_it_computes_the_same_in_a_worker(runs: bool) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    nodes = node("MatMul", "x w", "h"), node("Add", "h h", "y")
    product = graph({"x": "float32[n,3]"}, {"y": "float32[n,1000]"}, *nodes, constants={"w": weights})
    with module("ort", function=product, isolate=xrt.Isolation(run=runs)) as m:
        for rows in (2, 5):
            x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
            np.testing.assert_allclose(m(x), 2 * (x @ weights), rtol=1e-4, atol=1e-5)
            buffer = np.empty((rows, 1000), np.float32)
            assert m(x, out=buffer) is buffer
            np.testing.assert_allclose(buffer, 2 * (x @ weights), rtol=1e-4, atol=1e-5)
        output = "compiles and runs" if runs else "compiles"
        assert f"  {output} in a process of its own" in str(m.explain()).splitlines()


def test_a_compiled_form_that_comes_back_is_that_of_an_engine_that_is_not_isolated() -> None:
    cache = CompileCache()
    with module("ort", isolate="ort", cache=cache) as m, module("ort", cache=cache) as plain:
        m(X)
        plain(X)
    assert cache.statistics.misses == 1


def passed(values: list[Any]) -> list[Any]:
    """Return what comes out of the memory that two processes share."""
    buffer = SharedBuffer()
    document = json.loads(json.dumps(put_values(buffer, values)))
    memory = bytearray(buffer.size)
    handle = buffer.copy_to_memory()
    os.preadv(handle, [memory], 0)
    os.close(handle)
    return read_values(memoryview(memory), document)


@pytest.mark.parametrize(
    "given", [np.array(["ab", "ß".encode(), b"\xff"], dtype=object), np.array([b"ab", "ß".encode(), b"\xff"])], ids=["O", "S"]
)
def test_byte_strings_are_texts(given: Any) -> None:
    assert passed([given, X])[0].tolist() == ["ab", "ß", "\udcff"]


def test_values_of_every_kind_pass() -> None:
    values = [
        np.array(3.5),
        np.zeros((0, 4), np.int8),
        np.array([[1, 2], [3, 4]], np.uint16).T,
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array(["a", "ß"], dtype=object),
        [np.arange(3), [np.array([True])]],
        None,
    ]
    assert compare_all(passed(values), values, BIT_EQUAL)


def test_the_worker_ends_with_its_module() -> None:
    before = {*list_descendants(os.getpid())}
    with isolated(FaultyEngine(nth=9), "ort") as m:
        m(X)
        (worker,) = {*list_descendants(os.getpid())} - before
        shared = [path for path in Path("/dev/shm").iterdir() if "xrt" in path.name]
    assert not is_running(worker)
    assert shared == []
    forgotten = isolated(FaultyEngine(nth=9), "ort")
    forgotten(X)
    (worker,) = {*list_descendants(os.getpid())} - before
    del forgotten
    wait_until(lambda: not is_running(worker))


@pytest.mark.parametrize(
    ("engines", "limits", "text"),
    [
        ([3], {}, "isolate must be a list of engine names or specs, or 'all'; got [3]"),
        ("ort", {"time_limit": 0}, "time_limit must be a positive number or None; got 0"),
        ("ort", {"memory_limit": 1.5}, "memory_limit must be a positive integer or None; got 1.5"),
        ("ort", {"run": "yes"}, "run must be True or False; got 'yes'"),
    ],
)
def test_an_isolation_that_cannot_be_is_refused(engines: Any, limits: Any, text: str) -> None:
    with raises_exactly(OptionError, text):
        module("ort", isolate=xrt.Isolation(engines, **limits))


def test_an_engine_that_no_other_process_can_import_is_refused() -> None:
    @dataclass(frozen=True)
    class Here(FaultyEngine):
        name: ClassVar[str] = "here"

    with pytest.raises(
        OptionError, match=r"'here' cannot be isolated: .*Here of .* can be imported by no other process; move it"
    ):
        module(Here(), isolate="all")
