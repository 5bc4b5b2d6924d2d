"""Gradients of normalizations, dropout and reductions.

Ioffe and Szegedy, arXiv:1502.03167 (batch); Ba et al., arXiv:1607.06450 (layer); Ulyanov et al., arXiv:1607.08022 (instance).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.passes.gradient.table import RuleContext, add_axes, cast, count, expand_to, number, reduce_sum, rule, sum_to, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _per_channel(x: Tensor, like: Tensor, dtype: DType) -> Tensor:
    """Reshape per-channel numbers to broadcast with (N, C, ...)."""
    return add_axes(cast(x, dtype), *range(1, like.ndim - 1))


@rule("BatchNormalization")
def normalize_batch(at: RuleContext) -> Gradients:
    """Rule for y = scale (x - mean) / sqrt(var + epsilon) + bias, with given or batch statistics.

    Batch statistics: dx = r s (g - mean(g) - n mean(g n)) with normalized input n, scale s and r = 1 / sqrt(var + epsilon).
    """
    x, dtype, axes = at.x, at.x.dtype, [0, *range(2, at.rank(at.x))]
    scale, epsilon = _per_channel(at.input(1), x, dtype), at.attr("epsilon", 1e-5)
    in_training = at.attr("training_mode", 0) == 1
    if in_training:
        mean = emit("ReduceMean", x, axes, keepdims=1)
        centered = x - mean
        variance = emit("ReduceMean", centered * centered, axes, keepdims=1)
    else:
        centered = x - _per_channel(at.input(3), x, dtype)
        variance = _per_channel(at.input(4), x, dtype)
    inverse = emit("Reciprocal", emit("Sqrt", variance + epsilon))
    normal = centered * inverse
    gradients: list[Tensor | None] = [None] * 5
    gradients[1] = cast(reduce_sum(at.g * normal, axes), at.input(1).dtype) if at.wants(1) else None
    gradients[2] = cast(reduce_sum(at.g, axes), at.input(2).dtype) if at.wants(2) else None
    if in_training:
        gradients[0] = _differentiate_batch_input(at, normal, centered, scale * inverse, axes) if at.wants(0) else None
        for place in (3, 4):
            running = at.gradients[place - 2] if place - 2 < len(at.gradients) else None
            # The updated statistic is momentum * old + (1 - momentum) * batch.
            gradients[place] = None if running is None else running * at.attr("momentum", 0.9)
        return gradients
    scaled = at.g * (scale * inverse)
    gradients[0] = scaled
    gradients[3] = cast(-reduce_sum(scaled, axes), at.input(3).dtype) if at.wants(3) else None
    if at.wants(4):
        gradients[4] = cast(reduce_sum(scaled * normal * inverse, axes) * -0.5, at.input(4).dtype)
    return gradients


def _differentiate_batch_input(at: RuleContext, normal: Tensor, centered: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    """The gradient of the input of a BatchNormalization in training mode."""
    g = at.g
    gradient = (g - emit("ReduceMean", g, axes, keepdims=1) - normal * emit("ReduceMean", g * normal, axes, keepdims=1)) * factor
    share = 1 - at.attr("momentum", 0.9)
    for place, slope in ((1, None), (2, centered)):
        running = at.gradients[place] if place < len(at.gradients) else None
        if running is not None:  # the running statistics also depend on the batch
            spread = _per_channel(running, at.x, at.x.dtype) / count(at.x, running)
            gradient = gradient + (spread * share if slope is None else spread * slope * (2 * share))
    return gradient


@rule("LayerNormalization")
def normalize_layer(at: RuleContext) -> Gradients:
    """Rule for y = s n + b, n = (x - mean) r: dx = r (h - mean(h) - n mean(h n)) with h = s g, in the stash type."""
    rank = at.rank(at.x)
    axes, stash = list(range(at.attr("axis", -1) % rank, rank)), DType.from_onnx(at.attr("stash_type", 1))
    x, g, scale = cast(at.x, stash), cast(at.g, stash), at.input(1)
    extents = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.tensor_type.shape or ()))
    mean, inverse = (at.output(place, TensorType(stash, extents)) for place in (1, 2))
    normal = (x - mean) * inverse
    scaled = g * cast(scale, stash)
    inner = scaled - emit("ReduceMean", scaled, axes, keepdims=1) - normal * emit("ReduceMean", scaled * normal, axes, keepdims=1)
    first = inner * inverse
    for place in (1, 2):
        statistic = at.gradients[place] if place < len(at.gradients) else None
        if statistic is not None:  # the gradient of the mean, and of the inverse deviation
            share = statistic / count(x, statistic)
            first = first + (share if place == 1 else -(share * normal * inverse * inverse))
    second = sum_to(cast(g * normal, scale.dtype), scale) if at.wants(1) else None
    third = sum_to(at.g, at.input(2)) if at.wants(2) else None
    return cast(first, at.x.dtype), second, third


@rule("Dropout")
def dropout(at: RuleContext) -> Gradients:
    """In training, kept elements are divided by 1 - ratio and the others are 0; the mask is an output."""
    flag = at.constant(2)
    if at.optional(2) is None or (flag is not None and not flag.any()):
        return (at.g,)
    mask = at.output(1, TensorType(DType.BOOL, at.y.tensor_type.shape))
    ratio = at.optional(1)
    keep = number(0.5, at.x) if ratio is None else 1 - cast(ratio, at.x.dtype)
    if flag is None:  # known only at run time
        keep = emit("Where", at.input(2), keep, number(1, at.x))
    return (emit("Where", mask, at.g / keep, number(0, at.g)),)


def _is_copy(at: RuleContext) -> bool:
    """Whether the reduction is the identity: no axes, and noop_with_empty_axes is set."""
    axes = at.constant(1)
    return (at.optional(1) is None or (axes is not None and axes.size == 0)) and at.attr("noop_with_empty_axes", 0) == 1


def _restore_axes(at: RuleContext, reduced: Tensor) -> Tensor:
    """Restore the reduced axes with extent 1, so that the result broadcasts to the input."""
    axes = at.optional(1)
    if at.attr("keepdims", 1) or axes is None or _is_copy(at):
        return reduced
    constant = at.constant(1)
    return reduced if constant is not None and constant.size == 0 else emit("Unsqueeze", reduced, axes)


def _sum(at: RuleContext, x: Tensor) -> Tensor:
    """Sum over the node's axes with keepdims."""
    if _is_copy(at):
        return x
    axes = at.optional(1)
    return emit("ReduceSum", x, keepdims=1) if axes is None else emit("ReduceSum", x, axes, keepdims=1)


def _check_reduces(at: RuleContext) -> None:
    """Refuse a node that reduces no axes (noop_with_empty_axes=1): versions of ONNX disagree on its result."""
    if _is_copy(at):
        at.refuse("it reduces no axes (noop_with_empty_axes=1)")


@rule("ReduceSum")
def sum_elements(at: RuleContext) -> Gradients:
    """Each element gets the gradient of its sum."""
    return (expand_to(_restore_axes(at, at.g), at.x),)


@rule("ReduceMean")
def average_elements(at: RuleContext) -> Gradients:
    """Each element gets the gradient of its mean, divided by the element count."""
    return (expand_to(_restore_axes(at, at.g) / count(at.x, at.y), at.x),)


@rule("ReduceL2")
def reduce_l2(at: RuleContext) -> Gradients:
    """d/dx sqrt(sum x^2) = x / sqrt(sum x^2); 0 at 0."""
    _check_reduces(at)
    g, y = _restore_axes(at, at.g), _restore_axes(at, at.y)
    is_zero = emit("Equal", y, number(0, y))
    # 0 / 0 would be NaN; the inner Where keeps it out of second derivatives, too.
    scale = emit("Where", is_zero, number(0, y), g / emit("Where", is_zero, number(1, y), y))
    return (scale * at.x,)


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(at: RuleContext) -> Gradients:
    """d/dx log sum exp x = exp(x - log sum exp x)."""
    _check_reduces(at)
    return (_restore_axes(at, at.g) * emit("Exp", at.x - _restore_axes(at, at.y)),)


@rule("ReduceMax", "ReduceMin")
def reduce_extreme(at: RuleContext) -> Gradients:
    """The gradient goes to the extreme element; ties share it equally."""
    mask = cast(emit("Equal", at.x, _restore_axes(at, at.y)), at.x.dtype)
    return (_restore_axes(at, at.g) / _sum(at, mask) * mask,)


@rule("ReduceProd")
def multiply_elements(at: RuleContext) -> Gradients:
    """d/dx prod x = the product of the other elements, also if exactly one element is 0.

    The second derivative is correct only if no element is 0.
    """
    x = at.x
    is_zero = emit("Equal", x, number(0, x))
    # Count the zeros: a quotient by 0 cannot give the product of the others.
    zeros_in = _sum(at, cast(is_zero, x.dtype))
    others = emit("Where", is_zero, number(1, x), x)
    axes = () if _is_copy(at) or at.optional(1) is None else (at.optional(1),)
    product: Any = others if _is_copy(at) else emit("ReduceProd", others, *axes, keepdims=1)
    # With one zero only that element has a gradient; with more, none has.
    at_zero = emit("Where", emit("Equal", zeros_in, number(1, x)), product, number(0, x))
    elsewhere = emit("Where", emit("Equal", zeros_in, number(0, x)), product / others, number(0, x))
    return (_restore_axes(at, at.g) * emit("Where", is_zero, at_zero, elsewhere),)


@rule("CumSum")
def sum_up(at: RuleContext) -> Gradients:
    """An element is part of all later sums, so the gradients are accumulated from the other end."""
    reverse = 1 - at.attr("reverse", 0)
    return (emit("CumSum", at.g, at.input(1), exclusive=at.attr("exclusive", 0), reverse=reverse),)


@rule("TopK")
def choose_largest(at: RuleContext) -> Gradients:
    """The gradients go to the indices of the selected elements."""
    gradient = emit(
        "ScatterElements",
        zeros_like(at.x),
        at.output(1, TensorType(DType.INT64, at.y.tensor_type.shape)),
        at.g,
        axis=at.attr("axis", -1),
        reduction="add",
    )
    return (gradient,)
