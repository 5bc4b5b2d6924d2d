"""Element types, scales and shapes: helpers of the kernels, over an array namespace ``xp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from xrt.graph import DType

NARROW = frozenset(d.numpy for d in DType if d.is_float and d.bits < 32)
"""Float types narrower than float32."""


def widen(xp: Any, x: Any) -> Any:
    """Convert narrow floats to float32; other types are unchanged."""
    return xp.astype(x, np.float32) if x.dtype in xp.narrow else x


def round_once(xp: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Compute narrow types in float32 and round the result once, to the type of the first argument.

    Arguments that are not arrays pass through.
    """

    @wraps(compute)
    def run(x: Any, *rest: Any, **options: Any) -> Any:
        if x.dtype not in xp.narrow:
            return compute(x, *rest, **options)
        wide = (widen(xp, value) if hasattr(value, "dtype") else value for value in rest)
        return xp.astype(compute(widen(xp, x), *wide, **options), x.dtype)

    return run


def extreme(dtype: Any, *, lowest: bool) -> Any:
    """The smallest or largest value of an element type: the identity of a maximum or minimum."""
    if dtype.kind == "b":
        return np.bool_(not lowest)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.min if lowest else info.max)
    # Infinities, not the extreme finite numbers: the maximum of infinities must stay infinite.
    return dtype.type(-np.inf if lowest else np.inf)


def get_integer_limits(dtype: DType) -> tuple[int, int]:
    """The smallest and largest value of an integer type."""
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.text.startswith("int") else (0, (1 << dtype.bits) - 1)


def broadcast_parameters(xp: Any, v: Any, x: Any, axis: int, block: int) -> Any:
    """Reshape a scale or zero point to broadcast over ``x``: per tensor, per index of an axis, or per block."""
    # A scale of shape [1] is per tensor too; as a scalar it broadcasts over any rank.
    if prod(v.shape) == 1:
        return v.reshape(())
    if block:
        # The last block may be shorter than the others.
        return xp.take(xp.repeat(v, block, axis=axis), xp.arange(x.shape[axis]), axis=axis)
    return along(v, axis, x.ndim)


def align_to_axis(v: Any, axis: int | None, rank: int) -> Any:
    """Reshape a scalar or vector to broadcast along an axis; axis -2 of a matrix product is per row, -1 per column."""
    if prod(v.shape) == 1:
        return v.reshape(())
    if v.ndim != 1 or axis is None:
        return v
    return along(v, axis, rank)


def along(x: Any, axis: int, rank: int) -> Any:
    """Reshape a vector to broadcast along one axis of a tensor of this rank."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def split_axis(x: Any, sizes: Sequence[int], axis: int) -> tuple[Any, ...]:
    """Split into views of these sizes along an axis."""
    lead = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*lead, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True))


def even(extent: int, count: int) -> list[int]:
    """Split an extent into ``count`` equal sizes; the last one is smaller if they do not divide the extent.

    >>> even(7, 3)
    [3, 3, 1]
    """
    # Rounded up: with more parts than elements the last parts are empty.
    each = -(-extent // count)
    return [max(0, min(each, extent - i * each)) for i in range(count)]


def trim(x: Any, pads: Sequence[int], axes: Sequence[int] | None) -> tuple[Any, list[tuple[int, int]]]:
    """Apply negative pads as slices; return the trimmed array and the remaining pads per axis.

    ``pads`` has all begins and then all ends of the axes (None: all axes). If a negative pad exceeds the array, the excess
    reduces the pad at the other end: the extent of the result is always the sum of the array's and both pads.
    """
    selected = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    bounds = [(0, 0)] * x.ndim
    for axis, begin, end in zip(selected, pads[: len(selected)], pads[len(selected) :], strict=True):
        bounds[axis] = (begin, end)
    slices, more = [], []
    for extent, (begin, end) in zip(x.shape, bounds, strict=True):
        start = min(max(0, -begin), extent)
        stop = max(start, extent - max(0, -end))
        # The part of a negative pad that exceeds the array.
        over_begin, over_end = max(0, -begin) - start, max(0, -end) - (extent - stop)
        slices.append(slice(start, stop))
        more.append((max(0, max(0, begin) - over_end), max(0, max(0, end) - over_begin)))
    return x[tuple(slices)], more
