"""Operators that move elements without computing: shapes, transposes, joins, splits, padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.toolkit.array_ops.shape import center, even, trim
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["apply_padding"]


# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(at: TorchKernelContext) -> Run:
    start, end = at.attr("start", 0), at.attr("end")
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64)


ops("Size")(lambda at: lambda x: torch.tensor(x.numel(), dtype=torch.int64))


def _reshape(x: Tensor, target: Sequence[int], allow_zero: bool) -> Tensor:
    """Return the tensor in another shape; a zero copies the extent in that place, unless zeros are allowed."""
    extents = list(target) if allow_zero else [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    if -1 in extents and x.numel() == 0:  # torch cannot tell the one that is left out of others that are zero
        rest = prod(n for n in extents if n != -1)
        extents[extents.index(-1)] = 0 if rest else 1
    return x.reshape(extents)


@ops("Reshape", until=4)
def reshape_by_attribute(at: TorchKernelContext) -> Run:
    target = at.attr("shape", ())
    return lambda x: _reshape(x, target, False)


@ops("Reshape", since=5)
def reshape(at: TorchKernelContext) -> Run:
    target_of, allow_zero = at.read_numbers(1), bool(at.attr("allowzero", 0))
    return lambda x, target: _reshape(x, target_of(target), allow_zero)


@ops("Flatten")
def flatten(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 1)

    def run(x: Tensor) -> Tensor:
        start = axis + x.ndim if axis < 0 else axis
        return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))

    return run


def _squeeze(x: Tensor, axes: Sequence[int] | None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@ops("Squeeze", until=12)
def squeeze_by_attribute(at: TorchKernelContext) -> Run:
    axes = at.attr("axes")
    return lambda x: _squeeze(x, axes)


@ops("Squeeze", since=13)
def squeeze(at: TorchKernelContext) -> Run:
    axes_of = at.read_numbers(1)
    return lambda x, axes=None: _squeeze(x, None if axes is None else axes_of(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@ops("Unsqueeze", until=12)
def unsqueeze_by_attribute(at: TorchKernelContext) -> Run:
    axes = at.attr("axes")
    return lambda x: _unsqueeze(x, axes)


@ops("Unsqueeze", since=13)
def unsqueeze(at: TorchKernelContext) -> Run:
    axes_of = at.read_numbers(1)
    return lambda x, axes: _unsqueeze(x, axes_of(axes))


@ops("Expand")
def expand(at: TorchKernelContext) -> Run:
    target_of = at.read_numbers(1)
    return lambda x, target: x.expand(np.broadcast_shapes(x.shape, target_of(target)))


@ops("Tile", since=6)
def tile(at: TorchKernelContext) -> Run:
    counts_of = at.read_numbers(1)
    return lambda x, repeats: x.tile(counts_of(repeats))


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
def transpose(at: TorchKernelContext) -> Run:
    perm = at.attr("perm")
    return lambda x: x.permute(tuple(range(x.ndim))[::-1] if perm is None else perm)


@ops("DepthToSpace")
def depth_to_space(at: TorchKernelContext) -> Run:
    block, by_columns = at.attr("blocksize"), at.attr("mode", "DCR") == "CRD"

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if by_columns:
            whole = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
        else:
            whole = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return whole.reshape(n, c // block**2, h * block, w * block)

    return run


@ops("SpaceToDepth")
def space_to_depth(at: TorchKernelContext) -> Run:
    block, by_columns = at.attr("blocksize"), at.attr("mode", "DCR") == "CRD"

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        whole = x.reshape(n, c, h // block, block, w // block, block)
        whole = whole.permute(0, 1, 3, 5, 2, 4) if by_columns else whole.permute(0, 3, 5, 1, 2, 4)
        return whole.reshape(n, c * block**2, h // block, w // block)

    return run


@ops("ReverseSequence")
def reverse_sequence(at: TorchKernelContext) -> Run:
    """Each batch entry is reversed in its own leading part of the time axis."""
    batch, time = at.attr("batch_axis", 1), at.attr("time_axis", 0)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        steps, ends = torch.arange(x.shape[time]), lengths.long()[:, None]
        places = torch.where(steps < ends, ends - 1 - steps, steps)  # (batch, time)
        places = places if batch < time else places.T
        return x.gather(time, places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(x.shape))

    return run


@ops("Trilu")
def trilu(at: TorchKernelContext) -> Run:
    cut = torch.triu if at.attr("upper", 1) else torch.tril
    offset_of = at.read_numbers(1)
    return lambda x, k=None: cut(x, 0 if k is None else offset_of(k)[0])


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
def concat(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 1)  # the default is version 1's; later ones require it
    return lambda *parts: torch.cat(parts, axis)


@ops("Split", since=2, until=12)
def split_by_attribute(at: TorchKernelContext) -> Run:
    axis, sizes, count = at.attr("axis", 0), at.attr("split"), at.n_outputs
    return lambda x: x.split(list(sizes or even(x.shape[axis], count)), axis)


@ops("Split", since=13)
def split(at: TorchKernelContext) -> Run:
    axis, count, sizes_of = at.attr("axis", 0), at.attr("num_outputs", at.n_outputs), at.read_numbers(1)
    return lambda x, sizes=None: x.split(even(x.shape[axis], count) if sizes is None else sizes_of(sizes), axis)


# ---------------------------------------------------------------------- padding


def apply_padding(x: Tensor, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if not any(begin or end for begin, end in more):
        return x
    if mode == "constant":
        return functional.pad(x, [n for both in reversed(more) for n in both], value=value)
    for axis, (begin, end) in enumerate(more):
        if begin or end:
            x = x.index_select(axis, _mirror(torch.arange(-begin, x.shape[axis] + end), x.shape[axis], mode))
    return x


def _mirror(places: Tensor, extent: int, mode: str) -> Tensor:
    """Return from where each place beyond the ends is read."""
    if mode == "edge":
        return places.clamp(0, extent - 1)
    if mode == "wrap":
        return places.remainder(extent)
    if extent == 1:
        return torch.zeros_like(places)
    around = places.remainder(2 * extent - 2)
    return torch.minimum(around, 2 * extent - 2 - around)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: TorchKernelContext) -> Run:
    pads, mode, value = at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0)
    return lambda x: apply_padding(x, pads, mode, value)


@ops("Pad", since=11)
def pad(at: TorchKernelContext) -> Run:
    mode, pads_of, value_of, axes_of = at.attr("mode", "constant"), at.read_numbers(1), at.read_numbers(2), at.read_numbers(3)

    def run(x: Tensor, pads: Tensor, value: Tensor = None, axes: Tensor = None) -> Tensor:
        fill = 0 if value is None else value_of(value)[0]
        return apply_padding(x, pads_of(pads), mode, fill, None if axes is None else axes_of(axes))

    return run


@ops("CenterCropPad")
def center_crop_pad(at: TorchKernelContext) -> Run:
    axes, target_of = at.attr("axes"), at.read_numbers(1)

    def run(x: Tensor, target: Tensor) -> Tensor:
        chosen = axes or range(x.ndim)
        return apply_padding(x, center([x.shape[axis] for axis in chosen], target_of(target)), "constant", 0, chosen)

    return run
