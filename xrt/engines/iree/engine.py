"""The engine class: options, supported nodes, and compilation."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.contract.options import check_options, option
from xrt.engines.iree.compiler import VERSION, compile_module
from xrt.engines.iree.executable import IreeDevice, IreeExecutable, get_device, is_small
from xrt.engines.iree.export import export_module, preprocess
from xrt.engines.iree.support import SUPPORT
from xrt.engines.iree.tables import list_fused_topk
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function, Node


@dataclass(frozen=True)
class Iree(GraphCompiler):
    """IREE on the CPU: fast for chains of elementwise operators. Even the smallest compile takes half a second."""

    name: ClassVar[str] = "iree"
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation("nan", ("Clip", "CumSum", "Equal", "Max", "Min", "Mod", "Sign")),
        Deviation("infinity", ("Mod", "ReduceLogSumExp")),
        Deviation("denormal"),
    )
    supports_dynamic_shapes: ClassVar[bool] = True

    opt_level: int = option(2, at_least=0, at_most=3)
    """IREE's optimization level, 0 to 3."""
    compile_seconds: float = option(120.0, above=0)
    """Time limit of a compile, in seconds."""

    def __post_init__(self) -> None:
        check_options(self)

    def why_not(self, node: Node, function: Function) -> str | None:
        return SUPPORT.why_not(node, function)

    def why_not_dynamic(self, function: Function) -> str | None:
        """Name the first node that is unsupported with these symbolic dims, and why; None if IREE can compile for all sizes."""
        for node in function.nodes:
            if reason := self.why_not(node, function):
                return f"{node.name!r} ({node.op}): {reason}"
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        try:
            prepared = preprocess(function)
            text = export_module(prepared)
        except ValueError as error:
            raise CompileRefused(f"IREE does not support {function.name!r}: {error}") from error
        if names := list_fused_topk(function):
            raise CompileRefused(
                "IREE fuses TopK nodes with inputs of equal types, and the indices of all but the first are wrong", names
            )
        code = compile_module(text, self.opt_level, self.compile_seconds, context.threads, context.workdir)
        return IreeExecutable(code, prepared, _choose_device(prepared, context))

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Return the bytes of the compiled module, which does not contain the weights."""
        if not isinstance(executable, IreeExecutable):
            raise CompileRefused("the executable was not compiled by IREE")
        return executable.code

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        # `preprocess` computes the weights again, in the same order as at compile time.
        prepared = preprocess(function)
        return IreeExecutable(data, prepared, _choose_device(prepared, context))

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """True for all thread counts: the code consists of work groups, which IREE distributes to threads at run time."""
        return True

    def version(self) -> str:
        return f"iree-base-compiler {VERSION}, iree-base-runtime {version('iree-base-runtime')}"


def _choose_device(function: Function, context: CompileContext) -> IreeDevice:
    return get_device(1 if is_small(function) else context.threads)
