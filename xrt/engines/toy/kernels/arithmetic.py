"""Arithmetic that other engines write otherwise: sums, powers, and products by an equation."""

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


@ops("Einsum")
def einsum(node: Node, env: KernelContext) -> Run:
    equation = node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(t) for t in tensors]
        return env.xp.einsum(equation, *wide, optimize=len(wide) > 2).astype(tensors[0].dtype, copy=False)

    return run
