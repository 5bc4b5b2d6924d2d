"""Rules of products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import emit
from xrt.builder.symbol import current
from xrt.frontends.torch.rules.table import Unsupported, cast, ints, reshape, rule
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


@rule("linear")
def linear(result: TensorType, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gemm reads the weights as they are in memory; a product with them transposed would make a copy of them."""
    to_ = result.shape or ()
    symbolic = [size for size in to_ if not isinstance(size, int)]
    is_empty = 0 in to_ or 0 in x.shape
    if weight.ndim != 2 or x.ndim == 0 or (x.ndim != 2 and len(symbolic) > 1) or is_empty or not x.dtype.is_float:
        y = emit("MatMul", x, emit("Transpose", weight, perm=[1, 0]) if weight.ndim == 2 else weight)
        return y if bias is None else emit("Add", y, bias)
    rows = x if x.ndim == 2 else reshape(x, -1, _extent(weight, 1))
    y = emit("Gemm", rows, weight, bias, transB=1)
    return y if x.ndim == 2 else reshape(y, *[size if isinstance(size, int) else -1 for size in to_])


def _extent(x: Tensor, axis: int) -> int:
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Unsupported("a matrix of symbolic size where a fixed one is needed")
    return size


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(result: TensorType, a: Tensor, b: Tensor) -> Tensor:
    if result.dtype.is_integer and result.dtype not in _INTEGERS:
        wide = emit("MatMul", cast(a, DType.INT32), cast(b, DType.INT32))
        return cast(wide, result.dtype)
    return emit("MatMul", a, b)


@rule("inner")
def inner(result: TensorType, a: Tensor, b: Tensor) -> Tensor:
    if a.ndim == 0 or b.ndim == 0:
        return emit("Mul", a, b)
    if b.ndim > 2:
        raise Unsupported("an inner product with a tensor of rank over 2")
    return matmul(result, a, emit("Transpose", b, perm=[1, 0]) if b.ndim == 2 else b)


_INTEGERS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})


def _combined(result: TensorType, x: Any, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    y = product if alpha == 1 else emit("Mul", product, cast(alpha, result.dtype))
    if beta == 0:
        return y
    return emit("Add", y, x if beta == 1 else emit("Mul", x, cast(beta, result.dtype)))


def _find_turned(x: Tensor) -> tuple[Tensor, int]:
    """Return the matrix that the last nodes have turned, and 1; the matrix itself and 0 where they have not."""
    builder = current("a product")
    for node in builder.nodes[-_NEAR:]:
        if node.outputs[0] == x.name and node.op == "Transpose" and len(node.attr("perm") or ()) == 2:
            return builder.tensor(node.inputs[0], x.type), 1
    return x, 0


_NEAR = 8
"""How many nodes back a matrix may have been turned: AOTAutograd writes it just before the product."""


@rule("addmm")
def addmm(result: TensorType, x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if isinstance(beta, int | float) and isinstance(alpha, int | float) and result.dtype.is_float:
        weight, is_turned = _find_turned(b)
        return emit("Gemm", a, weight, x, alpha=float(alpha), beta=float(beta), transB=is_turned)
    return _combined(result, x, emit("MatMul", a, b), beta, alpha)


@rule("baddbmm", "addbmm_", "addmv")
def baddbmm(result: TensorType, x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _combined(result, x, emit("MatMul", a, b), beta, alpha)


@rule("outer", "ger")
def outer(result: TensorType, a: Tensor, b: Tensor) -> Tensor:
    return emit("Mul", cast(emit("Unsqueeze", a, ints(1)), result.dtype), cast(b, result.dtype))


@rule("einsum")
def einsum(result: TensorType, equation: str, tensors: Any, path: Any = None) -> Tensor:
    operands = [cast(tensor, result.dtype) for tensor in tensors]
    return emit("Einsum", *operands, equation=equation.replace(" ", ""))


@rule("bilinear")
def bilinear(result: TensorType, a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = emit("Einsum", a, weight, b, equation="...i,oij,...j->...o")
    return y if bias is None else emit("Add", y, bias)


@rule("cdist", "_cdist_forward")
def cdist(result: TensorType, a: Tensor, b: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    difference = emit("Sub", emit("Unsqueeze", a, ints(-2)), emit("Unsqueeze", b, ints(-3)))
    if p not in (1, 2):
        raise Unsupported("a distance of another order than 1 or 2")
    return emit(f"ReduceL{int(p)}", difference, ints(-1), keepdims=0)
