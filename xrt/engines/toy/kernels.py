"""The kernels of the toy engine: their table, their array namespaces, and matrix products on several threads.

During a run NumPy's BLAS is limited to one thread, because its threads spin for a while after a product (OpenBLAS: 0.1 s) and
take cores from the code that runs next. Instead, the native library splits a large product into parts for its own threads, which
sleep when idle. Without the native library a product runs on the calling thread.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import numpy as np

from xrt.engines import native
from xrt.engines.kernels import eager, numpy_only, ops as shared
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.toolkit.blas import BlasThreads, find_blas
from xrt.graph import DType

ops = shared.extend("toy", eager, numpy_only)
"""All kernels of `xrt.engines.kernels`."""
Array = np.ndarray[Any, Any]
MIN_THREADED_WORK = 1 << 20
"""A matrix product with fewer multiplications (about 20 us) is computed on the calling thread, because waking others takes
longer."""


class _ActiveRuns(threading.local):
    """The thread counts of the active runs of this thread, the innermost last: the body of a Loop runs inside a run."""

    def __init__(self) -> None:
        self.threads: list[int] = []


_runs = _ActiveRuns()


class ProductThreads:
    """A context manager, inside of which matrix products use up to ``threads`` threads. Concurrent runs may share it."""

    __slots__ = ("_blas", "_threads")

    def __init__(self, blas: BlasThreads, threads: int) -> None:
        self._blas = blas
        self._threads = threads

    def __enter__(self) -> None:
        # `enter` limits BLAS to one thread, and returns the number of threads that the user has allowed it.
        _runs.threads.append(min(self._threads, self._blas.enter(1)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _runs.threads.pop()
        self._blas.leave(1)


def make_product_context(threads: int, has_native: bool) -> ProductThreads | nullcontext[None]:
    """Make the context for runs with ``threads`` threads, or with one thread if there is no native library (``has_native``).

    Products use at most as many threads as BLAS is configured for, because the user may have limited these.
    """
    blas = find_blas()
    if blas.unlimited_threads == 1:
        return nullcontext()
    return ProductThreads(blas, threads if has_native and blas.calls is not None else 1)


def multiply(xp: Any, a: Array, b: Array) -> Array:
    """Compute ``xp.matmul(a, b)``. Within a `ProductThreads` context, large products of NumPy arrays use its threads."""
    if xp is not np or not _runs.threads or a.ndim < 2 or b.ndim < 2 or a.size * b.shape[-1] < MIN_THREADED_WORK:
        return xp.matmul(a, b)  # type: ignore[no-any-return]  # an array module's
    threads, calls = _runs.threads[-1], find_blas().calls
    is_float = a.dtype == b.dtype and a.dtype in (np.float32, np.float64)
    result = None
    # NumPy raises the error if the extents do not match.
    if threads > 1 and calls is not None and is_float and a.shape[-1] == b.shape[-2]:
        # The result is None if a batch broadcasts along only some of its axes, which NumPy supports.
        result = native.multiply(calls, a, b, threads)
    return np.matmul(a, b) if result is None else result


_NUMPY = ArrayNamespace(np, multiply)
_BFLOAT16 = DType.BFLOAT16.numpy


class DeviceNamespace(ArrayNamespace):
    """The functions of CuPy, corrected where their results differ from NumPy's."""

    def remainder(self, a: Array, b: Array) -> Array:
        """Compute the remainder with the sign of the divisor. CuPy's is NaN for an infinite divisor."""
        if a.dtype.kind in "iu":
            return self.module.remainder(a, b)  # type: ignore[no-any-return]  # an array module's
        remainder = self.module.fmod(a, b)
        has_other_sign = (remainder != 0) & ((remainder < 0) != (b < 0))
        return self.where(has_other_sign, remainder + b, remainder)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """Select elements. CuPy's result for bfloat16 is float32, so it is converted back."""
        result = self.module.where(condition, a, b)
        dtypes = {x.dtype for x in (a, b) if hasattr(x, "dtype")}
        return result.astype(_BFLOAT16) if dtypes == {_BFLOAT16} else result  # type: ignore[no-any-return]  # an array module's


def get_namespace(module: Any) -> ArrayNamespace:
    """Get the array namespace of NumPy, whose matrix products `multiply` computes, or make one for CuPy."""
    return _NUMPY if module is np else DeviceNamespace(module)
