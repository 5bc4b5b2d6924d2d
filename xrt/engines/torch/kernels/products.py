"""Products of matrices and of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.kernels.precision import widen
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

ops("MatMul")(lambda at: lambda a, b: torch.matmul(widen(a), widen(b)).to(a.dtype))


@ops("Gemm")
def gemm(at: TorchKernelContext) -> Run:
    """``alpha * A' B' + beta * C``, C always being broadcast; the sums of narrow floats are rounded once."""
    alpha, beta = at.attr("alpha", 1.0), at.attr("beta", 1.0)
    left, right = at.attr("transA", 0), at.attr("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor = None) -> Tensor:
        wide_a, wide_b = widen(a), widen(b)
        if left:
            wide_a = wide_a.T
        if right:
            wide_b = wide_b.T
        if c is not None and alpha == 1 and beta == 1 and a.dtype.is_floating_point:
            return torch.addmm(widen(c), wide_a, wide_b).to(a.dtype)
        y = torch.matmul(wide_a, wide_b)
        y = y if alpha == 1 else y * alpha
        if c is not None and beta != 0:
            y = y + (widen(c) if beta == 1 else widen(c) * beta)
        return y.to(a.dtype)

    return run


@ops("Einsum")
def einsum(at: TorchKernelContext) -> Run:
    equation = at.attr("equation").replace(" ", "")
    return lambda *tensors: torch.einsum(equation, *map(widen, tensors)).to(tensors[0].dtype)


ops("Det")(lambda at: lambda x: torch.linalg.det(widen(x)).to(x.dtype))
