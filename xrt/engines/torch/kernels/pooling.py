"""Pools: what a sliding window sees, reduced to its greatest element, its mean or its norm."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from xrt.engines.toolkit.array_ops.windows import Placement, make_window
from xrt.engines.torch.kernels.convolution import around
from xrt.engines.torch.kernels.precision import extreme, round_once
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

POOL: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


@ops("MaxPool")
def max_pool(at: TorchKernelContext) -> Run:
    window = make_window(at.node, at.attr("kernel_shape"))
    by_columns, with_places = bool(at.attr("storage_order", 0)), at.wants(1)

    def run(x: Tensor) -> Any:
        place = window.over(x.shape[2:])
        if with_places or x.ndim - 2 not in POOL or not x.dtype.is_floating_point:
            return _max_and_places(x, place, by_columns)
        return POOL[x.ndim - 2](around(place, x, float("-inf")), window.kernel, window.strides, 0, window.dilations)

    return run


def _max_and_places(x: Tensor, place: Placement, by_columns: bool) -> tuple[Tensor, Tensor]:
    """Return each window's greatest element and its place in the flattened tensor (planes flattened by columns if asked)."""
    rank, lowest = len(place.extents), extreme(x.dtype, lowest=True)
    own = torch.arange(prod(place.extents))
    own = own.reshape(place.extents[::-1]).permute(*range(rank)[::-1]) if by_columns else own.reshape(place.extents)
    whole, places = around(place, x, lowest), around(place, own, -1)
    shape = (*x.shape[:2], *place.positions)
    top, where = torch.full(shape, lowest, dtype=x.dtype), torch.full(shape, -1, dtype=torch.int64)
    for _, picked in place.offsets():
        seen, index = whole[picked], places[picked]
        better = (index >= 0) & ((where < 0) | (seen > top) | ((seen != seen) & (top == top)))
        top, where = torch.where(better, seen, top), torch.where(better, index, where)
    planes = torch.arange(prod(x.shape[:2])) * own.numel()
    return top, where + planes.reshape(*x.shape[:2], *(1,) * rank)


def _sum_windows(place: Placement, x: Tensor) -> Tensor:
    """Return (N, C, *spatial) with the sum of what each window sees."""
    whole, window = around(place, x, 0), place.window
    if len(place.extents) == 2 and set(window.dilations) == {1}:
        return functional.avg_pool2d(whole, window.kernel, window.strides, divisor_override=1)
    total: Any = sum(whole[picked] for _, picked in place.offsets())
    return total


@ops("AveragePool")
def average_pool(at: TorchKernelContext) -> Run:
    window, with_padding = make_window(at.node, at.attr("kernel_shape")), bool(at.attr("count_include_pad", 0))

    def compute(x: Tensor) -> Tensor:
        place = window.over(x.shape[2:])
        return _sum_windows(place, x) / _counts(place, with_padding).to(x.dtype)

    return round_once(compute)


def _counts(place: Placement, with_padding: bool) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(place.counts(np, with_padding)))


def _power(x: Tensor, p: int) -> Tensor:
    return x.abs() if p == 1 else x * x if p == 2 else x.abs() ** p


def _root(x: Tensor, p: int) -> Tensor:
    return x if p == 1 else torch.sqrt(x) if p == 2 else x ** (1 / p)


@ops("LpPool", since=2)
def lp_pool(at: TorchKernelContext) -> Run:
    window, p = make_window(at.node, at.attr("kernel_shape")), at.attr("p", 2)
    return round_once(lambda x: _root(_sum_windows(window.over(x.shape[2:]), _power(x, p)), p))


ops("GlobalAveragePool")(lambda at: round_once(lambda x: x.mean(list(range(2, x.ndim)), keepdim=True)))
ops("GlobalMaxPool")(lambda at: lambda x: x.amax(list(range(2, x.ndim)), keepdim=True))


@ops("GlobalLpPool", since=2)
def global_lp_pool(at: TorchKernelContext) -> Run:
    p = at.attr("p", 2)
    return round_once(lambda x: _root(_power(x, p).sum(list(range(2, x.ndim)), keepdim=True), p))


@ops("MaxUnpool")
def max_unpool(at: TorchKernelContext) -> Run:
    """Each element goes back to the place it came from; the rest is zero."""
    window, sizes_of = make_window(at.node, at.attr("kernel_shape")), at.read_numbers(2)

    def run(x: Tensor, places: Tensor, asked: Tensor = None) -> Tensor:
        natural = (*x.shape[:2], *window.spread(x.shape[2:]))
        whole = x.new_zeros(prod(natural)).index_put((places.reshape(-1),), x.reshape(-1)).reshape(natural)
        if asked is None:
            return whole
        out = x.new_zeros(sizes_of(asked))
        out[tuple(slice(n) for n in natural)] = whole
        return out

    return run
