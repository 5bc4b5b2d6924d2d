"""A forked child has none of TVM's workers, and runs all the same."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.errors import RunFailed
from xrt.graph import DType, Function, Node, TensorType, Value

T = TensorType(DType.FLOAT32, (512, 512))
EXP = Function((Value("x", T),), (Value("y", T),), (Node("Exp", ("x",), ("y",)),), opsets={"": 18})
X = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)


def status_of(work: Callable[[], object], seconds: float = 300) -> int:
    """Return how a forked child that does the work leaves: 0 when it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except Exception:  # noqa: BLE001  # told, and the status says so
            traceback.print_exc()
            os._exit(1)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if (remaining := os.waitpid(child, os.WNOHANG))[0]:
            return remaining[1]
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads where there is a fork
@pytest.mark.parametrize("way", ["run", "direct", "bind"])
def test_a_forked_child_has_workers_of_its_own(way: str) -> None:
    executable = registry.create("tvm").compile(EXP, CompileContext(threads=2))
    executable.prepare()
    buffer = np.empty_like(X)
    bound = executable.bind([X], [buffer])
    ways = {
        "run": lambda: executable.run([X])[0],
        "direct": lambda: executable.fast_call()(X)[0],
        "bind": lambda: (bound(), buffer)[1],
    }
    expected = ways[way]().copy()

    def work() -> None:
        for _ in range(3):
            np.testing.assert_array_equal(ways[way](), expected)
        assert status_of(lambda: np.testing.assert_array_equal(ways[way](), expected)) == 0, "a child of the child"

    assert status_of(work) == 0
    np.testing.assert_array_equal(ways[way](), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_fails_in_a_forked_child_is_reported_there() -> None:
    executable = registry.create("tvm").compile(EXP, CompileContext(threads=2))
    executable.prepare()
    executable.run([X])

    def work() -> None:
        with pytest.raises(RunFailed, match="TVM failed while it ran"):
            executable.run([X[:3]])

    assert status_of(work) == 0
