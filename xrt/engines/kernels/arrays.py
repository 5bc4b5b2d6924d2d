"""Helpers of the kernels for element types, scales and shapes. ``xp`` is an array namespace (`ArrayNamespace`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from xrt.graph import DType

NARROW_FLOATS = frozenset(d.numpy for d in DType if d.is_float and d.bits < 32)
"""Float dtypes under 32 bits."""


def widen(xp: Any, x: Any) -> Any:
    """Convert floats under 32 bits to float32. Arrays of other dtypes are unchanged."""
    return xp.astype(x, np.float32) if x.dtype in xp.narrow else x


def round_once(xp: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to compute floats under 32 bits in float32, and round only the result to the first argument's type."""

    @wraps(compute)
    def run(x: Any, *operands: Any, **options: Any) -> Any:
        if x.dtype not in xp.narrow:
            return compute(x, *operands, **options)
        wide_operands = (widen(xp, operand) if hasattr(operand, "dtype") else operand for operand in operands)
        return xp.astype(compute(widen(xp, x), *wide_operands, **options), x.dtype)

    return run


def get_extreme_value(dtype: Any, *, lowest: bool) -> Any:
    """Get the lowest or the highest value of an element type: the result of a maximum or minimum over no elements."""
    if dtype.kind == "b":
        return np.bool_(not lowest)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return dtype.type(limits.min if lowest else limits.max)
    # Infinities, not the extreme finite numbers, because the maximum of negative infinities must be infinite.
    return dtype.type(-np.inf if lowest else np.inf)


def get_integer_limits(dtype: DType) -> tuple[int, int]:
    if dtype.text.startswith("uint"):
        return 0, (1 << dtype.bits) - 1
    return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1


def broadcast_parameters(xp: Any, v: Any, x: Any, axis: int, block: int) -> Any:
    """Reshape a scale or zero point ``v`` to broadcast over ``x``.

    ``v`` has one element for the whole tensor, one per index of ``axis``, or, if ``block`` is not 0, one per ``block`` indices.
    """
    if not block or prod(v.shape) == 1:
        return align_to_axis(v, axis, x.ndim)
    # If the extent is no multiple of `block`, the last block is shorter: drop the repeated elements that exceed the extent.
    return xp.take(xp.repeat(v, block, axis=axis), xp.arange(x.shape[axis]), axis=axis)


def align_to_axis(v: Any, axis: int, rank: int) -> Any:
    """Reshape a scale or zero point to broadcast over a tensor of this rank. A vector has one element per index of ``axis``."""
    # A scale of shape [1] is for the whole tensor. As a scalar it broadcasts over any rank.
    if prod(v.shape) == 1:
        return v.reshape(())
    # Matrices broadcast already.
    return reshape_along_axis(v, axis, rank) if v.ndim == 1 else v


def reshape_along_axis(x: Any, axis: int, rank: int) -> Any:
    """Reshape a vector so that it broadcasts over a tensor of this rank, with its elements along ``axis``."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def flatten_to_matrix(x: Any, axis: int) -> Any:
    """Merge the axes before ``axis`` to rows, and the others to columns."""
    # Not `axis % x.ndim`, because an axis equal to the rank is valid: the result then has one column.
    start = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))


def split_axis(x: Any, sizes: Sequence[int], axis: int) -> tuple[Any, ...]:
    lead = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*lead, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True))


def split_evenly(extent: int, count: int) -> list[int]:
    """Split an extent into ``count`` equal sizes. If ``count`` does not divide the extent, the last sizes are smaller or 0.

    >>> split_evenly(7, 3)
    [3, 3, 1]
    """
    size = -(-extent // count)  # rounded up
    return [max(0, min(size, extent - i * size)) for i in range(count)]


def apply_negative_pads(x: Any, pads: Sequence[int], axes: Sequence[int] | None) -> tuple[Any, list[tuple[int, int]]]:
    """Crop the array where pads are negative. Return the cropped array, and the (begin, end) pads of every axis still to apply.

    ``pads`` has the pad at the begin of each of ``axes`` (None means all axes), then the pads at the end. If a negative pad
    exceeds the array, the excess is subtracted from the pad at the other end of the axis. So the extent after padding is always
    the sum of the array's extent and both pads.
    """
    selected = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    bounds = [(0, 0)] * x.ndim
    for axis, begin, end in zip(selected, pads[: len(selected)], pads[len(selected) :], strict=True):
        bounds[axis] = (begin, end)
    slices, remaining = [], []
    for extent, (begin, end) in zip(x.shape, bounds, strict=True):
        start = min(max(0, -begin), extent)
        stop = max(start, extent - max(0, -end))
        # By how much a negative pad exceeds the array.
        excess_begin = max(0, -begin) - start
        excess_end = max(0, -end) - (extent - stop)
        slices.append(slice(start, stop))
        remaining.append((max(0, max(0, begin) - excess_end), max(0, max(0, end) - excess_begin)))
    return x[tuple(slices)], remaining
