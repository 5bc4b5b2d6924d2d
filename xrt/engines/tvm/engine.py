"""The engine class: options, supported nodes, and compilation."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import tvm
import tvm_ffi
from tvm.target import codegen as tvm_codegen

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.contract.options import check_options, option
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.support import has_symbolic_dims
from xrt.engines.tvm import cuda
from xrt.engines.tvm.cuda import DeviceProgram, TvmOnDevice, load_runtime
from xrt.engines.tvm.executable import RelaxExecutable
from xrt.engines.tvm.export import compiler_lock, import_function
from xrt.engines.tvm.pipeline import TvmProgram, build
from xrt.engines.tvm.serialization import load_program, save_program
from xrt.engines.tvm.support import SUPPORT
from xrt.engines.tvm.tables import STATIC_SCHEDULES
from xrt.engines.tvm.target import check_mcpu, make_target
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function, Node

_COMPARISON_OPS = (
    *("Clip", "Equal", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Not"),
    *("ReduceMax", "ReduceMin", "Relu", "Where"),
)


@dataclass(frozen=True)
class Tvm(GraphCompiler):
    """Apache TVM. It compiles quickly, and its code is fast for chains of elementwise operators.

    On CUDA, TVM's GPU schedules generate CUDA C++, which NVRTC compiles for the device in use.
    """

    name: ClassVar[str] = "tvm"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation("nan", (*_COMPARISON_OPS, "Add", "Div", "Elu", "HardSigmoid", "Mod", "Mul", "Selu", "Sign", "Sub")),
        Deviation("infinity", (*_COMPARISON_OPS, "Div", "Mod", "Mul", "PRelu", "ReduceLogSumExp", "Sub", "ThresholdedRelu")),
        Deviation("integer", ("Cast",)),
    )
    supports_dynamic_shapes: ClassVar[bool] = True
    compiles_in_parallel: ClassVar[bool] = False  # the importer and the pass contexts keep state of the process

    opt_level: int = option(3, at_least=0, at_most=3)
    """Optimization level of TVM and LLVM, 0 to 3. At 0 TVM fuses no operators."""
    mcpu: str | None = option(None, names_files=False)
    """The CPU to compile for, by LLVM's name (``"x86-64-v3"``); None: this machine's. On CUDA, the CPU that launches kernels."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.mcpu is not None:
            check_mcpu(self.mcpu)

    def why_not(self, node: Node, function: Function) -> str | None:
        return SUPPORT.why_not(node, function)

    def why_not_dynamic(self, function: Function) -> str | None:
        """Explain the first node that is unsupported, or faster with static shapes; None if there is no such node."""
        for node in function.nodes:
            if reason := self.why_not(node, function):
                return f"{node.name!r} ({node.op}): {reason}"
            if node.op in STATIC_SCHEDULES and has_symbolic_dims(node, function):
                return f"{node.name!r} ({node.op}): its schedule is faster with static shapes"
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Compile for the context's device. Raises CompileRefused if TVM cannot, or if a CUDA library is missing."""
        on_host = context.device == "cpu"
        architecture = "" if on_host else _require_accelerator(context).architecture
        target = make_target(self.mcpu, self.opt_level)
        program: TvmProgram | DeviceProgram
        try:
            with compiler_lock:
                imported = import_function(function, polynomials=on_host)
                if on_host:
                    program = build(imported, target, context.threads, self.opt_level)
                else:
                    program = cuda.build(imported, cuda.make_target(architecture, target), self.opt_level, architecture)
        except CompileRefused:
            raise
        except Exception as cause:
            raise CompileRefused(f"TVM cannot compile {function.name!r}: {summarize_error(cause)}") from cause
        return _make_executable(program, function, context)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Serialize the compiled library, and the constants that are not in the Function; CompileRefused without a C compiler."""
        if not isinstance(executable, RelaxExecutable | TvmOnDevice):
            raise CompileRefused("the executable was not compiled by TVM")
        if executable.saved is not None:
            return executable.saved
        with compiler_lock:
            return save_program(executable.program, executable.function, context.workdir)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        program: TvmProgram | DeviceProgram
        if context.device == "cpu":
            program = load_program(TvmProgram, data, function, context.workdir)
        else:
            _require_accelerator(context)  # first, because TVM's CUDA runtime registers the loader of device code
            program = load_program(DeviceProgram, data, function, context.workdir)
        executable = _make_executable(program, function, context)
        executable.saved = data
        return executable

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """True for equal counts, and for code that was compiled for several threads: parallel loops run on any number."""
        return saved == threads or saved > 1

    def available_devices(self) -> tuple[str, ...]:
        # XRT keeps the arrays of a CUDA device in CuPy.
        return self.devices if find_spec("cupy") is not None else ("cpu",)

    def remarks(self, function: Function) -> tuple[str, ...]:
        return ("untuned: loops follow fixed rules, not measurements on this processor",)

    def version(self) -> str:
        return f"tvm {tvm.__version__}, llvm {tvm_codegen.llvm_version_major()}, tvm-ffi {tvm_ffi.__version__}"


def _require_accelerator(context: CompileContext) -> Accelerator:
    """Get the accelerator of the context and load TVM's runtime for it.

    Raises CompileRefused if the accelerator's arrays have no addresses to pass to TVM, or if a CUDA library is missing.
    """
    if context.accelerator is None or not context.accelerator.has_addresses:
        raise CompileRefused(f"TVM cannot use {context.device}: its arrays have no memory addresses")
    load_runtime()
    return context.accelerator


def _make_executable(
    program: TvmProgram | DeviceProgram, function: Function, context: CompileContext
) -> RelaxExecutable | TvmOnDevice:
    """Make the executable of a compiled or loaded program for the context's device."""
    if isinstance(program, TvmProgram):
        return RelaxExecutable(program, context.threads, function)
    device = tvm.runtime.device("cuda", int(context.device.partition(":")[2] or 0))
    return TvmOnDevice(program, function, _require_accelerator(context), device)
