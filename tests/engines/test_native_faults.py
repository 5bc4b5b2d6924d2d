"""The native tape: what is said when a kernel goes wrong, what becomes of its memory, and on which threads it runs."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.engines.native_building import library
from tests.engines.native_taping import DESTROYED, F32, PREPARED, X, chain, count, mine, ready
from tests.engines.toy_running import function, node, typed
from tests.hanging import wait_until
from xrt import XRTModule
from xrt.engines import native
from xrt.engines.native import NativeTape, PreparedKernel
from xrt.errors import CompileFailed, RunFailed
from xrt.graph import Constant, TensorType

# ---------------------------------------------------------------------- kernels that go wrong

WHERE = "node 'twice_v1' (test.Twice)"
OUTPUT = f"output 0 of {WHERE}"
WRONG = [
    ("fail to prepare", CompileFailed, "{kernel} failed to prepare for " + WHERE + ": no room"),
    ("fail in silence", CompileFailed, "{kernel} failed to prepare for " + WHERE + ": it gives no reason"),
    ("announce another type", CompileFailed, "{kernel} announces float64[20,30] for " + OUTPUT
     + ", which is float32[20,30]; its prepare is wrong"),
    ("announce another shape", CompileFailed, "{kernel} announces float32[21,31] for " + OUTPUT
     + ", which is float32[20,30]; its prepare is wrong"),
    ("announce no type", CompileFailed, "{kernel} announces no type for " + OUTPUT
     + ", or one that XRT does not know; its prepare is wrong"),
    ("announce a long shape", CompileFailed, "{kernel} announces no type for " + OUTPUT
     + ", or one that XRT does not know; its prepare is wrong"),
    ("fail to run", RunFailed, "{kernel} failed at " + WHERE + ": the number is odd"),
]  # fmt: skip


@pytest.mark.parametrize(("bid", "error", "text"), WRONG)
def test_a_kernel_that_goes_wrong_is_named(bid: str, error: type[Exception], text: str) -> None:
    made = chain(1, bid=bid).replace(outputs=(typed("v1", X),))
    with pytest.raises(error) as raised:
        ready(made).run([X])
    assert str(raised.value) == text.format(kernel=f"kernel 'twice' of library {library()}")


def test_a_kernel_that_refuses_when_prepared_leaves_the_node_to_the_next() -> None:
    nodes = [node("Neg", "x", "y", bid="refuse"), node("Twice", "y _", "z", domain="test")]
    made = function("x", "z", *nodes, opset=12, test=1).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(made).run([X])[0], -2 * X)


def test_a_failure_through_a_module_names_library_kernel_and_node() -> None:
    toy, _ = mine()
    made = chain(1, bid="fail to run").replace(outputs=(typed("v1", X),))
    with pytest.raises(RunFailed, match=r"kernel 'twice' of .* failed at node 'twice_v1' \(test.Twice\): the number is odd"):
        XRTModule(made, engine=toy)(X)


# ---------------------------------------------------------------------- memory and threads


def test_every_state_that_was_made_is_destroyed() -> None:
    gc.collect()
    alive = count(PREPARED) - count(DESTROYED)
    executable = ready(chain(7))
    executable.run([X])
    assert count(PREPARED) - count(DESTROYED) - alive == 7
    executable.close()
    del executable
    gc.collect()
    assert count(PREPARED) - count(DESTROYED) == alive
    with pytest.raises(CompileFailed):
        ready(chain(3, bid="announce another shape").replace(outputs=(typed("v3", X),)))
    gc.collect()
    assert count(PREPARED) - count(DESTROYED) == alive, "a tape that was not made leaves nothing behind"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_eight_threads_run_one_tape(threads: int) -> None:
    executable = ready(chain(6), threads=threads)
    barrier = threading.Barrier(8)

    def run(number: int) -> bool:
        barrier.wait()
        x = np.full_like(X, number)
        return all((executable.run([x])[0] == 64 * number).all() for _ in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


@pytest.mark.slow
def test_a_budget_bounds_the_workers_and_they_sleep() -> None:
    big = np.ones((400, 1000), np.float32)
    kernel = native.load(library()).kernel("twice")
    from xrt.engines.native.bindings import core

    (y,) = native.run_kernel(kernel, big, None, threads=3)
    assert (y == 2).all() and core().workers() >= 2
    wait_until(lambda: used(0.3) < 0.03)  # others that earlier tests woke may turn for a while


def used(seconds: float) -> float:
    """Return the processor time that the process spends while it waits."""
    began = time.process_time()
    time.sleep(seconds)
    return time.process_time() - began


@pytest.mark.slow
def test_a_forked_process_has_threads_of_its_own() -> None:
    executable = ready(chain(2), threads=3)
    executable.run([X])
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if (executable.run([X])[0] == 4 * X).all() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_tape_made_by_hand() -> None:
    made = chain(2)
    kernel = native.load(library()).kernel("twice")
    first = PreparedKernel(kernel, made.nodes[0], made)
    second = PreparedKernel(kernel, made.nodes[1], made.with_types(first.outputs))
    tape = NativeTape({"v0": TensorType(F32, X.shape)}, ["v2", "v1"], [first, second], {"c": Constant(X)}, 1)
    twice, once = tape.run([X])[0], tape.run([X], [None, out := np.empty_like(X)])[1]
    assert once is out and (once == 2 * X).all() and (twice == 4 * X).all()
    assert tape.workspace == 0 and list(tape.in_place) == [(0, 0), (0, 1)]
