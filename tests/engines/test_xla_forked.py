"""A forked child has none of XLA's threads, and runs all the same.

The forks are made in a new process: in the one of the tests, threads of other libraries may hold a lock just then.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.engines.test_tvm_forked import status_of
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.engines.xla import client
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

TOP = Path(__file__).parents[2]
T = TensorType(DType.FLOAT32, (256, 256))
X = np.linspace(-1, 1, 256 * 256, dtype=np.float32).reshape(256, 256)
PRODUCT = Function(
    (Value("x", T),), (Value("y", T),), (Node("MatMul", ("x", "w"), ("y",)),), {"w": Constant(X.T.copy())}, opsets={"": 18}
)


def fork(way: str, threads: int) -> None:
    """Compile and run here, then run, and compile in vain, in a child and in a child of that."""
    xla, context = registry.create("xla"), CompileContext(threads=threads)
    executable = xla.compile(PRODUCT, context)
    direct = executable.fast_call()
    ways = {"run": lambda: executable.run([X])[0], "direct": lambda: direct(X)[0]}
    expected = ways[way]()

    def work() -> None:
        for _ in range(3):
            np.testing.assert_array_equal(ways[way](), expected)
        with pytest.raises(CompileRefused, match=r"^XLA has compiled in the process that this one was forked from"):
            xla.compile(PRODUCT, context)
        again = xla.load(memoryview(xla.save(executable, context)), PRODUCT, context)
        np.testing.assert_array_equal(again.run([X])[0], expected)
        assert status_of(lambda: np.testing.assert_array_equal(ways[way](), expected)) == 0, "a child of the child"

    assert status_of(work) == 0
    np.testing.assert_array_equal(ways[way](), expected)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["run", "direct"])
def test_a_forked_child_has_clients_of_its_own(way: str, threads: int) -> None:
    program = f"from tests.engines.test_xla_forked import fork; fork({way!r}, {threads})"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=False, cwd=TOP
    )
    assert completed.returncode == 0, completed.stderr


def test_a_fork_waits_for_the_starts_of_other_threads() -> None:
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

    threads = [threading.Thread(target=start), threading.Thread(target=fork)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["started", "forked"]


def test_a_thread_that_starts_others_can_fork_itself() -> None:
    guard = client.ForkGuard()
    with guard.hold():
        guard.close()
        guard.open()
