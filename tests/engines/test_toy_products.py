"""Matrix products of toy: in parts on threads that sleep, whatever the layout of their operands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from xrt.engines.native import multiply as multiply_natively, why_not_shipped
from xrt.engines.toolkit.blas import BlasLibrary, BlasThreads, find_blas
from xrt.engines.toy import kernels as products
from xrt.engines.toy.kernels import ProductThreads, multiply

BACKENDS = [False, *([True] if why_not_shipped() is None and find_blas().calls is not None else [])]


def of_threads(count: int) -> BlasThreads:
    """Return a library that says it has so many threads, so that products are cut on a machine of one core too."""
    kept = [count]
    library = BlasLibrary("fake", lambda: kept[0], lambda n: kept.__setitem__(0, n), find_blas().calls)
    return BlasThreads([library])


@pytest.fixture(params=BACKENDS, ids=lambda native: "native" if native else "python")
def three_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ProductThreads:
    """The context of runs on three threads; every product is large enough."""
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "LEAST_IN_PYTHON", 1)
    return ProductThreads(of_threads(3), 3, request.param)


def test_what_blas_does_not_multiply_goes_to_numpy(three_threads: ProductThreads) -> None:
    with three_threads:
        for dtype in (np.int32, np.complex64, np.float16):
            x = np.arange(6).reshape(2, 3).astype(dtype)
            assert np.array_equal(multiply(np, x, x.T), np.matmul(x, x.T))
        assert multiply(np, np.ones(3), np.ones((3, 2))).tolist() == [3, 3]
        assert multiply(np, np.ones((2, 3), np.float32), np.ones((3, 2))).dtype == np.float64
        with pytest.raises(ValueError, match="mismatch in its core dimension"):
            multiply(np, np.ones((2, 3)), np.ones((2, 3)))


@pytest.mark.slow
def test_products_from_many_threads_at_once_are_right(three_threads: ProductThreads) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 8, (130, 64)).astype(np.float32), rng.integers(-8, 8, (64, 150)).astype(np.float32)
    expected, right = np.matmul(a, b), []

    def call() -> None:
        for _ in range(20):
            with three_threads:
                right.append(np.array_equal(multiply(np, a, b), expected))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 120


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_multiplies(three_threads: ProductThreads) -> None:
    a = np.ones((100, 50), np.float32)
    with three_threads:
        multiply(np, a, a.T.copy())
    child = os.fork()
    if not child:
        with three_threads:
            os._exit(int(not (multiply(np, a, a.T.copy()) == 50).all()))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(True not in BACKENDS, reason="native kernels were not built, or BLAS's calls are not known")
def test_what_broadcasts_in_part_is_left_to_numpy() -> None:
    calls = find_blas().calls
    assert calls is not None
    assert multiply_natively(calls, np.ones((2, 1, 5, 5)), np.ones((2, 3, 5, 5)), 2) is None


# ---------------------------------------------------------------------- what is left running

SPINNING = """
import sys, time
from pathlib import Path
import numpy as np, xrt
from xrt.graph import DType, Function, Node, TensorType, Value

def others():
    "Ticks of processor time that threads other than the main one have used."
    fields = [(p / "stat").read_text().rpartition(")")[2].split() for p in Path("/proc/self/task").iterdir() if p.name != main]
    return sum(int(f[11]) + int(f[12]) for f in fields)

main = str(__import__("os").getpid())
square = TensorType(DType.FLOAT32, (512, 512))
function = Function((Value("x", square),), (Value("y", square),), (Node("MatMul", ("x", "x"), ("y",)),), opsets={"": 20})
array = np.ones((512, 512), "float32")
module = xrt.XRTModule(function, engine=sys.argv[1], strict=True)
for _ in range(3):
    module(array)
time.sleep(0.5)  # threads that BLAS started while it was loaded
module(array)
before = others()
time.sleep(0.3)
print(others() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the processor time of each thread")
@pytest.mark.parametrize("engine", ["toy", "toy{native=off}"])
def test_no_thread_works_on_after_a_product(engine: str) -> None:
    """OpenBLAS's own threads would use a tenth of a second: ten ticks each."""
    told = subprocess.run([sys.executable, "-c", SPINNING, engine], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) <= 2
