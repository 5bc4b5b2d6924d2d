"""Limit the threads of NumPy's BLAS while a region runs.

A BLAS library has one number of threads per process. It is lowered while calls with a smaller budget run and restored after the
last of them; concurrent calls share the smallest budget, and so do other matrix products of the process in that time. A lower
limit set by the user is never raised.
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
    """Addresses of a library's CBLAS functions for matrix-matrix and matrix-vector products."""

    single: tuple[int, int]
    """``cblas_sgemm`` and ``cblas_sgemv``."""
    double: tuple[int, int]
    """``cblas_dgemm`` and ``cblas_dgemv``."""
    indices: int
    """Bits of the integers for sizes and strides: 32 or 64."""

    def find_calls(self, dtype: Any) -> tuple[int, int]:
        """Return the addresses of the matrix-matrix and the matrix-vector product, for float32 or float64."""
        return self.single if dtype.itemsize == 4 else self.double


@dataclass(frozen=True, slots=True)
class BlasLibrary:
    """One loaded BLAS library."""

    name: str
    """Name and version: ``openblas 0.3.31``."""
    get: Callable[[], int]
    set: Callable[[int], object]
    calls: BlasCalls | None = None
    """None if the library does not export them under known names."""


class BlasThreads:
    """The number of threads of all loaded BLAS libraries, and the calls that limit it. Thread-safe."""

    def __init__(self, libraries: Sequence[BlasLibrary]) -> None:
        self.libraries = tuple(libraries)
        self._lock = renew_after_fork(threading.Lock())
        self._budgets: list[int] = []
        self._user_threads: list[int] = []

    @property
    def threads(self) -> int:
        """The largest current number of threads of any library; 1 if there is none."""
        return max((library.get() for library in self.libraries), default=1)

    @property
    def unlimited_threads(self) -> int:
        """Like `threads`, without the limits that running calls have set."""
        with self._lock:
            return max(self._user_threads, default=1) if self._budgets else self.threads

    @property
    def calls(self) -> BlasCalls | None:
        """CBLAS addresses of the first library that has them."""
        return next((library.calls for library in self.libraries if library.calls), None)

    def enter(self, budget: int) -> int:
        """Limit the libraries to ``budget`` threads until `leave`; return `unlimited_threads`."""
        with self._lock:
            # The first call remembers the user's setting, which the last call restores.
            if not self._budgets:
                self._user_threads = [library.get() for library in self.libraries]
            self._budgets.append(budget)
            self._set_threads(min(self._budgets))
            return max(self._user_threads, default=1)

    def leave(self, budget: int) -> None:
        """End a call that passed this budget to `enter`; the last one restores the user's setting."""
        with self._lock:
            self._budgets.remove(budget)
            self._set_threads(min(self._budgets, default=None))

    def _set_threads(self, limit: int | None) -> None:
        for library, user_threads in zip(self.libraries, self._user_threads, strict=True):
            # Never raise the number above the user's setting.
            library.set(user_threads if limit is None else min(user_threads, limit))


class _Limit:
    """Context of a call with a budget; several calls can enter it at once."""

    __slots__ = ("_blas", "_budget")

    def __init__(self, blas: BlasThreads, budget: int) -> None:
        self._blas = blas
        self._budget = budget

    def __enter__(self) -> None:
        self._blas.enter(self._budget)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blas.leave(self._budget)


def blas_limit(threads: int) -> AbstractContextManager[None] | None:
    """Return a context in which NumPy's BLAS uses at most ``threads`` threads; None if it never uses more.

    For an engine that computes with NumPy: create it in `Executable.prepare` and enter it in `run`, from any number of threads.
    Entering and leaving cost a few microseconds.
    """
    blas = find_blas()
    # Compare with the unlimited number: another call may be limiting the libraries now.
    return _Limit(blas, threads) if blas.unlimited_threads > threads else None


@lru_cache(maxsize=1)
def find_blas() -> BlasThreads:
    """The BLAS libraries that were loaded at the first call: NumPy's, and any loaded before."""
    import numpy  # noqa: F401, ICN001  # loads NumPy's BLAS
    from threadpoolctl import ThreadpoolController

    controllers = ThreadpoolController().select(user_api="blas").lib_controllers
    return BlasThreads([_bind_library(controller) for controller in controllers])


def _bind_library(controller: Any) -> BlasLibrary:
    """Bind the functions that get and set the number of threads.

    For OpenBLAS, bind its symbols directly: threadpoolctl's setter works from one Python thread only.
    """
    name = f"{controller.internal_api} {controller.version}"
    if controller.internal_api == "openblas":
        # Wheels of NumPy and SciPy prefix and suffix the symbols, so that several copies of OpenBLAS can coexist.
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            setter = _bind_function(controller.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None, ctypes.c_int)
            getter = _bind_function(controller.dynlib, f"{prefix}openblas_get_num_threads{suffix}", ctypes.c_int)
            if setter is not None and getter is not None:
                return BlasLibrary(name, getter, setter, _find_cblas(controller.dynlib, prefix, suffix))
    return BlasLibrary(name, controller.get_num_threads, controller.set_num_threads)


def _find_cblas(library: ctypes.CDLL, prefix: str, suffix: str) -> BlasCalls | None:
    addresses = [_find_address(library, f"{prefix}cblas_{name}{suffix}") for name in ("sgemm", "sgemv", "dgemm", "dgemv")]
    if not all(addresses):
        return None
    return BlasCalls((addresses[0], addresses[1]), (addresses[2], addresses[3]), 64 if suffix else 32)


def _find_address(library: ctypes.CDLL, symbol: str) -> int:
    """Find the address of a function; 0 if the library has none of that name."""
    function = getattr(library, symbol, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _bind_function(library: ctypes.CDLL, symbol: str, result: Any, *arguments: Any) -> Any:
    """Bind a separate function object, so that argument types set by others stay; None if the library lacks the symbol."""
    address = _find_address(library, symbol)
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None
