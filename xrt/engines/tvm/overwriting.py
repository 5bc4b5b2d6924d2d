"""Inputs whose memory a program may write its result to: those that one loop reads element by element, where it then writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, s_tir
from tvm.ir import GlobalVar, IRModule
from tvm.s_tir.dlight.analysis import get_sblock_info

__all__ = ["overwritable"]

_ALONE = "tirx.noalias"
"""What lets LLVM take it for granted that no two arrays of a function share memory."""


def overwritable(module: IRModule) -> tuple[IRModule, tuple[int, ...]]:
    """Return the inputs that the only result of ``main`` may take the place of, and a module whose code knows of it.

    ``main`` is one loop then, which reads such an input nowhere but where it writes the result.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings if isinstance(binding.value, relax.Call)]
    if len(bindings) != 1 or getattr(bindings[0].value.op, "name", "") != "relax.call_tir":
        return module, ()
    function, arguments = bindings[0].value.args[:2]
    places = _read_where_written(module[function])
    found = tuple(number for number, parameter in enumerate(main.params) if _given_only_at(places, parameter, arguments.fields))
    return (_shared(module, function), found) if found else (module, ())


def _given_only_at(places: Sequence[int], parameter: relax.Var, arguments: Sequence[Any]) -> bool:
    given = {place for place, argument in enumerate(arguments) if parameter.same_as(argument)}
    return bool(given) and given.issubset(places)


def _shared(module: IRModule, function: GlobalVar) -> IRModule:
    return IRModule({**dict(module.functions_items()), function: module[function].without_attr(_ALONE)}, attrs=module.attrs)


def _read_where_written(function: Any) -> list[int]:
    """Return the parameters that the only block of a function reads element by element, where it writes its last one."""
    schedule = s_tir.Schedule(function)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except s_tir.ScheduleError:  # what sorts and scans is no row of blocks
        return []
    if len(blocks) != 1 or not get_sblock_info(schedule, blocks[0]).is_injective():
        return []
    stmt, (*given, result) = schedule.get(blocks[0]), function.params
    if len(stmt.writes) != 1 or not stmt.writes[0].source.same_as(result):
        return []
    return [place for place, buffer in enumerate(given) if _is_read_where(stmt, buffer, stmt.writes[0])]


def _is_read_where(stmt: Any, buffer: Any, written: Any) -> bool:
    reads = [read for read in stmt.reads if read.source.same_as(buffer)]
    alike = buffer.dtype == written.source.dtype and list(buffer.shape) == list(written.source.shape)
    return bool(reads) and alike and all(_is_same_place(read, written) for read in reads)


def _is_same_place(read: Any, written: Any) -> bool:
    pairs = zip(read.region, written.region, strict=True)
    return all(a.min.same_as(b.min) and int(a.extent) == int(b.extent) == 1 for a, b in pairs)
