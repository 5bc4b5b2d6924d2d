"""The memory tier: one compile per signature, bounded, and nothing closed while in use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from xrt.cache import CompileCache, Signature
from xrt.cache.memory import MAX_IDLE_THREADS, wait_until_closed
from xrt.engines import Executable, RunOptions
from xrt.errors import CompileRefused, OptionError

ROOT = Path(__file__).parents[2]


class Counting(Executable):
    """Counts how often it is closed, and says how many threads it keeps."""

    def __init__(self, threads: int = 0) -> None:
        self.closed = 0
        self.idle_threads = threads

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if self.closed:
            raise RuntimeError("used after close")
        return list(inputs)

    def close(self) -> None:
        self.closed += 1


def signature(name: str) -> Signature:
    return Signature((("function", name),))


def test_an_executable_that_cannot_tell_its_memory_is_closed() -> None:
    class Mute(Counting):
        def memory(self) -> Any:
            raise RuntimeError("no figures")

    cache, executable = CompileCache(), Mute()
    with pytest.raises(RuntimeError, match=r"^no figures$"):
        cache.lease(signature("a"), lambda: executable)
    assert executable.closed == 1
    assert cache.statistics.size == 0


def test_a_failed_compile_is_raised_and_not_kept() -> None:
    cache = CompileCache()

    def refuse() -> Executable:
        raise CompileRefused("no")

    with pytest.raises(CompileRefused, match=r"^no$"):
        cache.lease(signature("a"), refuse)
    assert signature("a") not in cache
    assert cache.statistics.failures == 1
    assert isinstance(cache.lease(signature("a"), Counting).executable, Counting)


def test_a_forced_compile_leaves_the_old_executable_to_its_users() -> None:
    """The ancestor freed it under them."""
    cache = CompileCache()
    old = cache.lease(signature("a"), Counting)
    new = cache.lease(signature("a"), Counting, force=True)
    assert new.executable is not old.executable
    assert old.executable.run([1]) == [1]
    saved = old.executable
    old.release()
    old.release()
    assert saved.closed == 1  # type: ignore[attr-defined]  # a Counting
    assert new.executable.run([2]) == [2]


def test_eviction_closes_the_least_recently_used_once_nobody_holds_it() -> None:
    cache = CompileCache(capacity=2)
    leases = {name: cache.lease(signature(name), Counting) for name in "ab"}
    a, b = leases["a"].executable, leases["b"].executable
    leases.clear()
    cache.lease(signature("a"), Counting)
    values = cache.lease(signature("c"), Counting)
    assert wait_until_closed(60)
    assert (a.closed, b.closed) == (0, 1)  # type: ignore[attr-defined]  # Countings
    assert cache.statistics.evictions == 1
    cache.clear()
    assert a.closed == 1  # type: ignore[attr-defined]  # a Counting
    assert values.executable.run([1]) == [1]


def test_clearing_closes_every_executable_and_raises_the_first_error() -> None:
    class Stuck(Counting):
        def close(self) -> None:
            super().close()
            raise RuntimeError(f"close {executables.index(self)}")

    executables: list[Counting] = [Counting(), Stuck(), Counting(), Stuck(), Counting()]
    cache = CompileCache()
    for number in range(5):
        cache.lease(signature(str(number)), partial(executables.__getitem__, number)).release()
    with pytest.raises(RuntimeError, match=r"^close 1$"):
        cache.clear()
    assert [executable.closed for executable in executables] == [1] * 5


def test_a_cache_of_no_capacity_is_refused() -> None:
    with pytest.raises(OptionError, match="the capacity of a cache must be at least 1; got 0"):
        CompileCache(0)


@pytest.mark.slow
def test_a_lease_that_lives_to_the_end_of_the_process_is_left_alone() -> None:
    code = (
        "import string, sys; from tests.cache.test_memory import Counting, signature; from xrt.cache import memory; "
        "string.lease = memory.CompileCache().lease(signature('a'), Counting); sys.kept = string, memory"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stderr == ""


COUNTED = """
import gc, os, sys, warnings
import numpy as np
import xrt
from xrt.cache.memory import wait_until_closed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

warnings.simplefilter("ignore")
engine, threads, sizes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
nodes = (Node("Relu", ("x",), ("h",)), Node("MatMul", ("h", "w"), ("y",)))
x = Value("x", TensorType(DType.FLOAT32, ("n", 64)))
weights = {"w": Constant(np.ones((64, 64), np.float32))}
module = xrt.XRTModule(Function((x,), (Value("y", None),), nodes, weights, {"": 20}), engine=engine, threads=threads, strict=True)

def call(size):
    np.testing.assert_array_equal(module(np.ones((size, 64), np.float32)), np.full((size, 64), 64, np.float32))
    return len(os.listdir("/proc/self/task"))

counts = [call(size) for size in range(1, sizes + 1)]
module.close()
gc.collect()
wait_until_closed()
print(counts[0], max(counts), len(os.listdir("/proc/self/task")))
"""


def counted(engine: str, threads: int, sizes: int) -> list[int]:
    """Return the threads after the first signature, at most, and after the module was closed."""
    environment = {**os.environ, "XRT_CACHE": "off", "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", COUNTED, engine, str(threads), str(sizes)]
    return list(map(int, subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "sizes"),
    [
        *((engine, 40) for engine in ("toy", "ort", "openvino", "xla", "torch")),
        ("iree", 4),
        pytest.param("tvm", 40, marks=[pytest.mark.full]),
    ],
)
def test_threads_do_not_grow_with_signatures(engine: str, sizes: int) -> None:
    first, most, _ = counted(engine, 1, sizes)
    assert most <= first + (0 if engine == "iree" else 2)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "sizes"), [("openvino", 120), ("ort", 2 * MAX_IDLE_THREADS)])
def test_the_threads_of_a_larger_budget_are_bounded(engine: str, sizes: int) -> None:
    """The cache's executables keep as many threads as the module's, and all those of openvino's share those that compute."""
    first, most, closed = counted(engine, 2, sizes)
    pool = 1 + (os.cpu_count() or 1) if engine == "openvino" else 0
    assert most <= first + pool + 2 * MAX_IDLE_THREADS + 1
    assert closed <= first + pool + MAX_IDLE_THREADS


def test_what_keeps_threads_leaves_the_cache_first() -> None:
    cache = CompileCache()
    free, half, more, huge = map(Counting, (0, MAX_IDLE_THREADS // 2, MAX_IDLE_THREADS, 2 * MAX_IDLE_THREADS))

    def put(name: str, executable: Counting) -> None:
        cache.lease(signature(name), lambda: executable).release()

    for name, executable in {"free": free, "half": half, "other": Counting(MAX_IDLE_THREADS // 2)}.items():
        put(name, executable)
    assert cache.statistics.evictions == 0
    put("more", more)
    assert wait_until_closed(60)
    assert (free.closed, half.closed, more.closed, cache.statistics.size) == (0, 1, 0, 2)
    put("huge", huge)
    assert wait_until_closed(60)
    assert (free.closed, more.closed, huge.closed, cache.statistics.evictions) == (0, 1, 0, 3)
