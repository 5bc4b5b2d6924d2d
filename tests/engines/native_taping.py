"""Functions of the test library's kernels, and native tapes of them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.engines.native_building import library
from tests.engines.toy_running import function, node, typed
from xrt.engines import CompileContext
from xrt.engines.toy import Toy
from xrt.graph import DType, Function

F32 = DType.FLOAT32
X = np.arange(-300, 300, dtype=np.float32).reshape(20, 30)


def mine(threads: int = 1) -> tuple[Toy, CompileContext]:
    return Toy(libraries=(str(library()),)), CompileContext(threads=threads)


def count(what: int) -> int:
    counter = ctypes.CDLL(str(library())).count
    counter.restype = ctypes.c_int64
    return int(counter(what))


PREPARED, DESTROYED, RUNS = 0, 1, 2


def chain(length: int, *, inputs: str = "x", **attributes: Any) -> Function:
    """Return x doubled so many times; each step may write over the one before."""
    nodes = [node("Twice", f"v{i} _", f"v{i + 1}", domain="test", **attributes) for i in range(length)]
    made = function("v0", f"v{length}", *nodes, test=1)
    return made.replace(inputs=(typed("v0", X),))


def ready(made: Function, threads: int = 1) -> Any:
    toy, context = mine(threads)
    executable = toy.compile(made, context)
    executable.prepare()
    return executable
