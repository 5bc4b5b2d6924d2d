"""The number of threads that torch computes with, set for the calling thread alone.

``torch.set_num_threads`` is the process's. What it sets in the end are a number of OpenMP's, which each thread has of its own,
and one of MKL's, which has a thread's own in front of it: these are set here, for the length of a call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["call_within"]

_FORKED = [False]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _FORKED.__setitem__(0, True))


@cache
def _setters() -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """Return what sets OpenMP's and MKL's numbers for the calling thread; torch's own setter where its build has neither."""
    lib = Path(torch.__file__).parent / "lib"
    try:
        omp = ctypes.CDLL(str(next(iter(sorted(lib.glob("libgomp*")))))).omp_set_num_threads
    except (StopIteration, OSError, AttributeError):
        return torch.set_num_threads, lambda count: 0
    try:
        mkl = ctypes.CDLL(str(lib / "libtorch_cpu.so")).MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):  # a build with another library of products
        return omp, lambda count: 0
    return omp, mkl


def call_within(threads: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returns, which may use so many threads; one in a forked child, where OpenMP's threads are gone."""
    before, budget = torch.get_num_threads(), 1 if _FORKED[0] else threads
    if before == budget:
        return call(*arguments)
    set_omp, set_mkl = _setters()
    set_omp(budget)
    local = set_mkl(budget)
    try:
        return call(*arguments)
    finally:
        set_mkl(local)
        set_omp(before)
