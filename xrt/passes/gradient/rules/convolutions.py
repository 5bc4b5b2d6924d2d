"""Convolutions; Dumoulin and Visin, *A guide to convolution arithmetic for deep learning*, arXiv:1603.07285.

The gradient of a convolution's input is the transposed convolution of the result's, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.rules.convolution_weights import differentiate_weights
from xrt.passes.gradient.rules.windows import Windows, fit, read_windows
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import extent, integers, reduce_sum

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


@rule("Conv")
def convolve(at: RuleContext) -> Gradients:
    """The gradient dX is the transposed convolution of G with the weights, dW the convolution of X with G, dB the sum of G."""
    x, w, group = at.input(0), at.input(1), at.attr("group", 1)
    windows = read_windows(at, _kernel(at, w), x, at.y)
    first = _transposed(at.g, w, x, windows, group) if at.wants(0) else None
    second = differentiate_weights(x, at.g, windows, group) if at.wants(1) else None
    third = reduce_sum(at.g, [0, *range(2, 2 + windows.axes)]) if at.wants(2) else None
    return first, second, third


@rule("ConvTranspose")
def convolve_transposed(at: RuleContext) -> Gradients:
    """The gradient dX is the convolution of G with the weights, dW the convolution of G with X, dB the sum of G."""
    x, w, group = at.input(0), at.input(1), at.attr("group", 1)
    windows = _transposed_windows(at, _kernel(at, w))
    options: dict[str, Any] = {"strides": windows.strides, "dilations": windows.dilations}
    # The result is what all windows reach, cut at the begins; at the ends zeros may follow.
    whole = _uncut(at.g, x, windows)
    first = emit("Conv", whole, w, group=group, **options) if at.wants(0) else None
    bare = Windows(windows.kernel, windows.strides, windows.dilations, (0,) * windows.axes, (0,) * windows.axes)
    second = differentiate_weights(whole, x, bare, group) if at.wants(1) else None
    third = reduce_sum(at.g, [0, *range(2, 2 + windows.axes)]) if at.wants(2) else None
    return first, second, third


def _kernel(at: RuleContext, weights: Tensor) -> tuple[int, ...]:
    """Return the spatial extents of the weights."""
    asked = at.attr("kernel_shape")
    found = tuple(asked) if asked else weights.tensor_type.shape and weights.shape[2:]
    if not found or not all(isinstance(size, int) for size in found):
        at.refuse("the extents of its kernel are not known; bind the symbolic ones first")
    return tuple(int(size) for size in found if isinstance(size, int))


def _transposed(g: Tensor, weights: Tensor, like: Tensor, windows: Windows, group: int) -> Tensor:
    """Return the transposed convolution, in the shape of the convolution's input."""
    options: dict[str, Any] = {"strides": windows.strides, "dilations": windows.dilations, "group": group}
    results, sizes = g.tensor_type.shape, like.tensor_type.shape
    if results is not None and sizes is not None and all(isinstance(d, int) for d in (*results[2:], *sizes[2:])):
        over = [
            i - ((o - 1) * s + reach - begin - end)
            for i, o, s, reach, begin, end in zip(
                sizes[2:], results[2:], windows.strides, windows.reaches, windows.begins, windows.ends, strict=True
            )
        ]
        if all(0 <= rest < stride for rest, stride in zip(over, windows.strides, strict=True)):
            pads = (*windows.begins, *windows.ends)
            return emit("ConvTranspose", g, weights, pads=pads, output_padding=over if any(over) else None, **options)
    return fit(emit("ConvTranspose", g, weights, **options), like, windows.begins, windows.reaches)


def _uncut(g: Tensor, x: Tensor, windows: Windows) -> Tensor:
    """Return the gradient of all that the windows of a transposed convolution reach, of which its result is a part.

    Its extent is the stride times one less than the input's, and one window more.
    """
    ends: list[Any] = []
    for axis, (begin, stride, reach) in enumerate(zip(windows.begins, windows.strides, windows.reaches, strict=True), 2):
        size, result = extent(x, axis), extent(g, axis)
        if isinstance(size, np.ndarray) and isinstance(result, np.ndarray):
            ends.append((size - 1) * stride + reach - begin - result)
        else:
            whole = emit("Add", emit("Mul", size, integers(stride)), integers(reach - stride - begin))
            ends.append(emit("Sub", whole, result))
    begins = integers(*windows.begins)
    if all(isinstance(end, np.ndarray) for end in ends):
        pads: Any = np.concatenate([begins, *ends])
        if not pads.any():
            return g
    else:
        pads = emit("Concat", begins, *ends, axis=0)
    return emit("Pad", g, pads, None, np.arange(2, 2 + windows.axes))


def _transposed_windows(at: RuleContext, kernel: Sequence[int]) -> Windows:
    """Return the windows of a ConvTranspose: an output shape that is asked for decides the padding."""
    count = len(kernel)
    strides = tuple(at.attr("strides") or (1,) * count)
    dilations = tuple(at.attr("dilations") or (1,) * count)
    pads = tuple(at.attr("pads") or (0,) * (2 * count))
    mode, extra = at.attr("auto_pad", "NOTSET"), tuple(at.attr("output_padding") or (0,) * count)
    windows = Windows(tuple(kernel), strides, dilations, pads[:count], pads[count:])
    if mode == "VALID":
        windows = Windows(windows.kernel, strides, dilations, (0,) * count, (0,) * count)
    if at.attr("output_shape") is None and not mode.startswith("SAME"):
        return windows
    if mode.startswith("SAME") and any(reach < stride for reach, stride in zip(windows.reaches, strides, strict=True)):
        at.refuse(f"its windows do not touch (auto_pad={mode!r}), for which ONNX gives two shapes; give it pads")
    sizes, results = at.x.shape[2:], at.y.shape[2:]
    if not all(isinstance(size, int) for size in (*sizes, *results)):
        at.refuse("its padding follows from its extents, which are not known; bind the symbolic ones first")
    totals = [
        (i - 1) * s + reach + more - o  # type: ignore[operator]  # integers, as was checked
        for i, o, s, reach, more in zip(sizes, results, strides, windows.reaches, extra, strict=True)
    ]
    halves = tuple(total // 2 for total in totals)
    rests = tuple(total - half for total, half in zip(totals, halves, strict=True))
    begins, ends = (halves, rests) if mode == "SAME_UPPER" else (rests, halves)
    return Windows(windows.kernel, strides, dilations, begins, ends)
