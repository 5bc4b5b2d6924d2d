"""Rules of matrix products and scaled dot product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit, get_builder
from xrt.builder.tensor import Tensor
from xrt.frontends.torch.rules.elementwise import drop, multiply_by
from xrt.frontends.torch.rules.table import (
    Unsupported,
    cast,
    constant,
    get_static_size,
    ints,
    reshape,
    rule,
    rule_by_name,
    scalar,
)
from xrt.frontends.torch.symbols import set_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.graph import Dim


@rule("linear")
def linear(result: TensorType, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Use Gemm with transB, which reads the weight in place; a Transpose would copy it."""
    sizes = result.shape or ()
    is_empty = 0 in sizes or 0 in x.shape
    # For Gemm the leading axes are flattened. The Reshape after it can infer one symbolic size.
    symbolic_count = sum(not isinstance(size, int) for size in sizes)
    can_flatten = x.ndim == 2 or (x.ndim > 0 and symbolic_count <= 1)
    if weight.ndim != 2 or not can_flatten or is_empty or not x.dtype.is_float:
        transposed = emit("Transpose", weight, perm=[1, 0]) if weight.ndim == 2 else weight
        y = emit("MatMul", x, transposed)
        return y if bias is None else emit("Add", y, bias)
    rows = x if x.ndim == 2 else reshape(x, -1, get_static_size(weight, 1))
    y = emit("Gemm", rows, weight, bias, transB=1)
    return y if x.ndim == 2 else reshape(y, *[size if isinstance(size, int) else -1 for size in sizes])


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(result: TensorType, a: Tensor, b: Tensor) -> Tensor:
    # ONNX's MatMul does not support integers of 8 and 16 bits: compute in int32.
    if result.dtype.is_integer and result.dtype not in _MATMUL_INTEGERS:
        return cast(emit("MatMul", cast(a, DType.INT32), cast(b, DType.INT32)), result.dtype)
    return emit("MatMul", a, b)


_MATMUL_INTEGERS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})


def _find_untransposed(x: Tensor) -> tuple[Tensor, int]:
    """If a recent Transpose of a matrix computed ``x``, return its input and 1, else ``x`` and 0: operand and transB of Gemm."""
    builder = get_builder("a product")
    for node in builder.nodes[-_MAX_SEARCHED_NODES:]:
        if node.outputs[0] == x.name and node.op == "Transpose" and tuple(node.attr("perm") or ()) == (1, 0):
            return Tensor(builder, node.inputs[0], x.type), 1
    return x, 0


_MAX_SEARCHED_NODES = 8
"""Number of recent nodes to search for a Transpose: AOTAutograd emits it just before the product."""


@rule("addmm")
def addmm(result: TensorType, x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if isinstance(beta, int | float) and isinstance(alpha, int | float) and result.dtype.is_float:
        weight, is_transposed = _find_untransposed(b)
        return emit("Gemm", a, weight, x, alpha=float(alpha), beta=float(beta), transB=is_transposed)
    product = multiply_by(emit("MatMul", a, b), alpha, result.dtype)
    # With beta 0 PyTorch ignores x, so that a NaN in it does not reach the result.
    return product if beta == 0 else emit("Add", product, multiply_by(x, beta, result.dtype))


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


def _shares_heads(a: Tensor, b: Tensor) -> bool:
    """Whether several heads (axis -3) of ``a`` share one head of ``b``. False if ``b`` has one head, which MatMul broadcasts."""
    if a.ndim < 3 or b.ndim != a.ndim:
        return False
    a_heads, b_heads = a.shape[-3], b.shape[-3]
    if isinstance(a_heads, int) and isinstance(b_heads, int):
        return 1 < b_heads < a_heads and a_heads % b_heads == 0
    return a_heads != 1 and b_heads != 1 and (a_heads is None or a_heads != b_heads)  # symbolic: assumed, unless equal


def _regroup(x: Tensor, like: Tensor) -> Tensor:
    """Reshape ``x`` to the number of heads of ``like``: the rows of several heads become rows of one head, or the reverse."""
    # The axes of both are (*leading axes, heads, rows, columns).
    heads, leading_axes = like.shape[-3], x.ndim - 3
    x_heads, x_rows = x.shape[-3:-1]
    rows = None
    if isinstance(x_heads, int) and isinstance(x_rows, int) and isinstance(heads, int):
        rows = x_heads * x_rows // heads
    if isinstance(heads, int):
        regrouped = reshape(x, *[0] * leading_axes, heads, -1, 0)
    else:
        head_count = emit("Shape", like, start=like.ndim - 3, end=like.ndim - 2)
        copied = [ints(*[0] * leading_axes)] if leading_axes else []
        regrouped = emit("Reshape", x, emit("Concat", *copied, head_count, ints(-1, 0), axis=0))
    return set_shape(regrouped, (*x.shape[:-3], heads, rows, x.shape[-1]))


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply per head. If several heads of ``a`` share a head of ``b``, multiply the rows of these heads at once."""
    if not _shares_heads(a, b):
        leading = tuple(map(_broadcast, a.shape[:-2], b.shape[:-2])) if a.ndim == b.ndim else a.shape[:-2]
        return set_shape(emit("MatMul", a, b), (*leading, a.shape[-2], b.shape[-1]))
    leading = tuple(map(_broadcast, a.shape[:-3], b.shape[:-3]))
    rows = _regroup(a, b)
    product = set_shape(emit("MatMul", rows, b), (*leading, b.shape[-3], rows.shape[-2], b.shape[-1]))
    return set_shape(_regroup(product, a), (*leading, a.shape[-3], a.shape[-2], b.shape[-1]))


def _broadcast(size: Dim, other: Dim) -> Dim:
    if size in (other, 1):
        return other
    return size if other == 1 else None


def _multiply_transposed(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """Emit transposed ``a`` times ``b``: the gradient of the key or value ``like``, summed over the heads that share a head."""
    if _shares_heads(a, like):
        a, b = _regroup(a, like), _regroup(b, like)
    return emit("MatMul", _transpose_last(a), b)


def _transpose_last(x: Tensor) -> Tensor:
    transposed = emit("Transpose", x, perm=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])
    return set_shape(transposed, (*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _widen(x: Tensor) -> Tensor:
    """Cast half precision to float32."""
    return x if x.dtype is DType.FLOAT64 else set_shape(cast(x, DType.FLOAT32), x.shape)


def _make_scale(query: Tensor, scale: Any, dtype: DType) -> Tensor:
    """Make the scale of the attention scores, by default 1 / sqrt(head width)."""
    if scale is not None:
        return cast(scale, dtype)
    if isinstance(query.shape[-1], int):
        return scalar(1 / math.sqrt(query.shape[-1]), dtype)
    width = emit("Squeeze", emit("Shape", query, start=query.ndim - 1, end=query.ndim), ints(0))
    return emit("Reciprocal", emit("Sqrt", cast(width, dtype)))


def _score(a: Any) -> Tensor:
    """Emit the scaled products of queries and keys. If ``a.is_causal``, scores above the diagonal are masked."""
    query = _widen(a.query)
    scaled = set_shape(emit("Mul", query, _make_scale(a.query, a.scale, query.dtype)), a.query.shape)
    scores = _multiply(scaled, _transpose_last(_widen(a.key)))
    if not a.is_causal:
        return scores
    return set_shape(emit("Where", _make_causal_mask(a.query, a.key), scores, _make_lowest(scores)), scores.shape)


def _make_lowest(scores: Tensor) -> Tensor:
    """Make the lowest finite number. Unlike minus infinity, it does not cause NaN in the softmax of rows without keys."""
    return scalar(float(np.finfo(scores.dtype.numpy).min), scores.dtype)


def _get_mask(a: Any) -> Tensor | None:
    # The kernels have different names for the mask, and some have none.
    return getattr(a, "attn_mask", getattr(a, "attn_bias", None))


def _make_causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Emit the lower triangular mask of queries and keys: query i reads keys 0 to i."""
    query_count, key_count = query.shape[-2], key.shape[-2]
    if isinstance(query_count, int) and isinstance(key_count, int):
        return constant(np.tri(query_count, key_count, dtype=np.bool_), DType.BOOL)
    counts = [emit("Squeeze", emit("Shape", x, start=x.ndim - 2, end=x.ndim - 1), ints(0)) for x in (query, key)]
    indices = [emit("Range", scalar(0, DType.INT64), count, scalar(1, DType.INT64)) for count in counts]
    # (queries, 1) >= (keys,) broadcasts to (queries, keys).
    return emit("GreaterOrEqual", emit("Unsqueeze", indices[0], ints(1)), indices[1])


def _apply_mask(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a boolean or additive mask; return the masked scores, and for each row whether any key remains."""
    if mask.dtype is DType.BOOL:
        masked = emit("Where", mask, scores, _make_lowest(scores))
        # In float32, because not all engines have ReduceMax of integers.
        return masked, cast(emit("ReduceMax", cast(mask, DType.FLOAT32), ints(-1), keepdims=1), DType.BOOL)
    added = _widen(mask)
    has_keys = emit("Greater", emit("ReduceMax", added, ints(-1), keepdims=1), scalar(-math.inf, added.dtype))
    return emit("Add", scores, cast(added, scores.dtype)), has_keys


def _attend(a: Any) -> tuple[Tensor, Tensor]:
    """Emit attention; return the result and the weights, in float32 for half precision. Rows without keys are zero."""
    scores, mask = _score(a), _get_mask(a)
    shape = scores.shape
    has_keys = None
    if mask is not None:
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
    """Emit attention; return the result and the log-sum-exp of each row, from which a backward graph recomputes the weights."""
    scores = _score(a)
    shape = scores.shape
    scores = _add_mask(scores, _get_mask(a))
    maximum = emit("Max", emit("ReduceMax", scores, ints(-1), keepdims=1), _make_lowest(scores))
    weights = emit("Exp", emit("Sub", scores, maximum))
    total = emit("ReduceSum", weights, ints(-1), keepdims=1)
    # A row without keys has a total of 0.
    total = emit("Where", emit("Equal", total, scalar(0, total.dtype)), scalar(1, total.dtype), total)
    log_sum_exp = emit("Squeeze", emit("Add", maximum, emit("Log", total)), ints(-1))
    return _multiply(set_shape(emit("Div", weights, total), shape), _widen(a.value)), log_sum_exp


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
    """Lower attention for which PyTorch chose one of its kernels. The second result is the log-sum-exp, for a backward graph."""
    if a.dropout_p:
        raise Unsupported("attention with dropout")
    if any(type_ is not None for type_ in result[2:]):
        raise Unsupported("the state of a kernel of attention")
    if result[1] is None:  # not read
        return _attend(a)[0], *[None] * (len(result) - 1)
    return *_attend_with_logs(a), *[None] * (len(result) - 2)


@rule_by_name("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(result: Any, a: Any) -> Any:
    """Recompute the weights from the log-sum-exp; Dao et al., arXiv:2205.14135, algorithm 4."""
    if a.dropout_p:
        raise Unsupported("attention with dropout")
    scores = _score(a)
    shape = scores.shape
    log_sum_exp = emit("Unsqueeze", cast(a.logsumexp, scores.dtype), ints(-1))
    weights = set_shape(emit("Exp", emit("Sub", _add_mask(scores, a.attn_mask), log_sum_exp)), shape)
    grad, query = _widen(a.grad_out), _widen(a.query)
    # The paper's D, dP and dS, from which follow the gradients of query, key and value.
    row_sums = emit("ReduceSum", emit("Mul", grad, _widen(a.out)), ints(-1), keepdims=1)
    weights_grad = emit("Sub", _multiply(grad, _transpose_last(_widen(a.value))), row_sums)
    scale = _make_scale(a.query, a.scale, query.dtype)
    scores_grad = set_shape(emit("Mul", emit("Mul", weights, weights_grad), scale), shape)
    key_grad = _multiply_transposed(scores_grad, query, a.key)
    return _multiply(scores_grad, _widen(a.key)), key_grad, _multiply_transposed(weights, grad, a.value)
