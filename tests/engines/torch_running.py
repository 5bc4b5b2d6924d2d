"""Compiling and running Functions on the torch engine."""

from __future__ import annotations

import numpy as np

from tests.engines.written import Array
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.torch import Torch
from xrt.graph import DType, Function

TORCH = Torch()
INT = DType.INT64


def compiled(f: Function, threads: int = 2, engine: GraphCompiler = TORCH) -> Executable:
    executable = engine.compile(f, CompileContext(threads=threads))
    executable.prepare()
    return executable


def run(f: Function, *inputs: Array, options: RunOptions = RunOptions()) -> list[Array]:
    return list(compiled(f).run([np.asarray(x) for x in inputs], options))


def why(f: Function) -> str:
    return TORCH.why_not(f.nodes[-1], f) or ""
