"""Rules of convolutions, normalizations, pools, resizing and recurrent layers, and of backward operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder import Builder
from xrt.builder.record_op import apply, emit, get_builder
from xrt.frontends.torch.rules.elementwise import drop, reduce_axes
from xrt.frontends.torch.rules.product import cdist
from xrt.frontends.torch.rules.table import (
    RULES,
    Unsupported,
    add_batch,
    cast,
    constant,
    drop_batch,
    get_static_size,
    ints,
    repeat_per_axis,
    reshape,
    rule,
    rule_by_name,
    scalar,
)
from xrt.frontends.torch.symbols import make_shape, set_shape
from xrt.graph import DType, TensorType
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from xrt.builder import Tensor


@rule_by_name(
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("convolution", "_convolution"),
)
def convolution(result: TensorType, a: Any) -> Tensor:
    return _convolve(a, a.input, a.weight, a.bias)


def _convolve(a: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Emit a convolution. The batch axis of ``x`` may be missing."""
    count = weight.ndim - 2
    y, is_single = add_batch(x, count)
    attributes = {"strides": a.stride, "dilations": a.dilation}
    # `convolution` has the argument `transposed`. Of the other overloads, only transposed ones have an output padding.
    is_transposed = getattr(a, "transposed", hasattr(a, "output_padding"))
    if is_transposed:
        attributes["output_padding"] = a.output_padding
    op_type = "ConvTranspose" if is_transposed else "Conv"
    per_axis = {name: repeat_per_axis(value, count) for name, value in attributes.items()}
    pads = repeat_per_axis(a.padding, count) * 2
    return drop_batch(emit(op_type, y, weight, bias, pads=pads, group=a.groups, **per_axis), is_single)


def _make_affine(a: Any, size: Any, dtype: DType) -> tuple[Tensor, Tensor]:
    scale = constant(np.ones(size), dtype) if a.weight is None else a.weight
    shift = constant(np.zeros(size), dtype) if a.bias is None else a.bias
    return scale, shift


def _emit_moments(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, ...]:
    """Emit the mean, ``x`` minus the mean, the variance, and 1 / sqrt(variance + eps); reduced axes have size 1."""
    mean = reduce_axes("ReduceMean", x, axes, True)
    centered = emit("Sub", x, mean)
    variance = reduce_axes("ReduceMean", emit("Mul", centered, centered), axes, True)
    return mean, centered, variance, emit("Reciprocal", emit("Sqrt", emit("Add", variance, scalar(eps, x.dtype))))


@rule_by_name("batch_norm")
def batch_norm(result: TensorType, a: Any) -> Tensor:
    if a.training:
        raise Unsupported("batch normalization in training mode; call eval() on the module to use its running statistics")
    return _normalize_by_running(a)


def _normalize_by_running(a: Any) -> Tensor:
    mean, variance = a.running_mean, a.running_var
    if mean is None or variance is None:
        raise Unsupported("batch normalization without running statistics")
    return emit(
        "BatchNormalization", a.input, *_make_affine(a, get_static_size(mean, 0), mean.dtype), mean, variance, epsilon=a.eps
    )


@rule_by_name("_native_batch_norm_legit_no_training")
def native_batch_norm(result: Any, a: Any) -> Any:
    # In evaluation mode PyTorch returns empty statistics.
    empty = constant(np.zeros(0), DType.FLOAT32)
    return _normalize_by_running(a), empty, empty


@rule_by_name("_native_batch_norm_legit.no_stats")
def native_batch_norm_without_statistics(result: Any, a: Any) -> Any:
    return _normalize_batch(a)[:3]


@rule_by_name("_native_batch_norm_legit_functional")
def native_batch_norm_functional(result: Any, a: Any) -> Any:
    if not a.training:
        return *native_batch_norm(result, a), a.running_mean, a.running_var
    y, mean, inverse_deviation, variance = _normalize_batch(a)
    unbiased_variance = emit("Mul", variance, _make_bessel_correction(a.input, mean, variance.dtype))
    updated = []
    for old, new in ((a.running_mean, mean), (a.running_var, unbiased_variance)):
        old_share, new_share = scalar(1 - a.momentum, old.dtype), scalar(a.momentum, old.dtype)
        updated.append(emit("Add", emit("Mul", old, old_share), emit("Mul", cast(new, old.dtype), new_share)))
    return y, mean, inverse_deviation, *updated


def _make_bessel_correction(x: Tensor, mean: Tensor, dtype: DType) -> Tensor:
    """Make n / (n - 1), for n elements per channel. ``mean`` has one element per channel."""
    sizes = [size for axis, size in enumerate(x.shape) if axis != 1]
    if all(isinstance(size, int) for size in sizes):
        count = math.prod(size for size in sizes if isinstance(size, int))
        return scalar(count / (count - 1) if count > 1 else math.nan, dtype)
    elements = emit("Cast", emit("Div", emit("Size", x), emit("Size", mean)), to=dtype)
    return emit("Div", elements, emit("Sub", elements, scalar(1, dtype)))


def _normalize_batch(a: Any) -> tuple[Tensor, ...]:
    """Normalize by batch statistics; return the result, and per channel the mean, the inverse deviation and the variance."""
    x, parameters = a.input, [a.weight, a.bias]
    # PyTorch's kernels compute the statistics of half precision in float32.
    if x.dtype is not DType.FLOAT64:
        parameters = [None if tensor is None else cast(tensor, DType.FLOAT32) for tensor in parameters]
        x = set_shape(cast(x, DType.FLOAT32), x.shape)
    channel_shape = [1, -1, *[1] * (x.ndim - 2)]  # the channels are axis 1
    weight, bias = (None if tensor is None else reshape(tensor, *channel_shape) for tensor in parameters)
    mean, centered, variance, inverse_deviation = _emit_moments(x, [axis for axis in range(x.ndim) if axis != 1], a.eps)
    y = emit("Mul", centered, inverse_deviation if weight is None else emit("Mul", inverse_deviation, weight))
    y = y if bias is None else emit("Add", y, bias)
    return y, *(reshape(statistic, -1) for statistic in (mean, inverse_deviation, variance))


@rule_by_name("layer_norm")
def layer_norm(result: TensorType, a: Any) -> Tensor:
    if not all(isinstance(size, int) for size in a.normalized_shape):
        raise Unsupported("layer normalization over axes of symbolic size")
    scale = constant(np.ones(a.normalized_shape), a.input.dtype) if a.weight is None else a.weight
    return emit("LayerNormalization", a.input, scale, a.bias, axis=-len(a.normalized_shape), epsilon=float(a.eps))


@rule_by_name("native_layer_norm")
def native_layer_norm(result: Any, a: Any) -> Any:
    y = layer_norm(result[0], a)
    if result[1] is None and result[2] is None:
        return y, None, None
    axes = list(range(a.input.ndim - len(a.normalized_shape), a.input.ndim))
    mean, _, _, inverse_deviation = _emit_moments(a.input, axes, a.eps)
    return y, mean, inverse_deviation


@rule_by_name("rms_norm")
def rms_norm(result: TensorType, a: Any) -> Tensor:
    dtype, eps = a.input.dtype.numpy, a.eps
    if eps is None:
        # NumPy does not know the machine epsilon of bfloat16, which is 2**-7.
        eps = np.finfo(dtype).eps if dtype.kind == "f" else 2.0**-7
    scale = constant(np.ones(a.normalized_shape), a.input.dtype) if a.weight is None else a.weight
    return emit("RMSNormalization", a.input, scale, axis=-len(a.normalized_shape), epsilon=float(eps))


@rule_by_name("group_norm")
def group_norm(result: TensorType, a: Any) -> Tensor:
    return _normalize_groups(a, a.num_groups)


def _normalize_groups(a: Any, groups: int) -> Tensor:
    x, parameters = a.input, _make_affine(a, get_static_size(a.input, 1), a.input.dtype)
    if x.ndim > 2:
        return emit("GroupNormalization", x, *parameters, num_groups=groups, epsilon=float(a.eps))
    # ONNX's GroupNormalization needs a spatial axis.
    y = emit("GroupNormalization", emit("Unsqueeze", x, ints(2)), *parameters, num_groups=groups, epsilon=float(a.eps))
    return emit("Squeeze", y, ints(2))


@rule_by_name("native_group_norm")
def native_group_norm(result: Any, a: Any) -> Any:
    y = _normalize_groups(a, a.group)
    if result[1] is None and result[2] is None:
        return y, None, None
    mean, _, _, inverse_deviation = _emit_moments(reshape(a.input, 0, a.group, -1), [2], a.eps)
    return y, emit("Squeeze", mean, ints(2)), emit("Squeeze", inverse_deviation, ints(2))


@rule_by_name("instance_norm")
def instance_norm(result: TensorType, a: Any) -> Tensor:
    if not a.use_input_stats:
        return _normalize_by_running(a)
    parameters = _make_affine(a, get_static_size(a.input, 1), a.input.dtype)
    return emit("InstanceNormalization", a.input, *parameters, epsilon=float(a.eps))


@rule("im2col")
def im2col(result: TensorType, x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    y = emit("Pad", x, ints(0, 0, *padding, 0, 0, *padding), scalar(0, x.dtype)) if any(padding) else x
    counts = []
    for axis in (0, 1):
        size = x.shape[axis + 2]
        if x.ndim != 4 or not isinstance(size, int):
            raise Unsupported("im2col over axes of symbolic size")
        window_size = dilation[axis] * (kernel[axis] - 1) + 1
        starts = np.arange(0, size + 2 * padding[axis] - window_size + 1, stride[axis])
        positions = np.arange(kernel[axis])[:, None] * dilation[axis] + starts
        counts.append(len(starts))
        y = emit("Gather", y, constant(positions, DType.INT64), axis=2 + 2 * axis)
    # From (batch, channel, kernel, windows, kernel, windows) to kernel and window axes side by side.
    y = emit("Transpose", y, perm=[0, 1, 2, 4, 3, 5])
    return reshape(y, 0, get_static_size(x, 1) * math.prod(kernel), math.prod(counts))


def _pool(op_type: str, spatial_rank: int, a: Any, **attributes: Any) -> Tensor:
    """Emit a pool over the last ``spatial_rank`` axes; the default stride is the kernel size."""
    y, is_single = add_batch(a.self, spatial_rank)
    sizes = repeat_per_axis(a.kernel_size, spatial_rank)
    strides = sizes if a.stride in ((), [], None) else repeat_per_axis(a.stride, spatial_rank)
    pads = repeat_per_axis(a.padding, spatial_rank) * 2
    y = emit(op_type, y, kernel_shape=sizes, strides=strides, pads=pads, ceil_mode=int(a.ceil_mode), **attributes)
    return drop_batch(y, is_single)


def _max_pool(spatial_rank: int, result: TensorType, a: Any) -> Tensor:
    return _pool("MaxPool", spatial_rank, a, dilations=repeat_per_axis(a.dilation, spatial_rank))


def _average_pool(spatial_rank: int, result: TensorType, a: Any) -> Tensor:
    if getattr(a, "divisor_override", None) is not None:
        raise Unsupported("an average pool with a divisor of its own")
    return _pool("AveragePool", spatial_rank, a, count_include_pad=int(a.count_include_pad))


def _max_pool_with_indices(spatial_rank: int, result: Any, a: Any) -> Any:
    """Emit MaxPool with indices, and convert the indices: ONNX counts in the whole tensor, PyTorch in each channel."""
    y = _max_pool(spatial_rank, result[0], a)
    if result[1] is None:
        return y, None
    x = a.self
    if x.ndim != spatial_rank + 2:
        raise Unsupported("a pool without a batch of which the indices are used")
    # MaxPool was recorded with one output. Record it again with the indices.
    builder = get_builder("a pool")
    node = builder.nodes.pop()
    indices_name = builder.names.take(f"{node.name}_indices")
    y, indices = builder.record(replace(node, outputs=(*node.outputs, indices_name)), (result[0], TensorType(DType.INT64)))
    channel_size = scalar(math.prod(get_static_size(x, axis) for axis in range(2, x.ndim)), DType.INT64)
    return y, emit("Mod", indices, channel_size)


def _adaptive_max_pool(spatial_rank: int, result: Any, x: Tensor, output_size: Any) -> Any:
    if result[1] is not None:
        raise Unsupported("an adaptive pool of which the indices are used")
    return _pool_adaptively("MaxPool", x, output_size, spatial_rank), None


def _adaptive_average_pool(spatial_rank: int, result: TensorType, x: Tensor, output_size: Any) -> Tensor:
    return _pool_adaptively("AveragePool", x, output_size, spatial_rank)


def _pool_adaptively(op_type: str, x: Tensor, output_size: Any, spatial_rank: int) -> Tensor:
    """Pool the last ``spatial_rank`` axes to ``output_size``: by a reduction, an ordinary pool, or window by window."""
    targets = repeat_per_axis(output_size, spatial_rank)
    axes = list(range(x.ndim - spatial_rank, x.ndim))
    reduction = "ReduceMean" if op_type == "AveragePool" else "ReduceMax"
    # A global pool is one reduction.
    if all(size == 1 for size in targets):
        return reduce_axes(reduction, x, axes, True)
    sizes = [x.shape[axis] for axis in axes]
    targets = [size if target is None else target for size, target in zip(sizes, targets, strict=True)]
    if not all(isinstance(size, int) and isinstance(target, int) for size, target in zip(sizes, targets, strict=True)):
        raise Unsupported("an adaptive pool over axes of symbolic size")
    # Windows of equal size: an ordinary pool.
    if all(size % target == 0 for size, target in zip(sizes, targets, strict=True)):  # type: ignore[operator]  # all are integers
        kernel = [size // target for size, target in zip(sizes, targets, strict=True)]  # type: ignore[operator]  # as above
        y, is_single = add_batch(x, spatial_rank)
        return drop_batch(emit(op_type, y, kernel_shape=kernel, strides=kernel), is_single)
    # As in PyTorch, windows of unequal size may overlap: the start is rounded down, the end up.
    for axis, size, target in zip(axes, sizes, targets, strict=True):
        windows = []
        for i in range(target):
            start, end = i * size // target, math.ceil((i + 1) * size / target)  # type: ignore[operator]  # as above
            windows.append(reduce_axes(reduction, emit("Slice", x, ints(start), ints(end), ints(axis)), [axis], True))
        x = windows[0] if len(windows) == 1 else emit("Concat", *windows, axis=axis)
    return x


for _count in (1, 2, 3):
    rule_by_name(f"max_pool{_count}d")(partial(_max_pool, _count))
    rule_by_name(f"max_pool{_count}d_with_indices")(partial(_max_pool_with_indices, _count))
    rule_by_name(f"avg_pool{_count}d")(partial(_average_pool, _count))
    rule(f"adaptive_avg_pool{_count}d", *[f"_adaptive_avg_pool{_count}d"][: _count - 1])(partial(_adaptive_average_pool, _count))
    rule(f"adaptive_max_pool{_count}d")(partial(_adaptive_max_pool, _count))


def _resize(result: TensorType, x: Tensor, size: Any, factors: Any, **attributes: Any) -> Tensor:
    """Emit a Resize of the spatial axes to ``size``; if ``factors`` are given, they determine the sample positions."""
    axes = list(range(2, x.ndim))
    if factors is not None:
        # Resize by sizes would compute other sample positions than PyTorch does from the factors.
        scales = np.array([float(factor) for factor in factors], np.float32)
        new_sizes = [extent * scale for extent, scale in zip(x.shape[2:], scales, strict=True) if isinstance(extent, int)]
        is_static = len(new_sizes) == len(axes)
        has_whole_sizes = is_static and all(abs(extent - round(float(extent))) < 1e-4 for extent in new_sizes)
        if not has_whole_sizes and any(not float(scale).is_integer() for scale in scales):
            raise Unsupported("a resize by a factor that gives no whole size")
        return emit("Resize", x, None, scales, None, axes=axes, **attributes)
    return emit("Resize", x, None, None, make_shape(size), axes=axes, **attributes)


def _upsample(mode: str, is_vector: bool, result: TensorType, x: Tensor, size: Any, *rest: Any) -> Tensor:
    """Emit a Resize. ``rest`` is ``align_corners`` (not for mode nearest) and the scale factors (a list if ``is_vector``)."""
    align_corners, *scales = (False, *rest) if mode == "nearest" else rest
    if is_vector:
        factors = scales[0]
    else:
        factors = scales if scales and None not in scales else None
    if mode == "nearest":
        attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resize(result, x, size, factors, mode=mode, **attributes)
    transformation = "pytorch_half_pixel" if mode == "linear" else "half_pixel"
    if align_corners:
        transformation = "align_corners"
    cubic = -0.75 if mode == "cubic" else None
    return _resize(result, x, size, factors, mode=mode, coordinate_transformation_mode=transformation, cubic_coeff_a=cubic)


for _name in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d"):
    _mode = next(mode for mode in ("nearest", "linear", "cubic") if mode in _name)
    rule(f"upsample_{_name}.vec")(partial(_upsample, _mode, True))
    rule(f"upsample_{_name}")(partial(_upsample, _mode, False))
_GRID_SAMPLE_MODES = {0: "linear", 1: "nearest", 2: "cubic"}
_GRID_SAMPLE_PADDINGS = {0: "zeros", 1: "border", 2: "reflection"}


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(result: TensorType, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    modes = {"mode": _GRID_SAMPLE_MODES[mode], "padding_mode": _GRID_SAMPLE_PADDINGS[padding]}
    return emit("GridSample", x, grid, **modes, align_corners=int(align_corners))


_LSTM_MODE = 2
"""The ``mode`` of an LSTM in PyTorch's operators for recurrent layers."""
_LSTM_GATES = [0, 3, 1, 2]
"""PyTorch's index of each gate, in ONNX's order: input, output, forget, cell."""


def _reorder_gates(weight: Tensor, order: list[int], hidden: int) -> Tensor:
    """Reorder the gates of a weight or bias, of ``hidden`` rows each. ``order`` has PyTorch's index of each gate of ONNX."""
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in order])
    return emit("Gather", weight, constant(rows, DType.INT64), axis=0)


def _apply_layers(
    op_type: str, order: list[int], x: Tensor, states: list[Tensor], params: Any, options: tuple[Any, ...], **attributes: Any
) -> Any:
    """Emit a stack of recurrent layers; return the output and the last states. ``order`` is as in `_reorder_gates`.

    ``x`` is (steps, batch, features), or batch first; a state is (layers * directions, batch, hidden size).
    """
    has_biases, layers, dropout, train, is_bidirectional, is_batch_first = options
    if x.ndim != 3:
        raise Unsupported("a recurrent layer without a batch")
    directions = 2 if is_bidirectional else 1
    # Weights of one layer in one direction. With projections there is one more.
    weight_count = len(params) // (layers * directions)
    if weight_count != (4 if has_biases else 2):
        raise Unsupported("a recurrent layer with projections")
    # Parameters and states are listed layer by layer, and in each layer by direction.
    param_groups = [params[start : start + weight_count] for start in range(0, len(params), weight_count)]
    attributes["direction"] = "bidirectional" if is_bidirectional else "forward"
    y = emit("Transpose", x, perm=[1, 0, 2]) if is_batch_first else x
    last_states: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        start = layer * directions
        end = start + directions
        weights = _stack_weights(param_groups[start:end], order, has_biases)
        first_states = [emit("Slice", state, ints(start), ints(end), ints(0)) for state in states]
        hidden = get_static_size(param_groups[start][1], 1)
        inputs = (y, *weights, None, *first_states)
        results = apply(op_type, inputs, {"hidden_size": hidden, **attributes}, outputs=1 + len(states))
        for collected, state in zip(last_states, results[1:], strict=True):
            collected.append(state)
        # From (steps, directions, batch, hidden size). PyTorch concatenates the directions on the last axis.
        y = reshape(emit("Transpose", results[0], perm=[0, 2, 1, 3]), 0, 0, -1)
        if train and dropout and layer + 1 < layers:
            y = drop(y, dropout)
    y = emit("Transpose", y, perm=[1, 0, 2]) if is_batch_first else y
    return (y, *[item[0] if layers == 1 else emit("Concat", *item, axis=0) for item in last_states])


def _stack_weights(layer_params: list[Any], order: list[int], has_biases: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Stack the parameters of a layer's directions; return input weights, recurrent weights and biases (None without biases)."""
    hidden = get_static_size(layer_params[0][1], 1)
    # One entry per direction in each list. `params` are the weights and the biases, first for the input, then for the recurrence.
    input_weights, recurrent_weights, biases = [], [], []
    for params in layer_params:
        used_params = params[:4] if has_biases else params[:2]
        # An RNN has one gate, whose order is [0].
        reordered = used_params if order == [0] else [_reorder_gates(param, order, hidden) for param in used_params]
        input_weights.append(emit("Unsqueeze", reordered[0], ints(0)))
        recurrent_weights.append(emit("Unsqueeze", reordered[1], ints(0)))
        if has_biases:
            biases.append(emit("Unsqueeze", emit("Concat", *reordered[2:], axis=0), ints(0)))
    stacked_weights = emit("Concat", *input_weights, axis=0)
    stacked_recurrent_weights = emit("Concat", *recurrent_weights, axis=0)
    return stacked_weights, stacked_recurrent_weights, emit("Concat", *biases, axis=0) if has_biases else None


@rule("lstm.input")
def lstm(result: Any, x: Tensor, states: Any, params: Any, *options: Any) -> Any:
    return _apply_layers("LSTM", _LSTM_GATES, x, list(states), params, options)


@rule("mkldnn_rnn_layer")
def mkldnn_rnn_layer(result: Any, x: Tensor, *args: Any) -> Any:
    """Lower one LSTM layer in one direction. AOTAutograd emits this operator for inference on the CPU."""
    *params, state, cell, is_reversed, batch_sizes, mode, hidden, layers = args[:11]
    has_biases, is_bidirectional, is_batch_first, train = args[11:]
    is_single_layer = layers == 1 and not is_bidirectional and not is_batch_first
    if mode != _LSTM_MODE or batch_sizes or not is_single_layer or train or result[3] is not None:
        raise Unsupported("a layer of oneDNN that is no LSTM, is packed, or keeps what its gradient needs")
    if x.dtype is not DType.FLOAT32:
        raise Unsupported(f"an LSTM of {x.dtype}, which PyTorch computes faster than engines do")
    weights = _stack_weights([params], _LSTM_GATES, has_biases)
    attributes = {"hidden_size": hidden, "direction": "reverse" if is_reversed else "forward"}
    y, *last_states = apply("LSTM", (x, *weights, None, state, cell), attributes, outputs=3)
    return (emit("Squeeze", y, ints(1)), *last_states, None)  # axis 1 has the directions; result 3 is for the gradient


@rule("gru.input")
def gru(result: Any, x: Tensor, state: Tensor, params: Any, *options: Any) -> Any:
    return _apply_layers("GRU", [1, 0, 2], x, [state], params, options, linear_before_reset=1)


def _rnn(activation: str, result: Any, x: Tensor, state: Tensor, params: Any, *options: Any) -> Any:
    is_bidirectional = options[4]
    activations = [activation] * (2 if is_bidirectional else 1)
    return _apply_layers("RNN", [0], x, [state], params, options, activations=activations)


for _name in ("Tanh", "Relu"):
    rule(f"rnn_{_name.lower()}.input")(partial(_rnn, _name))


# ---------------------------------------------------------------------- backward operators
#
# AOTAutograd emits these, and PyTorch does not decompose them. Most apply `xrt.gradient` to the rule of the forward operator.


def _differentiate(
    record: Callable[..., Tensor], inputs: Sequence[Tensor], g: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Emit the gradient of each ``wanted`` input, from the gradient ``g`` of the result; None for other inputs.

    ``record`` emits the forward operator. Its nodes are dropped unless a gradient reads their results.
    """
    from xrt.passes.gradient import gradient

    names = [f"input_{index}" for index in range(len(inputs))]
    chosen = [name for name, is_wanted in zip(names, wanted, strict=True) if is_wanted]
    if not chosen:
        return [None] * len(inputs)
    builder = Builder("backward", opsets=dict(get_builder("a gradient").opsets))
    with builder:
        traced_inputs = [builder.input(name, value.type) for name, value in zip(names, inputs, strict=True)]
        builder.output(record(*traced_inputs), "result")
    backward = gradient(builder.function(), of="result", with_respect_to=chosen, seeds=True)
    # Output 0 is the result itself.
    backward = drop_dead_nodes(backward.replace(outputs=backward.outputs[1:]))
    results = iter(get_builder("a gradient").inline(backward, *inputs, g))
    return [next(results) if is_wanted else None for is_wanted in wanted]


@rule_by_name("convolution_backward")
def convolution_backward(result: Any, a: Any) -> Any:
    g = a.grad_output
    wanted = [mask and type_ is not None for mask, type_ in zip(a.output_mask, result, strict=True)]
    gradients = _differentiate(lambda x, weight: _convolve(a, x, weight), [a.input, a.weight], g, wanted[:2])
    axes = [axis for axis in range(g.ndim) if axis != 1]  # all but the channels, each of which has a bias
    return *gradients, reduce_axes("ReduceSum", g, axes, False) if wanted[2] else None


@rule("_cdist_backward")
def cdist_backward(result: TensorType, g: Tensor, a: Tensor, b: Tensor, p: float, distances: Tensor) -> Any:
    return _differentiate(lambda a, b: cdist(distances.tensor_type, a, b, p), [a, b], g, [True, False])[0]


def _max_pool_backward(count: int, result: TensorType, g: Tensor, x: Tensor, *args: Any) -> Tensor:
    """Add each gradient at the index of its maximum."""
    leading_axes, indices = x.ndim - count, args[-1]
    spatial_sizes = [get_static_size(x, axis) for axis in range(leading_axes, x.ndim)]
    # Flatten the spatial axes, within which indices count.
    flat_shape = [0] * leading_axes + [-1]
    zeros_shape = emit("Concat", emit("Shape", x, end=leading_axes), ints(math.prod(spatial_sizes)), axis=0)
    zeros = emit("Expand", scalar(0, x.dtype), zeros_shape)
    flat_indices, flat_g = reshape(indices, *flat_shape), reshape(g, *flat_shape)
    summed = emit("ScatterElements", zeros, flat_indices, flat_g, axis=leading_axes, reduction="add")
    return reshape(summed, *[0] * leading_axes, *spatial_sizes)


def _pool_backward(forward: str, result: TensorType, g: Tensor, x: Tensor, *args: Any) -> Any:
    return _differentiate(lambda x: RULES[f"aten.{forward}.default"](g.tensor_type, x, *args), [x], g, [True])[0]


def _adaptive_backward(count: int, result: TensorType, g: Tensor, x: Tensor) -> Any:
    sizes = [get_static_size(g, axis) for axis in range(g.ndim - count, g.ndim)]
    return _pool_backward(f"adaptive_avg_pool{count}d", result, g, x, sizes)


for _count in (2, 3):
    rule(f"max_pool{_count}d_with_indices_backward")(partial(_max_pool_backward, _count))
    rule(f"avg_pool{_count}d_backward")(partial(_pool_backward, f"avg_pool{_count}d"))
    rule(f"_adaptive_avg_pool{_count}d_backward")(partial(_adaptive_backward, _count))
for _count in (1, 2, 3):
    rule(f"replication_pad{_count}d_backward")(partial(_pool_backward, f"replication_pad{_count}d"))
