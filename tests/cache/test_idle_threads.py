"""Threads do not grow with signatures, whichever engine: counted in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xrt.cache import CompileCache
from xrt.cache.memory import THREADS, wait_until_closed
from xrt.cache.signature import Signature
from xrt.engines import Executable

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
    "engine",
    [
        "toy",
        "ort",
        "openvino",
        "xla",
        "torch",
        pytest.param("tvm", marks=[pytest.mark.full]),
    ],
)
def test_threads_do_not_grow_with_signatures(engine: str) -> None:
    first, most, _ = counted(engine, 1, 40)
    assert most <= first + 2


@pytest.mark.slow
def test_iree_starts_no_threads_with_a_budget_of_one() -> None:
    first, most, _ = counted("iree", 1, 4)
    assert most == first


@pytest.mark.slow
def test_the_threads_of_a_larger_budget_are_bounded() -> None:
    """An executable of openvino's keeps two here; as many as the cache's are those that the module itself holds."""
    first, most, closed = counted("openvino", 2, 120)
    pool = os.cpu_count() or 1  # all executables share the threads that compute
    assert most <= first + pool + 2 * THREADS + 2
    assert closed <= first + pool + THREADS


@pytest.mark.slow
def test_the_pools_of_sessions_are_bounded() -> None:
    first, most, closed = counted("ort", 2, 2 * THREADS)
    assert most <= first + 2 * THREADS + 1
    assert closed <= first + THREADS


class Threaded(Executable):
    """Says that it keeps threads, and whether it was closed."""

    def __init__(self, threads: int) -> None:
        self.idle_threads = threads
        self.is_closed = False

    def run(self, inputs: object, options: object = None) -> list[object]:
        return []

    def close(self) -> None:
        self.is_closed = True


def test_what_keeps_threads_leaves_the_cache_first() -> None:
    cache = CompileCache()
    free, half, more, huge = Threaded(0), Threaded(THREADS // 2), Threaded(THREADS), Threaded(2 * THREADS)

    def put(name: str, executable: Threaded) -> None:
        cache.lease(Signature((("name", name),)), lambda: executable).release()

    for name, executable in {"free": free, "half": half, "other": Threaded(THREADS // 2)}.items():
        put(name, executable)
    assert cache.statistics.evictions == 0
    put("more", more)
    assert wait_until_closed(60)
    assert (free.is_closed, half.is_closed, more.is_closed, cache.statistics.size) == (False, True, False, 2)
    put("huge", huge)
    assert wait_until_closed(60)
    assert (free.is_closed, more.is_closed, huge.is_closed, cache.statistics.evictions) == (False, True, False, 3)


def test_what_is_in_use_lives_on() -> None:
    cache = CompileCache()
    used = Threaded(THREADS)
    lease = cache.lease(Signature((("name", "used"),)), lambda: used)
    cache.lease(Signature((("name", "next"),)), lambda: Threaded(THREADS)).release()
    assert not used.is_closed
    lease.release()
    assert used.is_closed
