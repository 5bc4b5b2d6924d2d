"""From an imported Relax module to a program for CUDA, by TVM's own schedules for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.s_tir import dlight
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from xrt.engines.tvm.constant_lifting import lift_constants
from xrt.engines.tvm.cuda.library import use_nvrtc
from xrt.engines.tvm.cuda.nvrtc import binary
from xrt.engines.tvm.cuda.preallocated import AllocationFree, lift_allocations
from xrt.engines.tvm.pipeline import FUSION, LOWERING, PLANNING, legalize
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.graph import Constant, TensorType

__all__ = ["OLDEST", "DeviceProgram", "build", "list_kernel_sources", "make_target"]

OLDEST = "sm_75"
"""What CUDA 13 compiles for at least."""


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Compiled code, and what it is called with: inputs, constants, the blocks of its workspace, arrays for its results."""

    code: Any
    """A Relax executable, or the module that one was exported to and loaded from."""
    constants: tuple[Constant, ...]
    workspace: tuple[int, ...]
    """The bytes of each block."""
    made: tuple[TensorType, ...]
    """The arrays that it computes into."""
    results: tuple[int, ...]
    """For each result the argument that holds it after the call: one of what is made, or an input or a constant."""


def make_target(architecture: str, host: Target) -> Target:
    """Return the target for an architecture by CUDA's name (``sm_90``), launched from the host's code."""
    limits = {
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
    }
    return Target({"kind": "cuda", "arch": architecture, **limits}, host=host)


def build(module: IRModule, weights: Sequence[Constant], target: Target, opt_level: int, architecture: str = "") -> DeviceProgram:
    """Compile the module's ``main``, whose last parameters are the weights; to source only, where no architecture is given.

    Raises CompileRefused for what is no work for a device alone, and where NVRTC is missing or refuses.
    """
    with target, tvm.transform.PassContext(opt_level=opt_level), use_nvrtc(lambda source: _machine_code(source, architecture)):
        fused = tvm.transform.Sequential(FUSION)(legalize(_plainly_named(module), target))
        free, constants = lift_constants(dlight.ApplyDefaultSchedule(*_rules())(_quiet(fused)))
        bare = lift_allocations(tvm.transform.Sequential(PLANNING)(free))
        code = relax.build(tvm.transform.Sequential(LOWERING)(bare.module), target, relax_pipeline=None)
    _check_memory(code)
    return _program(code, (*weights, *constants), bare)


def _plainly_named(module: IRModule) -> IRModule:
    """Return the module with parameters of ``main`` whose names are C's too: TVM writes them into its source as they are."""
    main = module["main"]
    plain = [relax.Var(f"given{place}", old.ty) for place, old in enumerate(main.params)]
    bindings = [relax.VarBinding(old, new) for old, new in zip(main.params, plain, strict=True)]
    body = relax.SeqExpr([relax.BindingBlock(bindings), *main.body.blocks], main.body.body)
    functions = {**dict(module.functions_items()), module.get_global_var("main"): relax.Function(plain, body, main.ret_ty)}
    return IRModule({gvar: f.with_attrs(main.attrs) if gvar.name_hint == "main" else f for gvar, f in functions.items()})


def _program(code: Any, constants: tuple[Constant, ...], bare: AllocationFree) -> DeviceProgram:
    return DeviceProgram(code, constants, bare.workspace, bare.made, bare.results)


def _machine_code(source: str, architecture: str) -> bytes:
    return binary(source, architecture) if architecture else b""


def _rules() -> list[Any]:
    """Return TVM's default rules, in its order: the first that fits a loop nest schedules it."""
    gpu = dlight.gpu
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def _quiet(module: IRModule) -> IRModule:
    """Return the module without the pragma of the scatter operators, of which the host's code generator warns on stderr."""
    return from_json_graph_str(to_json_graph_str(module).replace('"pragma_scope"', '"scope"'))


def list_kernel_sources(program: DeviceProgram) -> str:
    """Return the CUDA C++ of a program that was compiled here; empty where it launches nothing."""
    return "\n".join(str(module.inspect_source()) for module in _imported(program.code.mod) if module.kind == "cuda")


def _imported(module: Any) -> list[Any]:
    return [inner for direct in module.imports for inner in (direct, *_imported(direct))]


def _check_memory(code: Any) -> None:
    """Raise CompileRefused where code of the host takes memory of the device: from a pool of the thread's, for no stream."""
    for module in _imported(code.mod):
        if module.kind == "llvm" and _WORKSPACE in str(module.inspect_source("ll")):
            raise CompileRefused("TVM's schedule takes working memory that follows no stream, as those that sort and scan do")


_WORKSPACE = "TVMBackendAllocWorkspace"
