"""The kernels of the toy engine: their table, the context passed to each factory, and matrix products on the threads of a run.

NumPy's BLAS is limited to one thread, because its threads keep spinning after a product (OpenBLAS: 0.1 s) and take cores from
the code that runs next. So a large product is split into parts for threads that sleep when idle: those of the native library, or
a Python thread pool.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np

from xrt.engines import native
from xrt.engines.kernels import eager, numpy_only, ops as shared
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.toolkit.blas import BlasThreads, find_blas
from xrt.engines.toolkit.node_info import CompiledBody, NodeInfo
from xrt.forking import renew_after_fork
from xrt.graph import Function

ops = shared.extend("toy", eager, numpy_only)
"""All kernels of `xrt.engines.kernels`."""


@lru_cache(maxsize=1)
def _make_numpy_namespace() -> ArrayNamespace:
    return ArrayNamespace(np, multiply)


def namespace(module: Any) -> ArrayNamespace:
    """The array namespace of a module: NumPy's, with matrix products on the threads of a run, or that of a device's module."""
    return _make_numpy_namespace() if module is np else ArrayNamespace(module)


@dataclass(frozen=True, slots=True)
class KernelContext(NodeInfo):
    """A node and its context, as passed to the factory of its kernel."""

    module: Any
    """NumPy, or CuPy for a kernel on the device."""
    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Compiles a closed Function; `body` uses it for a node's bodies."""

    @property
    def xp(self) -> ArrayNamespace:
        """The namespace of array functions that kernels use."""
        return namespace(self.module)

    def body(self, attribute: str) -> CompiledBody:
        """The compiled body in an attribute."""
        return CompiledBody.compile(self, attribute, self.compile)


# ---------------------------------------------------------------------- matrix products

Array = np.ndarray[Any, Any]

LEAST = 1 << 20
"""Multiplications from which waking a thread of the native library pays off: about 20 us of work."""
LEAST_IN_PYTHON = 1 << 24
"""The same for a Python thread, which wakes more slowly and needs the GIL."""
PART = 48
"""Parts are multiples of this many rows or columns, because BLAS computes blocks of them."""


class _Runs(threading.local):
    """Stack of the active runs of this thread: the body of a Loop runs inside of its node's run."""

    def __init__(self) -> None:
        self.threads: list[tuple[int, bool]] = []


_runs = _Runs()


class ProductThreads:
    """Context manager of a run whose products may use ``threads`` threads; shared by concurrent runs."""

    __slots__ = ("_blas", "_native", "_threads")

    def __init__(self, blas: BlasThreads, threads: int, native: bool) -> None:
        self._blas = blas
        self._threads = threads
        self._native = native

    def __enter__(self) -> None:
        most = self._blas.enter(1)
        _runs.threads.append((min(self._threads, most), self._native))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _runs.threads.pop()
        self._blas.leave(1)


def product_threads(threads: int, native: bool) -> ProductThreads | nullcontext[None]:
    """Make the context for runs with this thread budget. ``native``: whether the native library is available.

    Uses at most as many threads as BLAS is configured for, since the user may have limited them.
    """
    blas = find_blas()
    return ProductThreads(blas, threads, native) if blas.unlimited_threads > 1 else nullcontext()


def multiply(xp: Any, a: Array, b: Array) -> Array:
    """Compute ``xp.matmul(a, b)``; within a run of `ProductThreads`, large NumPy products are computed on its threads."""
    if xp is not np or not _runs.threads or a.ndim < 2 or b.ndim < 2 or a.size * b.shape[-1] < LEAST:
        return xp.matmul(a, b)  # type: ignore[no-any-return]  # an array module's
    threads, is_native = _runs.threads[-1]
    if threads == 1 or a.dtype != b.dtype or a.dtype not in (np.float32, np.float64) or a.shape[-1] != b.shape[-2]:
        return np.matmul(a, b)  # type: ignore[no-any-return]
    calls = find_blas().calls if is_native else None
    result = native.multiply(calls, a, b, threads) if calls is not None else None
    if result is not None:
        return result
    return _multiply_in_python(a, b, threads if a.size * b.shape[-1] >= LEAST_IN_PYTHON else 1)


def _multiply_in_python(a: Array, b: Array, threads: int) -> Array:
    """Split the product along the longer side of the result and compute one part per thread."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    by_rows = a.shape[-2] >= b.shape[-1]
    side = result.shape[-2 if by_rows else -1]
    length = -(-side // (threads * PART)) * PART
    parts = [slice(start, start + length) for start in range(0, side, length)]

    def compute(part: slice) -> None:
        with np.errstate(all="ignore"):
            if by_rows:
                np.matmul(a[..., part, :], b, result[..., part, :])
            else:
                np.matmul(a, b[..., part], result[..., part])

    others = [_pool.executor().submit(compute, part) for part in parts[1:]]
    compute(parts[0])
    for other in others:
        other.result()
    return result


class _Pool:
    """Thread pool for products, created on first use; a forked child, which inherits no threads, creates another."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = renew_after_fork(threading.Lock())

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(os.cpu_count() or 1, "xrt-product")
            return self._executor

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]  # also renews the lock, which a thread that is missing in the child may hold


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)
