"""Rules of matrix products and scaled dot product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import current, emit
from xrt.frontends.torch.rules.elementwise import drop
from xrt.frontends.torch.rules.table import (
    Unsupported,
    cast,
    constant,
    fixed_size,
    ints,
    lowest,
    reshape,
    rule,
    rule_by_name,
    scalar,
)
from xrt.frontends.torch.symbols import set_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor
    from xrt.graph import Dim


@rule("linear")
def linear(result: TensorType, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Use Gemm with transB, which reads the weight in place; a Transpose would copy it."""
    sizes = result.shape or ()
    symbolic = [size for size in sizes if not isinstance(size, int)]
    is_empty = 0 in sizes or 0 in x.shape
    # Reshape can infer one extent only, and Gemm needs a matrix of floats.
    if weight.ndim != 2 or x.ndim == 0 or (x.ndim != 2 and len(symbolic) > 1) or is_empty or not x.dtype.is_float:
        y = emit("MatMul", x, emit("Transpose", weight, perm=[1, 0]) if weight.ndim == 2 else weight)
        return y if bias is None else emit("Add", y, bias)
    # Gemm supports matrices only: flatten the leading axes.
    rows = x if x.ndim == 2 else reshape(x, -1, fixed_size(weight, 1))
    y = emit("Gemm", rows, weight, bias, transB=1)
    return y if x.ndim == 2 else reshape(y, *[size if isinstance(size, int) else -1 for size in sizes])


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(result: TensorType, a: Tensor, b: Tensor) -> Tensor:
    # ONNX's MatMul does not support integers of 8 and 16 bits: compute in int32.
    if result.dtype.is_integer and result.dtype not in _MATMUL_INTEGERS:
        wide = emit("MatMul", cast(a, DType.INT32), cast(b, DType.INT32))
        return cast(wide, result.dtype)
    return emit("MatMul", a, b)


_MATMUL_INTEGERS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})


def _add_scaled(result: TensorType, x: Any, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """``beta * x + alpha * product``."""
    y = product if alpha == 1 else emit("Mul", product, cast(alpha, result.dtype))
    # With beta 0 PyTorch ignores x, so that a NaN in it does not reach the result.
    if beta == 0:
        return y
    return emit("Add", y, x if beta == 1 else emit("Mul", x, cast(beta, result.dtype)))


def _find_untransposed(x: Tensor) -> tuple[Tensor, int]:
    """Look through a recent Transpose: return (untransposed matrix, 1), or (matrix, 0) if there is none."""
    builder = current("a product")
    for node in builder.nodes[-_MAX_SEARCHED_NODES:]:
        if node.outputs[0] == x.name and node.op == "Transpose" and len(node.attr("perm") or ()) == 2:
            return builder.tensor(node.inputs[0], x.type), 1
    return x, 0


_MAX_SEARCHED_NODES = 8
"""Number of recent nodes to search for a Transpose: AOTAutograd emits it just before the product."""


@rule("addmm")
def addmm(result: TensorType, x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if isinstance(beta, int | float) and isinstance(alpha, int | float) and result.dtype.is_float:
        weight, is_transposed = _find_untransposed(b)
        return emit("Gemm", a, weight, x, alpha=float(alpha), beta=float(beta), transB=is_transposed)
    return _add_scaled(result, x, emit("MatMul", a, b), beta, alpha)


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


# ---------------------------------------------------------------------- products of heads


def _shares_heads(a: Tensor, b: Tensor) -> bool:
    """Whether each head (axis -3) of ``b`` serves several heads of ``a``. False for a single head, which MatMul broadcasts."""
    if a.ndim < 3 or b.ndim != a.ndim:
        return False
    wide, narrow = a.shape[-3], b.shape[-3]
    if isinstance(wide, int) and isinstance(narrow, int):
        return 1 < narrow < wide and wide % narrow == 0
    return wide != 1 and narrow != 1 and (wide is None or wide != narrow)


def _regroup(x: Tensor, like: Tensor) -> Tensor:
    """Reshape ``x`` to the number of heads of ``like``: the rows of several heads become rows of one head, or the reverse."""
    heads, lead = like.shape[-3], x.ndim - 3
    before, rows = x.shape[-3:-1]
    extent = before * rows // heads if isinstance(before, int) and isinstance(rows, int) and isinstance(heads, int) else None
    if isinstance(heads, int):
        regrouped = reshape(x, *[0] * lead, heads, -1, 0)
    else:
        count = emit("Shape", like, start=like.ndim - 3, end=like.ndim - 2)
        target: list[Any] = [*([ints(*[0] * lead)] if lead else []), count, ints(-1, 0)]
        regrouped = emit("Reshape", x, emit("Concat", *target, axis=0))
    return set_shape(regrouped, (*x.shape[:-3], heads, extent, x.shape[-1]))


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply per head; if heads of ``b`` serve groups of heads of ``a``, multiply the rows of a whole group at once."""
    if not _shares_heads(a, b):
        lead = tuple(map(_broadcast, a.shape[:-2], b.shape[:-2])) if a.ndim == b.ndim else a.shape[:-2]
        return set_shape(emit("MatMul", a, b), (*lead, a.shape[-2], b.shape[-1]))
    lead = tuple(map(_broadcast, a.shape[:-3], b.shape[:-3]))
    rows = _regroup(a, b)
    product = set_shape(emit("MatMul", rows, b), (*lead, b.shape[-3], rows.shape[-2], b.shape[-1]))
    return set_shape(_regroup(product, a), (*lead, a.shape[-3], a.shape[-2], b.shape[-1]))


def _broadcast(size: Dim, other: Dim) -> Dim:
    """The broadcast extent; None if unknown."""
    return size if size == other or other == 1 else other if size == 1 else None


def _multiply_transposed(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """Emit the gradient of a product's second factor ``like``: transposed ``a`` times ``b``, summed over each group of heads."""
    if _shares_heads(a, like):
        a, b = _regroup(a, like), _regroup(b, like)
    return emit("MatMul", _transpose_last(a), b)


def _transpose_last(x: Tensor) -> Tensor:
    transposed = emit("Transpose", x, perm=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])
    return set_shape(transposed, (*x.shape[:-2], x.shape[-1], x.shape[-2]))


# ---------------------------------------------------------------------- scores


def _widen(x: Tensor) -> Tensor:
    """Cast half precision to float32."""
    return x if x.dtype is DType.FLOAT64 else set_shape(cast(x, DType.FLOAT32), x.shape)


def _find_scale(query: Tensor, scale: Any, dtype: DType) -> Tensor:
    """The scale of the attention scores, by default 1 / sqrt(head width)."""
    if scale is not None:
        return cast(scale, dtype)
    width = query.shape[-1]
    if isinstance(width, int):
        return scalar(1 / math.sqrt(width), dtype)
    extent = emit("Squeeze", emit("Shape", query, start=query.ndim - 1, end=query.ndim), ints(0))
    return emit("Reciprocal", emit("Sqrt", cast(extent, dtype)))


def _score(a: Any) -> Tensor:
    """Emit the scaled products of queries and keys. If ``a.is_causal``, those above the diagonal are the lowest number."""
    wide = _widen(a.query)
    scaled = set_shape(emit("Mul", wide, _find_scale(a.query, a.scale, wide.dtype)), a.query.shape)
    scores = _multiply(scaled, _transpose_last(_widen(a.key)))
    if not a.is_causal:
        return scores
    least = scalar(float(lowest(scores.dtype)), scores.dtype)
    return set_shape(emit("Where", _make_causal_mask(a.query, a.key), scores, least), scores.shape)


def _get_mask(a: Any) -> Tensor | None:
    return getattr(a, "attn_mask", getattr(a, "attn_bias", None))  # not all kernels have one


def _make_causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Emit a lower triangular mask that starts at the first row and key, so that each row has at least one key."""
    rows, columns = query.shape[-2], key.shape[-2]
    if isinstance(rows, int) and isinstance(columns, int):
        return constant(np.tri(rows, columns, dtype=np.bool_), DType.BOOL)
    ends = [emit("Shape", x, start=x.ndim - 2, end=x.ndim - 1) for x in (query, key)]
    numbers = [emit("Range", scalar(0, DType.INT64), emit("Squeeze", end, ints(0)), scalar(1, DType.INT64)) for end in ends]
    return emit("GreaterOrEqual", emit("Unsqueeze", numbers[0], ints(1)), numbers[1])


def _apply_mask(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a boolean or additive mask; return the masked scores, and for each row whether any key remains."""
    if mask.dtype is DType.BOOL:
        masked = emit("Where", mask, scores, scalar(float(lowest(scores.dtype)), scores.dtype))
        # ReduceMax on float32, because not all engines have an integer kernel.
        return masked, cast(emit("ReduceMax", cast(mask, DType.FLOAT32), ints(-1), keepdims=1), DType.BOOL)
    numbers = _widen(mask)
    has_keys = emit("Greater", emit("ReduceMax", numbers, ints(-1), keepdims=1), scalar(-math.inf, numbers.dtype))
    return emit("Add", scores, cast(numbers, scores.dtype)), has_keys


def _attend(a: Any) -> tuple[Tensor, Tensor]:
    """Emit attention; return the result and the weights, both in float32 for half precision and zero in rows without keys."""
    scores, has_keys = _score(a), None
    shape = scores.shape
    if (mask := _get_mask(a)) is not None:
        scores, has_keys = _apply_mask(scores, mask)
    weights = emit("Softmax", scores, axis=-1)
    weights = set_shape(drop(weights, a.dropout_p) if a.dropout_p else weights, shape)
    attended = _multiply(weights, _widen(a.value))
    if has_keys is None:
        return attended, weights
    zero = scalar(0, attended.dtype)
    return emit("Where", has_keys, attended, zero), emit("Where", has_keys, weights, zero)


def _add_mask(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else emit("Add", scores, cast(mask, scores.dtype))


def _attend_with_logs(a: Any) -> tuple[Tensor, Tensor]:
    """Emit attention; return the result and each row's log-sum-exp, from which a backward graph recomputes the weights."""
    scores = _score(a)
    shape = scores.shape
    scores = _add_mask(scores, _get_mask(a))
    least = scalar(float(lowest(scores.dtype)), scores.dtype)  # avoids NaN in rows without keys
    top = emit("Max", emit("ReduceMax", scores, ints(-1), keepdims=1), least)
    weights = emit("Exp", emit("Sub", scores, top))
    total = emit("ReduceSum", weights, ints(-1), keepdims=1)
    total = emit("Where", emit("Equal", total, scalar(0, total.dtype)), scalar(1, total.dtype), total)
    logs = emit("Squeeze", emit("Add", top, emit("Log", total)), ints(-1))
    return _multiply(set_shape(emit("Div", weights, total), shape), _widen(a.value)), logs


# ---------------------------------------------------------------------- the operators


@rule_by_name("scaled_dot_product_attention")
def attention(result: TensorType, a: Any) -> Tensor:
    return _attend(a)[0]


@rule_by_name("_scaled_dot_product_attention_math")
def attention_math(result: Any, a: Any) -> Any:
    if a.dropout_mask is not None:
        raise Unsupported("attention with a mask of its dropout")
    attended, weights = _attend(a)
    return attended, weights if result[1] is not None else None


_KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "fused_attention_overrideable")


@rule_by_name(*(f"_scaled_dot_product_{kernel}" for kernel in _KERNELS))
def attention_kernel(result: Any, a: Any) -> Any:
    """Lower attention that PyTorch dispatched to one of its kernels, with the log-sum-exp if a backward graph reads it."""
    if a.dropout_p:
        raise Unsupported("attention with dropout")
    if any(type_ is not None for type_ in result[2:]):
        raise Unsupported("the state of a kernel of attention")
    if result[1] is None:
        return _attend(a)[0], *[None] * (len(result) - 1)
    return *_attend_with_logs(a), *[None] * (len(result) - 2)


@rule_by_name("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(result: Any, a: Any) -> Any:
    """Recompute the weights from the log-sum-exp; Dao et al., arXiv:2205.14135, algorithm 4."""
    if a.dropout_p:
        raise Unsupported("attention with dropout")
    scores = _score(a)
    shape = scores.shape
    logs = emit("Unsqueeze", cast(a.logsumexp, scores.dtype), ints(-1))
    weights = set_shape(emit("Exp", emit("Sub", _add_mask(scores, a.attn_mask), logs)), shape)
    g, wide = _widen(a.grad_out), _widen(a.query)
    shares = emit("ReduceSum", emit("Mul", g, _widen(a.out)), ints(-1), keepdims=1)
    change = emit("Sub", _multiply(g, _transpose_last(_widen(a.value))), shares)
    slope = set_shape(emit("Mul", emit("Mul", weights, change), _find_scale(a.query, a.scale, wide.dtype)), shape)
    return _multiply(slope, _widen(a.key)), _multiply_transposed(slope, wide, a.key), _multiply_transposed(weights, g, a.value)
