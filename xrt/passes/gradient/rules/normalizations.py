"""Gradients of normalizations, dropout and reductions.

Ioffe and Szegedy, arXiv:1502.03167 (batch); Ba et al., arXiv:1607.06450 (layer); Ulyanov et al., arXiv:1607.08022 (instance).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.passes.gradient.table import (
    Gradients,
    RuleContext,
    add_axes,
    cast,
    count_reduced,
    expand_to,
    reduce_sum,
    rule,
    sum_to,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def _per_channel(x: Tensor, like: Tensor, dtype: DType) -> Tensor:
    """Cast a vector with one number per channel, and reshape it to broadcast with ``like`` (N, C, ...)."""
    return add_axes(cast(x, dtype), *range(1, like.ndim - 1))


@rule("BatchNormalization")
def normalize_batch(ctx: RuleContext) -> Gradients:
    """Rule for y = scale (x - mean) / sqrt(var + epsilon) + bias, with given or batch statistics.

    Batch statistics: dx = r s (g - mean(g) - n mean(g n)) with normalized input n, scale s and r = 1 / sqrt(var + epsilon).
    """
    x, dtype = ctx.x, ctx.x.dtype
    axes = [0, *range(2, ctx.rank(x))]
    scale, epsilon = _per_channel(ctx.input(1), x, dtype), ctx.attr("epsilon", 1e-5)
    is_training = ctx.attr("training_mode", 0) == 1
    if is_training:
        centered = x - emit("ReduceMean", x, axes, keepdims=1)
        variance = emit("ReduceMean", centered * centered, axes, keepdims=1)
    else:
        centered = x - _per_channel(ctx.input(3), x, dtype)
        variance = _per_channel(ctx.input(4), x, dtype)
    inverse = emit("Reciprocal", emit("Sqrt", variance + epsilon))
    normal, factor = centered * inverse, scale * inverse
    scale_gradient = cast(reduce_sum(ctx.g * normal, axes), ctx.input(1).dtype)
    bias_gradient = cast(reduce_sum(ctx.g, axes), ctx.input(2).dtype)
    if is_training:
        x_gradient = _differentiate_batch_input(ctx, normal, centered, factor, axes)
        # The updated statistics, outputs 1 and 2, are momentum * old + (1 - momentum) * batch.
        momentum = ctx.attr("momentum", 0.9)
        old_gradients = [None if g is None else g * momentum for g in ctx.gradients[1:3]]
        return x_gradient, scale_gradient, bias_gradient, *old_gradients
    x_gradient = ctx.g * factor
    mean_gradient = cast(-reduce_sum(x_gradient, axes), ctx.input(3).dtype)
    variance_gradient = cast(reduce_sum(x_gradient * normal * inverse, axes) * -0.5, ctx.input(4).dtype)
    return x_gradient, scale_gradient, bias_gradient, mean_gradient, variance_gradient


def _differentiate_batch_input(ctx: RuleContext, normal: Tensor, centered: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    """Compute the gradient of the input of a BatchNormalization in training mode."""
    g, x = ctx.g, ctx.x
    gradient = (g - emit("ReduceMean", g, axes, keepdims=1) - normal * emit("ReduceMean", g * normal, axes, keepdims=1)) * factor
    # The updated statistics, outputs 1 and 2, also depend on the batch.
    batch_share = 1 - ctx.attr("momentum", 0.9)
    for index, statistic_gradient in enumerate(ctx.gradients[1:3], 1):
        if statistic_gradient is not None:
            share = _per_channel(statistic_gradient, x, x.dtype) / count_reduced(x, statistic_gradient) * batch_share
            gradient = gradient + (share if index == 1 else share * centered * 2)
    return gradient


@rule("LayerNormalization")
def normalize_layer(ctx: RuleContext) -> Gradients:
    """Rule for y = s n + b, n = (x - mean) r: dx = r (h - mean(h) - n mean(h n)) with h = s g, in the stash type."""
    rank = ctx.rank(ctx.x)
    axes = list(range(ctx.attr("axis", -1) % rank, rank))
    stash = DType.from_onnx(ctx.attr("stash_type", 1))
    x, g, scale = cast(ctx.x, stash), cast(ctx.g, stash), ctx.input(1)
    extents = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.tensor_type.shape or ()))
    mean, inverse = (ctx.output(index, TensorType(stash, extents)) for index in (1, 2))
    normal = (x - mean) * inverse
    scaled = g * cast(scale, stash)
    centered = scaled - emit("ReduceMean", scaled, axes, keepdims=1)
    x_gradient = (centered - normal * emit("ReduceMean", scaled * normal, axes, keepdims=1)) * inverse
    # The mean (output 1) and the inverse deviation (output 2) also depend on the input.
    for index, statistic_gradient in enumerate(ctx.gradients[1:3], 1):
        if statistic_gradient is not None:
            share = statistic_gradient / count_reduced(x, statistic_gradient)
            x_gradient = x_gradient + (share if index == 1 else -(share * normal * inverse * inverse))
    scale_gradient = sum_to(cast(g * normal, scale.dtype), scale)
    bias_gradient = sum_to(ctx.g, ctx.input(2)) if ctx.wants(2) else None
    return cast(x_gradient, ctx.x.dtype), scale_gradient, bias_gradient


@rule("Dropout")
def dropout(ctx: RuleContext) -> Gradients:
    """In training, kept elements are divided by 1 - ratio and the others are 0; the mask is an output."""
    flag = ctx.constant(2)
    is_inference = ctx.optional(2) is None or (flag is not None and not flag.any())
    if is_inference:
        return (ctx.g,)
    mask = ctx.output(1, TensorType(DType.BOOL, ctx.y.tensor_type.shape))
    ratio = ctx.optional(1)
    keep: Any = 0.5 if ratio is None else 1 - cast(ratio, ctx.x.dtype)
    if flag is None:  # whether the node is in training mode is known only at run time
        keep = emit("Where", ctx.input(2), keep, np.asarray(1, ctx.x.dtype.numpy))
    return (emit("Where", mask, ctx.g / keep, 0),)


def _is_copy(ctx: RuleContext) -> bool:
    """Whether the reduction is the identity: no axes, and noop_with_empty_axes is set."""
    axes = ctx.constant(1)
    return (ctx.optional(1) is None or (axes is not None and axes.size == 0)) and ctx.attr("noop_with_empty_axes", 0) == 1


def _restore_axes(ctx: RuleContext, reduced: Tensor) -> Tensor:
    """Insert the axes that the reduction has removed, with extent 1, so that the result broadcasts to the input."""
    axes = ctx.optional(1)
    if ctx.attr("keepdims", 1) or axes is None or _is_copy(ctx):
        return reduced
    constant = ctx.constant(1)
    return reduced if constant is not None and constant.size == 0 else emit("Unsqueeze", reduced, axes)


def _sum(ctx: RuleContext, x: Tensor) -> Tensor:
    """Sum over the axes that the node reduces, and keep them with extent 1."""
    if _is_copy(ctx):
        return x
    axes = ctx.optional(1)
    return emit("ReduceSum", x, keepdims=1) if axes is None else emit("ReduceSum", x, axes, keepdims=1)


def _check_reduces(ctx: RuleContext) -> None:
    """Refuse a node that reduces no axes (noop_with_empty_axes=1): versions of ONNX disagree on its result."""
    if _is_copy(ctx):
        ctx.refuse("it reduces no axes (noop_with_empty_axes=1)")


@rule("ReduceSum")
def sum_elements(ctx: RuleContext) -> Gradients:
    """Each element gets the gradient of its sum."""
    return (expand_to(_restore_axes(ctx, ctx.g), ctx.x),)


@rule("ReduceMean")
def average_elements(ctx: RuleContext) -> Gradients:
    """Each element gets the gradient of its mean, divided by the element count."""
    return (expand_to(_restore_axes(ctx, ctx.g) / count_reduced(ctx.x, ctx.y), ctx.x),)


@rule("ReduceL2")
def reduce_l2(ctx: RuleContext) -> Gradients:
    """d/dx sqrt(sum x^2) = x / sqrt(sum x^2); 0 at 0."""
    _check_reduces(ctx)
    g, y = _restore_axes(ctx, ctx.g), _restore_axes(ctx, ctx.y)
    is_zero = emit("Equal", y, 0)
    # 0 / 0 would be NaN; the inner Where keeps it out of second derivatives, too.
    scale = emit("Where", is_zero, 0, g / emit("Where", is_zero, 1, y))
    return (scale * ctx.x,)


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(ctx: RuleContext) -> Gradients:
    """d/dx log sum exp x = exp(x - log sum exp x)."""
    _check_reduces(ctx)
    return (_restore_axes(ctx, ctx.g) * emit("Exp", ctx.x - _restore_axes(ctx, ctx.y)),)


@rule("ReduceMax", "ReduceMin")
def reduce_extreme(ctx: RuleContext) -> Gradients:
    """The gradient goes to the extreme element; ties share it equally."""
    mask = cast(emit("Equal", ctx.x, _restore_axes(ctx, ctx.y)), ctx.x.dtype)
    return (_restore_axes(ctx, ctx.g) / _sum(ctx, mask) * mask,)


@rule("ReduceProd")
def multiply_elements(ctx: RuleContext) -> Gradients:
    """d/dx prod x = the product of the other elements, also if exactly one element is 0.

    The second derivative is correct only if no element is 0.
    """
    x = ctx.x
    is_zero = emit("Equal", x, 0)
    # The product of the others is the product of all, divided by the element. For a zero it is the product of the nonzero
    # elements, so replace zeros by 1 and count them.
    zero_count = _sum(ctx, cast(is_zero, x.dtype))
    nonzero = emit("Where", is_zero, 1, x)
    axes = () if ctx.optional(1) is None else (ctx.optional(1),)
    product = nonzero if _is_copy(ctx) else emit("ReduceProd", nonzero, *axes, keepdims=1)
    # With one zero only that element has a gradient; with more, no element has.
    slope_at_zero = emit("Where", emit("Equal", zero_count, 1), product, 0)
    slope_elsewhere = emit("Where", emit("Equal", zero_count, 0), product / nonzero, 0)
    return (_restore_axes(ctx, ctx.g) * emit("Where", is_zero, slope_at_zero, slope_elsewhere),)


@rule("CumSum")
def sum_up(ctx: RuleContext) -> Gradients:
    """An element is part of all later sums, so the gradients are accumulated from the other end."""
    reverse = 1 - ctx.attr("reverse", 0)
    return (emit("CumSum", ctx.g, ctx.input(1), exclusive=ctx.attr("exclusive", 0), reverse=reverse),)


@rule("TopK")
def choose_largest(ctx: RuleContext) -> Gradients:
    """The gradients go to the indices of the selected elements."""
    zeros = zeros_like(ctx.x)
    indices = ctx.output(1, TensorType(DType.INT64, ctx.y.tensor_type.shape))
    return (emit("ScatterElements", zeros, indices, ctx.g, axis=ctx.attr("axis", -1), reduction="add"),)
