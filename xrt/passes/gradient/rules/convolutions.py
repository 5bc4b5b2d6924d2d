"""Gradients of convolutions and pooling; Dumoulin and Visin, arXiv:1603.07285.

The gradient of a convolution's input is a transposed convolution of the output's gradient. The gradient of a transposed
convolution's input is a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.operators.windows import Window, compute_padding_trims, make_window
from xrt.passes.gradient.rules.indexing import sum_at_indices
from xrt.passes.gradient.table import (
    Gradients,
    RuleContext,
    add_axes,
    cast,
    count_reduced,
    count_up_to,
    expand_to,
    flatten,
    get_extent,
    join_extents,
    make_vector,
    reduce_sum,
    reshape,
    reshape_to,
    rule,
    transpose,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def read_window(ctx: RuleContext, kernel: Sequence[int], inputs: Tensor) -> Window:
    """Read the window of a node, with `auto_pad` converted to explicit padding. ``inputs`` (N, C, *spatial) is its input."""
    sizes = inputs.tensor_type.shape or (None,) * (2 + len(kernel))
    window = make_window(ctx.node, kernel).with_pads([size if isinstance(size, int) else None for size in sizes[2:]])
    if window is None:
        ctx.refuse(f"its padding is {ctx.attr('auto_pad')!r}, which needs extents that are known; bind the symbolic ones first")
    return window


def _drop_padding(window: Window) -> Window:
    zeros = (0,) * len(window.kernel)
    return replace(window, begins=zeros, ends=zeros)


def crop_to(x: Tensor, like: Tensor, begins: Sequence[int], min_extents: Sequence[int]) -> Tensor:
    """Crop or zero-pad `x`, of at least `min_extents`, to the spatial extents of `like` from `begins` on."""
    axes = make_vector(*range(2, 2 + len(begins)))
    # The number of elements to append to each axis, or if negative to remove.
    missing = [get_extent(like, axis) + begin - get_extent(x, axis) for axis, begin in enumerate(begins, 2)]
    if all(begin <= extent for begin, extent in zip(begins, min_extents, strict=True)):
        return _pad(x, join_extents(make_vector(*(-begin for begin in begins)), *missing), axes)
    # `x` may end before `begins`, and Pad must not crop more than there is: extend the end, then slice.
    extended = _pad(x, join_extents(make_vector(*[0] * len(begins)), *missing), axes)
    to_the_end = [np.iinfo(np.int64).max] * len(begins)
    return emit("Slice", extended, make_vector(*begins), make_vector(*to_the_end), axes)


def _pad(x: Tensor, pads: Any, axes: Any) -> Tensor:
    return x if isinstance(pads, np.ndarray) and not pads.any() else emit("Pad", x, pads, None, axes)


MAX_MULTIPLIED_KERNEL_ELEMENTS = 25
"""Largest depthwise kernel whose weight gradient is computed by elementwise multiplication, one product per kernel element. For
3 x 3 and 64 channels of 32 x 32 this takes 0.6 times as long as the convolution on ort, and half as long on toy."""


def differentiate_weights(x: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Compute the weights' gradient (M, C / group, ...) from the input (N, C, ...) and the output's gradient (N, M, ...)."""
    is_depthwise = group > 1 and _has_static_extents(x, g, len(window.kernel)) and x.shape[1] == g.shape[1] == group
    if is_depthwise and math.prod(window.kernel) <= MAX_MULTIPLIED_KERNEL_ELEMENTS:
        return _multiply_elements(x, g, window, group)
    return _convolve_exchanged(x, g, window, group)


def _has_static_extents(x: Tensor, g: Tensor, axes: int) -> bool:
    """Whether the spatial extents of input and output are static and the output is not empty."""
    shapes = x.tensor_type.shape, g.tensor_type.shape
    if any(shape is None or len(shape) != 2 + axes or not all(isinstance(n, int) for n in shape[2:]) for shape in shapes):
        return False
    return 0 not in g.shape[2:]


def _convolve_exchanged(x: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Compute the gradient of weights (M, C / group, ...) by a convolution of `x` with `g`.

    Batch and channels of both are exchanged, and so are strides and dilations: images (C / group, group * N, ...) and kernels
    (M, N, ...) have the result (C / group, M, ...), which is transposed.
    """
    spatial = range(2, 2 + len(window.kernel))
    exchanged = [1, 0, *spatial]
    images = transpose(x, exchanged)
    if group != 1:
        # From (N, group * C', ...) to (N, group, C', ...), (C', group, N, ...) and (C', group * N, ...).
        batch, channels, *extents = (get_extent(x, axis) for axis in range(2 + len(window.kernel)))
        is_static = isinstance(channels, np.ndarray)
        group_channels = channels // group if is_static else emit("Div", channels, make_vector(group))
        groups = reshape(x, join_extents(batch, make_vector(group), group_channels, *extents))
        groups = transpose(groups, [2, 1, 0, *range(3, 3 + len(window.kernel))])
        images = reshape(groups, join_extents(group_channels, batch * group, *extents))
    # If the strides leave elements at the end unread, the result is larger than the kernel. Then reduce the padding, or, if more
    # elements are unread than padded, crop the result.
    unread = _count_unread(x, g, window)
    ends: Sequence[int] = window.ends
    needs_crop = unread is None or any(count > end for count, end in zip(unread, window.ends, strict=True))
    if unread is not None and not needs_crop:
        ends = [end - count for count, end in zip(unread, window.ends, strict=True)]
    options: dict[str, Any] = {"group": group, "strides": window.dilations, "dilations": window.strides}
    gradient = emit("Conv", images, transpose(g, exchanged), pads=(*window.begins, *ends), **options)
    if needs_crop:
        kernel = make_vector(*window.kernel)
        gradient = emit("Slice", gradient, np.zeros_like(kernel), kernel, make_vector(*spatial))
    return transpose(gradient, exchanged)


def _count_unread(x: Tensor, g: Tensor, window: Window) -> list[int] | None:
    """Count the elements at the end of each padded axis that no window reads. None if an extent is unknown."""
    if not _has_static_extents(x, g, len(window.kernel)):
        return None
    axes = zip(x.shape[2:], window.begins, window.ends, g.shape[2:], window.strides, window.spans, strict=True)
    return [
        int(extent) + begin + end - ((int(positions) - 1) * stride + span) for extent, begin, end, positions, stride, span in axes
    ]


def _multiply_elements(x: Tensor, g: Tensor, window: Window, channels: int) -> Tensor:
    """Compute the weight gradient of a depthwise kernel: per kernel element, the sum of the elements that it reads times `g`."""
    axes = [0, *range(2, 2 + len(window.kernel))]
    sums = [emit("Unsqueeze", reduce_sum(emit("Mul", part, g), axes), make_vector(1)) for part in _cut_windows(x, g, window)]
    joined = sums[0] if len(sums) == 1 else emit("Concat", *sums, axis=1)
    return emit("Reshape", joined, make_vector(channels, 1, *window.kernel))


def _cut_windows(x: Tensor, g: Tensor, window: Window) -> list[Tensor]:
    """List the input elements that each kernel element reads, as tensors of the shape of the output."""
    spatial = np.arange(2, 2 + len(window.kernel))
    if any((*window.begins, *window.ends)):
        x = emit("Pad", x, make_vector(*window.begins, *window.ends), None, spatial)
    positions, strides = np.asarray(g.shape[2:], np.int64), np.asarray(window.strides, np.int64)
    slices = []
    for offsets in product(*map(range, window.kernel)):
        begins = np.asarray(offsets, np.int64) * window.dilations
        slices.append(emit("Slice", x, begins, begins + (positions - 1) * strides + 1, spatial, strides))
    return slices


@rule("Conv")
def convolve(ctx: RuleContext) -> Gradients:
    """Rule: dX is the transposed convolution of G with W, dW the convolution of X with G, dB the sum of G."""
    x, w, group = ctx.input(0), ctx.input(1), ctx.attr("group", 1)
    window = read_window(ctx, _read_kernel(ctx, w), x)
    x_gradient = _apply_transpose(ctx.g, w, x, window, group) if ctx.wants(0) else None
    w_gradient = differentiate_weights(x, ctx.g, window, group) if ctx.wants(1) else None
    return x_gradient, w_gradient, reduce_sum(ctx.g, [0, *range(2, 2 + len(window.kernel))])


@rule("ConvTranspose")
def convolve_transposed(ctx: RuleContext) -> Gradients:
    """Rule: dX is the convolution of G with W, dW the convolution of G with X, dB the sum of G."""
    x, w, group = ctx.input(0), ctx.input(1), ctx.attr("group", 1)
    window = _read_transposed_window(ctx, _read_kernel(ctx, w))
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations}
    # The forward operator crops the sum of all windows, or pads it with zeros. Undo this, so that the windows have no padding.
    uncropped = _undo_crop(ctx.g, x, window)
    x_gradient = emit("Conv", uncropped, w, group=group, **options) if ctx.wants(0) else None
    w_gradient = differentiate_weights(uncropped, x, _drop_padding(window), group) if ctx.wants(1) else None
    return x_gradient, w_gradient, reduce_sum(ctx.g, [0, *range(2, 2 + len(window.kernel))])


def _read_kernel(ctx: RuleContext, weights: Tensor) -> tuple[int, ...]:
    """Read the spatial extents of the kernel from the attribute or from the shape of the weights."""
    attribute = ctx.attr("kernel_shape")
    shape = weights.tensor_type.shape or ()
    extents = tuple(attribute) if attribute else shape[2:]
    if not extents or not all(isinstance(size, int) for size in extents):
        ctx.refuse("the extents of its kernel are not known; bind the symbolic ones first")
    return tuple(int(size) for size in extents if isinstance(size, int))


def _apply_transpose(g: Tensor, weights: Tensor, like: Tensor, window: Window, group: int) -> Tensor:
    """Compute the transposed convolution of `g`, in the shape of the convolution's input `like`."""
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations, "group": group}
    # If no more elements are unread than ONNX allows as output_padding, the result needs no crop.
    unread = _count_unread(like, g, window)
    if unread is not None and all(0 <= count < stride for count, stride in zip(unread, window.strides, strict=True)):
        pads = (*window.begins, *window.ends)
        return emit("ConvTranspose", g, weights, pads=pads, output_padding=unread if any(unread) else None, **options)
    return crop_to(emit("ConvTranspose", g, weights, **options), like, window.begins, window.spans)


def _undo_crop(g: Tensor, x: Tensor, window: Window) -> Tensor:
    """Zero-pad the gradient to the extents that a transposed convolution of `x` has before its output is cropped.

    They are `(n - 1) * stride + span` for an input extent n.
    """
    ends: list[Any] = []
    for axis, (begin, stride, span) in enumerate(zip(window.begins, window.strides, window.spans, strict=True), 2):
        uncropped = get_extent(x, axis) * stride + (span - stride)
        ends.append(uncropped - begin - get_extent(g, axis))
    return _pad(g, join_extents(make_vector(*window.begins), *ends), np.arange(2, 2 + len(window.kernel)))


def _read_transposed_window(ctx: RuleContext, kernel: Sequence[int]) -> Window:
    """Read the window of a ConvTranspose. An explicit output shape determines the padding."""
    window = make_window(ctx.node, kernel)
    if window.auto_pad == "VALID":
        window = _drop_padding(window)
    is_same = window.auto_pad.startswith("SAME")
    if ctx.attr("output_shape") is None and not is_same:
        return window
    if is_same and any(span < stride for span, stride in zip(window.spans, window.strides, strict=True)):
        ctx.refuse(f"its windows do not touch, for which ONNX defines two shapes with auto_pad={window.auto_pad!r}; set its pads")
    sizes = [size for size in ctx.x.shape[2:] if isinstance(size, int)]
    if len(sizes) != len(kernel):
        ctx.refuse("its padding follows from its extents, which are not known; bind the symbolic ones first")
    full_extents = [(size - 1) * stride + span for size, stride, span in zip(sizes, window.strides, window.spans, strict=True)]
    # Trims are negative where they crop the full result, and include output_padding. A window's padding crops if positive.
    trims = compute_padding_trims(ctx.node, window, full_extents, sizes)
    extra = ctx.attr("output_padding") or (0,) * len(sizes)
    ends = (padding - trim for padding, trim in zip(extra, trims[len(sizes) :], strict=True))
    return replace(window, begins=tuple(-trim for trim in trims[: len(sizes)]), ends=tuple(ends))


@rule("GlobalAveragePool")
def average_channels(ctx: RuleContext) -> Gradients:
    """Each element gets the gradient of its mean, divided by the number of elements."""
    return (expand_to(ctx.g / count_reduced(ctx.x, ctx.y), ctx.x),)


@rule("GlobalMaxPool")
def choose_global_maximum(ctx: RuleContext) -> Gradients:
    """The gradient goes to the maximum; ties share it equally."""
    mask = cast(emit("Equal", ctx.x, ctx.y), ctx.x.dtype)
    ties = emit("ReduceSum", mask, np.arange(2, ctx.rank(ctx.x)), keepdims=1)
    return (ctx.g / ties * mask,)


@rule("MaxPool")
def choose_maximum(ctx: RuleContext) -> Gradients:
    """The gradient of each window goes to the index of its maximum, the second output of MaxPool."""
    if ctx.attr("storage_order", 0):
        ctx.refuse("its indices are in column-major order (storage_order=1); the rule is for storage_order=0")
    indices = ctx.output(1, TensorType(DType.INT64, ctx.y.tensor_type.shape))
    return (sum_at_indices(ctx.g, indices, ctx.x),)


@rule("MaxUnpool")
def gather_written(ctx: RuleContext) -> Gradients:
    """Each element gets the gradient at the index that it was written to."""
    if ctx.optional(2) is not None:
        ctx.refuse("its input output_shape pads the result, for which there is no rule; omit this input")
    gathered = emit("GatherElements", flatten(ctx.g), flatten(ctx.input(1)), axis=0)
    return (reshape_to(gathered, ctx.x),)


@rule("AveragePool")
def average(ctx: RuleContext) -> Gradients:
    """Each element gets the gradients of the windows that contain it, divided by their element counts."""
    window = read_window(ctx, ctx.attr("kernel_shape"), ctx.x)
    is_padding_counted = ctx.attr("count_include_pad", 0) == 1
    weighted = ctx.g
    for axis in range(len(window.kernel)):
        weighted = weighted / _count_elements(ctx, window, axis, is_padding_counted)
    return (_spread_windows(weighted, ctx.x, window),)


def _count_elements(ctx: RuleContext, window: Window, axis: int, is_padding_counted: bool) -> Tensor:
    """Count the elements of each window along an axis, in a shape that broadcasts to the output."""
    extent, positions = get_extent(ctx.x, 2 + axis), get_extent(ctx.y, 2 + axis)
    starts = count_up_to(emit("Reshape", positions, make_vector())) * window.strides[axis] - window.begins[axis]
    offsets = np.arange(window.kernel[axis], dtype=np.int64) * window.dilations[axis]
    # The indices of the elements (positions, kernel), which are negative in the padding at the begin.
    indices = emit("Unsqueeze", starts, make_vector(1)) + offsets
    begin, end = (window.begins[axis], window.ends[axis]) if is_padding_counted else (0, 0)
    is_counted = emit("And", indices >= -begin, emit("Less", indices, emit("Add", extent, make_vector(end))))
    counts = emit("ReduceSum", cast(is_counted, ctx.x.dtype), make_vector(1), keepdims=0)
    # A window entirely in the padding has 0 elements. Its gradient is not used, so avoid only the division by zero.
    counts = emit("Max", counts, 1)
    return add_axes(counts, *range(1, len(window.kernel) - axis))


def _spread_windows(g: Tensor, like: Tensor, window: Window) -> Tensor:
    """Sum for each input element the gradients of the windows that contain it."""
    shape = like.tensor_type.shape
    channels = shape[1] if shape else None
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations}
    if isinstance(channels, int):
        ones: Any = np.ones((channels, 1, *window.kernel), g.dtype.numpy)
        spread = emit("ConvTranspose", g, ones, group=channels, **options)
    else:
        # The attribute `group` must be a number, so merge the unknown number of channels into the batch.
        spatial = [get_extent(g, axis) for axis in range(2, 2 + len(window.kernel))]
        merged = emit("Reshape", g, join_extents(make_vector(-1, 1), *spatial))
        spread = emit("ConvTranspose", merged, np.ones((1, 1, *window.kernel), g.dtype.numpy), **options)
        spread = reshape(spread, emit("Concat", emit("Shape", like, end=2), emit("Shape", spread, start=2), axis=0))
    return crop_to(spread, like, window.begins, window.spans)
