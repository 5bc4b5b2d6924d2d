"""Products of matrices and of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.precision import widen

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("MatMul")
def matmul(node: Node, env: NodeContext) -> Run:
    """Narrow floats are multiplied in float32."""
    return lambda a, b: env.primitives.matmul(widen(a), widen(b)).astype(a.dtype, copy=False)


@ops("Gemm")
def gemm(node: Node, env: NodeContext) -> Run:
    """``alpha * A' B' + beta * C``; the sums of narrow floats are rounded once."""
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    flip_a, flip_b = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        y = env.primitives.matmul(widen(a).T if flip_a else widen(a), widen(b).T if flip_b else widen(b))
        y = y if alpha == 1 else y * alpha
        if c is not None and beta != 0:
            y = y + (widen(c) if beta == 1 else widen(c) * beta)
        return y.astype(a.dtype, copy=False)

    return run


@ops("Det")
def det(node: Node, env: NodeContext) -> Run:
    return lambda x: env.xp.linalg.det(widen(x)).astype(x.dtype, copy=False)
