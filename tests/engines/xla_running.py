"""Compiling and running Functions on the xla engine."""

from __future__ import annotations

import numpy as np

from tests.engines.written import Array
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.xla import Xla
from xrt.graph import DType, Function, TensorType

XLA = Xla()
CONTEXT = CompileContext(threads=2)
INT = DType.INT64
WHOLE = TensorType(INT, (8,))


def compiled(f: Function, threads: int = 2) -> Executable:
    executable = XLA.compile(f, CompileContext(threads=threads))
    executable.prepare()
    return executable


def run(f: Function, *inputs: Array, options: RunOptions = RunOptions()) -> list[Array]:
    return list(compiled(f).run(inputs, options))


def placed(size: int, dtype: str = "float32", offset: int = 0) -> Array:
    """Return an array so many bytes behind a multiple of 64, the addresses that XLA takes without a copy."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + nbytes].view(dtype)


def why(f: Function) -> str:
    return XLA.why_not(f.nodes[-1], f) or ""
