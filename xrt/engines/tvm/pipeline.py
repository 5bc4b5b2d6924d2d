"""Compile an imported Relax module with XRT's passes, because TVM's CPU pipeline neither fuses nor schedules loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, IRModule, Op
from tvm.relax.backend import DispatchSortScan
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.runtime import Tensor
from tvm.s_tir import dlight
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from xrt.engines.tvm.executable import DESTINATION
from xrt.engines.tvm.export import ImportedModule, compiler_lock, convert_type
from xrt.engines.tvm.schedules import CpuSchedule
from xrt.graph import Constant

_failures: list[Exception] = []
"""Errors that legalization rules raised in the current call of `legalize`. Guarded by `compiler_lock`."""


def legalize(module: IRModule, target: Target) -> IRModule:
    """Lower Relax operators to TIR loops with TVM's legalization rules. Raises the first error that a rule raised."""
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings(), DispatchSortScan()]
    with compiler_lock, target:
        try:
            legalized = tvm.transform.Sequential([*passes, relax.transform.LegalizeOps(_make_recording_rules())])(module)
            if _failures:
                raise _failures[0]
            return legalized
        finally:
            _failures.clear()


@cache
def _make_recording_rules() -> Any:
    """Map operators to TVM's legalization rules, wrapped to record errors: TVM loses the message of an error inside a pass."""
    rules = {name: Op.get(name).get_attr("FLegalize") for name in Op.list_op_names() if name.startswith("relax.")}
    return tvm_ffi.convert({name: _record_errors(rule) for name, rule in rules.items() if rule is not None})


def _record_errors(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def legalize(builder: Any, call: Any) -> Any:
        try:
            return rule(builder, call)
        except Exception as error:  # noqa: BLE001  # TVM may raise anything
            _failures.append(error)
            return call

    return legalize


def lift_constants(module: IRModule) -> tuple[IRModule, tuple[Constant, ...]]:
    """Turn the constants of ``main`` into its last parameters. Return the module, and the constants in the same order."""
    main = module["main"]
    lifter = _ConstantLifter(module)
    body = lifter.visit_expr(main.body)
    if lifter.lifted:
        parameters = [variable for variable, _ in lifter.lifted.values()]
        module["main"] = relax.Function([*main.params, *parameters], body, main.ret_ty, main.is_pure, main.attrs)
    return module, tuple(constant for _, constant in lifter.lifted.values())


@mutator
class _ConstantLifter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Replaces each constant tensor by a variable. ``lifted`` maps the digest of a constant to the variable and the constant."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.lifted: dict[bytes, tuple[relax.Var, Constant]] = {}

    def visit_generic_const_(self, literal: Any) -> Any:
        # Literal shapes and scalars stay in the program.
        if not isinstance(literal.value, Tensor):
            return literal
        constant = Constant(np.array(literal.value.numpy()))
        # Equal constants share one parameter.
        if constant.digest not in self.lifted:
            self.lifted[constant.digest] = relax.Var(f"constant_{len(self.lifted)}", literal.ty), constant
        return self.lifted[constant.digest][0]


@dataclass(frozen=True, slots=True)
class TvmProgram:
    """Code compiled for the CPU, and how to call it."""

    code: Any
    """A Relax executable, or a module that was exported and loaded."""
    constants: tuple[Constant, ...]
    """Arguments of ``main`` after the inputs: the weights, then the constants that `lift_constants` found."""
    results_are_fresh: tuple[bool, ...]
    """For each result, whether it is in new memory. Otherwise it is an argument or an earlier result, and must be copied."""
    has_destination: bool
    """Whether the code has the function `DESTINATION`, which writes its results to arrays that the caller passes."""
    workspace: int | None
    """Bytes of intermediate values per call; None if the number depends on symbolic dims."""


def build(imported: ImportedModule, target: Target, threads: int, opt_level: int) -> TvmProgram:
    """Compile a module for a CPU. Large loops use ``threads`` threads."""
    is_static = all(convert_type(parameter.ty).is_static for parameter in imported.module["main"].params)
    with target, tvm.transform.PassContext(opt_level=opt_level):
        fused = tvm.transform.Sequential(FUSION)(legalize(imported.module, target))
        # Determined before planning, after which results are allocations instead of calls.
        results_are_fresh = list_fresh_results(fused["main"])
        scheduled = dlight.ApplyDefaultSchedule(CpuSchedule(threads))(_relax_buffer_alignment(fused))
        lifted, constants = lift_constants(scheduled)
        planned = tvm.transform.Sequential(PLANNING)(lifted)
        workspace = _count_planned_bytes(planned["main"]) if is_static else None
        # The virtual machine allocates results of symbolic shape itself, so the caller cannot pass arrays for them.
        extended, has_destination = add_destination_variant(planned) if is_static else (planned, False)
        code = relax.build(tvm.transform.Sequential(LOWERING)(extended), target, relax_pipeline=None)
    return TvmProgram(code, (*imported.weights, *constants), results_are_fresh, has_destination, workspace)


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


def _relax_buffer_alignment(module: IRModule) -> IRModule:
    """Let the loops accept arrays at any address: by default TVM requires multiples of 64 bytes, and NumPy guarantees 16.

    Python cannot change the alignment of a buffer, so this edits the module's serialized form. Unaligned vector loads are as
    fast as aligned ones on CPUs of the last ten years. The pragma of scatter operators, which is only for TVM's front end, is
    renamed too: TVM's LLVM code generator would print a warning about it on stderr.
    """
    text = to_json_graph_str(module).replace('"data_alignment":64', '"data_alignment":1')
    return from_json_graph_str(text.replace('"pragma_scope"', '"scope"'))


ALLOCATE_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")
"""After memory planning this operator allocates the storage of intermediate values."""
ALLOCATE_RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
"""After memory planning this operator allocates the results."""


def list_bindings(function: relax.Function) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def get_called_operator(binding: Any) -> Any:
    """Get the operator or function that a Relax binding calls; None if its value is not a call."""
    return binding.value.op if isinstance(binding.value, Call) else None


def list_result_origins(returned: Any, bindings: Sequence[Any]) -> list[Any]:
    """Find the origin of each result of a function: a parameter, a constant, or a variable that a call computes.

    ``returned`` is the expression that the function returns, a tuple if it has several results. For a field of a tuple that a
    call returns, the origin is a TupleGetItem. Bindings that only rename a value, build a tuple or read its fields are followed.
    """
    values = {binding.var: binding.value for binding in bindings}

    def find_origin(expression: Any) -> Any:
        while True:
            if isinstance(expression, relax.TupleGetItem):
                source = find_origin(expression.tuple_value)
                if not isinstance(source, relax.Tuple):
                    return expression
                expression = source.fields[expression.index]
            elif expression in values and not isinstance(values[expression], Call):
                expression = values[expression]
            else:
                return expression

    origin = find_origin(returned)
    return [find_origin(field) for field in origin.fields] if isinstance(origin, relax.Tuple) else [origin]


def _count_planned_bytes(main: relax.Function) -> int:
    """Sum the bytes of all storage that a function allocates after StaticPlanBlockMemory (argument 0 is the size)."""
    storage = [binding.value for binding in list_bindings(main) if get_called_operator(binding) == ALLOCATE_STORAGE]
    return sum(int(extent) for call in storage for extent in call.args[0].values)


def list_fresh_results(main: relax.Function) -> tuple[bool, ...]:
    """For each result of ``main``, whether it is a new array: a call computes it, and it is not also an earlier result."""
    bindings = list_bindings(main)
    computed = {binding.var for binding in bindings}
    origins = list_result_origins(main.body.body, bindings)
    return tuple(
        (origin in computed or isinstance(origin, relax.TupleGetItem)) and origin not in origins[:k]
        for k, origin in enumerate(origins)
    )


def add_destination_variant(module: IRModule) -> tuple[IRModule, bool]:
    """Add `DESTINATION`, a copy of ``main`` whose last parameters are the arrays to write the results to.

    Memory must be planned already. Return the module and whether the function was added. It is not added if ``main`` returns a
    value that it does not allocate, if it returns a value twice, or if DLPack and NumPy cannot exchange the type of a result.
    """
    # Two functions of a module must not share variables.
    copy = relax.utils.copy_with_new_vars(module["main"])
    bindings = list_bindings(copy)
    allocated = {binding.var for binding in bindings if get_called_operator(binding) == ALLOCATE_RESULT}
    results = list_result_origins(copy.body.body, bindings)
    has_dlpack_types = all(convert_type(result.ty).dtype.numpy.kind in "biuf" for result in results)
    # A result buffer that is allocated but not returned would have no parameter.
    if not has_dlpack_types or set(results) != allocated or len(results) > len(allocated):
        return module, False
    inner = [binding for binding in bindings if binding.var not in allocated]
    body = relax.SeqExpr([relax.BindingBlock(inner)], copy.body.body)
    function = relax.Function([*copy.params, *results], body, copy.ret_ty, copy.is_pure).with_attr("global_symbol", DESTINATION)
    return IRModule({**dict(module.functions_items()), relax.GlobalVar(DESTINATION): function}, attrs=module.attrs), True
