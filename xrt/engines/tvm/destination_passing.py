"""Variants of a Relax ``main`` that compute into the caller's arrays, and the origin of its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import relax, s_tir
from tvm.ir import Call, GlobalVar, IRModule
from tvm.relax.expr import _update_type
from tvm.s_tir.dlight.analysis import get_sblock_info

from xrt.engines.tvm.export import tensor_type

DESTINATION_SUFFIX = "into"
"""Name of the variant of ``main`` with destination arrays."""
RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
"""The operator that allocates a result after storage planning."""


def fresh_results(main: relax.Function) -> tuple[bool, ...]:
    """Whether each result is a new array: computed by a call, and not returned before."""
    values = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    results = list_tuple_fields(main.body.body, values)
    return tuple(isinstance(r, Call | relax.TupleGetItem) and r not in results[:i] for i, r in enumerate(results))


def add_destination_variant(module: IRModule) -> tuple[IRModule, bool]:
    """Add a variant of a planned ``main`` whose last parameters are destination arrays; also return whether there is one.

    There is none if ``main`` does not allocate a result, returns it twice, or if NumPy and DLPack do not share its type.
    """
    twin = relax.utils.copy_with_new_vars(module["main"])
    bindings = [binding for block in twin.body.blocks for binding in block.bindings]
    storage = {binding.var: binding.var for binding in bindings if get_operator_name(binding) == RESULT}
    values = {binding.var: binding.value for binding in bindings if binding.var not in storage}
    results = [find_result_origin(field, values) for field in list_tuple_fields(twin.body.body, values)]
    if (
        len(set(results)) < len(results)
        or not all(r in storage and _is_shared(r) for r in results)
        or len(results) < len(storage)
    ):
        return module, False
    inner = [binding for binding in bindings if binding.var not in storage]
    body = relax.SeqExpr([relax.BindingBlock(inner)], twin.body.body)
    function = relax.Function([*twin.params, *results], body, twin.ret_ty, twin.is_pure).with_attr(
        "global_symbol", DESTINATION_SUFFIX
    )
    return IRModule({**dict(module.functions_items()), relax.GlobalVar(DESTINATION_SUFFIX): function}, attrs=module.attrs), True


def _is_shared(result: relax.Var) -> bool:
    return tensor_type(result.ty).dtype.numpy.kind in "biuf"


def get_operator_name(binding: Any) -> Any:
    """The operator that a binding calls; None if it calls none."""
    return binding.value.op if isinstance(binding.value, Call) else None


def list_tuple_fields(returned: Any, values: Mapping[Any, Any]) -> list[Any]:
    """The results of a function as a list."""
    whole = _named(returned, values)
    return [_named(field, values) for field in whole.fields] if isinstance(whole, relax.Tuple) else [whole]


def _named(expression: Any, values: Mapping[Any, Any]) -> Any:
    while expression in values and not isinstance(expression, Call):
        expression = values[expression]
    return expression


def find_result_origin(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Follow variable bindings and tuple fields to the origin of an expression."""
    while True:
        if isinstance(expression, relax.TupleGetItem):
            expression = find_result_origin(expression.tuple_value, values).fields[expression.index]
        elif expression in values and not isinstance(values[expression], Call):
            expression = values[expression]
        else:
            return expression


MOST = 4
"""Maximum number of inputs with a specialized variant; each costs a compile of the loop, and one dying input is enough."""


def name_entry(argument: int) -> str:
    """Name of the variant that overwrites an argument with the result."""
    return f"over_{argument}"


def find_inplace_inputs(module: IRModule, inputs: int, excluded: Collection[str] = ()) -> dict[int, tuple[int, ...]]:
    """The inputs that the only result of ``main`` may overwrite, with their argument positions in its only loop.

    Only if ``main`` calls a single loop that reads such an input only at the element that it writes. Parameters from ``inputs``
    on are weights. ``excluded`` names functions in a separate library, which cannot be specialized.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings if isinstance(binding.value, relax.Call)]
    if len(bindings) != 1 or getattr(bindings[0].value.op, "name", "") != "relax.call_tir":
        return {}
    function, arguments = bindings[0].value.args[:2]
    if function.name_hint in excluded:
        return {}
    readable = _read_where_written(module[function])
    candidates = [
        (number, tuple(place for place, argument in enumerate(arguments.fields) if parameter.same_as(argument)))
        for number, parameter in enumerate(main.params[:inputs])
    ]
    return dict([(number, places) for number, places in candidates if places and readable.issuperset(places)][:MOST])


def with_overwriting(module: IRModule, inplace: Mapping[int, tuple[int, ...]]) -> IRModule:
    """Add a variant of ``into`` for each input of `find_inplace_inputs`.

    The variants have the same parameters, but do not read the one that the result overwrites.
    """
    functions = dict(module.functions_items())
    for argument, places in inplace.items():
        twin = relax.utils.copy_with_new_vars(module[DESTINATION_SUFFIX])
        bindings = [binding for block in twin.body.blocks for binding in block.bindings]
        (call,) = [b for b in bindings if isinstance(b.value, Call) and isinstance(b.value.op, GlobalVar)]
        loop = call.value.op
        copy = GlobalVar(f"{loop.name_hint}_{name_entry(argument)}")
        functions[copy] = _merged(functions[loop], places)
        _update_type(copy, functions[copy].ty)
        remaining = [value for place, value in enumerate(call.value.args) if place not in places]
        changed = relax.VarBinding(call.var, Call(copy, remaining, call.value.attrs, call.value.ty_args, ret_ty=call.value.ty))
        blocks = [
            relax.BindingBlock([changed if binding.same_as(call) else binding for binding in block.bindings])
            for block in twin.body.blocks
        ]
        body = relax.SeqExpr(blocks, twin.body.body)
        name = name_entry(argument)
        function = relax.Function(twin.params, body, twin.ret_ty, twin.is_pure).with_attr("global_symbol", name)
        functions[GlobalVar(name)] = function
    return IRModule(functions, attrs=module.attrs)


def _merged(function: Any, places: Collection[int]) -> Any:
    """Replace the parameters at ``places`` by the result, so that LLVM sees a single array read and written at the same index."""
    *inputs, result = function.params
    return function.specialize({inputs[place]: result for place in places})


def _read_where_written(function: Any) -> set[int]:
    """Parameters that the only block of a function reads exactly at the element that it writes."""
    schedule = s_tir.Schedule(function)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except s_tir.ScheduleError:  # sorts and scans are not sequences of blocks
        return set()
    if len(blocks) != 1 or not get_sblock_info(schedule, blocks[0]).is_injective():
        return set()
    stmt, (*inputs, result) = schedule.get(blocks[0]), function.params
    if len(stmt.writes) != 1 or not stmt.writes[0].source.same_as(result):
        return set()
    if stmt.init is not None:  # a sum of one element writes its zero before it reads
        return set()
    return {place for place, buffer in enumerate(inputs) if _is_read_where(stmt, buffer, stmt.writes[0])}


def _is_read_where(stmt: Any, buffer: Any, written: Any) -> bool:
    reads = [read for read in stmt.reads if read.source.same_as(buffer)]
    alike = buffer.dtype == written.source.dtype and list(buffer.shape) == list(written.source.shape)
    return bool(reads) and alike and all(_is_same_place(read, written) for read in reads)


def _is_same_place(read: Any, written: Any) -> bool:
    pairs = zip(read.region, written.region, strict=True)
    return all(a.min.same_as(b.min) and int(a.extent) == int(b.extent) == 1 for a, b in pairs)
