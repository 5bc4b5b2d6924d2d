"""Constants become parameters of ``main``: compiled code then holds none, and is small to save.

A call hands them over like any argument, by reference. That costs some tens of nanoseconds each, so equal ones are handed
over once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.runtime import Tensor

from xrt.graph import Constant

__all__ = ["lift_constants"]


def lift_constants(module: IRModule) -> tuple[IRModule, tuple[Constant, ...]]:
    """Return the module with the constants of its ``main`` as its last parameters, and those constants."""
    main = module["main"]
    lifting = _Lifting(module)
    body = lifting.visit_expr(main.body)
    if lifting.found:
        parameters = [variable for variable, _ in lifting.found.values()]
        module["main"] = relax.Function([*main.params, *parameters], body, main.ret_ty, main.is_pure, main.attrs)
    return module, tuple(constant for _, constant in lifting.found.values())


@mutator
class _Lifting(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Puts a variable for each constant tensor."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.found: dict[bytes, tuple[relax.Var, Constant]] = {}

    def visit_generic_const_(self, literal: Any) -> Any:
        if not isinstance(literal.value, Tensor):
            return literal
        constant = Constant(np.array(literal.value.numpy()))
        if constant.digest not in self.found:
            self.found[constant.digest] = relax.Var(f"constant_{len(self.found)}", literal.ty), constant
        return self.found[constant.digest][0]
