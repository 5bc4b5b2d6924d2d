"""From an imported Relax module to a program: XRT's own passes, because TVM's CPU pipeline neither fuses nor schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.backend import DispatchSortScan
from tvm.s_tir import dlight
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from xrt.engines.tvm.constant_lifting import lift_constants
from xrt.engines.tvm.destination_passing import add_destination_variant, fresh_results
from xrt.engines.tvm.export import tensor_type
from xrt.engines.tvm.inplace_analysis import find_inplace_inputs, with_overwriting
from xrt.engines.tvm.legalization import legalize_operators
from xrt.engines.tvm.no_vectorize import compile_without_vectorizer, find_wrapping_functions
from xrt.engines.tvm.schedules import CpuSchedule

if TYPE_CHECKING:
    from xrt.graph import Constant

__all__ = ["FUSION", "LOWERING", "PLANNING", "TvmProgram", "build", "legalize"]


@dataclass(frozen=True, slots=True)
class TvmProgram:
    """Compiled code, its arguments other than the inputs, and which of its results have memory of their own."""

    code: Any
    """A Relax executable, or the module that one was exported to and loaded from."""
    constants: tuple[Constant, ...]
    """The last arguments of ``main``: the weights, and the constants that compiling has left or made."""
    fresh: tuple[bool, ...]
    """False for a result that is an argument, a constant, or an earlier result: it must be copied."""
    fills: bool
    """Whether the code has a twin of ``main`` that computes into given arrays."""
    in_place: tuple[int, ...]
    """The arguments whose memory may be given for the result: each has a twin of ``main`` that writes over it."""
    workspace: int | None
    """Bytes that the planned storage of inner values takes in a call; None where it depends on sizes of symbolic dims."""


def legalize(module: IRModule, target: Target) -> IRModule:
    """Return the module with its operators as loops; raises for an operator that has none on a CPU."""
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings(), DispatchSortScan()]
    with target:
        return legalize_operators(tvm.transform.Sequential(passes)(module))


def build(
    module: IRModule,
    weights: Sequence[Constant],
    target: Target,
    threads: int,
    opt_level: int,
) -> TvmProgram:
    """Compile the module's ``main``, whose last parameters are the weights; its loops are shared between that many threads."""
    is_open = not all(tensor_type(parameter.ty).is_static for parameter in module["main"].params)
    with target, tvm.transform.PassContext(opt_level=opt_level):
        fused = tvm.transform.Sequential(FUSION)(legalize(module, target))
        fresh = fresh_results(fused["main"])
        wrapping = find_wrapping_functions(fused)
        scheduled = dlight.ApplyDefaultSchedule(CpuSchedule(threads))(_any_alignment(fused))
        inputs = 0 if is_open else len(fused["main"].params) - len(weights)
        in_place = find_inplace_inputs(scheduled, inputs, wrapping)
        free, constants = lift_constants(compile_without_vectorizer(scheduled, wrapping, target))
        planned = tvm.transform.Sequential(PLANNING)(free)
        workspace = None if is_open else _storage(planned["main"])
        both, fills = (planned, False) if is_open else add_destination_variant(planned)
        in_place = in_place if fills else {}
        both = with_overwriting(both, in_place)
        code = relax.build(tvm.transform.Sequential(LOWERING)(both), target, relax_pipeline=None)
    return TvmProgram(code, (*weights, *constants), fresh, fills, tuple(in_place), workspace)


FUSION = [
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
    relax.transform.DeadCodeElimination(),
]

PLANNING = [
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    relax.transform.StaticPlanBlockMemory(),
]

LOWERING = [
    relax.transform.LowerAllocTensor(),
    relax.transform.KillAfterLastUse(),
    relax.transform.LowerRuntimeBuiltin(),
    relax.transform.ComputePrimValue(),
    relax.transform.VMShapeLower(),
    relax.transform.AttachGlobalSymbol(),
]


def _any_alignment(module: IRModule) -> IRModule:
    """Let loops take arrays at any address, where TVM demands multiples of 64 and NumPy gives multiples of 16.

    A buffer's alignment cannot be changed from Python, but a module can be written and read. Vector loads that need no
    alignment are as quick on the processors of the last ten years. The scatter operators carry a pragma that only TVM's
    front end knows; LLVM's side warns of it on stderr, unless it does not look like a pragma.
    """
    text = to_json_graph_str(module).replace('"data_alignment":64', '"data_alignment":1')
    return from_json_graph_str(text.replace('"pragma_scope"', '"scope"'))


def _storage(main: relax.Function) -> int:
    """Return the bytes of the storage that a planned function allocates."""
    sizes: list[int] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.ir.Call) and expression.op == _ALLOCATION:
            sizes.extend(int(extent) for extent in expression.args[0].values)

    relax.analysis.post_order_visit(main, visit)
    return sum(sizes)


_ALLOCATION = tvm.ir.Op.get("relax.memory.alloc_storage")
