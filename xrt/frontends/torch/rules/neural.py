"""Rules of convolutions and normalizations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.frontends.torch.rules.reduce import reduce_by
from xrt.frontends.torch.rules.table import (
    Unsupported,
    add_batch,
    cast,
    constant,
    drop_batch,
    each,
    fixed_size,
    ints,
    reshape,
    rule,
    scalar,
)
from xrt.frontends.torch.symbols import set_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


# ---------------------------------------------------------------------- convolutions


@rule("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv(
    result: TensorType,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    count = weight.ndim - 2
    dilations = each(dilation, count)
    if padding == "valid":
        padding = 0
    if padding == "same":
        reach = [d * (fixed_size(weight, axis + 2) - 1) for axis, d in enumerate(dilations)]
        pads = [one // 2 for one in reach] + [one - one // 2 for one in reach]
    else:
        pads = each(padding, count) * 2
    y, is_single = add_batch(x, count)
    y = emit("Conv", y, weight, bias, strides=each(stride, count), pads=pads, dilations=dilations, group=groups)
    return drop_batch(y, is_single)


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    result: TensorType,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    count = weight.ndim - 2
    y, is_single = add_batch(x, count)
    y = emit(
        "ConvTranspose",
        y,
        weight,
        bias,
        strides=each(stride, count),
        pads=each(padding, count) * 2,
        output_padding=each(output_padding, count),
        dilations=each(dilation, count),
        group=groups,
    )
    return drop_batch(y, is_single)


@rule("convolution", "_convolution")
def convolution(
    result: TensorType,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    if transposed:
        return conv_transpose(result, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(result, x, weight, bias, stride, padding, dilation, groups)


# ---------------------------------------------------------------------- normalizations


def _columns(value: Tensor, rank: int) -> Tensor:
    """Return a vector of one number per channel as it broadcasts over a tensor of that rank."""
    return reshape(value, -1, *[1] * (rank - 2))


@rule("batch_norm")
def batch_norm(
    result: TensorType,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    if training:
        raise Unsupported("batch normalization in training mode; call eval() on the module to use its running statistics")
    if mean is None or variance is None:
        raise Unsupported("batch normalization without running statistics")
    channels = fixed_size(mean, 0)
    scale = constant(np.ones(channels), mean.dtype) if weight is None else weight
    shift = constant(np.zeros(channels), mean.dtype) if bias is None else bias
    return emit("BatchNormalization", x, scale, shift, mean, variance, epsilon=float(eps))


@rule("_native_batch_norm_legit_no_training")
def native_batch_norm(
    result: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    empty = constant(np.zeros(0), DType.FLOAT32)
    return batch_norm(result[0], x, weight, bias, mean, variance, False, momentum, eps), empty, empty


@rule("_native_batch_norm_legit.no_stats")
def native_batch_norm_alone(
    result: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """Normalize by the statistics of the batch, which are results too."""
    y, mean, deviation, _ = _normalize_batch(x, weight, bias, eps)
    return y, mean, deviation


@rule("_native_batch_norm_legit_functional")
def native_batch_norm_functional(
    result: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The same in training, with the running statistics as they are afterwards."""
    if not training:
        return *native_batch_norm(result, x, weight, bias, mean, variance, momentum, eps), mean, variance
    y, batch_mean, deviation, spread = _normalize_batch(x, weight, bias, eps)
    unbiased = emit("Mul", spread, _find_correction(x, batch_mean, spread.dtype))
    after = []
    for old, new in ((mean, batch_mean), (variance, unbiased)):
        kept, taken = scalar(1 - momentum, old.dtype), scalar(momentum, old.dtype)
        after.append(emit("Add", emit("Mul", old, kept), emit("Mul", cast(new, old.dtype), taken)))
    return y, batch_mean, deviation, *after


@rule("_batch_norm_with_update_functional")
def batch_norm_with_update(
    result: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """The same with an empty tensor, which a kernel of PyTorch would keep its state in."""
    y, batch_mean, deviation, *after = native_batch_norm_functional(result, x, weight, bias, mean, variance, True, momentum, eps)
    return y, batch_mean, deviation, constant(np.zeros(0), DType.UINT8), *after


def _find_correction(x: Tensor, mean: Tensor, dtype: DType) -> Tensor:
    """Return n / (n - 1) of the n elements that a channel has."""
    sizes = [size for axis, size in enumerate(x.shape) if axis != 1]
    if all(isinstance(size, int) for size in sizes):
        count = math.prod(size for size in sizes if isinstance(size, int))
        return scalar(count / (count - 1) if count > 1 else math.nan, dtype)
    elements = emit("Cast", emit("Div", emit("Size", x), emit("Size", mean)), to=dtype)
    return emit("Div", elements, emit("Sub", elements, scalar(1, dtype)))


def _normalize_batch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Return the normalized tensor, and per channel the mean, one over the deviation, and the variance."""
    if x.dtype is not DType.FLOAT64:  # PyTorch's kernels keep the statistics of half precision in float32
        weight, bias = (None if one is None else cast(one, DType.FLOAT32) for one in (weight, bias))
        x = set_shape(cast(x, DType.FLOAT32), x.shape)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    mean = reduce_by("ReduceMean", x, axes, True)
    centered = emit("Sub", x, mean)
    spread = reduce_by("ReduceMean", emit("Mul", centered, centered), axes, True)
    deviation = emit("Reciprocal", emit("Sqrt", emit("Add", spread, scalar(eps, x.dtype))))
    channels = [1, -1, *[1] * (x.ndim - 2)]
    scale = deviation if weight is None else emit("Mul", deviation, reshape(weight, *channels))
    y = emit("Mul", centered, scale)
    if bias is not None:
        y = emit("Add", y, reshape(bias, *channels))
    return y, *(reshape(one, -1) for one in (mean, deviation, spread))


@rule("layer_norm")
def layer_norm(
    result: TensorType,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = False,
) -> Tensor:
    if not all(isinstance(size, int) for size in normalized_shape):
        raise Unsupported("layer normalization over axes of symbolic size")
    scale = constant(np.ones(normalized_shape), x.dtype) if weight is None else weight
    return emit("LayerNormalization", x, scale, bias, axis=-len(normalized_shape), epsilon=float(eps))


@rule("native_layer_norm")
def native_layer_norm(
    result: Any, x: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    y = layer_norm(result[0], x, normalized_shape, weight, bias, eps)
    if result[1] is None and result[2] is None:
        return y, None, None
    axes = list(range(x.ndim - len(normalized_shape), x.ndim))
    mean = reduce_by("ReduceMean", x, axes, True)
    centered = emit("Sub", x, mean)
    spread = reduce_by("ReduceMean", emit("Mul", centered, centered), axes, True)
    return y, mean, emit("Reciprocal", emit("Sqrt", emit("Add", spread, scalar(eps, x.dtype))))


@rule("rms_norm")
def rms_norm(
    result: TensorType, x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if eps is None:
        eps = float(np.finfo(x.dtype.numpy).eps) if x.dtype.numpy.kind == "f" else 2.0**-7
    scale = constant(np.ones(normalized_shape), x.dtype) if weight is None else weight
    return emit("RMSNormalization", x, scale, axis=-len(normalized_shape), epsilon=float(eps))


@rule("group_norm")
def group_norm(
    result: TensorType,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = False,
) -> Tensor:
    channels = fixed_size(x, 1)
    scale = constant(np.ones(channels), x.dtype) if weight is None else weight
    shift = constant(np.zeros(channels), x.dtype) if bias is None else bias
    if x.ndim > 2:
        return emit("GroupNormalization", x, scale, shift, num_groups=num_groups, epsilon=float(eps))
    wide = emit("Unsqueeze", x, ints(2))
    return emit("Squeeze", emit("GroupNormalization", wide, scale, shift, num_groups=num_groups, epsilon=float(eps)), ints(2))


@rule("native_group_norm")
def native_group_norm(result: Any, x: Tensor, weight: Any, bias: Any, n: Any, c: Any, hw: Any, group: int, eps: float) -> Any:
    y = group_norm(result[0], x, group, weight, bias, eps)
    if result[1] is None and result[2] is None:
        return y, None, None
    rows = reshape(x, 0, group, -1)
    mean = reduce_by("ReduceMean", rows, [2], False)
    centered = emit("Sub", rows, emit("Unsqueeze", mean, ints(2)))
    spread = reduce_by("ReduceMean", emit("Mul", centered, centered), [2], False)
    return y, mean, emit("Reciprocal", emit("Sqrt", emit("Add", spread, scalar(eps, x.dtype))))


@rule("instance_norm")
def instance_norm(
    result: TensorType,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    if not use_input_stats:
        return batch_norm(result, x, weight, bias, mean, variance, False, momentum, eps)
    channels = fixed_size(x, 1)
    scale = constant(np.ones(channels), x.dtype) if weight is None else weight
    shift = constant(np.zeros(channels), x.dtype) if bias is None else bias
    return emit("InstanceNormalization", x, scale, shift, epsilon=float(eps))


@rule("_weight_norm")
def weight_norm(result: TensorType, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim] if dim != -1 else list(range(v.ndim))
    return emit("Mul", v, emit("Div", g, reduce_by("ReduceL2", v, axes, True)))


@rule("_weight_norm_interface")
def weight_norm_interface(result: Any, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    norm = reduce_by("ReduceL2", v, axes, True)
    return emit("Mul", v, emit("Div", g, norm)), norm


@rule("im2col")
def im2col(result: TensorType, x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Read each column by two gathers, as the positions along each axis are known."""
    y = emit("Pad", x, ints(0, 0, *padding, 0, 0, *padding), scalar(0, x.dtype)) if any(padding) else x
    counts = []
    for axis in (0, 1):
        size = x.shape[axis + 2]
        if x.ndim != 4 or not isinstance(size, int):
            raise Unsupported("im2col over axes of symbolic size")
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        starts = np.arange(0, size + 2 * padding[axis] - reach + 1, stride[axis])
        positions = np.arange(kernel[axis])[:, None] * dilation[axis] + starts
        counts.append(len(starts))
        y = emit("Gather", y, constant(positions, DType.INT64), axis=2 + 2 * axis)
    turned = emit("Transpose", y, perm=[0, 1, 2, 4, 3, 5])
    return reshape(turned, 0, fixed_size(x, 1) * math.prod(kernel), math.prod(counts))


@rule("local_response_norm")
def local_response_norm(
    result: TensorType, x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    return emit("LRN", cast(x, result.dtype), size=size, alpha=alpha, beta=beta, bias=k)
