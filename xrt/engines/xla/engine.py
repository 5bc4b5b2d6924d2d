"""The engine itself: what it takes, and how it compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jaxlib

from xrt.engines.contract import Executable, GraphCompiler
from xrt.engines.options import CompileContext
from xrt.engines.xla.capability import refusal
from xrt.engines.xla.executable import XlaExecutable
from xrt.engines.xla.program import compiled_program
from xrt.engines.xla.reasons import shortened
from xrt.engines.xla.saving import exported, imported_program
from xrt.errors import CompileRefused
from xrt.graph import Function, Node

__all__ = ["Xla"]


@dataclass(frozen=True)
class Xla(GraphCompiler):
    """XLA on the CPU, through JAX: fuses chains of elementwise operators best of all, and is slow at grouped convolutions."""

    name: ClassVar[str] = "xla"
    loses_nan: ClassVar[tuple[str, ...]] = ("Max", "Min", "ReduceMax", "ReduceMin", "Relu")  # where it folds long rows
    flushes_denormals: ClassVar[tuple[str, ...]] = ("bfloat16", "float32", "float64")

    def why_not(self, node: Node, function: Function) -> str | None:
        return refusal(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        try:
            program = compiled_program(function, context.threads)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"XLA cannot compile {function.name!r}: {shortened(cause)}") from cause
        return XlaExecutable(program, function, context.threads)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        if not isinstance(executable, XlaExecutable):
            raise CompileRefused("it is no executable of XLA's")
        return exported(executable.program) if executable.saved is None else executable.saved

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        try:
            executable = XlaExecutable(imported_program(data, function, context.threads), function, context.threads)
        except Exception as cause:
            raise CompileRefused(f"XLA cannot load {function.name!r}: {shortened(cause)}") from cause
        executable.saved = data
        return executable

    def version(self) -> str:
        return f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"
