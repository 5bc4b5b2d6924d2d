"""The LLVM target of the CPU, and TVM's thread pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm.target import Target, codegen

from xrt.errors import OptionError, did_you_mean

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

# TVM starts a pool of workers for each calling thread, and reads these variables when it starts the first pool. Unless the user
# has set them, XRT sets:
# - all cores of this process; TVM's default is half of the cores of the machine.
# - no pinning, because it would also bind the calling thread, and every thread that other engines start from that one.
# - workers sleep after 50 us without work, instead of 150 ms.
os.environ.setdefault("TVM_NUM_THREADS", str(CORES))
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")

_configure = tvm.get_global_func("runtime.config_threadpool")
_ANY_CORE = 1
"""TVM's code for "big cores". On a CPU with equal cores it selects all cores."""
_FEATURES_TO_DISABLE = {
    "X86_V4": ("avx512f",),
    "AVX512F": ("avx512f",),
    "X86_V3": ("avx512f", "avx2", "fma", "f16c"),
    "AVX2": ("avx512f", "avx2"),
    "FMA3": ("fma",),
}
"""LLVM features to disable for each extension that NumPy reports as missing. A virtual machine may hide extensions that the
name of its CPU implies. NumPy has renamed extensions, so the table has their old and new names."""
_VECTOR_EXTENSION_PREFIXES = ("avx", "amx", "fma", "f16c", "bmi", "sse", "vaes", "vpclmul", "gfni", "neon", "sve", "sme")


def call_function(main: Callable[..., Any], arguments: Sequence[Any], threads: int) -> Any:
    """Call a compiled function. Its parallel loops run on ``threads`` threads, or on TVM_NUM_THREADS if that is less."""
    if threading.get_ident() == _forking_thread:
        return _fork_executor.submit(_call_configured, main, arguments, threads).result()
    return _call_configured(main, arguments, threads)


def _call_configured(main: Callable[..., Any], arguments: Sequence[Any], threads: int) -> Any:
    _configure(_ANY_CORE, threads)  # applies to the calling thread only
    return main(*arguments)


# In a forked child, the thread that forked has lost TVM's workers, and would wait for them forever. Its calls run on a new
# thread, which gets new workers.
_forking_thread = 0
_fork_executor: ThreadPoolExecutor


def _replace_forking_thread() -> None:
    global _forking_thread, _fork_executor
    _forking_thread, _fork_executor = threading.get_ident(), ThreadPoolExecutor(1, "xrt-tvm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_forking_thread)


@lru_cache(maxsize=8)
def make_target(mcpu: str | None, opt_level: int) -> Target:
    """Make the target for a CPU by its name in LLVM; None: the CPU of this machine.

    Vector extensions that NumPy does not detect on this machine are disabled.
    """
    config = {"kind": "llvm", "mcpu": mcpu or codegen.llvm_get_system_cpu(), "num-cores": CORES, "opt-level": opt_level}
    numpy_config: Any = np.show_config(mode="dicts")
    missing = numpy_config.get("SIMD Extensions", {}).get("not found", ())
    disabled = sorted({f"-{feature}" for name in missing for feature in _FEATURES_TO_DISABLE.get(name, ())})
    return Target({**config, "mattr": disabled} if disabled else config)


def check_mcpu(mcpu: str) -> None:
    """Raise OptionError if LLVM does not know the CPU, or if code for it would use extensions that this machine lacks."""
    host = make_target(None, 3)
    processors = [str(name) for name in codegen.llvm_get_cpu_archlist(host)]
    if mcpu not in processors:
        raise OptionError(f"tvm: mcpu={mcpu!r} is not a processor that LLVM knows.{did_you_mean(mcpu, processors)}")
    missing = _list_vector_extensions(Target({"kind": "llvm", "mcpu": mcpu})) - _list_vector_extensions(host)
    if missing:
        raise OptionError(f"tvm: mcpu={mcpu!r} needs {', '.join(sorted(missing))}, which this processor does not have")


def _list_vector_extensions(target: Target) -> set[str]:
    return {name for name in codegen.llvm_get_cpu_features(target) if name.startswith(_VECTOR_EXTENSION_PREFIXES)}
