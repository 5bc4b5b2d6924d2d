"""What a ``main`` of Relax returns: where each result comes from, and a twin of it that computes into arrays of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, IRModule

from xrt.engines.tvm.export import tensor_type

__all__ = [
    "DESTINATION_SUFFIX",
    "RESULT",
    "add_destination_variant",
    "find_result_origin",
    "fresh_results",
    "get_operator_name",
    "list_tuple_fields",
]

DESTINATION_SUFFIX = "into"
"""The name of the twin."""
RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
"""What allocates a result, where storage has been planned."""


def fresh_results(main: relax.Function) -> tuple[bool, ...]:
    """Tell which results come out of a call, each for the first time."""
    values = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    results = list_tuple_fields(main.body.body, values)
    return tuple(isinstance(r, Call | relax.TupleGetItem) and r not in results[:i] for i, r in enumerate(results))


def add_destination_variant(module: IRModule) -> tuple[IRModule, bool]:
    """Return the planned module with a twin of ``main`` whose last parameters are arrays for its results; and whether it has one.

    It has none where a result is not allocated by it, or twice a result, or of a type that NumPy and DLPack do not share.
    """
    twin = relax.utils.copy_with_new_vars(module["main"])
    bindings = [binding for block in twin.body.blocks for binding in block.bindings]
    made = {binding.var: binding.var for binding in bindings if get_operator_name(binding) == RESULT}
    values = {binding.var: binding.value for binding in bindings if binding.var not in made}
    results = [find_result_origin(field, values) for field in list_tuple_fields(twin.body.body, values)]
    if len(set(results)) < len(results) or not all(r in made and _is_shared(r) for r in results) or len(results) < len(made):
        return module, False
    kept = [binding for binding in bindings if binding.var not in made]
    body = relax.SeqExpr([relax.BindingBlock(kept)], twin.body.body)
    function = relax.Function([*twin.params, *results], body, twin.ret_ty, twin.is_pure).with_attr(
        "global_symbol", DESTINATION_SUFFIX
    )
    return IRModule({**dict(module.functions_items()), relax.GlobalVar(DESTINATION_SUFFIX): function}, attrs=module.attrs), True


def _is_shared(result: relax.Var) -> bool:
    return tensor_type(result.ty).dtype.numpy.kind in "biuf"


def get_operator_name(binding: Any) -> Any:
    """Return the operator that a binding calls, None where it calls none."""
    return binding.value.op if isinstance(binding.value, Call) else None


def list_tuple_fields(returned: Any, values: Mapping[Any, Any]) -> list[Any]:
    """Return what a function returns, one by one."""
    whole = _named(returned, values)
    return [_named(field, values) for field in whole.fields] if isinstance(whole, relax.Tuple) else [whole]


def _named(expression: Any, values: Mapping[Any, Any]) -> Any:
    while expression in values and not isinstance(expression, Call):
        expression = values[expression]
    return expression


def find_result_origin(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Return the parameter, or whatever else, that an expression is another name of."""
    while True:
        if isinstance(expression, relax.TupleGetItem):
            expression = find_result_origin(expression.tuple_value, values).fields[expression.index]
        elif expression in values and not isinstance(values[expression], Call):
            expression = values[expression]
        else:
            return expression
