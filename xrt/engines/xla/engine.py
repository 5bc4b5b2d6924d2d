"""The engine class `Xla`: compile, save and load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jaxlib

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.xla.executable import XlaExecutable, compile_program, export_program, load_program
from xrt.engines.xla.support import why_not
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function, Node


@dataclass(frozen=True)
class Xla(GraphCompiler):
    """XLA on the CPU, through JAX: the fastest for chains of elementwise operators, slow for grouped convolutions."""

    name: ClassVar[str] = "xla"
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation("nan", ("Max", "Min", "ReduceMax", "ReduceMin", "Relu")),  # if XLA reduces long rows in parts
        Deviation("denormal"),
    )

    def why_not(self, node: Node, function: Function) -> str | None:
        return why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        try:
            program = compile_program(function, context.threads)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"XLA cannot compile {function.name!r}: {summarize_error(cause)}") from cause
        return XlaExecutable(program, function, context.threads)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        if not isinstance(executable, XlaExecutable):
            raise CompileRefused("the executable was not compiled by XLA")
        return export_program(executable.program) if executable.saved is None else executable.saved

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        try:
            executable = XlaExecutable(load_program(data, function, context.threads), function, context.threads)
        except Exception as cause:
            raise CompileRefused(f"XLA cannot load {function.name!r}: {summarize_error(cause)}") from cause
        executable.saved = data
        return executable

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """True for fewer threads. Loops are divided into ``saved`` parts; fewer threads compute several parts each."""
        return threads <= saved

    def version(self) -> str:
        return f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"
