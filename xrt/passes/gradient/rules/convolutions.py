"""Gradients of convolutions and pooling; Dumoulin and Visin, arXiv:1603.07285.

The gradient of a convolution's input is a transposed convolution of the output's gradient, and vice versa.
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
from xrt.passes.gradient.rules.indexing import sum_at_places
from xrt.passes.gradient.table import (
    RuleContext,
    calculate,
    cast,
    count,
    expand_to,
    extent,
    flatten,
    integers,
    join,
    number,
    reduce_sum,
    reshape,
    reshape_to,
    rule,
    transpose,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


def read_window(at: RuleContext, kernel: Sequence[int], inputs: Tensor) -> Window:
    """Read the window of a node with explicit padding."""
    sizes = inputs.tensor_type.shape or (None,) * (2 + len(kernel))
    window = make_window(at.node, kernel).with_pads([size if isinstance(size, int) else None for size in sizes[2:]])
    if window is None:
        at.refuse(f"its padding is {at.attr('auto_pad')!r}, which needs extents that are known; bind the symbolic ones first")
    return window


def _drop_padding(window: Window) -> Window:
    zeros = (0,) * len(window.kernel)
    return replace(window, begins=zeros, ends=zeros)


def fit(whole: Tensor, like: Tensor, begins: Sequence[int], min_sizes: Sequence[int]) -> Tensor:
    """Crop or zero-pad the spatial axes of `whole` to the extents of `like`, starting at `begins`.

    ``min_sizes`` are lower bounds of the spatial extents of `whole`.
    """
    axes = np.arange(2, 2 + len(begins))
    if any(begin > size for begin, size in zip(begins, min_sizes, strict=True)):
        # `whole` may end before `begins`, and Pad must not crop more than there is: extend the end, then cut.
        zeros = (0,) * len(begins)
        longer = _fit_end(whole, like, zeros, begins, axes)
        return emit("Slice", longer, integers(*begins), integers(*(np.iinfo(np.int64).max,) * len(begins)), axes)
    return _fit_end(whole, like, begins, begins, axes)


def _fit_end(whole: Tensor, like: Tensor, cut: Sequence[int], begins: Sequence[int], axes: Any) -> Tensor:
    """Cut `cut` elements off the front, and pad or crop the end to the end of `like`."""
    ends = (calculate("Add", extent(like, a), integers(b)) for a, b in zip(axes, begins, strict=True))
    missing = [calculate("Sub", end, extent(whole, a)) for a, end in zip(axes, ends, strict=True)]
    return _pad(whole, join(integers(*(-begin for begin in cut)), *missing), axes)


def _pad(x: Tensor, pads: Any, axes: Any) -> Tensor:
    return x if isinstance(pads, np.ndarray) and not pads.any() else emit("Pad", x, pads, None, axes)


MOST_PRODUCTS = 25
"""Largest depthwise kernel, in elements, whose weight gradient is computed as elementwise products: for 3 x 3 and 64 channels of
32 x 32 they take 0.6 times as long as the convolution on ort, and half as long on toy."""


def differentiate_weights(x: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Compute the weights' gradient (M, C / group, ...) from the input (N, C, ...) and the output's gradient (N, M, ...)."""
    elements, channels = math.prod(window.kernel), (x.shape[1], g.shape[1])
    if not _has_static_extents(x, g, len(window.kernel)) or not all(isinstance(count, int) for count in channels):
        return _convolve_exchanged(x, g, window, group)
    if group == channels[0] == channels[1] and group > 1 and elements <= MOST_PRODUCTS:
        return _multiply_elements(x, g, window)
    return _convolve_exchanged(x, g, window, group)


def _has_static_extents(x: Tensor, g: Tensor, axes: int) -> bool:
    """Whether the spatial extents of input and output are static and the output is not empty."""
    shapes = x.tensor_type.shape, g.tensor_type.shape
    if any(shape is None or len(shape) != 2 + axes or not all(isinstance(n, int) for n in shape[2:]) for shape in shapes):
        return False
    return 0 not in g.shape[2:]


# ---------------------------------------------------------------------- forms


def _convolve_exchanged(x: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Convolve X with G: batch and channels are exchanged, and so are strides and dilations.

    Returns the gradient of the weights, (M, C / group, ...).
    """
    spatial = range(2, 2 + len(window.kernel))
    exchanged = [1, 0, *spatial]
    rows = transpose(x, exchanged)
    if group != 1:  # (N, group C', ...) as C' batches of group N channels
        batch, channels, *extents = (extent(x, axis) for axis in range(2 + len(window.kernel)))
        each = calculate("Div", channels, integers(group))
        parts = reshape(x, join(batch, integers(group), each, *extents))
        moved = transpose(parts, [2, 1, 0, *range(3, 3 + len(window.kernel))])
        rows = reshape(moved, join(each, calculate("Mul", batch, integers(group)), *extents))
    # If the strides leave part of the input unread, the result is larger than the kernel: reduce the padding or crop.
    unread = _count_unread(x, g, window)
    is_read = unread is not None and all(rest <= end for rest, end in zip(unread, window.ends, strict=True))
    ends = [end - rest for rest, end in zip(unread, window.ends, strict=True)] if unread and is_read else window.ends
    gradient = emit(
        "Conv",
        rows,
        transpose(g, exchanged),
        group=group,
        strides=window.dilations,
        dilations=window.strides,
        pads=(*window.begins, *ends),
    )
    if not is_read:
        kernel = integers(*window.kernel)
        gradient = emit("Slice", gradient, np.zeros_like(kernel), kernel, integers(*spatial))
    return transpose(gradient, exchanged)


def _count_unread(x: Tensor, g: Tensor, window: Window) -> list[int] | None:
    """Number of elements at the end of each padded axis that no window reads; None if an extent is unknown."""
    if not _has_static_extents(x, g, len(window.kernel)):
        return None
    sizes = zip(x.shape[2:], window.begins, window.ends, strict=True)
    read = zip(g.shape[2:], window.strides, window.spans, strict=True)
    return [
        int(size) + begin + end - ((int(count) - 1) * stride + reach)  # type: ignore[arg-type]  # checked above
        for (size, begin, end), (count, stride, reach) in zip(sizes, read, strict=True)
    ]


def _multiply_elements(x: Tensor, g: Tensor, window: Window) -> Tensor:
    """For depthwise kernels: for each kernel element, the sum of the input elements that it reads times G."""
    axes = [0, *range(2, 2 + len(window.kernel))]
    sums = [emit("Unsqueeze", reduce_sum(emit("Mul", part, g), axes), integers(1)) for part in _cut_windows(x, g, window)]
    joined = sums[0] if len(sums) == 1 else emit("Concat", *sums, axis=1)
    return emit("Reshape", joined, integers(int(g.shape[1] or 0), 1, *window.kernel))


# ---------------------------------------------------------------------- parts


def _cut_windows(x: Tensor, g: Tensor, window: Window) -> list[Tensor]:
    """For each kernel element, the input elements that it reads, in the shape of the output."""
    spatial = np.arange(2, 2 + len(window.kernel))
    if any((*window.begins, *window.ends)):
        x = emit("Pad", x, integers(*window.begins, *window.ends), None, spatial)
    results = [int(n) for n in g.shape[2:] if isinstance(n, int)]
    parts = []
    for offsets in product(*map(range, window.kernel)):
        begins = integers(*(offset * dilation for offset, dilation in zip(offsets, window.dilations, strict=True)))
        steps = np.asarray(window.strides, np.int64)
        parts.append(emit("Slice", x, begins, begins + (integers(*results) - 1) * steps + 1, spatial, steps))
    return parts


Gradients = Sequence["Tensor | None"]


@rule("Conv")
def convolve(at: RuleContext) -> Gradients:
    """Rule: dX is the transposed convolution of G with W, dW the convolution of X with G, dB the sum of G."""
    x, w, group = at.input(0), at.input(1), at.attr("group", 1)
    window = read_window(at, _read_kernel(at, w), x)
    first = _apply_transpose(at.g, w, x, window, group) if at.wants(0) else None
    second = differentiate_weights(x, at.g, window, group) if at.wants(1) else None
    third = reduce_sum(at.g, [0, *range(2, 2 + len(window.kernel))]) if at.wants(2) else None
    return first, second, third


@rule("ConvTranspose")
def convolve_transposed(at: RuleContext) -> Gradients:
    """Rule: dX is the convolution of G with W, dW the convolution of G with X, dB the sum of G."""
    x, w, group = at.input(0), at.input(1), at.attr("group", 1)
    window = _read_transposed_window(at, _read_kernel(at, w))
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations}
    # The output is the extent of all windows together, cropped at the begins, and cropped or zero-padded at the ends.
    padded = _pad_to_full(at.g, x, window)
    first = emit("Conv", padded, w, group=group, **options) if at.wants(0) else None
    # In the padded gradient nothing is cropped any more, so its windows have no padding.
    second = differentiate_weights(padded, x, _drop_padding(window), group) if at.wants(1) else None
    third = reduce_sum(at.g, [0, *range(2, 2 + len(window.kernel))]) if at.wants(2) else None
    return first, second, third


def _read_kernel(at: RuleContext, weights: Tensor) -> tuple[int, ...]:
    """Spatial extents of the kernel."""
    attribute = at.attr("kernel_shape")
    extents = tuple(attribute) if attribute else weights.tensor_type.shape and weights.shape[2:]
    if not extents or not all(isinstance(size, int) for size in extents):
        at.refuse("the extents of its kernel are not known; bind the symbolic ones first")
    return tuple(int(size) for size in extents if isinstance(size, int))


def _apply_transpose(g: Tensor, weights: Tensor, like: Tensor, window: Window, group: int) -> Tensor:
    """The transposed convolution of `g`, in the shape of the convolution's input `like`."""
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations, "group": group}
    results, sizes = g.tensor_type.shape, like.tensor_type.shape
    if results is not None and sizes is not None and all(isinstance(d, int) for d in (*results[2:], *sizes[2:])):
        over = [
            i - ((o - 1) * s + reach - begin - end)
            for i, o, s, reach, begin, end in zip(
                sizes[2:], results[2:], window.strides, window.spans, window.begins, window.ends, strict=True
            )
        ]
        # ONNX allows an output_padding below the stride only. Then no crop or pad is needed behind the ConvTranspose.
        if all(0 <= rest < stride for rest, stride in zip(over, window.strides, strict=True)):
            pads = (*window.begins, *window.ends)
            return emit("ConvTranspose", g, weights, pads=pads, output_padding=over if any(over) else None, **options)
    return fit(emit("ConvTranspose", g, weights, **options), like, window.begins, window.spans)


def _pad_to_full(g: Tensor, x: Tensor, window: Window) -> Tensor:
    """Zero-pad the gradient to the full extent of a transposed convolution, of which the output is a crop.

    The full extent is `(n - 1) * stride + reach` for an input extent n.
    """
    ends: list[Any] = []
    for axis, (begin, stride, reach) in enumerate(zip(window.begins, window.strides, window.spans, strict=True), 2):
        whole = calculate("Add", calculate("Mul", extent(x, axis), integers(stride)), integers(reach - stride - begin))
        ends.append(calculate("Sub", whole, extent(g, axis)))
    return _pad(g, join(integers(*window.begins), *ends), np.arange(2, 2 + len(window.kernel)))


def _read_transposed_window(at: RuleContext, kernel: Sequence[int]) -> Window:
    """Window of a ConvTranspose; an explicit output shape determines the padding."""
    window = make_window(at.node, kernel)
    if window.auto_pad == "VALID":
        window = _drop_padding(window)
    is_same = window.auto_pad.startswith("SAME")
    if at.attr("output_shape") is None and not is_same:
        return window
    if is_same and any(span < stride for span, stride in zip(window.spans, window.strides, strict=True)):
        at.refuse(f"its windows do not touch (auto_pad={window.auto_pad!r}), for which ONNX gives two shapes; give it pads")
    sizes = [size for size in at.x.shape[2:] if isinstance(size, int)]
    if len(sizes) != len(kernel):
        at.refuse("its padding follows from its extents, which are not known; bind the symbolic ones first")
    full_extents = [(size - 1) * stride + span for size, stride, span in zip(sizes, window.strides, window.spans, strict=True)]
    trims, extra = compute_padding_trims(at.node, window, full_extents, sizes), at.attr("output_padding") or (0,) * len(sizes)
    ends = (more - trim for more, trim in zip(extra, trims[len(sizes) :], strict=True))
    return replace(window, begins=tuple(-trim for trim in trims[: len(sizes)]), ends=tuple(ends))


@rule("GlobalAveragePool")
def average_channels(at: RuleContext) -> Gradients:
    """Each element gets the gradient of its mean, divided by the number of elements."""
    return (expand_to(at.g / count(at.x, at.y), at.x),)


@rule("GlobalMaxPool")
def choose_global_maximum(at: RuleContext) -> Gradients:
    """The gradient goes to the maximum; ties share it equally."""
    mask = cast(emit("Equal", at.x, at.y), at.x.dtype)
    ties = emit("ReduceSum", mask, np.arange(2, at.rank(at.x)), keepdims=1)
    return (at.g / ties * mask,)


@rule("MaxPool")
def choose_maximum(at: RuleContext) -> Gradients:
    """The gradient of each window goes to the index of its maximum, the second output of MaxPool."""
    if at.attr("storage_order", 0):
        at.refuse("it counts places by columns (storage_order=1); count them by rows")
    places = at.output(1, TensorType(DType.INT64, at.y.tensor_type.shape))
    return (sum_at_places(at.g, places, at.x),)


@rule("MaxUnpool")
def read_places(at: RuleContext) -> Gradients:
    """Each element gets the gradient at the index that it was written to."""
    if at.optional(2) is not None:
        at.refuse("it is given a shape for its result, in which its places do not count")
    gathered = emit("GatherElements", flatten(at.g), flatten(at.input(1)), axis=0)
    return (reshape_to(gathered, at.x),)


@rule("AveragePool")
def average(at: RuleContext) -> Gradients:
    """Each element gets the gradients of the windows that contain it, divided by their element counts."""
    window = read_window(at, at.attr("kernel_shape"), at.x)
    is_padding_counted = at.attr("count_include_pad", 0) == 1
    weighted = at.g
    for axis in range(len(window.kernel)):
        weighted = weighted / _count_elements(at, window, axis, is_padding_counted)
    return (_spread_windows(weighted, at.x, window),)


def _count_elements(at: RuleContext, window: Window, axis: int, is_padding_counted: bool) -> Tensor:
    """Number of elements per window along an axis, in a shape that broadcasts to the output."""
    size, results = extent(at.x, 2 + axis), extent(at.y, 2 + axis)
    zero, step = np.asarray(0, np.int64), np.asarray(1, np.int64)
    starts = emit("Range", zero, emit("Reshape", results, integers()), step) * window.strides[axis] - window.begins[axis]
    offsets = np.arange(window.kernel[axis], dtype=np.int64) * window.dilations[axis]
    places = emit("Unsqueeze", starts, integers(1)) + offsets
    low, high = (-window.begins[axis], window.ends[axis]) if is_padding_counted else (0, 0)
    limit = emit("Add", size, integers(high))
    inside = emit("And", places >= low, emit("Less", places, limit))
    counted = emit("ReduceSum", cast(inside, at.x.dtype), integers(1), keepdims=0)
    # A window entirely in the padding counts 0 elements; avoid a division by zero, its gradient is unused.
    counted = emit("Max", counted, number(1, at.x))
    trailing = len(window.kernel) - axis - 1
    return emit("Unsqueeze", counted, integers(*range(1, 1 + trailing))) if trailing else counted


def _spread_windows(g: Tensor, like: Tensor, window: Window) -> Tensor:
    """For each input element, sum the gradients of the windows that contain it."""
    channels = like.tensor_type.shape and like.shape[1]
    options: dict[str, Any] = {"strides": window.strides, "dilations": window.dilations}
    if isinstance(channels, int):
        ones: Any = np.ones((channels, 1, *window.kernel), g.dtype.numpy)
        spread = emit("ConvTranspose", g, ones, group=channels, **options)
    else:  # the group must be a number: merge the channels into the batch
        spatial = [extent(g, axis) for axis in range(2, 2 + len(window.kernel))]
        merged = emit("Reshape", g, join(integers(-1, 1), *spatial))
        spread = emit("ConvTranspose", merged, np.ones((1, 1, *window.kernel), g.dtype.numpy), **options)
        spread = reshape(spread, emit("Concat", emit("Shape", like, end=2), emit("Shape", spread, start=2), axis=0))
    return fit(spread, like, window.begins, window.spans)
