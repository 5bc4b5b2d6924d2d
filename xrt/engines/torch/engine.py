"""The engine: options, compile, save and load."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from xrt.engines.contract.graph_compiler import Executable, GraphCompiler
from xrt.engines.contract.options import check_options
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function, Node


# PyTorch takes seconds to import, and the first node imports it. Whether it is missing must be known now.
if find_spec("torch") is None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")
Mode: TypeAlias = Literal["eager", "inductor"]


@cache
def _find_version() -> str:
    return f"torch {metadata.version('torch')}"


@dataclass(frozen=True)
class Torch(GraphCompiler):
    """PyTorch on the CPU: operator by operator, without a compiler, or compiled by Inductor. One executable serves all sizes."""

    name: ClassVar[str] = "torch"
    supports_dynamic_shapes: ClassVar[bool] = True

    mode: Mode = "eager"
    """``eager`` runs PyTorch's kernels; ``inductor`` compiles a region to C++, with weights folded and packed. That takes ten
    seconds to a minute and needs ``g++``. Data-dependent operators go to the next engine."""

    def __post_init__(self) -> None:
        check_options(self)

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.torch.executable import shield
        from xrt.engines.torch.support import why_not

        with shield():
            reason = why_not(node, function)
            if reason is not None or self.mode == "eager":
                return reason
            from xrt.engines.torch import inductor

            return inductor.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        from xrt.engines.torch.dtypes import summarize_error
        from xrt.engines.torch.executable import TorchExecutable, shield
        from xrt.engines.torch.program import make_program

        if self.mode == "inductor":
            from xrt.engines.torch.inductor import compile_function

            # The process of the compile ends with it; its library is loaded as if it had been saved.
            return self.load(compile_function(function, context), function, context)
        try:
            with shield():
                return TorchExecutable(make_program(function), function, context.threads)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"torch cannot compute {function.name!r}: {summarize_error(cause)}") from cause

    def is_worth_saving(self, function: Function) -> bool:
        return self.mode == "inductor"  # building a list of kernels is faster than reading a file

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Inductor's library, which contains the packed weights; empty for a list of kernels."""
        from xrt.engines.torch.inductor import InductorExecutable

        return executable.data if isinstance(executable, InductorExecutable) else b""

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        if self.mode == "eager":
            return self.compile(function, context)
        from xrt.engines.torch.inductor import InductorExecutable

        return InductorExecutable(data, function, context)

    def serves_threads(self, saved: int, threads: int) -> bool:
        """Inductor's parallel loops use the threads of the call; code compiled for one thread has none."""
        return self.mode == "eager" or saved == threads or saved > 1

    def missing_features(self) -> str:
        from xrt.engines.torch.inductor import why_no_compiler

        return why_no_compiler() or ""

    def version(self) -> str:
        return _find_version()
