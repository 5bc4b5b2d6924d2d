"""The kernels of the toy engine: their table, their array namespace, and matrix products on the threads of a run.

NumPy's BLAS is limited to one thread, because its threads keep spinning after a product (OpenBLAS: 0.1 s) and take cores from
the code that runs next. So the native library splits a large product into parts for its threads, which sleep when idle. Without
the native library a product runs on the calling thread, so that its bits do not depend on the number of threads.
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


# ---------------------------------------------------------------------- matrix products

Array = np.ndarray[Any, Any]

LEAST = 1 << 20
"""Multiplications from which waking a thread of the native library pays off: about 20 us of work."""


class _Runs(threading.local):
    """Thread budgets of the active runs of this thread: the body of a Loop runs inside of its node's run."""

    def __init__(self) -> None:
        self.threads: list[int] = []


_runs = _Runs()


class ProductThreads:
    """Context manager of a run whose products use up to ``threads`` threads of the native library; shared by concurrent runs."""

    __slots__ = ("_blas", "_threads")

    def __init__(self, blas: BlasThreads, threads: int) -> None:
        self._blas = blas
        self._threads = threads

    def __enter__(self) -> None:
        # `enter` limits BLAS to one thread and returns how many the user allowed it.
        _runs.threads.append(min(self._threads, self._blas.enter(1)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _runs.threads.pop()
        self._blas.leave(1)


def product_threads(threads: int, native: bool) -> ProductThreads | nullcontext[None]:
    """Make the context for runs with this thread budget. ``native``: whether the native library is available.

    Uses at most as many threads as BLAS is configured for, since the user may have limited them.
    """
    blas = find_blas()
    if blas.unlimited_threads == 1:
        return nullcontext()
    return ProductThreads(blas, threads if native and blas.calls is not None else 1)


def multiply(xp: Any, a: Array, b: Array) -> Array:
    """Compute ``xp.matmul(a, b)``; within a run of `ProductThreads`, large NumPy products are computed on its threads."""
    if xp is not np or not _runs.threads or a.ndim < 2 or b.ndim < 2 or a.size * b.shape[-1] < LEAST:
        return xp.matmul(a, b)  # type: ignore[no-any-return]  # an array module's
    threads, calls = _runs.threads[-1], find_blas().calls
    if (
        threads == 1
        or calls is None
        or a.dtype != b.dtype
        or a.dtype not in (np.float32, np.float64)
        or a.shape[-1] != b.shape[-2]
    ):
        return np.matmul(a, b)  # type: ignore[no-any-return]
    # None for batches that broadcast along some dimensions only; NumPy computes these.
    result = native.multiply(calls, a, b, threads)
    return np.matmul(a, b) if result is None else result


_NUMPY = ArrayNamespace(np, multiply)


class DeviceNamespace(ArrayNamespace):
    """The functions of CuPy, with NumPy's results where they differ."""

    def remainder(self, a: Array, b: Array) -> Array:
        """The remainder with the sign of the divisor; CuPy's is NaN for an infinite divisor."""
        if a.dtype.kind in "iu":
            return self.module.remainder(a, b)  # type: ignore[no-any-return]  # an array module's
        rest = self.module.fmod(a, b)
        return self.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """Select elements; CuPy's result for bfloat16 is float32."""
        result = self.module.where(condition, a, b)
        dtypes = {x.dtype for x in (a, b) if hasattr(x, "dtype")}
        return result.astype(_BFLOAT16) if dtypes == {_BFLOAT16} else result  # type: ignore[no-any-return]  # an array module's


_BFLOAT16 = DType.BFLOAT16.numpy


def namespace(module: Any) -> ArrayNamespace:
    """The array namespace of a module: NumPy's, with matrix products on the threads of a run, or that of a device's module."""
    return _NUMPY if module is np else DeviceNamespace(module)
