"""NumPy's BLAS, held to fewer threads while a region runs.

A BLAS library has one number of threads for the whole process. So the number is changed only while calls are under way that
may use fewer threads than it says, and put back after the last of them; while calls of several budgets are under way, the
smallest holds for all, and for whatever else of the process multiplies matrices in that time. It is never raised: where the
user has set it lower, it stays lower.
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

__all__ = ["BlasCalls", "BlasLibrary", "BlasThreads", "blas_limit", "find_blas"]


@dataclass(frozen=True, slots=True)
class BlasCalls:
    """Where a library's calls of CBLAS are, for products of matrices and of a matrix with a vector."""

    single: tuple[int, int]
    """``cblas_sgemm`` and ``cblas_sgemv``."""
    double: tuple[int, int]
    """``cblas_dgemm`` and ``cblas_dgemv``."""
    indices: int
    """The bits of an index."""

    def find_calls(self, dtype: Any) -> tuple[int, int]:
        """Return the two for float32 or float64."""
        return self.single if dtype.itemsize == 4 else self.double


@dataclass(frozen=True, slots=True)
class BlasLibrary:
    """One BLAS library of the process, with its two calls bound."""

    name: str
    """With its version: ``openblas 0.3.31``."""
    get: Callable[[], int]
    set: Callable[[int], object]
    calls: BlasCalls | None = None
    """None where they are not known by name."""


class BlasThreads:
    """How many threads the libraries use, while calls come and go that limit it. Safe to use from several threads."""

    def __init__(self, libraries: Sequence[BlasLibrary]) -> None:
        self.libraries = tuple(libraries)
        self._lock = renew_after_fork(threading.Lock())
        self._under_way: list[int] = []
        self._before: list[int] = []

    @property
    def threads(self) -> int:
        """The most threads that any of the libraries uses now; 1 where there is none."""
        return max((library.get() for library in self.libraries), default=1)

    @property
    def unlimited(self) -> int:
        """The most threads that any of the libraries uses while no call limits it; 1 where there is none."""
        with self._lock:
            return max(self._before, default=1) if self._under_way else self.threads

    @property
    def calls(self) -> BlasCalls | None:
        """The calls of the first library whose calls are known."""
        return next((library.calls for library in self.libraries if library.calls), None)

    def enter(self, budget: int) -> int:
        """Begin a call that may use so many threads; return the most that any library uses while no call limits it."""
        with self._lock:
            if not self._under_way:
                self._before = [library.get() for library in self.libraries]
            self._under_way.append(budget)
            self._set(min(self._under_way))
            return max(self._before, default=1)

    def leave(self, budget: int) -> None:
        """End such a call."""
        with self._lock:
            self._under_way.remove(budget)
            self._set(min(self._under_way, default=None))

    def _set(self, limit: int | None) -> None:
        for library, before in zip(self.libraries, self._before, strict=True):
            library.set(before if limit is None else min(before, limit))


class _Limit:
    """The context of a call with a budget; one serves any number of calls at once."""

    __slots__ = ("_blas", "_budget")

    def __init__(self, blas: BlasThreads, budget: int) -> None:
        self._blas = blas
        self._budget = budget

    def __enter__(self) -> None:
        self._blas.enter(self._budget)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blas.leave(self._budget)


def blas_limit(threads: int) -> AbstractContextManager[None] | None:
    """Return a context in which NumPy's BLAS uses at most so many threads; None where it uses no more anyhow.

    For an engine that computes with NumPy: ask in `Executable.prepare`, enter in `run`, from any number of threads at once.
    Entering and leaving cost a few microseconds.
    """
    blas = find_blas()
    return _Limit(blas, threads) if blas.unlimited > threads else None


@lru_cache(maxsize=1)
def find_blas() -> BlasThreads:
    """Return the BLAS libraries that were loaded when this was first asked: NumPy's, and any that came before."""
    import numpy  # noqa: F401, ICN001  # it loads its own
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return BlasThreads([_bound(controller) for controller in found])


def _bound(controller: Any) -> BlasLibrary:
    """Bind the library's calls; OpenBLAS's own, because threadpoolctl lets one Python thread alone change its number."""
    name = f"{controller.internal_api} {controller.version}"
    if controller.internal_api == "openblas":
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            setter = _function(controller.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None, ctypes.c_int)
            getter = _function(controller.dynlib, f"{prefix}openblas_get_num_threads{suffix}", ctypes.c_int)
            if setter is not None and getter is not None:
                return BlasLibrary(name, getter, setter, _calls(controller.dynlib, prefix, suffix))
    return BlasLibrary(name, controller.get_num_threads, controller.set_num_threads)


def _calls(library: ctypes.CDLL, prefix: str, suffix: str) -> BlasCalls | None:
    found = [_address(library, f"{prefix}cblas_{name}{suffix}") for name in ("sgemm", "sgemv", "dgemm", "dgemv")]
    if not all(found):
        return None
    return BlasCalls((found[0], found[1]), (found[2], found[3]), 64 if suffix else 32)


def _address(library: ctypes.CDLL, symbol: str) -> int:
    """Return where a function of the library is; 0 where it has none of that name."""
    function = getattr(library, symbol, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _function(library: ctypes.CDLL, symbol: str, result: Any, *arguments: Any) -> Any:
    """Return a function object of its own, so that argument types set elsewhere stay unchanged; None if the library lacks it."""
    address = _address(library, symbol)
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None
