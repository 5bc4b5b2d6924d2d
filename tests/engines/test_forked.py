"""A forked child has none of its library's threads, and runs all the same.

The forks are made in a new process: in the one of the tests, threads of other libraries may hold a lock just then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.engines.xla import client
from xrt.errors import CompileRefused, RunFailed
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, node

TOP = Path(__file__).parents[2]
X = np.linspace(-1, 1, 256 * 256, dtype=np.float32).reshape(256, 256)
NODES = node("MatMul", "x w", "p"), node("Tanh", "p", "y")
CHAIN = infer_shapes(graph({"x": "float32[256,256]"}, {"y": "float32[256,256]"}, *NODES, constants={"w": X.T.copy()}))


def status_of(work: Callable[[], object]) -> int:
    """Return how a forked child that does the work leaves: 0 when it came to its end."""
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        try:
            work()
            os._exit(0)
        except Exception:  # noqa: BLE001  # told, and the status says so
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def fork(name: str, way: str, threads: int, loaded: bool = False) -> None:
    """Compile (or load what was compiled) and run here, then run in a child and in a child of that."""
    engine, context = registry.create(name), CompileContext(threads=threads)
    executable = engine.compile(CHAIN, context)
    if loaded:
        executable = engine.load(memoryview(engine.save(executable, context)), CHAIN, context)
    executable.prepare()
    buffer = np.empty_like(X)
    direct, bound = executable.fast_call(), executable.bind([X], [buffer])
    calls = {"run": lambda: executable.run([X])[0], "direct": lambda: direct(X)[0], "bind": lambda: (bound(), buffer)[1]}
    expected = calls[way]().copy()

    def check() -> None:
        np.testing.assert_allclose(calls[way](), expected, rtol=1e-5, atol=1e-5)

    def work() -> None:
        for _ in range(3):
            check()
        if name == "xla":
            with pytest.raises(CompileRefused, match=r"^XLA has compiled in the process that this one was forked from"):
                engine.compile(CHAIN, context)
            again = engine.load(memoryview(engine.save(executable, context)), CHAIN, context)
            np.testing.assert_array_equal(again.run([X])[0], expected)
        if name == "tvm":
            with pytest.raises(RunFailed, match="TVM failed while it ran"):
                executable.run([X[:3]])
        assert status_of(check) == 0, "a child of the child"

    assert status_of(work) == 0
    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "way", "threads", "loaded"),
    [
        *(("tvm", way, 2, False) for way in ("run", "direct", "bind")),
        *(("xla", way, threads, threads == 2) for way in ("run", "direct") for threads in (1, 2)),
    ],
)
def test_a_forked_child_has_threads_of_its_own(engine: str, way: str, threads: int, loaded: bool) -> None:
    program = f"from tests.engines.test_forked import fork; fork({engine!r}, {way!r}, {threads}, {loaded})"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=False, cwd=TOP
    )
    assert completed.returncode == 0, completed.stderr


def test_a_fork_waits_while_other_threads_start_xla() -> None:
    guard, order, inside, leave = client.ForkGuard(), [], threading.Event(), threading.Event()

    def start() -> None:
        with guard.hold():
            inside.set()
            leave.wait()
            order.append("started")

    def fork() -> None:
        guard.close()
        order.append("forked")
        guard.open()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(start)
        inside.wait()
        pool.submit(fork)
        leave.set()
    assert order == ["started", "forked"]


def test_a_thread_that_starts_xla_can_fork_itself() -> None:
    guard = client.ForkGuard()
    with guard.hold():
        guard.close()
        guard.open()
