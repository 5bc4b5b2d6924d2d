"""Helpers of the kernels for element types, scales and shapes. ``xp`` is an array namespace (`ArrayNamespace`)."""

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
    """Wrap a function so that float types under 32 bits are computed in float32, and only the result is rounded.

    The result has the type of the first argument. Arguments that are not arrays are passed unchanged.
    """

    @wraps(compute)
    def run(x: Any, *rest: Any, **options: Any) -> Any:
        if x.dtype not in xp.narrow:
            return compute(x, *rest, **options)
        wide = (widen(xp, value) if hasattr(value, "dtype") else value for value in rest)
        return xp.astype(compute(widen(xp, x), *wide, **options), x.dtype)

    return run


def get_extreme_value(dtype: Any, *, lowest: bool) -> Any:
    """Get the lowest or the highest value of an element type: the result of a maximum or minimum over no elements."""
    if dtype.kind == "b":
        return np.bool_(not lowest)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.min if lowest else info.max)
    # Infinities, not the extreme finite numbers, because the maximum of negative infinities must be infinite.
    return dtype.type(-np.inf if lowest else np.inf)


def get_integer_limits(dtype: DType) -> tuple[int, int]:
    """Get the lowest and the highest value of an integer type."""
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.text.startswith("int") else (0, (1 << dtype.bits) - 1)


def broadcast_parameters(xp: Any, v: Any, x: Any, axis: int, block: int) -> Any:
    """Reshape a scale or zero point ``v`` to broadcast over ``x``.

    It has one element for the whole tensor, one per index of ``axis``, or, if ``block`` is not 0, one per ``block`` indices.
    """
    # A scale of shape [1] is for the whole tensor too; as a scalar it broadcasts over any rank.
    if prod(v.shape) == 1:
        return v.reshape(())
    if block:
        # The last block may be shorter than the others.
        return xp.take(xp.repeat(v, block, axis=axis), xp.arange(x.shape[axis]), axis=axis)
    return reshape_along_axis(v, axis, x.ndim)


def align_to_axis(v: Any, axis: int | None, rank: int) -> Any:
    """Reshape a scale or zero point to broadcast over a tensor of this rank, if it is a scalar or a vector.

    A vector has one element per index of ``axis``. With other ranks, or if ``axis`` is None, it is returned unchanged.
    """
    if prod(v.shape) == 1:
        return v.reshape(())
    if v.ndim != 1 or axis is None:
        return v
    return reshape_along_axis(v, axis, rank)


def reshape_along_axis(x: Any, axis: int, rank: int) -> Any:
    """Reshape a vector so that it broadcasts over a tensor of this rank, with its elements along ``axis``."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def split_axis(x: Any, sizes: Sequence[int], axis: int) -> tuple[Any, ...]:
    """Split an array into views of the given sizes along an axis."""
    lead = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*lead, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True))


def split_evenly(extent: int, count: int) -> list[int]:
    """Split an extent into ``count`` equal sizes. If they do not divide it, the last one is smaller.

    >>> split_evenly(7, 3)
    [3, 3, 1]
    """
    # Rounded up: with more parts than elements the last parts are empty.
    size = -(-extent // count)
    return [max(0, min(size, extent - i * size)) for i in range(count)]


def apply_negative_pads(x: Any, pads: Sequence[int], axes: Sequence[int] | None) -> tuple[Any, list[tuple[int, int]]]:
    """Crop the array where pads are negative; return the cropped array, and the other pads as (begin, end) for every axis.

    ``pads`` has the pads at the begin of each of ``axes``, then those at the end; None means all axes. If a negative pad exceeds
    the array, the excess is subtracted from the pad at the other end, so that the extent after padding is the sum of the array's
    extent and both pads.
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
