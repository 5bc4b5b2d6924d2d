"""Limit the threads of NumPy's BLAS while a region runs.

A BLAS library has one thread count for the whole process. While runs with a smaller budget are active, the count is the smallest
of their budgets, also for matrix products of other code. After the last of these runs it is the user's setting again. It is never
higher than the user's setting.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from types import TracebackType
from typing import Any

from xrt.forking import renew_after_fork


@dataclass(frozen=True, slots=True)
class BlasCalls:
    """Addresses of the CBLAS functions for matrix-matrix and matrix-vector products."""

    single: tuple[int, int]
    """Addresses of ``cblas_sgemm`` (matrix-matrix) and ``cblas_sgemv`` (matrix-vector)."""
    double: tuple[int, int]
    """Addresses of ``cblas_dgemm`` and ``cblas_dgemv``."""
    index_bits: int
    """Bits of the integers for sizes and strides: 32 or 64."""


@dataclass(frozen=True, slots=True)
class BlasLibrary:
    """One loaded BLAS library."""

    name: str
    """Name and version: ``openblas 0.3.31``."""
    get: Callable[[], int]
    set: Callable[[int], object]
    calls: BlasCalls | None = None
    """None if the library does not export these functions under known names."""


class BlasThreads:
    """The thread counts of all loaded BLAS libraries, and the budgets that limit them now. Thread-safe."""

    def __init__(self, libraries: Sequence[BlasLibrary]) -> None:
        self.libraries = tuple(libraries)
        self._lock = renew_after_fork(threading.Lock())
        self._budgets: list[int] = []
        self._user_threads: list[int] = []

    @property
    def threads(self) -> int:
        """The largest current thread count of the libraries; 1 if there are no libraries."""
        return max((library.get() for library in self.libraries), default=1)

    @property
    def unlimited_threads(self) -> int:
        """The largest thread count that the user has set, without the limits of active runs."""
        with self._lock:
            return max(self._user_threads, default=1) if self._budgets else self.threads

    @property
    def calls(self) -> BlasCalls | None:
        return next((library.calls for library in self.libraries if library.calls), None)

    def enter(self, budget: int) -> int:
        """Limit the libraries to ``budget`` threads until `leave` is called. Returns `unlimited_threads`."""
        with self._lock:
            # No run is active, so the current thread counts are the user's setting.
            if not self._budgets:
                self._user_threads = [library.get() for library in self.libraries]
            self._budgets.append(budget)
            self._set_threads(min(self._budgets))
            return max(self._user_threads, default=1)

    def leave(self, budget: int) -> None:
        """End the limit of an `enter` with the same budget. After the last limit, the user's setting is restored."""
        with self._lock:
            self._budgets.remove(budget)
            self._set_threads(min(self._budgets, default=None))

    def _set_threads(self, limit: int | None) -> None:
        for library, user_threads in zip(self.libraries, self._user_threads, strict=True):
            # The user's setting is an upper limit.
            library.set(user_threads if limit is None else min(user_threads, limit))


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limits BLAS to ``threads`` threads within a ``with`` block. Several threads can be in the block at the same time."""

    blas: BlasThreads
    threads: int

    def __enter__(self) -> None:
        self.blas.enter(self.threads)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.blas.leave(self.threads)


def blas_limit(threads: int) -> AbstractContextManager[None] | None:
    """Return a context in which NumPy's BLAS uses at most ``threads`` threads; None if the user's setting is not higher.

    For engines that compute with NumPy: create the context in `Executable.prepare` and enter it in `run`, from any number of
    threads. Entering and leaving take a few microseconds.
    """
    blas = find_blas()
    # Not `threads`, because an active run may be limiting the libraries now.
    return _Limit(blas, threads) if blas.unlimited_threads > threads else None


@lru_cache(maxsize=1)
def find_blas() -> BlasThreads:
    """Find the BLAS libraries that are loaded at the first call, including that of NumPy."""
    import numpy  # noqa: F401, ICN001  # loads NumPy's BLAS
    from threadpoolctl import ThreadpoolController

    controllers = ThreadpoolController().select(user_api="blas").lib_controllers
    return BlasThreads([_bind_library(controller) for controller in controllers])


def _bind_library(controller: Any) -> BlasLibrary:
    """Bind the functions that get and set the thread count of a library."""
    name = f"{controller.internal_api} {controller.version}"
    # Bind OpenBLAS's own functions, because the setter of threadpoolctl works from one Python thread only.
    if controller.internal_api == "openblas":
        # Wheels of NumPy and SciPy prefix and suffix the symbols, so that several copies of OpenBLAS can coexist.
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            setter = _bind_function(controller.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None, ctypes.c_int)
            getter = _bind_function(controller.dynlib, f"{prefix}openblas_get_num_threads{suffix}", ctypes.c_int)
            if setter is not None and getter is not None:
                return BlasLibrary(name, getter, setter, _find_cblas(controller.dynlib, prefix, suffix))
    return BlasLibrary(name, controller.get_num_threads, controller.set_num_threads)


def _find_cblas(library: ctypes.CDLL, prefix: str, suffix: str) -> BlasCalls | None:
    names = ("sgemm", "sgemv", "dgemm", "dgemv")
    sgemm, sgemv, dgemm, dgemv = addresses = [_find_address(library, f"{prefix}cblas_{name}{suffix}") for name in names]
    index_bits = 64 if suffix else 32
    return BlasCalls((sgemm, sgemv), (dgemm, dgemv), index_bits) if all(addresses) else None


def _find_address(library: ctypes.CDLL, symbol: str) -> int:
    """Find the address of a function; 0 if the library does not export it."""
    function = getattr(library, symbol, None)
    if function is None:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # the value of a null pointer is None


def _bind_function(library: ctypes.CDLL, symbol: str, result: Any, *arguments: Any) -> Any:
    """Bind a function of a library; None if the library does not export it.

    The result is a new function object, so that other users of the library can declare other argument types.
    """
    address = _find_address(library, symbol)
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None
