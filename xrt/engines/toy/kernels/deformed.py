"""Convolutions whose windows are bent: each element of a window is read where an offset moves it."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


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
