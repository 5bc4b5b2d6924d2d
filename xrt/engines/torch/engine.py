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

# PyTorch takes seconds to import, so that waits for the first node. Whether it is installed must be known now.
if find_spec("torch") is None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")
Mode: TypeAlias = Literal["eager", "inductor"]


@cache
def _find_version() -> str:
    return f"torch {metadata.version('torch')}"


@dataclass(frozen=True)
class Torch(GraphCompiler):
    """PyTorch on the CPU: operator by operator, or compiled by Inductor. One executable supports all sizes."""

    name: ClassVar[str] = "torch"
    supports_dynamic_shapes: ClassVar[bool] = True

    mode: Mode = "eager"
    """``eager`` runs PyTorch's kernels; ``inductor`` compiles a region to C++, with weights folded and packed. Compiling takes 10
    to 60 seconds and needs ``g++``. ``inductor`` does not support operators whose result shapes depend on data."""

    def __post_init__(self) -> None:
        check_options(self)

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.torch.executable import use_default_modes
        from xrt.engines.torch.support import why_not

        with use_default_modes():
            reason = why_not(node, function)
            if reason is not None or self.mode == "eager":
                return reason
            from xrt.engines.torch import inductor

            return inductor.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        from xrt.engines.toolkit.libraries import summarize_error
        from xrt.engines.torch.executable import TorchExecutable, use_default_modes
        from xrt.engines.torch.program import make_program

        if self.mode == "inductor":
            from xrt.engines.torch.inductor import compile_function

            # A subprocess compiles. Its library is loaded in this process like a saved one.
            return self.load(compile_function(function, context), function, context)
        try:
            with use_default_modes():
                program = make_program(function)
                return TorchExecutable(program, function, context.threads, program.constants, program.packed_weights)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"torch cannot compute {function.name!r}: {summarize_error(cause)}") from cause

    def is_worth_saving(self, function: Function) -> bool:
        return self.mode == "inductor"  # building a list of kernels is faster than reading a file

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Return the bytes of Inductor's library, which contains the packed weights. With ``mode=eager`` return no bytes."""
        from xrt.engines.torch.inductor import InductorExecutable

        return executable.data if isinstance(executable, InductorExecutable) else b""

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        if self.mode == "eager":
            return self.compile(function, context)
        from xrt.engines.torch.inductor import InductorExecutable

        return InductorExecutable(data, function, context)

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """True except for Inductor's code that was compiled for one thread, because it has no parallel loops."""
        return self.mode == "eager" or saved == threads or saved > 1

    def missing_features(self) -> str:
        from xrt.engines.torch.inductor import why_no_cxx_compiler

        return why_no_cxx_compiler() or ""

    def version(self) -> str:
        return _find_version()
