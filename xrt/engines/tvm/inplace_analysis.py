"""Inputs whose memory a program may write its result to: those that one loop reads element by element, where it then writes.

Code over two arrays is vectorized on the promise that they share no memory. So a call in place has code of its own, in which
the input and the result are one array.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tvm import relax, s_tir
from tvm.ir import Call, GlobalVar, IRModule
from tvm.relax.expr import _update_type
from tvm.s_tir.dlight.analysis import get_sblock_info

from xrt.engines.tvm.destination_passing import DESTINATION_SUFFIX

__all__ = ["MOST", "find_inplace_inputs", "name_entry", "with_overwriting"]

MOST = 4
"""Inputs that get code of their own; each costs a compile of the loop, and one that dies in the call is enough."""


def name_entry(argument: int) -> str:
    """Return the name of the twin of ``main`` that writes its result over that argument."""
    return f"over_{argument}"


def find_inplace_inputs(module: IRModule, inputs: int, excluded: Collection[str] = ()) -> dict[int, tuple[int, ...]]:
    """Return the inputs that the only result of ``main`` may replace, with where its only loop is given each of them.

    ``main`` is one loop then, which reads such an input nowhere but where it writes the result. Its parameters from number
    ``inputs`` on are weights. ``excluded`` names the functions that are compiled apart; they are not copied.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings if isinstance(binding.value, relax.Call)]
    if len(bindings) != 1 or getattr(bindings[0].value.op, "name", "") != "relax.call_tir":
        return {}
    function, arguments = bindings[0].value.args[:2]
    if function.name_hint in excluded:
        return {}
    readable = _read_where_written(module[function])
    given = [(number, _places_of(parameter, arguments.fields)) for number, parameter in enumerate(main.params[:inputs])]
    return dict([(number, places) for number, places in given if places and readable.issuperset(places)][:MOST])


def _places_of(parameter: relax.Var, arguments: Sequence[Any]) -> tuple[int, ...]:
    return tuple(place for place, argument in enumerate(arguments) if parameter.same_as(argument))


def with_overwriting(module: IRModule, found: Mapping[int, tuple[int, ...]]) -> IRModule:
    """Return the planned module with a twin of ``into`` for each argument that `find_inplace_inputs` found.

    The twins take the same arguments, and never read the one that the result replaces.
    """
    functions = dict(module.functions_items())
    for argument, places in found.items():
        twin = relax.utils.copy_with_new_vars(module[DESTINATION_SUFFIX])
        (call,) = [binding for block in twin.body.blocks for binding in block.bindings if _calls_loop(binding)]
        loop = call.value.op
        copy = GlobalVar(f"{loop.name_hint}_{name_entry(argument)}")
        functions[copy] = _merged(functions[loop], places)
        _update_type(copy, functions[copy].ty)
        given = [value for place, value in enumerate(call.value.args) if place not in places]
        changed = relax.VarBinding(call.var, Call(copy, given, call.value.attrs, call.value.ty_args, ret_ty=call.value.ty))
        blocks = [_replaced(block, call, changed) for block in twin.body.blocks]
        body = relax.SeqExpr(blocks, twin.body.body)
        name = name_entry(argument)
        function = relax.Function(twin.params, body, twin.ret_ty, twin.is_pure).with_attr("global_symbol", name)
        functions[GlobalVar(name)] = function
    return IRModule(functions, attrs=module.attrs)


def _calls_loop(binding: Any) -> bool:
    return isinstance(binding.value, Call) and isinstance(binding.value.op, GlobalVar)


def _replaced(block: Any, before: Any, after: Any) -> relax.BindingBlock:
    return relax.BindingBlock([after if binding.same_as(before) else binding for binding in block.bindings])


def _merged(function: Any, places: Collection[int]) -> Any:
    """Return the loop with its result in those parameters' stead: LLVM then sees one array, read and written at one place."""
    *given, result = function.params
    return function.specialize({given[place]: result for place in places})


def _read_where_written(function: Any) -> set[int]:
    """Return the parameters that the only block of a function reads element by element, where it writes its last one."""
    schedule = s_tir.Schedule(function)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except s_tir.ScheduleError:  # what sorts and scans is no row of blocks
        return set()
    if len(blocks) != 1 or not get_sblock_info(schedule, blocks[0]).is_injective():
        return set()
    stmt, (*given, result) = schedule.get(blocks[0]), function.params
    if len(stmt.writes) != 1 or not stmt.writes[0].source.same_as(result):
        return set()
    if stmt.init is not None:  # a sum of one element writes its zero before it reads
        return set()
    return {place for place, buffer in enumerate(given) if _is_read_where(stmt, buffer, stmt.writes[0])}


def _is_read_where(stmt: Any, buffer: Any, written: Any) -> bool:
    reads = [read for read in stmt.reads if read.source.same_as(buffer)]
    alike = buffer.dtype == written.source.dtype and list(buffer.shape) == list(written.source.shape)
    return bool(reads) and alike and all(_is_same_place(read, written) for read in reads)


def _is_same_place(read: Any, written: Any) -> bool:
    pairs = zip(read.region, written.region, strict=True)
    return all(a.min.same_as(b.min) and int(a.extent) == int(b.extent) == 1 for a, b in pairs)
