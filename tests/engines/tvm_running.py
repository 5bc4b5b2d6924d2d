"""Compiling and running Functions on the tvm engine."""

from __future__ import annotations

from tests.engines.written import Array
from xrt.engines import CompileContext, RunOptions
from xrt.engines.tvm import Tvm
from xrt.graph import Function

TVM = Tvm()
CONTEXT = CompileContext(threads=2)


def run(f: Function, *inputs: Array, engine: Tvm = TVM, options: RunOptions = RunOptions()) -> list[Array]:
    executable = engine.compile(f, CONTEXT)
    executable.prepare()
    return list(executable.run(inputs, options))


def why(f: Function) -> str:
    return Tvm().why_not(f.nodes[-1], f) or ""
