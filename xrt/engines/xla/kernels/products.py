"""Products of matrices and of tensors."""

from __future__ import annotations

import jax.numpy as jnp

from xrt.engines.precision import widened
from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand, ops

__all__: list[str] = []


@ops("MatMul")
def matmul(at: Site, a: Operand, b: Operand) -> Operand:
    return jnp.matmul(widened(a), widened(b)).astype(a.dtype)


@ops("Gemm", since=7)
def gemm(at: Site, a: Operand, b: Operand, c: Operand = None) -> Operand:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    alpha, beta = at.attr("alpha", 1.0), at.attr("beta", 1.0)
    left, right = widened(a), widened(b)
    y = jnp.matmul(left.T if at.attr("transA", 0) else left, right.T if at.attr("transB", 0) else right)
    y = y if alpha == 1 else y * alpha
    if c is not None and beta != 0:
        y = y + (widened(c) if beta == 1 else widened(c) * beta)
    return y.astype(a.dtype)


@ops("Einsum")
def einsum(at: Site, *tensors: Operand) -> Operand:
    equation = at.attr("equation").replace(" ", "")
    return jnp.einsum(equation, *map(widened, tensors)).astype(tensors[0].dtype)


@ops("Det")
def det(at: Site, x: Operand) -> Operand:
    return jnp.linalg.det(widened(x)).astype(x.dtype)
