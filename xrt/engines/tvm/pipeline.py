"""Compile an imported Relax module with XRT's passes, because TVM's CPU pipeline neither fuses nor schedules loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, IRModule, Op, TupleType
from tvm.relax.backend import DispatchSortScan
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.runtime import Tensor
from tvm.s_tir import dlight
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from xrt.engines.tvm.executable import DESTINATION
from xrt.engines.tvm.export import compiler_lock, tensor_type
from xrt.engines.tvm.schedules import CpuSchedule
from xrt.graph import Constant

_REMAINDER_OPERATORS = ('"prim.FloorMod"', '"prim.Mod"')
_NO_VECTORIZER_FLAG = "-vectorize-loops:bool=false"


def find_remainder_functions(module: IRModule) -> frozenset[str]:
    """Find the TIR functions of the module that compute a remainder; return their names."""
    functions = {gvar.name_hint: f for gvar, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    # Serializing once is faster than once per function, and most modules compute no remainder.
    if not _computes_remainder(module):
        return frozenset()
    return frozenset(name for name, function in functions.items() if _computes_remainder(function))


def _computes_remainder(node: Any) -> bool:
    serialized = to_json_graph_str(node)
    return any(operator in serialized for operator in _REMAINDER_OPERATORS)


def compile_without_vectorizer(module: IRModule, names: Collection[str], target: Target) -> IRModule:
    """Compile the named TIR functions with LLVM's vectorizer off, because it miscompiles remainders in indices.

    The result is a library attached to the module, and ``main`` calls the library in place of the functions.
    """
    if not names:
        return module
    gvars = [module.get_global_var(name) for name in names]
    loops = IRModule({gvar: module[gvar].with_attr("global_symbol", gvar.name_hint) for gvar in gvars})
    library = tvm.tirx.build(loops, target=Target({**target.export(), "cl-opt": [_NO_VECTORIZER_FLAG]}))
    main = _LibraryCaller(module, names).visit_expr(module["main"])
    rest = {gvar: f for gvar, f in module.functions_items() if gvar.name_hint not in names}
    rest[module.get_global_var("main")] = main
    return IRModule(rest).with_attr("external_mods", [library])


@mutator
class _LibraryCaller(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Replaces calls of the named TIR functions by calls of library functions with the same names."""

    def __init__(self, module: IRModule, names: Collection[str]) -> None:
        super().__init__(module)
        self.names = names

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir" or call.args[0].name_hint not in self.names:
            return call
        (result,) = call.ty_args
        results = list(result.fields) if isinstance(result, TupleType) else [result]  # loops with several results return a tuple
        return relax.op.call_dps_packed(call.args[0].name_hint, call.args[1], out_ty=results)


_failures: list[Exception] = []
"""Errors that legalization rules raised in the running pass. Guarded by `compiler_lock`."""


def legalize_operators(module: IRModule) -> IRModule:
    """Lower Relax operators to TIR loops with TVM's legalization rules. Raises the first error that a rule raised."""
    with compiler_lock:
        try:
            legalized = relax.transform.LegalizeOps(_list_rules())(module)
            if _failures:
                raise _failures[0]
            return legalized
        finally:
            _failures.clear()


@cache
def _list_rules() -> Any:
    """List TVM's legalization rules by operator, wrapped to record errors: TVM loses the message of one raised in a pass."""
    legalizations = {name: Op.get(name).get_attr("FLegalize") for name in Op.list_op_names() if name.startswith("relax.")}
    return tvm_ffi.convert({name: _record_errors(rule) for name, rule in legalizations.items() if rule is not None})


def _record_errors(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def legalize(builder: Any, call: Any) -> Any:
        try:
            return rule(builder, call)
        except Exception as error:  # noqa: BLE001  # TVM may raise anything
            _failures.append(error)
            return call

    return legalize


def lift_constants(module: IRModule) -> tuple[IRModule, tuple[Constant, ...]]:
    """Turn the constants of ``main`` into its last parameters. Return the module and the constants in that order."""
    main = module["main"]
    lifter = _ConstantLifter(module)
    body = lifter.visit_expr(main.body)
    if lifter.lifted:
        parameters = [variable for variable, _ in lifter.lifted.values()]
        module["main"] = relax.Function([*main.params, *parameters], body, main.ret_ty, main.is_pure, main.attrs)
    return module, tuple(constant for _, constant in lifter.lifted.values())


@mutator
class _ConstantLifter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Replaces each constant tensor by a variable; ``lifted`` has the variable and the constant by digest."""

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
    fresh: tuple[bool, ...]
    """For each result, whether it is in new memory. A result that is an argument or an earlier result must be copied."""
    fills: bool
    """Whether the code has the function `DESTINATION`, which writes to result arrays that the caller passes."""
    workspace: int | None
    """Bytes of intermediate values per call; None if that depends on symbolic dims."""


def legalize(module: IRModule, target: Target) -> IRModule:
    """Lower the Relax operators of a module to TIR loops; raises TVM's error if an operator has no lowering."""
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
    """Compile the module's ``main``, whose last arguments are ``weights``, for a CPU. Large loops use ``threads`` threads."""
    is_open = not all(tensor_type(parameter.ty).is_static for parameter in module["main"].params)
    with target, tvm.transform.PassContext(opt_level=opt_level):
        fused = tvm.transform.Sequential(FUSION)(legalize(module, target))
        # Determined before planning, which replaces each call by an allocation that the call fills.
        fresh = list_fresh_results(fused["main"])
        # Determined before scheduling, which adds remainders to the indices of fused and split loops. Those are compiled
        # correctly.
        remainder_functions = find_remainder_functions(fused)
        scheduled = dlight.ApplyDefaultSchedule(CpuSchedule(threads))(_relax_buffer_alignment(fused))
        lifted, constants = lift_constants(compile_without_vectorizer(scheduled, remainder_functions, target))
        planned = tvm.transform.Sequential(PLANNING)(lifted)
        workspace = None if is_open else _count_planned_bytes(planned["main"])
        # The virtual machine allocates results of symbolic shape itself, so the caller cannot pass arrays for them.
        extended, fills = (planned, False) if is_open else add_destination_variant(planned)
        code = relax.build(tvm.transform.Sequential(LOWERING)(extended), target, relax_pipeline=None)
    return TvmProgram(code, (*weights, *constants), fresh, fills, workspace)


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


def _count_planned_bytes(main: relax.Function) -> int:
    """Sum the bytes of all storage that a function allocates after StaticPlanBlockMemory."""
    sizes: list[int] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.ir.Call) and expression.op == _ALLOCATE_STORAGE:
            sizes.extend(int(extent) for extent in expression.args[0].values)

    relax.analysis.post_order_visit(main, visit)
    return sum(sizes)


_ALLOCATE_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")


ALLOCATE_RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
"""After memory planning this operator allocates the results. Intermediate values are placed in planned storage instead."""


def list_fresh_results(main: relax.Function) -> tuple[bool, ...]:
    """List for each result of ``main`` whether it is a new array: computed by a call, and not an earlier result too."""
    values = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    results = list_tuple_fields(main.body.body, values)
    return tuple(isinstance(r, Call | relax.TupleGetItem) and r not in results[:i] for i, r in enumerate(results))


def add_destination_variant(module: IRModule) -> tuple[IRModule, bool]:
    """Add `DESTINATION`: a copy of a planned ``main`` that writes its results to arrays passed as last parameters.

    Return the module and whether the function was added. It is not if ``main`` returns a value that it does not allocate, if it
    returns a value twice, or if DLPack and NumPy cannot exchange the type of a result.
    """
    # Two functions of a module must not share variables.
    copy = relax.utils.copy_with_new_vars(module["main"])
    bindings = [binding for block in copy.body.blocks for binding in block.bindings]
    storage = {binding.var: binding.var for binding in bindings if get_called_operator(binding) == ALLOCATE_RESULT}
    values = {binding.var: binding.value for binding in bindings if binding.var not in storage}
    results = [find_result_origin(field, values) for field in list_tuple_fields(copy.body.body, values)]
    # The last condition: a result that is allocated but not returned would have no parameter to be written to.
    if (
        len(set(results)) < len(results)
        or not all(r in storage and _has_dlpack_type(r) for r in results)
        or len(results) < len(storage)
    ):
        return module, False
    inner = [binding for binding in bindings if binding.var not in storage]
    body = relax.SeqExpr([relax.BindingBlock(inner)], copy.body.body)
    function = relax.Function([*copy.params, *results], body, copy.ret_ty, copy.is_pure).with_attr("global_symbol", DESTINATION)
    return IRModule({**dict(module.functions_items()), relax.GlobalVar(DESTINATION): function}, attrs=module.attrs), True


def _has_dlpack_type(result: relax.Var) -> bool:
    return tensor_type(result.ty).dtype.numpy.kind in "biuf"


def get_called_operator(binding: Any) -> Any:
    """The operator or function that a Relax binding calls; None if its value is not a call."""
    return binding.value.op if isinstance(binding.value, Call) else None


def list_tuple_fields(returned: Any, values: Mapping[Any, Any]) -> list[Any]:
    """List the results of a function whose body ends with ``returned``. ``values`` maps variables to the bound values."""
    whole = _resolve(returned, values)
    return [_resolve(field, values) for field in whole.fields] if isinstance(whole, relax.Tuple) else [whole]


def _resolve(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Follow variable bindings as far as possible; unlike `find_result_origin`, into the value of a call."""
    while expression in values and not isinstance(expression, Call):
        expression = values[expression]
    return expression


def find_result_origin(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Follow variable bindings and tuple fields from an expression back to a parameter, or the variable that holds a call."""
    while True:
        if isinstance(expression, relax.TupleGetItem):
            expression = find_result_origin(expression.tuple_value, values).fields[expression.index]
        elif expression in values and not isinstance(values[expression], Call):
            expression = values[expression]
        else:
            return expression
