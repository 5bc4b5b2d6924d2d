"""Rules of products of matrices and of attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.builder.symbol import current
from xrt.frontends.torch.rules.activations import drop
from xrt.frontends.torch.rules.table import Unsupported, cast, constant, ints, lowest, rule, scalar
from xrt.frontends.torch.symbols import SymbolicNumber
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


@rule("linear")
def linear(result: TensorType, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gemm reads the weights as they are in memory; a product with them transposed would make a copy of them."""
    to_ = result.shape or ()
    symbolic = [size for size in to_ if not isinstance(size, int)]
    if weight.ndim != 2 or x.ndim == 0 or (x.ndim != 2 and len(symbolic) > 1) or 0 in to_ or not _multiplies(x.dtype):
        y = emit("MatMul", x, emit("Transpose", weight, perm=[1, 0]) if weight.ndim == 2 else weight)
        return y if bias is None else emit("Add", y, bias)
    rows = x if x.ndim == 2 else emit("Reshape", x, ints(-1, _extent(weight, 1)))
    y = emit("Gemm", rows, weight, bias, transB=1)
    return y if x.ndim == 2 else emit("Reshape", y, ints(*[size if isinstance(size, int) else -1 for size in to_]))


def _multiplies(dtype: DType) -> bool:
    return dtype.is_float


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


# ---------------------------------------------------------------------- attention


@rule("scaled_dot_product_attention")
def attention(
    result: TensorType,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key, value = (_repeat_heads(one, query) for one in (key, value))
    scores, _ = list_scores(query, key, None, is_causal, scale)
    if attn_mask is None:
        return _attend(scores, value, dropout_p)
    return _attend_masked(scores, value, attn_mask, dropout_p)


def _attend(scores: Tensor, value: Tensor, dropout_p: float) -> Tensor:
    weights = emit("Softmax", scores, axis=-1)
    return emit("MatMul", drop(weights, dropout_p) if dropout_p else weights, value)


def list_scores(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> tuple[Tensor, float]:
    """Return the scaled products of queries and keys, a mask of numbers added to them, and the scale."""
    width = query.shape[-1]
    if scale is None and not isinstance(width, int):
        raise Unsupported("attention over heads of symbolic width")
    if isinstance(scale, SymbolicNumber):
        raise Unsupported("attention with a symbolic scale")
    factor = scale if scale is not None else 1 / math.sqrt(width)  # type: ignore[arg-type]  # checked above
    scores = emit("MatMul", emit("Mul", query, scalar(factor, query.dtype)), transpose_last(key, query.ndim))
    if is_causal:  # each row sees at least itself
        scores = emit("Where", _causal_mask(query, key), scores, scalar(float(lowest(query.dtype)), query.dtype))
    return (scores if mask is None else emit("Add", scores, cast(mask, scores.dtype))), factor


def transpose_last(x: Tensor, rank: int | None = None) -> Tensor:
    """Return a tensor with its last two axes exchanged."""
    rank = x.ndim if rank is None else rank
    return emit("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _attend_masked(scores: Tensor, value: Tensor, mask: Tensor, dropout_p: float) -> Tensor:
    """Return attention under a mask; a row that sees nothing is zero in PyTorch."""
    if mask.dtype is DType.BOOL:
        scores = emit("Where", mask, scores, scalar(float(lowest(value.dtype)), value.dtype))
        seen = emit("ReduceMax", emit("Cast", mask, to=DType.INT32), ints(-1), keepdims=1)
        is_seen = emit("Cast", seen, to=DType.BOOL)
    else:
        scores = emit("Add", scores, mask)
        is_seen = emit("Greater", emit("ReduceMax", mask, ints(-1), keepdims=1), scalar(-math.inf, mask.dtype))
    attended = _attend(scores, value, dropout_p)
    return emit("Where", is_seen, attended, scalar(0, value.dtype))


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with each head repeated for the heads of the query that share it."""
    heads, wanted = _extent(x, -3), _extent(query, -3)
    if heads == wanted:
        return x
    rank = x.ndim
    wide = emit("Unsqueeze", x, ints(rank - 2))
    wide = emit("Expand", wide, ints(*[1] * (rank - 2), wanted // heads, 1, 1))
    rest = emit("Shape", x, start=rank - 2)
    return emit("Reshape", wide, emit("Concat", ints(*[0] * (rank - 3), wanted), rest, axis=0))


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Return the mask that is true up to the diagonal that begins at the first element."""
    rows, columns = query.shape[-2], key.shape[-2]
    if isinstance(rows, int) and isinstance(columns, int):
        return constant(np.tri(rows, columns, dtype=np.bool_), DType.BOOL)
    ends = [emit("Shape", x, start=x.ndim - 2, end=x.ndim - 1) for x in (query, key)]
    numbers = [emit("Range", scalar(0, DType.INT64), emit("Squeeze", end, ints(0)), scalar(1, DType.INT64)) for end in ends]
    return emit("GreaterOrEqual", emit("Unsqueeze", numbers[0], ints(1)), numbers[1])


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    result: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        raise Unsupported("attention with dropout")
    if result[1] is None:
        return attention(result[0], query, key, value, attn_mask, dropout_p, is_causal, scale), None
    scores, _ = list_scores(query, key, attn_mask, is_causal, scale)
    least = scalar(float(lowest(scores.dtype)), scores.dtype)  # a row that sees nothing is zero
    top = emit("Max", emit("ReduceMax", scores, ints(-1), keepdims=1), least)
    weights = emit("Exp", emit("Sub", scores, top))
    total = emit("ReduceSum", weights, ints(-1), keepdims=1)
    total = emit("Where", emit("Equal", total, scalar(0, total.dtype)), scalar(1, total.dtype), total)
    logs = emit("Squeeze", emit("Add", top, emit("Log", total)), ints(-1))
    return emit("MatMul", emit("Div", weights, total), value), cast(logs, result[1].dtype)
