"""Normalizations and dropout.

Ioffe and Szegedy, arXiv:1502.03167 (batches); Ba et al., arXiv:1607.06450 (layers); Ulyanov et al., arXiv:1607.08022 (instances).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.passes.gradient.definitions import definition
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import add_axes, cast, count, number, reduce_sum, sum_to

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _per_channel(x: Tensor, like: Tensor, dtype: DType) -> Tensor:
    """Return one number per channel so that it broadcasts to a tensor (N, C, ...)."""
    return add_axes(cast(x, dtype), *range(1, like.ndim - 1))


@rule("BatchNormalization")
def normalize_batch(at: RuleContext) -> Gradients:
    """The function y = scale (x - mean) / sqrt(var + epsilon) + bias with statistics that are given, or those of the batch.

    Of the batch: dx = r s (g - mean(g) - n mean(g n)) with the normalized n, the scale s and r = 1 / sqrt(var + epsilon).
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
    found: list[Tensor | None] = [None] * 5
    found[1] = cast(reduce_sum(at.g * normal, axes), at.input(1).dtype) if at.wants(1) else None
    found[2] = cast(reduce_sum(at.g, axes), at.input(2).dtype) if at.wants(2) else None
    if in_training:
        found[0] = _batch_input(at, normal, centered, scale * inverse, axes) if at.wants(0) else None
        for place in (3, 4):
            running = at.gradients[place - 2] if place - 2 < len(at.gradients) else None
            found[place] = None if running is None else running * at.attr("momentum", 0.9)
        return found
    scaled = at.g * (scale * inverse)
    found[0] = scaled
    found[3] = cast(-reduce_sum(scaled, axes), at.input(3).dtype) if at.wants(3) else None
    if at.wants(4):
        found[4] = cast(reduce_sum(scaled * normal * inverse, axes) * -0.5, at.input(4).dtype)
    return found


def _batch_input(at: RuleContext, normal: Tensor, centered: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    g = at.g
    found = (g - emit("ReduceMean", g, axes, keepdims=1) - normal * emit("ReduceMean", g * normal, axes, keepdims=1)) * factor
    share = 1 - at.attr("momentum", 0.9)
    for place, slope in ((1, None), (2, centered)):
        running = at.gradients[place] if place < len(at.gradients) else None
        if running is not None:  # the running statistics depend on the batch
            spread = _per_channel(running, at.x, at.x.dtype) / count(at.x, running)
            found = found + (spread * share if slope is None else spread * slope * (2 * share))
    return found


@definition("InstanceNormalization")
def normalize_instances(at: RuleContext) -> Gradients:
    """The function y = scale (x - mean) / sqrt(var + epsilon) + bias with the statistics of each instance and channel."""
    x, axes = at.x, list(range(2, at.rank(at.x)))
    centered = x - emit("ReduceMean", x, axes, keepdims=1)
    variance = emit("ReduceMean", centered * centered, axes, keepdims=1)
    normal = centered / emit("Sqrt", variance + at.attr("epsilon", 1e-5))
    return (normal * _per_channel(at.input(1), x, x.dtype) + _per_channel(at.input(2), x, x.dtype),)


@definition("MeanVarianceNormalization")
def normalize_moments(at: RuleContext) -> Gradients:
    """The function (x - E x) / (sqrt(E x^2 - (E x)^2) + 1e-9) with means over the axes; ONNX's is for float32 alone."""
    x, axes = at.x, at.attr("axes", [0, 2, 3])
    mean = emit("ReduceMean", x, axes, keepdims=1)
    deviation = emit("Sqrt", emit("ReduceMean", x * x, axes, keepdims=1) - mean * mean)
    return ((x - mean) / (deviation + 1e-9),)


@rule("LayerNormalization")
def normalize_layer(at: RuleContext) -> Gradients:
    """The function y = s n + b with n = (x - mean) r: dx = r (h - mean(h) - n mean(h n)) with h = s g, in the stash type."""
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
def drop_out(at: RuleContext) -> Gradients:
    """In training the elements that are kept are divided by 1 - ratio, and the others are 0; the mask is an output."""
    flag = at.constant(2)
    if at.optional(2) is None or (flag is not None and not flag.any()):
        return (at.g,)
    mask = at.output(1, TensorType(DType.BOOL, at.y.tensor_type.shape))
    ratio = at.optional(1)
    kept = number(0.5, at.x) if ratio is None else 1 - cast(ratio, at.x.dtype)
    if flag is None:  # the flag is known at run time only
        kept = emit("Where", at.input(2), kept, number(1, at.x))
    return (emit("Where", mask, at.g / kept, number(0, at.g)),)
