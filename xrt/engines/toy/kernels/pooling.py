"""Pools: what a sliding window sees, reduced to its greatest element or its norm."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.elements import extreme, round_once
from xrt.engines.toolkit.array_ops.windows import Placement, make_window
from xrt.engines.toy.kernels.windows import around, sum_windows
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node


@ops("MaxPool")
def max_pool(node: Node, env: KernelContext) -> Run:
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))
    if env.wants(1):
        column_major = bool(node.attr("storage_order", 0))
        return lambda x: _max_and_places(xp, x, window.over(x.shape[2:]), column_major)

    def run(x: Array) -> Array:
        place = window.over(x.shape[2:])
        x = around(xp, place, x, extreme(x.dtype, lowest=True))
        picks = place.offsets()
        top = x[next(picks)[1]].copy()
        for _, picked in picks:
            xp.maximum(top, x[picked], out=top)
        return top

    return run


def _max_and_places(xp: Any, x: Array, place: Placement, column_major: bool) -> tuple[Array, Array]:
    """Return each window's greatest element and its place in the flattened tensor (planes flattened by columns if asked)."""
    order = "F" if column_major else "C"
    own = xp.arange(prod(place.extents), dtype=np.int64).reshape(place.extents, order=order)
    whole, places = around(xp, place, x, extreme(x.dtype, lowest=True)), around(xp, place, own, -1)
    shape = (*x.shape[:2], *place.positions)
    top, where = xp.empty(shape, dtype=x.dtype), xp.full(shape, -1, dtype=np.int64)
    for _, picked in place.offsets():
        seen, index = whole[picked], places[picked]
        better = (index >= 0) & ((where < 0) | (seen > top))
        xp.copyto(top, seen, where=better)
        xp.copyto(where, index, where=better)
    planes = xp.arange(prod(x.shape[:2]), dtype=np.int64) * own.size
    return top, where + planes.reshape(*x.shape[:2], *(1,) * len(place.extents))


@ops("LpPool")
def lp_pool(node: Node, env: KernelContext) -> Run:
    xp, window, p = env.xp, make_window(node, node.attr("kernel_shape")), node.attr("p", 2)
    return round_once(lambda x: sum_windows(xp, xp.abs(x) ** p, window.over(x.shape[2:])) ** (1 / p))


@ops("GlobalLpPool")
def global_lp_pool(node: Node, env: KernelContext) -> Run:
    xp, p = env.xp, node.attr("p", 2)
    return round_once(lambda x: (xp.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p))


@ops("MaxUnpool", host=(2,))
def max_unpool(node: Node, env: KernelContext) -> Run:
    """Each element goes back to the place it came from; the rest is zero."""
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))

    def run(x: Array, places: Array, asked: Array | None = None) -> Array:
        natural = (*x.shape[:2], *window.spread(x.shape[2:]))
        flat = xp.zeros(prod(natural), dtype=x.dtype)
        flat[places.reshape(-1)] = x.reshape(-1)
        if asked is None:
            return flat.reshape(natural)
        out = xp.zeros(asked.tolist(), dtype=x.dtype)
        out[tuple(slice(n) for n in natural)] = flat.reshape(natural)
        return out

    return run


@ops("DeformConv", devices=CPU)
def deform_conv(node: Node, env: KernelContext) -> Run:
    """Read linearly between elements, and zero outside of them; sums are in double precision."""
    xp, group, offsets = env.xp, node.attr("group", 1), node.attr("offset_group", 1)

    def run(x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None) -> Array:
        n, channels, *extents = x.shape
        kernel, places = w.shape[2:], offset.shape[2:]
        moves = offset.reshape(n, offsets, prod(kernel), len(extents), *places)
        at = [
            starts + moves[:, :, :, axis] for axis, starts in enumerate(_starts(xp, node, kernel, places))
        ]  # each (images, offset groups, elements of the window, *places)
        parts = xp.moveaxis(x.reshape(n, offsets, channels // offsets, *extents), 2, -1).astype(np.float64)
        columns = _read(xp, parts, at, extents)
        if mask is not None:
            columns = columns * mask.reshape(at[0].shape)[..., None]
        columns = xp.moveaxis(columns, -1, 2)  # next to the groups of offsets, so that both are the channels
        columns = columns.reshape(n, group, channels // group * prod(kernel), prod(places))
        weights = w.astype(np.float64).reshape(group, len(w) // group, -1)
        out = (weights @ columns).reshape(n, len(w), *places)
        out = out if bias is None else out + bias.reshape(-1, *(1,) * len(places))
        return out.astype(x.dtype)

    return run


def _starts(xp: Any, node: Node, kernel: tuple[int, ...], places: tuple[int, ...]) -> list[Array]:
    """Return for each axis where the elements of each window lie before they are moved: [elements, *places]."""
    axes = len(kernel)
    strides, dilations = node.attr("strides", (1,) * axes), node.attr("dilations", (1,) * axes)
    pads = node.attr("pads", (0,) * (2 * axes))
    found = []
    for axis in range(axes):
        elements = xp.arange(kernel[axis]).reshape([-1 if i == axis else 1 for i in range(axes)])
        elements = xp.broadcast_to(elements, kernel).reshape(-1, *(1,) * axes) * dilations[axis]
        windows = xp.arange(places[axis]).reshape([-1 if i == axis else 1 for i in range(axes)]) * strides[axis] - pads[axis]
        found.append(elements + windows)
    return found


def _read(xp: Any, x: Array, at: list[Array], extents: list[int]) -> Array:
    """Return images (n, groups, *extents, channels) read at places (n, groups, ...) along each axis."""
    lows = [xp.floor(places) for places in at]
    image = xp.arange(x.shape[0]).reshape(-1, *(1,) * (at[0].ndim - 1))
    part = xp.arange(x.shape[1]).reshape(1, -1, *(1,) * (at[0].ndim - 2))
    total = xp.zeros((*at[0].shape, x.shape[-1]))
    for corner in product((0, 1), repeat=len(at)):
        share, index = xp.ones(at[0].shape), [image, part]
        for step, low, places, extent in zip(corner, lows, at, extents, strict=True):
            tap = low + step
            share = share * (1 - xp.abs(places - tap)) * ((tap >= 0) & (tap < extent))
            index.append(xp.clip(tap, 0, extent - 1).astype(np.int64))
        total += share[..., None] * x[tuple(index)]
    return total
