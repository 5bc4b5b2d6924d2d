"""The processor to compile for, and the threads that TVM may use on it."""

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

# TVM makes a pool of workers for each calling thread, and reads these when it makes the first. They are set where the user
# has not: all cores of this process (TVM's default is half of the machine's); no pinning, which would also bind the calling
# thread, and with it the threads that other engines start from it; workers that sleep after 50 us idle instead of 150 ms.
os.environ.setdefault("TVM_NUM_THREADS", str(CORES))
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")

_configure = tvm.get_global_func("runtime.config_threadpool")
_ANY_CORE = 1
"""TVM's number for "big" cores: on a processor with equal cores, all of them."""

_HIDDEN = {
    "X86_V4": ("avx512f",),
    "AVX512F": ("avx512f",),
    "X86_V3": ("avx512f", "avx2", "fma", "f16c"),
    "AVX2": ("avx512f", "avx2"),
    "FMA3": ("fma",),
}
"""LLVM features to disable for each extension that NumPy reports as missing, under its older and newer names: a virtual machine
may hide extensions that the name of the processor implies."""
_EXTENSIONS = ("avx", "amx", "fma", "f16c", "bmi", "sse", "vaes", "vpclmul", "gfni", "neon", "sve", "sme")


def call_function(main: Callable[..., Any], arguments: Sequence[Any], threads: int) -> Any:
    """Call compiled code with parallel loops on ``threads`` threads, at most `TVM_NUM_THREADS`."""
    if threading.get_ident() == _orphan:
        return _stand_in.submit(_call_configured, main, arguments, threads).result()
    return _call_configured(main, arguments, threads)


def _call_configured(main: Callable[..., Any], arguments: Sequence[Any], threads: int) -> Any:
    _configure(_ANY_CORE, threads)  # applies to the calling thread only
    return main(*arguments)


# A forked child's thread has lost TVM's workers and would wait for them forever. A new thread gets new workers, so calls run
# on one.
_orphan = 0
_stand_in: ThreadPoolExecutor


def _renew_stand_in() -> None:
    global _orphan, _stand_in
    _orphan, _stand_in = threading.get_ident(), ThreadPoolExecutor(1, "xrt-tvm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_stand_in)


@lru_cache(maxsize=8)
def make_target(mcpu: str | None, opt_level: int) -> Target:
    """The LLVM target for a processor by LLVM's name; None is this one, with the features that it actually has."""
    config = {"kind": "llvm", "mcpu": mcpu or codegen.llvm_get_system_cpu(), "num-cores": CORES, "opt-level": opt_level}
    hidden = sorted({f"-{feature}" for name in _list_missing_extensions() for feature in _HIDDEN.get(name, ())})
    return Target({**config, "mattr": hidden} if hidden else config)


def _list_missing_extensions() -> list[str]:
    """Vector extensions that NumPy checked for and did not find."""
    config: Any = np.show_config(mode="dicts")
    return list(config.get("SIMD Extensions", {}).get("not found", ()))


def check_mcpu(mcpu: str) -> None:
    """Raise OptionError for a processor that LLVM does not know, or whose code this one cannot run."""
    host = make_target(None, 3)
    processors = [str(name) for name in codegen.llvm_get_cpu_archlist(host)]
    if mcpu not in processors:
        raise OptionError(f"tvm: mcpu={mcpu!r} is not a processor that LLVM knows.{did_you_mean(mcpu, processors)}")
    missing = _list_extensions(Target({"kind": "llvm", "mcpu": mcpu})) - _list_extensions(host)
    if missing:
        raise OptionError(f"tvm: mcpu={mcpu!r} asks for {', '.join(sorted(missing))}, which this processor does not have")


def _list_extensions(target: Target) -> set[str]:
    return {name for name in codegen.llvm_get_cpu_features(target) if name.startswith(_EXTENSIONS)}
