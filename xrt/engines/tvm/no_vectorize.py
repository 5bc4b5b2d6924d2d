"""Loops whose indices wrap around are compiled without LLVM's loop vectoriser, which gets them wrong.

LLVM 22 takes ``i % 4`` in an index for a straight run under a run-time check that it then folds away: of 60 random
Tile operators 10 gave wrong numbers on a processor with AVX-512, and 6 with AVX2. The smallest one known tiles
float32[3,4,5] by (6, 4, 2). Such functions become a library of their own, which ``main`` calls by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, IRModule, TupleType
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm_ffi.serialization import to_json_graph_str

__all__ = ["compile_without_vectorizer", "find_wrapping_functions"]

_WRAPS = ('"prim.FloorMod"', '"prim.Mod"')
_NO_VECTORISER = "-vectorize-loops:bool=false"


def find_wrapping_functions(module: IRModule) -> frozenset[str]:
    """Return the names of the functions that compute a remainder. TVM lets Python read its loops only as text."""
    functions = {gvar.name_hint: f for gvar, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    if not _wraps(module):
        return frozenset()
    return frozenset(name for name, function in functions.items() if _wraps(function))


def _wraps(node: Any) -> bool:
    text = to_json_graph_str(node)
    return any(word in text for word in _WRAPS)


def compile_without_vectorizer(module: IRModule, names: Collection[str], target: Target) -> IRModule:
    """Return the module with those functions compiled into a library that it carries along."""
    if not names:
        return module
    gvars = [module.get_global_var(name) for name in names]
    loops = IRModule({gvar: module[gvar].with_attr("global_symbol", gvar.name_hint) for gvar in gvars})
    library = tvm.tirx.build(loops, target=_without_vectoriser(target))
    main = _ByName(module, names).visit_expr(module["main"])
    rest = {gvar: f for gvar, f in module.functions_items() if gvar.name_hint not in names}
    rest[module.get_global_var("main")] = main
    return IRModule(rest).with_attr("external_mods", [library])


def _without_vectoriser(target: Target) -> Target:
    return Target({**target.export(), "cl-opt": [_NO_VECTORISER]})


@mutator
class _ByName(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Turns calls of functions of the module into calls of functions of a library."""

    def __init__(self, module: IRModule, names: Collection[str]) -> None:
        super().__init__(module)
        self.names = names

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir" or call.args[0].name_hint not in self.names:
            return call
        (result,) = call.ty_args
        results = list(result.fields) if isinstance(result, TupleType) else [result]  # a loop of several results has a tuple
        return relax.op.call_dps_packed(call.args[0].name_hint, call.args[1], out_ty=results)
