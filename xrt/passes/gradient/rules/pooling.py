"""Pools: an element has the sum of the gradients of the windows that it is in, with its weight in each.

Boureau et al., *A theoretical analysis of feature pooling* (2010), has the pools of averages, maxima and norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType, TensorType
from xrt.passes.gradient.definitions import definition
from xrt.passes.gradient.rules.shapes import sum_at_places
from xrt.passes.gradient.rules.windows import Windows, fit, read_windows
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import cast, count, expand_to, extent, flatten, integers, number, reshape_to

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


@rule("GlobalAveragePool")
def average_channels(at: RuleContext) -> Gradients:
    """Each element has the gradient of its mean, divided by the number of elements."""
    return (expand_to(at.g / count(at.x, at.y), at.x),)


@rule("GlobalMaxPool")
def choose_largest_of_channels(at: RuleContext) -> Gradients:
    """The gradient goes to the largest element; elements that are equal share it."""
    mask = cast(emit("Equal", at.x, at.y), at.x.dtype)
    ties = emit("ReduceSum", mask, np.arange(2, at.rank(at.x)), keepdims=1)
    return (at.g / ties * mask,)


@rule("MaxPool")
def choose_largest(at: RuleContext) -> Gradients:
    """The gradient of each window goes to the place of its largest element, which the operator gives itself."""
    if at.attr("storage_order", 0):
        at.refuse("it counts places by columns (storage_order=1); count them by rows")
    places = at.output(1, TensorType(DType.INT64, at.y.tensor_type.shape))
    return (sum_at_places(at.g, places, at.x),)


@rule("MaxUnpool")
def read_places(at: RuleContext) -> Gradients:
    """Each element has the gradient of the place to which it was written."""
    if at.optional(2) is not None:
        at.refuse("it is given a shape for its result, in which its places do not count")
    found = emit("GatherElements", flatten(at.g), flatten(at.input(1)), axis=0)
    return (reshape_to(found, at.x),)


@rule("AveragePool")
def average(at: RuleContext) -> Gradients:
    """Each element has the gradients of the windows that it is in, divided by the numbers of elements that these count."""
    windows = read_windows(at, at.attr("kernel_shape"), at.x, at.y)
    is_padding_counted = at.attr("count_include_pad", 0) == 1
    weighted = at.g
    for axis in range(windows.axes):
        weighted = weighted / _count_elements(at, windows, axis, is_padding_counted)
    return (_spread(weighted, at.x, windows),)


def _count_elements(at: RuleContext, windows: Windows, axis: int, is_padding_counted: bool) -> Tensor:
    """Return how many elements each window has along an axis, in the shape in which the result is divided by it."""
    size, results = extent(at.x, 2 + axis), extent(at.y, 2 + axis)
    zero, one = np.asarray(0, np.int64), np.asarray(1, np.int64)
    starts = emit("Range", zero, emit("Reshape", results, integers()), one) * windows.strides[axis] - windows.begins[axis]
    offsets = np.arange(windows.kernel[axis], dtype=np.int64) * windows.dilations[axis]
    places = emit("Unsqueeze", starts, integers(1)) + offsets
    low, high = (-windows.begins[axis], windows.ends[axis]) if is_padding_counted else (0, 0)
    limit = emit("Add", size, integers(high))
    inside = emit("And", places >= low, emit("Less", places, limit))
    counted = emit("ReduceSum", cast(inside, at.x.dtype), integers(1), keepdims=0)
    # A window beyond the input counts nothing; its gradient reaches nothing either.
    counted = emit("Max", counted, number(1, at.x))
    trailing = windows.axes - axis - 1
    return emit("Unsqueeze", counted, integers(*range(1, 1 + trailing))) if trailing else counted


def _spread(g: Tensor, like: Tensor, windows: Windows) -> Tensor:
    """Return, for each element of the input, the sum over the windows that it is in."""
    channels = like.tensor_type.shape and like.shape[1]
    options: dict[str, Any] = {"strides": windows.strides, "dilations": windows.dilations}
    if isinstance(channels, int):
        ones: Any = np.ones((channels, 1, *windows.kernel), g.dtype.numpy)
        whole = emit("ConvTranspose", g, ones, group=channels, **options)
    else:  # channels join the batch
        spatial = [extent(g, axis) for axis in range(2, 2 + windows.axes)]
        apart = emit("Reshape", g, emit("Concat", integers(-1, 1), *spatial, axis=0))
        whole = emit("ConvTranspose", apart, np.ones((1, 1, *windows.kernel), g.dtype.numpy), **options)
        ends = [emit("Shape", whole, start=2), emit("Shape", like, end=2)]
        whole = emit("Reshape", whole, emit("Concat", ends[1], ends[0], axis=0), allowzero=1)
    return fit(whole, like, windows.begins, windows.reaches)


@definition("LpPool")
def take_norm(at: RuleContext) -> Gradients:
    """(sum |x|^p)^(1/p) over windows: the sum is a mean times the number of elements, padding included."""
    power = float(at.attr("p", 2))
    names = ("kernel_shape", "strides", "pads", "dilations", "auto_pad")
    given = {name: value for name in names if (value := at.attr(name)) is not None}
    if at.attr("ceil_mode", 0):
        at.refuse("its windows extend beyond the padding (ceil_mode=1), where a mean counts fewer elements")
    raised = at.x * at.x if power == 2 else emit("Pow", emit("Abs", at.x), number(power, at.x))
    mean = emit("AveragePool", raised, count_include_pad=1, **given)
    total = mean * float(np.prod(at.attr("kernel_shape")))
    is_zero = emit("Equal", total, number(0, total))
    root = emit("Pow", emit("Where", is_zero, number(1, total), total), number(1 / power, total))
    return (emit("Where", is_zero, number(0, total), root),)


@definition("LRN")
def normalize_neighbors(at: RuleContext) -> Gradients:
    """The function x / (bias + alpha / size * sum of squares over neighboring channels)^beta; Krizhevsky et al. (2012), 3.3."""
    size, alpha, beta, bias = at.attr("size"), at.attr("alpha", 0.0001), at.attr("beta", 0.75), at.attr("bias", 1.0)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    rows = emit("Reshape", at.x * at.x, emit("Concat", emit("Shape", at.x, end=2), integers(-1), axis=0), allowzero=0)
    pool = {"kernel_shape": [size, 1], "pads": [before, 0, after, 0], "count_include_pad": 1}
    mean = emit("Squeeze", emit("AveragePool", emit("Unsqueeze", rows, integers(1)), **pool), integers(1))
    scale = reshape_to(mean, at.x) * alpha + bias
    return (at.x / emit("Pow", scale, number(beta, at.x)),)
