"""Pools: what a sliding window sees, reduced to its greatest element or its norm."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.precision import extreme, round_once
from xrt.engines.toolkit.array_ops.windows import Placement, make_window
from xrt.engines.toy.kernels.windows import around, sum_windows
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


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
