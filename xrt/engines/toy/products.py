"""Matrix products on the threads of a run, while NumPy's BLAS is held to one.

A BLAS with threads of its own lets them spin after a product, OpenBLAS for a tenth of a second, and whatever runs meanwhile
has a core less. So a large product is cut into parts for threads that sleep: those of the native library, or of Python's.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import numpy as np

from xrt.engines import native
from xrt.engines.toolkit.blas import BlasThreads, find_blas
from xrt.forking import renew_after_fork

Array = np.ndarray[Any, Any]

LEAST = 1 << 20
"""Multiplications from which waking a thread of the native library pays: some 20 us of work."""
LEAST_IN_PYTHON = 1 << 24
"""The same for a thread of Python's, which takes longer to wake, and then the interpreter's lock."""
PART = 48
"""A part is a multiple of this many rows or columns: BLAS computes some of them at once."""


class _Runs(threading.local):
    """The runs that this thread is in, each within the one before: the body of a Loop is run within its node's run."""

    def __init__(self) -> None:
        self.threads: list[tuple[int, bool]] = []


_runs = _Runs()


class ProductThreads:
    """The context of a run whose products may use so many threads; one serves any number of runs at once."""

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
    """Return the context for runs of that budget. ``native`` tells whether the native library serves.

    More threads than BLAS has by itself are not used: its number may be the user's choice.
    """
    blas = find_blas()
    return ProductThreads(blas, threads, native) if blas.unlimited > 1 else nullcontext()


def multiply(xp: Any, a: Array, b: Array) -> Array:
    """Return ``xp.matmul(a, b)``; within a run of `ProductThreads` large ones on NumPy arrays are computed on its threads."""
    if xp is not np or not _runs.threads or a.ndim < 2 or b.ndim < 2 or a.size * b.shape[-1] < LEAST:
        return xp.matmul(a, b)  # type: ignore[no-any-return]  # an array module's
    threads, is_native = _runs.threads[-1]
    if threads == 1 or a.dtype != b.dtype or a.dtype not in (np.float32, np.float64) or a.shape[-1] != b.shape[-2]:
        return np.matmul(a, b)  # type: ignore[no-any-return]
    calls = find_blas().calls if is_native else None
    result = native.multiply(calls, a, b, threads) if calls is not None else None
    if result is not None:
        return result
    return _in_python(a, b, threads if a.size * b.shape[-1] >= LEAST_IN_PYTHON else 1)


def _in_python(a: Array, b: Array, threads: int) -> Array:
    """Return the product in parts of the longer side of its matrices, one for each thread."""
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
    """Python's threads for products, made when they are first needed; a forked child has none of them and makes its own."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = renew_after_fork(threading.Lock())

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(os.cpu_count() or 1, "xrt-product")
            return self._executor

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]  # the lock too: a thread that the child does not have may hold it


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)
