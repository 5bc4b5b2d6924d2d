"""Products of matrices and of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import widen
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("MatMul")
def matmul(at: LoweringContext, a: Operand, b: Operand) -> Operand:
    return jnp.matmul(widen(a), widen(b)).astype(a.dtype)


@ops("Gemm", since=7)
def gemm(at: LoweringContext, a: Operand, b: Operand, c: Operand = None) -> Operand:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    alpha, beta = at.attr("alpha", 1.0), at.attr("beta", 1.0)
    left, right = widen(a), widen(b)
    y = jnp.matmul(left.T if at.attr("transA", 0) else left, right.T if at.attr("transB", 0) else right)
    y = y if alpha == 1 else y * alpha
    if c is not None and beta != 0:
        y = y + (widen(c) if beta == 1 else widen(c) * beta)
    return y.astype(a.dtype)


@ops("Einsum")
def einsum(at: LoweringContext, *tensors: Operand) -> Operand:
    equation = at.attr("equation").replace(" ", "")
    return jnp.einsum(equation, *map(widen, tensors)).astype(tensors[0].dtype)


@ops("Det")
def det(at: LoweringContext, x: Operand) -> Operand:
    return jnp.linalg.det(widen(x)).astype(x.dtype)
