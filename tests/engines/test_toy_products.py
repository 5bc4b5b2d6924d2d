"""Matrix products of toy: in parts on threads that sleep, whatever the layout of their operands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xrt.engines.native import multiply as multiply_natively, why_not_shipped
from xrt.engines.toolkit.blas import BlasLibrary, BlasThreads, find_blas
from xrt.engines.toy import products
from xrt.engines.toy.products import ProductThreads, multiply

Array = np.ndarray[Any, Any]
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


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "in order": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "part of a larger one": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 2), (3, 4)])[..., 1:-2, 3:-4],
    "every second column": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned": lambda x: np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
}
SHAPES = [
    *(
        ((m, k), (k, n))
        for m, k, n in [(1, 7, 200), (200, 7, 1), (1, 9, 1), (97, 1, 49), (48, 96, 144), (3, 5, 300), (300, 5, 3)]
    ),
    ((2, 3, 50, 20), (2, 3, 20, 60)),
    ((7, 5, 20), (20, 100)),
    ((100, 20), (7, 20, 5)),
    ((1, 1, 50, 20), (20, 60)),
    ((2, 1, 50, 20), (1, 3, 20, 60)),
    ((1, 3, 50, 20), (2, 3, 20, 60)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_numpys_in_every_layout(three_threads: ProductThreads, layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for shapes in SHAPES:
        a, b = (rng.integers(-8, 8, shape).astype(dtype) for shape in shapes)  # exact in any order
        for left, right in ((LAYOUTS[layout](a), b), (a, LAYOUTS[layout](b)), (LAYOUTS[layout](a), LAYOUTS[layout](b))):
            with three_threads:
                found = multiply(np, left, right)
            expected = np.matmul(a, b)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert np.array_equal(found, expected), shapes


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((3, 0), (0, 4)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 5))])
def test_empty_products_are_zeros_or_nothing(three_threads: ProductThreads, shapes: Any) -> None:
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    with three_threads:
        assert np.array_equal(multiply(np, a, b), np.matmul(a, b))


def test_what_blas_does_not_multiply_goes_to_numpy(three_threads: ProductThreads) -> None:
    with three_threads:
        for dtype in (np.int32, np.complex64, np.float16):
            x = np.arange(6).reshape(2, 3).astype(dtype)
            assert np.array_equal(multiply(np, x, x.T), np.matmul(x, x.T))
        assert multiply(np, np.ones(3), np.ones((3, 2))).tolist() == [3, 3]
        assert multiply(np, np.ones((2, 3), np.float32), np.ones((3, 2))).dtype == np.float64
        with pytest.raises(ValueError, match="mismatch in its core dimension"):
            multiply(np, np.ones((2, 3)), np.ones((2, 3)))


def test_nan_and_infinity_stay_where_they_are_due(three_threads: ProductThreads) -> None:
    a, b = np.ones((100, 60), np.float32), np.ones((60, 70), np.float32)
    a[70, 3], a[5, 5] = np.nan, np.inf
    with three_threads:
        found = multiply(np, a, b)
    assert np.isnan(found[70]).all() and np.isinf(found[5]).all() and np.isfinite(np.delete(found, (5, 70), 0)).all()


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
