"""The gradient of a convolution's weights, in the form that is quickest for its shape.

There are four forms of one sum. A product of matrices over the columns of the windows (im2col; Chellapilla et al., 2006) is
quicker than a convolution with batch and channels exchanged where kernels are small: 1.3 to 1.6 times for 3 x 3 and more than ten
times for 1 x 1 on ONNX Runtime, in processor time with one thread. Record 0037 has the measurements behind the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.rules.windows import Windows
from xrt.passes.gradient.tensors import extent, integers, reduce_sum, transpose

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["differentiate_weights"]

MOST_COLUMNS = 9
"""Elements of a kernel up to which columns are quicker than a convolution: it is so for 3 x 3, and not for 5 x 5."""
MOST_PRODUCTS = 25
"""Elements of a kernel up to which a depthwise convolution is that many products by element."""
MOST_BYTES = 1 << 26
"""Bytes of columns up to which they are made; they are as many times the input as the kernel has elements."""
FEW_PLACES = 256
"""Places of a result up to which one product over the whole batch is quicker than one per batch element, whose sum follows."""


def differentiate_weights(x: Tensor, g: Tensor, windows: Windows, group: int) -> Tensor:
    """Return the gradient of the weights (M, C / group, ...), from the input (N, C, ...) and the gradient (N, M, ...)."""
    places, elements = _count_places(x, g, windows.axes), math.prod(windows.kernel)
    channels = x.shape[1], g.shape[1]
    if places is None or not all(isinstance(count, int) for count in channels):
        return _exchange(x, g, windows, group)
    if group == 1 and elements <= MOST_COLUMNS and _count_bytes(x, places, elements) <= MOST_BYTES:
        is_whole = places <= FEW_PLACES and elements > 1
        return _multiply_whole(x, g, windows) if is_whole else _multiply_batches(x, g, windows)
    if group == channels[0] == channels[1] and group > 1 and elements <= MOST_PRODUCTS:
        return _multiply_elements(x, g, windows)
    return _exchange(x, g, windows, group)


def _count_places(x: Tensor, g: Tensor, axes: int) -> int | None:
    """Return how many places a result has; None where an extent is not known."""
    shapes = x.tensor_type.shape, g.tensor_type.shape
    if any(shape is None or len(shape) != 2 + axes or not all(isinstance(n, int) for n in shape[2:]) for shape in shapes):
        return None
    return math.prod(n for n in g.shape[2:] if isinstance(n, int)) or None


def _count_bytes(x: Tensor, places: int, elements: int) -> int:
    """Return the bytes of the columns; of a batch whose size is not known, those of one element."""
    sizes = [n for n in x.shape[:2] if isinstance(n, int)]
    return math.prod(sizes) * places * elements * int(x.dtype.numpy.itemsize)


# ---------------------------------------------------------------------- forms


def _exchange(x: Tensor, g: Tensor, windows: Windows, group: int) -> Tensor:
    """The convolution of X with G, batch and channels exchanged, strides and dilations too."""
    spatial = range(2, 2 + windows.axes)
    exchanged = [1, 0, *spatial]
    rows = transpose(x, exchanged)
    if group != 1:  # (N, group C', ...) as C' batches of group N channels
        shape = [extent(x, axis) for axis in range(2 + windows.axes)]
        channels = shape[1] // group if isinstance(shape[1], np.ndarray) else emit("Div", shape[1], integers(group))
        parts = _reshape(x, [shape[0], integers(group), channels, *shape[2:]])
        moved = transpose(parts, [2, 1, 0, *range(3, 3 + windows.axes)])
        merged = shape[0] * group if isinstance(shape[0], np.ndarray) else emit("Mul", shape[0], integers(group))
        rows = _reshape(moved, [channels, merged, *shape[2:]])
    found = emit(
        "Conv",
        rows,
        transpose(g, exchanged),
        group=group,
        strides=windows.dilations,
        dilations=windows.strides,
        pads=(*windows.begins, *windows.ends),
    )
    # Where the strides leave a rest of the input unread, there are results beyond the kernel.
    ends = np.asarray(windows.kernel, np.int64)
    return transpose(emit("Slice", found, np.zeros_like(ends), ends, np.asarray(spatial, np.int64)), exchanged)


def _multiply_batches(x: Tensor, g: Tensor, windows: Windows) -> Tensor:
    """The sum over the batch of G (M, places) by the columns (places, elements C)."""
    columns = emit(
        "Reshape", _join(_cut(x, g, windows), axis=1), integers(0, math.prod(windows.kernel) * int(x.shape[1] or 0), -1)
    )
    products = emit("MatMul", emit("Reshape", g, integers(0, 0, -1)), transpose(columns, [0, 2, 1]))
    return _unfold(reduce_sum(products, [0]), x, g, windows)


def _multiply_whole(x: Tensor, g: Tensor, windows: Windows) -> Tensor:
    """One product of G (M, N places) by the columns (N places, elements C)."""
    exchanged = [1, 0, *range(2, 2 + windows.axes)]
    cut = _join(_cut(transpose(x, exchanged), g, windows), axis=0)
    columns = emit("Reshape", cut, integers(math.prod(windows.kernel) * int(x.shape[1] or 0), -1))
    rows = emit("Reshape", transpose(g, exchanged), integers(0, -1))
    return _unfold(emit("Gemm", rows, columns, transB=1), x, g, windows)


def _multiply_elements(x: Tensor, g: Tensor, windows: Windows) -> Tensor:
    """Of a depthwise convolution: for each element of the kernel the sum of what it reads by G."""
    axes = [0, *range(2, 2 + windows.axes)]
    sums = [emit("Unsqueeze", reduce_sum(emit("Mul", part, g), axes), integers(1)) for part in _cut(x, g, windows)]
    return emit("Reshape", _join(sums, axis=1), integers(int(g.shape[1] or 0), 1, *windows.kernel))


# ---------------------------------------------------------------------- parts


def _cut(x: Tensor, g: Tensor, windows: Windows) -> list[Tensor]:
    """Return for each element of the kernel what it reads of the input, in the shape of the result."""
    spatial = np.arange(2, 2 + windows.axes)
    if any((*windows.begins, *windows.ends)):
        x = emit("Pad", x, integers(*windows.begins, *windows.ends), None, spatial)
    results = [int(n) for n in g.shape[2:] if isinstance(n, int)]
    if math.prod(windows.kernel) == 1 and [*x.shape[2:]] == results:
        return [x]
    parts = []
    for offsets in product(*map(range, windows.kernel)):
        begins = integers(*(offset * dilation for offset, dilation in zip(offsets, windows.dilations, strict=True)))
        steps = np.asarray(windows.strides, np.int64)
        parts.append(emit("Slice", x, begins, begins + (integers(*results) - 1) * steps + 1, spatial, steps))
    return parts


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis)


def _unfold(found: Tensor, x: Tensor, g: Tensor, windows: Windows) -> Tensor:
    """Return the product (M, elements C) as weights (M, C, ...)."""
    shape = integers(int(g.shape[1] or 0), *windows.kernel, int(x.shape[1] or 0))
    return transpose(emit("Reshape", found, shape), [0, 1 + windows.axes, *range(1, 1 + windows.axes)])


def _reshape(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    if all(isinstance(size, np.ndarray) for size in sizes):
        shape = np.concatenate(sizes)
        return emit("Reshape", x, shape, allowzero=None if shape.all() else 1)
    return emit("Reshape", x, emit("Concat", *sizes, axis=0), allowzero=1)
