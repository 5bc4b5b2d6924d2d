"""Arithmetic that other engines write otherwise: sums, powers, choices, and products by an equation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.kernels.arithmetic import binary
from xrt.engines.kernels.elementwise import universal
from xrt.engines.toolkit.array_ops.precision import widen
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []

for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(ops, _op, mutable=(0, 1))(universal(_name))


@binary(ops, "Pow")
def power(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(base: Array, exponent: Array) -> Array:
        if base.dtype.kind in "iu" and exponent.dtype.kind == "i" and bool((exponent < 0).any()):
            base, exponent, dtype = base.astype(np.float64), exponent.astype(np.float64), base.dtype
            return xp.power(base, exponent).astype(dtype)
        return xp.power(base, exponent).astype(base.dtype)

    return run


@ops("Where", priority=1, mutable=(1, 2))
def where(node: Node, env: KernelContext) -> Run:
    xp = env.xp

    def run(condition: Array, yes: Array, no: Array, out: Array | None = None) -> Array:
        if out is None:
            return xp.where(condition, yes, no)
        if out is yes:
            xp.copyto(out, no, where=~condition)
            return out
        if out is not no:
            xp.copyto(out, no)
        xp.copyto(out, yes, where=condition)
        return out

    return run


@ops("Einsum")
def einsum(node: Node, env: KernelContext) -> Run:
    equation = node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(t) for t in tensors]
        return env.xp.einsum(equation, *wide, optimize=len(wide) > 2).astype(tensors[0].dtype, copy=False)

    return run
