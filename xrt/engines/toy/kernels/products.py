"""Products of matrices and of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xrt.engines.toolkit.array_ops.precision import widen
from xrt.engines.toy.products import multiply
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__ = ["matmul"]


def matmul(xp: Any, a: Array, b: Array) -> Array:
    """Return the matrix product in a's dtype: in float32 for narrower floats."""
    return multiply(xp, widen(a), widen(b)).astype(a.dtype, copy=False)


@ops("MatMul")
def matmul_(node: Node, env: KernelContext) -> Run:
    return lambda a, b: matmul(env.xp, a, b)


@ops("Gemm")
def gemm(node: Node, env: KernelContext) -> Run:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    xp, alpha, beta = env.xp, node.attr("alpha", 1.0), node.attr("beta", 1.0)
    flip_a, flip_b = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        y = multiply(xp, widen(a).T if flip_a else widen(a), widen(b).T if flip_b else widen(b))
        y = y if alpha == 1 else y * alpha
        if c is not None and beta != 0:
            y = y + (widen(c) if beta == 1 else widen(c) * beta)
        return y.astype(a.dtype, copy=False)

    return run


@ops("Einsum")
def einsum(node: Node, env: KernelContext) -> Run:
    equation = node.attr("equation").replace(" ", "")

    def run(*tensors: Array) -> Array:
        wide = [widen(t) for t in tensors]
        return env.xp.einsum(equation, *wide, optimize=len(wide) > 2).astype(tensors[0].dtype, copy=False)

    return run


@ops("Det")
def det(node: Node, env: KernelContext) -> Run:
    return lambda x: env.xp.linalg.det(widen(x)).astype(x.dtype, copy=False)
