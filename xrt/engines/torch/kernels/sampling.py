"""Tensors read at places between their elements: GridSample, affine grids' reader, and deformed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.toolkit.array_ops.resampling import Grid, sample_grid
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

Taps = list[tuple[Tensor, Tensor]]
"""Neighbours of each place along one axis, with their weights."""


def _within(places: Tensor, extent: int, how: Grid) -> Tensor:
    """Return places beyond the ends as the padding mode reads them; what is no place, NaN, is read as the first element."""
    if how.padding == "zeros":
        return places
    moved = places.clamp(0, extent - 1) if how.padding == "border" else _reflect(places, extent, how)
    return torch.where(torch.isnan(moved), 0.0, moved)


def _reflect(places: Tensor, extent: int, how: Grid) -> Tensor:
    low, span = (0.0, extent - 1.0) if how.corners else (-0.5, float(extent))
    if span == 0:
        return torch.zeros_like(places)
    distance = torch.remainder(places - low, 2 * span)
    reflected = low + torch.minimum(distance, 2 * span - distance)
    return torch.where((places < low) | (places > low + span), reflected, places)


def _weight(distance: Tensor, how: Grid) -> Tensor:
    """Return the weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = distance.abs()
    if how.sampling.mode == "linear":
        return (1 - d).clamp(min=0)
    a = how.sampling.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))


def _taps(grid: Tensor, extent: int, how: Grid) -> Taps:
    """Return the neighbours of each place; a cubic place stays where it is beyond the ends, and each of its taps is moved."""
    places = how.places(grid, extent).double()
    if how.sampling.mode == "nearest":
        nearest = _within(torch.round(places), extent, how)
        return [(nearest, torch.ones_like(nearest))]
    if how.sampling.mode != "cubic":
        places = _within(places, extent, how)
    first, reach = torch.floor(places), how.sampling.reach
    part = places - first
    return [(first + k, torch.where(torch.isnan(part), torch.nan, _weight(k - part, how))) for k in range(1 - reach, reach + 1)]


@ops("GridSample")
def grid_sample(at: TorchKernelContext) -> Run:
    """Return (N, C, *spatial) read at the grid's places (N, *places, axes), summed in double precision."""
    how = sample_grid(at.node)

    def run(x: Tensor, grid: Tensor) -> Tensor:
        extents, last = x.shape[2:], x.movedim(1, -1)
        total: Any = torch.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=torch.float64)
        image = torch.arange(len(x)).reshape(-1, *(1,) * len(extents))
        for combination in product(*(_taps(grid[..., -1 - axis], n, how) for axis, n in enumerate(extents))):
            index, share = [image], torch.ones(grid.shape[:-1], dtype=torch.float64)
            for (tap, factor), extent in zip(combination, extents, strict=True):
                place = _within(tap, extent, how)
                share = torch.where((place >= 0) & (place <= extent - 1) | torch.isnan(factor), share * factor, 0.0)
                index.append(torch.where(torch.isnan(place), 0.0, place).clamp(0, extent - 1).long())
            total = total + share[..., None] * last[tuple(index)]
        return total.movedim(-1, 1).to(x.dtype)

    return run


@ops("DeformConv")
def deform_conv(at: TorchKernelContext) -> Run:
    """Read linearly between elements, and zero outside of them; sums are in double precision."""
    group, offsets = at.attr("group", 1), at.attr("offset_group", 1)

    def run(x: Tensor, w: Tensor, offset: Tensor, bias: Tensor = None, mask: Tensor = None) -> Tensor:
        n, channels, *extents = x.shape
        kernel, places = w.shape[2:], offset.shape[2:]
        moves = offset.reshape(n, offsets, prod(kernel), len(extents), *places)
        spots = [starts + moves[:, :, :, axis] for axis, starts in enumerate(_starts(at, kernel, places))]
        parts = x.reshape(n, offsets, channels // offsets, *extents).movedim(2, -1).double()
        columns = _read(parts, spots, extents)
        if mask is not None:
            columns = columns * mask.reshape(spots[0].shape)[..., None]
        columns = columns.movedim(-1, 2).reshape(n, group, channels // group * prod(kernel), prod(places))
        out = (w.double().reshape(group, len(w) // group, -1) @ columns).reshape(n, len(w), *places)
        out = out if bias is None else out + bias.reshape(-1, *(1,) * len(places))
        return out.to(x.dtype)

    return run


def _starts(at: TorchKernelContext, kernel: Sequence[int], places: Sequence[int]) -> list[Tensor]:
    """Return for each axis where the elements of each window lie before they are moved: [elements, *places]."""
    axes = len(kernel)
    strides, dilations = at.attr("strides", (1,) * axes), at.attr("dilations", (1,) * axes)
    pads = at.attr("pads", (0,) * (2 * axes))
    found = []
    for axis in range(axes):
        along = [-1 if i == axis else 1 for i in range(axes)]
        elements = torch.arange(kernel[axis]).reshape(along).expand(*kernel).reshape(-1, *(1,) * axes) * dilations[axis]
        found.append(elements + torch.arange(places[axis]).reshape(along) * strides[axis] - pads[axis])
    return found


def _read(x: Tensor, spots: list[Tensor], extents: Sequence[int]) -> Tensor:
    """Return images (n, groups, *extents, channels) read at places (n, groups, ...) along each axis."""
    lows = [torch.floor(places) for places in spots]
    image = torch.arange(x.shape[0]).reshape(-1, *(1,) * (spots[0].ndim - 1))
    part = torch.arange(x.shape[1]).reshape(1, -1, *(1,) * (spots[0].ndim - 2))
    total = torch.zeros((*spots[0].shape, x.shape[-1]), dtype=torch.float64)
    for corner in product((0, 1), repeat=len(spots)):
        share, index = torch.ones(spots[0].shape, dtype=torch.float64), [image, part]
        for step, low, places, extent in zip(corner, lows, spots, extents, strict=True):
            tap = low + step
            share = share * (1 - (places - tap).abs()) * ((tap >= 0) & (tap < extent))
            index.append(tap.clamp(0, extent - 1).long())
        total = total + share[..., None] * x[tuple(index)]
    return total
