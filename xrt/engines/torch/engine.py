"""The engine itself: what it takes, and how it compiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from xrt.engines.contract.graph_compiler import Executable, GraphCompiler
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function, Node

__all__ = ["Torch"]

if find_spec("torch") is None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


@cache
def _version() -> str:
    return f"torch {metadata.version('torch')}"


@dataclass(frozen=True)
class Torch(GraphCompiler):
    """PyTorch on the CPU, operator by operator: no compiler is needed, and one executable serves all sizes."""

    name: ClassVar[str] = "torch"
    supports_dynamic_shapes: ClassVar[bool] = True

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.torch.shield import shield
        from xrt.engines.torch.support import why_not

        with shield():
            return why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        from xrt.engines.torch.errors import summarize_error
        from xrt.engines.torch.executable import TorchExecutable
        from xrt.engines.torch.program import make_program
        from xrt.engines.torch.shield import shield

        try:
            with shield():
                return TorchExecutable(make_program(function), function, context.threads)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"torch cannot compute {function.name!r}: {summarize_error(cause)}") from cause

    def is_worth_saving(self, function: Function) -> bool:
        return False  # there is nothing but a list of kernels, made sooner than a file is read

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        return b""

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        return self.compile(function, context)

    def version(self) -> str:
        return _version()
