"""Pools: what a sliding window sees, reduced to its greatest element or its norm."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.precision import extreme, round_once
from xrt.engines.toolkit.array_ops.windows import Placement, make_window
from xrt.engines.xla.primitives import around, combine_windows
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("MaxPool")
def max_pool(at: LoweringContext, x: Operand) -> Operand | tuple[Operand, Operand]:
    place = make_window(at.node, at.attr("kernel_shape")).over(x.shape[2:])
    if at.wants(1):
        return _max_and_places(x, place, bool(at.attr("storage_order", 0)))
    return combine_windows(place, x, jax.lax.max, extreme(x.dtype, lowest=True))


def _max_and_places(x: Operand, place: Placement, column_major: bool) -> tuple[Operand, Operand]:
    """Return each window's greatest element and its place in the flattened tensor (planes flattened by columns if asked)."""
    own = np.arange(prod(place.extents), dtype=np.int64).reshape(place.extents, order="F" if column_major else "C")
    whole, places = around(place, x, extreme(x.dtype, lowest=True)), np.pad(own, place.pads, constant_values=-1)
    shape = (*x.shape[:2], *place.positions)
    top: Any = jnp.full(shape, extreme(x.dtype, lowest=True), x.dtype)
    where: Any = jnp.full(shape, -1, jnp.int64)
    for _, picked in place.offsets():
        seen, index = whole[picked], places[picked]
        better = (index >= 0) & ((where < 0) | (seen > top))
        top, where = jnp.where(better, seen, top), jnp.where(better, index, where)
    planes = np.arange(prod(x.shape[:2]), dtype=np.int64) * own.size
    return top, where + planes.reshape(*x.shape[:2], *(1,) * len(place.extents))


def _power(x: Operand, p: int) -> Operand:
    return jnp.abs(x) if p == 1 else x * x if p == 2 else jnp.abs(x) ** p


def _root(x: Operand, p: int) -> Operand:
    return x if p == 1 else jnp.sqrt(x) if p == 2 else x ** (1 / p)


@ops("LpPool", since=2)
def lp_pool(at: LoweringContext, x: Operand) -> Operand:
    place, p = make_window(at.node, at.attr("kernel_shape")).over(x.shape[2:]), at.attr("p", 2)
    return round_once(lambda x: _root(combine_windows(place, _power(x, p), jax.lax.add, 0), p))(x)


@ops("GlobalLpPool", since=2)
def global_lp_pool(at: LoweringContext, x: Operand) -> Operand:
    p = at.attr("p", 2)
    return round_once(lambda x: _root(jnp.sum(_power(x, p), axis=tuple(range(2, x.ndim)), keepdims=True), p))(x)


@ops("MaxUnpool")
def max_unpool(at: LoweringContext, x: Operand, places: Operand, asked: Operand = None) -> Operand:
    """Each element goes back to the place it came from; the rest is zero."""
    window = make_window(at.node, at.attr("kernel_shape"))
    natural = (*x.shape[:2], *window.spread(x.shape[2:]))
    flat: Any = jnp.zeros(prod(natural), x.dtype)
    whole = flat.at[places.reshape(-1)].set(x.reshape(-1)).reshape(natural)
    if asked is None:
        return whole
    out: Any = jnp.zeros(at.ints(asked, 2), x.dtype)
    return out.at[tuple(slice(n) for n in natural)].set(whole)
