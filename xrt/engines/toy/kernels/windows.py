"""Windows laid over arrays: padding around them, what each of them sees summed, and their sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from xrt.engines.kernels.windows import with_bias
from xrt.engines.toolkit.array_ops.elements import round_once
from xrt.engines.toolkit.array_ops.windows import Placement, Window, compute_padding_trims, make_window
from xrt.engines.toy.kernels.layout import apply_padding
from xrt.engines.toy.products import multiply
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__ = ["around", "convolve", "fold", "sum_windows"]


def around(xp: Any, place: Placement, x: Array, fill: Any) -> Array:
    """Return the tensor (..., *spatial) with its padding."""
    if not any(place.begins) and not any(place.ends):
        return x
    lead = x.shape[: x.ndim - len(place.extents)]
    sizes = zip(place.begins, place.extents, place.ends, strict=True)
    out = xp.full((*lead, *(b + n + e for b, n, e in sizes)), fill, dtype=x.dtype)
    out[(..., *(slice(b, b + n) for b, n in zip(place.begins, place.extents, strict=True)))] = x
    return out


def fold(xp: Any, columns: Array, placement: Placement, extents: Sequence[int]) -> Array:
    """Return the sum of windows laid at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""
    out = xp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, picked in placement.offsets():
        out[picked] += columns[(slice(None), slice(None), *offset)]
    return out


def sum_windows(xp: Any, x: Array, place: Placement) -> Array:
    """Return the sum of what each window sees, padding being zero."""
    x = around(xp, place, x, 0)
    picks = place.offsets()
    total = x[next(picks)[1]].copy()
    for _, picked in picks:
        total += x[picked]
    return total


BLOCK = 1 << 23
"""Bytes of columns that are laid out at a time: they stay in the cache, and memory stays bounded."""


def convolve(xp: Any, x: Array, w: Array, window: Window, group: int) -> Array:
    """Return the convolution of (N, C, *spatial) by (M, C/group, *kernel), summed in the tensors' own dtype."""
    place = window.over(x.shape[2:])
    x = around(xp, place, x, 0)
    if group == x.shape[1] and w.shape[1] == 1:
        return _per_channel(xp, x, w, place)
    if group == 1 and 0 < prod(place.positions) < window.size:
        return _per_position(xp, x, w, place)
    weights = w.reshape(group, w.shape[0] // group, -1)
    y = xp.empty((len(x), *weights.shape[:2], *place.positions), dtype=x.dtype)
    for image, out in zip(x, y, strict=True):
        parts = image.reshape(group, -1, *image.shape[1:])
        for rows in _blocks(place, image.shape[0] * x.itemsize):
            columns = _columns(xp, parts, place, rows)
            found = multiply(xp, weights, columns)
            target = out if rows is None else out[:, :, rows]
            target[...] = found.reshape(target.shape)
    return y.reshape(len(x), len(w), *place.positions)


def _per_channel(xp: Any, x: Array, w: Array, place: Placement) -> Array:
    """Convolve each channel by its own kernels, one place of the window after the other."""
    channels = x.shape[1]
    weights = w.reshape(channels, -1, *w.shape[2:])
    each = (1,) * len(place.positions)
    y = xp.zeros((len(x), channels, weights.shape[1], *place.positions), dtype=x.dtype)
    for offset, picked in place.offsets():
        factor = weights[(slice(None), slice(None), *offset)]
        y += x[picked][:, :, None] * factor.reshape(1, *factor.shape, *each)
    return y.reshape(len(x), len(w), *place.positions)


def _per_position(xp: Any, x: Array, w: Array, place: Placement) -> Array:
    """Multiply all that the window sees at one position with the weights, one position after the other.

    The weights of a gradient are found so: the window is as large as an image then, and there are few positions.
    """
    window, weights = place.window, w.reshape(len(w), -1).T
    y = xp.empty((len(x), len(w), *place.positions), dtype=x.dtype)
    for position in product(*map(range, place.positions)):
        starts = (p * s for p, s in zip(position, window.strides, strict=True))
        seen = (slice(a, a + span, d) for a, span, d in zip(starts, window.spans, window.dilations, strict=True))
        y[(..., *position)] = multiply(xp, x[(..., *seen)].reshape(len(x), len(weights)), weights)
    return y


def _blocks(place: Placement, bytes_each: int) -> Iterator[slice | None]:
    """Yield ranges of the first spatial axis whose columns fill a block; None, once, where there is no such axis to cut."""
    if not place.positions:
        yield None
        return
    row = max(1, prod(place.positions[1:]) * place.window.size * bytes_each)
    step = max(1, BLOCK // row)
    for start in range(0, place.positions[0], step):
        yield slice(start, min(start + step, place.positions[0]))


def _columns(xp: Any, parts: Array, place: Placement, rows: slice | None) -> Array:
    """Return windows as columns: (group, C/group, *padded) to (group, C/group * window, positions), for a range of rows."""
    if rows is None:
        return parts.reshape(*parts.shape[:2], 1)
    window = place.window
    positions = (rows.stop - rows.start, *place.positions[1:])
    stride = window.strides[0]
    image = parts[:, :, rows.start * stride : (rows.stop - 1) * stride + window.spans[0]]
    if window.size == 1 and set(window.strides) == {1}:
        return image.reshape(*parts.shape[:2], -1)
    columns = xp.empty((*parts.shape[:2], *window.kernel, *positions), dtype=parts.dtype)
    for offset, picked in replace(place, positions=positions).offsets():
        columns[(slice(None), slice(None), *offset)] = image[picked]
    return columns.reshape(len(parts), -1, prod(positions))


@ops("ConvTranspose")
def conv_transpose(node: Node, env: KernelContext) -> Run:
    """The gradient of a convolution: every element of x lays down a whole window, and what overlaps is summed."""
    xp, group = env.xp, node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        window = make_window(node, w.shape[2:])
        weights = w.reshape(group, w.shape[0] // group, -1).transpose(0, 2, 1)
        columns = multiply(xp, weights, x.reshape(len(x), group, x.shape[1] // group, prod(x.shape[2:])))
        columns = columns.reshape(len(x), group * w.shape[1], *window.kernel, *x.shape[2:])
        extents = [s * (n - 1) + span for s, n, span in zip(window.strides, x.shape[2:], window.spans, strict=True)]
        nowhere = (0,) * len(extents)
        whole = fold(xp, columns, Placement(window, tuple(extents), nowhere, nowhere, nowhere, x.shape[2:]), extents)
        pads = compute_padding_trims(node, window, extents, x.shape[2:])
        return with_bias(apply_padding(xp, whole, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(run)
