"""Thousands of sizes in one module: what is kept is bounded, and nothing waits for what is dropped."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.module.small_models import relu
from xrt.cache import CompileCache, Signature
from xrt.cache.memory import MAX_BYTES, MAX_IDLE_THREADS, MIN_BYTES, close_in_background, close_when_collected, wait_until_closed
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.errors import SignatureWarning
from xrt.graph import Function, Node
from xrt.module.dispatch import MAX_PREPARED_CALLS, FastPath
from xrt.module.programs import Specialization
from xrt.processes.background import start_in_background

HANDLES = Path("/proc/self/fd")
PATIENCE = 60.0


class State:
    """The executables that are open, and what holds their calls up."""

    def __init__(self) -> None:
        self.open: list[Counted] = []
        self.running, self.may_run, self.may_close = (threading.Event() for _ in range(3))
        self.may_run.set()
        self.may_close.set()


class Counted(Executable):
    """One that was closed does not run."""

    def __init__(self, engine: Static) -> None:
        self.engine, self.state = engine, engine.state
        self.idle_threads = engine.threads
        self.is_closed = False
        self.state.open.append(self)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        assert not self.is_closed
        self.state.running.set()
        assert self.state.may_run.wait(PATIENCE)
        assert not self.is_closed
        return [np.maximum(inputs[0], 0)]

    def memory(self) -> Sequence[MemoryUse]:
        return (MemoryUse("weights", self.engine.nbytes, "it says so"), MemoryUse("scratch", 1 << 40, "not held", per_call=True))

    def close(self) -> None:
        assert self.state.may_close.wait(PATIENCE)
        self.is_closed = True
        self.state.open.remove(self)


@dataclass(frozen=True)
class Static(GraphCompiler):
    """Takes Relu, one size at a time."""

    name: ClassVar[str] = "static"
    state: ClassVar[State] = State()

    nbytes: int = MIN_BYTES
    threads: int = 0

    def version(self) -> str:
        return "1"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if node.op_type == "Relu" else "only Relu"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return Counted(self)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """Return the state of the test's engine."""
    result = State()
    monkeypatch.setattr(Static, "state", result)
    yield result
    result.may_run.set()
    result.may_close.set()


def make(engine: Any, max_bytes: int = MAX_BYTES, **options: Any) -> xrt.XRTModule:
    """Return a module of a Relu over rows of 3, with a cache that keeps nothing that no module uses but the newest."""
    cache = CompileCache(capacity=1, max_bytes=max_bytes)
    return xrt.XRTModule(relu(("N", 3)), engine=engine, strict=True, cache=cache, **{"shapes": "each", **options})


def call(module: xrt.XRTModule, rows: int) -> None:
    np.testing.assert_array_equal(module(np.full((rows, 3), rows - 5, "float32")), np.full((rows, 3), max(rows - 5, 0)))


def count_objects() -> Counter[str]:
    gc.collect()
    kinds = (Specialization, Function, FastPath, Executable, threading.Thread)
    types = [type(item) for item in gc.get_objects()]  # isinstance would ask objects of other libraries for their class
    return Counter(kind.__name__ for type_ in types for kind in kinds if issubclass(type_, kind))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_two_thousand_sizes_of_an_engine_with_symbolic_dims(engine: str) -> None:
    cache = CompileCache()
    with xrt.XRTModule(relu(("N", 3)), engine=engine, strict=True, cache=cache) as module:
        for rows in range(1, 501):
            call(module, rows)
        before, handles = count_objects(), len(list(HANDLES.iterdir()))
        for rows in range(501, 2001):
            call(module, rows)
        after = count_objects()
        assert cache.statistics.misses == 1
        assert after["FastPath"] - before["FastPath"] <= MAX_PREPARED_CALLS - 500
        assert after - Counter({"FastPath": after["FastPath"]}) - before == Counter()
        assert len(list(HANDLES.iterdir())) <= handles
        for rows in (1, 2000, 1250):
            call(module, rows)


@pytest.mark.slow
def test_two_thousand_sizes_of_an_engine_without(state: State) -> None:
    engine = Static()
    module = make(engine, 32 * MIN_BYTES)
    with pytest.warns(
        SignatureWarning, match=f"hold more than the cache's max_bytes={32 * MIN_BYTES}, or {MAX_IDLE_THREADS}"
    ) as context:
        for rows in range(1, 501):
            call(module, rows)
        assert wait_until_closed(PATIENCE)
        before, handles = count_objects(), len(list(HANDLES.iterdir()))
        for rows in range(501, 2001):
            call(module, rows)
    assert wait_until_closed(PATIENCE)
    assert sorted(str(item.message).split()[0] for item in context) == ["the"]
    assert count_objects() - before == Counter()
    assert len(list(HANDLES.iterdir())) <= handles
    assert len(state.open) <= 32 + 1  # and the newest that the cache keeps
    module.close()


@pytest.mark.parametrize(("nbytes", "threads", "kept"), [(5 * MIN_BYTES, 0, 2), (1, 0, 10), (1, MAX_IDLE_THREADS // 4, 4)])
def test_bytes_and_threads_are_bounded(nbytes: int, threads: int, kept: int, state: State) -> None:
    engine = Static(nbytes, threads)
    module = make(engine, 10 * MIN_BYTES)
    with pytest.warns(SignatureWarning):
        for rows in range(1, 21):
            call(module, rows)
    assert wait_until_closed(PATIENCE)
    assert kept <= len(state.open) <= kept + 1


def test_one_that_is_larger_than_the_limit_is_kept() -> None:
    cache = CompileCache(max_bytes=1)
    module = xrt.XRTModule(relu(("N", 3)), engine=Static(1 << 30), strict=True, cache=cache)
    for _ in range(3):
        call(module, 2)
    assert cache.statistics.misses == 1


def test_no_call_waits_for_a_close(state: State) -> None:
    engine = Static()
    state.may_close.clear()  # a close takes for ever
    module = make(engine, MIN_BYTES)
    with pytest.warns(SignatureWarning):
        for rows in range(1, 11):
            call(module, rows)
    assert len(state.open) == 10
    state.may_close.set()
    assert wait_until_closed(PATIENCE)
    assert len(state.open) <= 2


def test_what_a_call_uses_is_not_closed(state: State) -> None:
    """The executable asserts it; it is closed once the call has ended."""
    engine = Static()
    module = make(engine, MIN_BYTES)
    call(module, 1)
    state.running.clear()
    state.may_run.clear()
    slow = start_in_background(lambda: call(module, 1))
    assert state.running.wait(PATIENCE)
    (used,) = state.open
    with pytest.warns(SignatureWarning):
        for rows in (2, 3):
            module.compile(np.zeros((rows, 3), "float32"))
    assert wait_until_closed(PATIENCE)
    assert not used.is_closed
    state.may_run.set()
    slow.result(PATIENCE)
    assert wait_until_closed(PATIENCE)
    assert used.is_closed


def test_the_cache_bounds_what_no_module_uses(state: State) -> None:
    engine, cache = Static(), CompileCache(max_bytes=2 * MIN_BYTES)
    leases = [cache.lease(Signature((("name", str(number)),)), lambda: Counted(engine)) for number in range(6)]
    assert cache.statistics.size == 6  # to drop what is in use frees nothing
    for lease in leases:
        lease.release()
    assert wait_until_closed(PATIENCE)
    assert (cache.statistics.size, cache.statistics.evictions, len(state.open)) == (2, 4, 2)


def test_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class User:
        pass

    user, closed = User(), []
    close_when_collected(user, lambda: closed.append("user"))
    close_in_background(lambda: 1 / 0)
    assert wait_until_closed(PATIENCE)
    assert [record.getMessage() for record in caplog.records] == ["an executable could not be closed"]
    assert not closed
    del user
    assert wait_until_closed(PATIENCE)
    assert closed == ["user"]
