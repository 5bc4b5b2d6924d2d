"""Convolutions, pools and Resize."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.kernels.windows import with_bias
from xrt.engines.toolkit.array_ops.elements import extreme, round_once
from xrt.engines.toolkit.array_ops.resampling import (
    Axis,
    Sampling,
    read_resize_axes,
    read_rounding,
    read_sampling,
    scale_coordinates,
    taps,
)
from xrt.engines.toolkit.array_ops.windows import Placement, Window, compute_padding_trims, make_window
from xrt.engines.xla.kernels.layout import apply_padding
from xrt.engines.xla.primitives import around, combine_windows
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext


@ops("ConvTranspose")
def conv_transpose(at: LoweringContext, x: Operand, w: Operand, bias: Operand = None) -> Operand:
    """The gradient of a convolution: a convolution of x spread out by the strides, with the kernel turned around."""
    window, group = make_window(at.node, w.shape[2:]), at.attr("group", 1)

    def compute(x: Operand, w: Operand, bias: Operand) -> Operand:
        whole = _transposed(x, w, window, group)
        pads = compute_padding_trims(at.node, window, whole.shape[2:], x.shape[2:])
        return with_bias(apply_padding(whole, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(compute)(x, w, bias)


def _transposed(x: Operand, w: Operand, window: Window, group: int) -> Operand:
    """Return everything that the windows laid down by the elements of x reach."""
    parts = jnp.asarray(w).reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    turned = jnp.flip(parts.reshape(-1, *parts.shape[2:]), range(2, w.ndim))
    return jax.lax.conv_general_dilated(
        jnp.asarray(x),
        turned,
        (1,) * len(window.kernel),
        [(span - 1, span - 1) for span in window.spans],
        lhs_dilation=window.strides,
        rhs_dilation=window.dilations,
        feature_group_count=group,
        precision=jax.lax.Precision.HIGHEST,
    )


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


def _resized(x: Operand, axis: Axis, sampling: Sampling) -> Operand:
    indices, weights = taps(np, axis, sampling)
    along_axis = (-1, *(1,) * (x.ndim - 1 - axis.index))
    columns = (jnp.take(x, column, axis=axis.index, mode="clip") for column in indices.T)
    if sampling.mode == "nearest":
        y = next(columns)
    else:
        shares = (column.astype(x.dtype).reshape(along_axis) for column in weights.T)
        y = sum(column * share for column, share in zip(columns, shares, strict=True))
    if not sampling.crops:
        return y
    outside = axis.outside(np, sampling.coordinates)
    return jnp.where(outside.reshape(along_axis), sampling.extrapolation, y).astype(x.dtype)


def _resize(x: Operand, axes: Sequence[Axis], sampling: Sampling) -> Operand:
    """Resize axis by axis: integers in double precision, rounded and saturated, unless elements are only picked."""
    is_float = bool(jnp.issubdtype(x.dtype, jnp.floating))
    y = x
    if sampling.mode != "nearest":
        y = x.astype(jnp.float64 if not is_float or x.dtype == jnp.float64 else jnp.float32)
    for axis in axes:
        y = y if axis.stays else _resized(y, axis, sampling)
    if not is_float and y.dtype != x.dtype:
        info = np.iinfo(x.dtype)
        y = jnp.clip(jnp.rint(y), info.min, info.max)
    return y.astype(x.dtype)


@ops("Resize", since=11)
def resize(at: LoweringContext, x: Operand, roi: Operand = None, scales: Operand = None, sizes: Operand = None) -> Operand:
    sampling = read_sampling(at.node)
    listed = _listed(at, sizes, 3)
    factors = [] if listed else _listed(at, scales, 2)
    if not listed and not factors:
        raise at.refuse("is given neither scales nor sizes")
    region = _listed(at, roi, 1) if sampling.crops else []
    return _resize(x, read_resize_axes(at.node, x.shape, region, factors, listed), sampling)


def _listed(at: LoweringContext, operand: Operand, position: int) -> list[Any]:
    """Return the content of an input, which is empty where it is left out."""
    return [] if operand is None or not operand.size else list(at.get_constant(operand, position).tolist())


@ops("Upsample", since=9)
@ops("Resize", since=10, until=10)
def upsample(at: LoweringContext, x: Operand, scales: Operand) -> Operand:
    return _resize(x, scale_coordinates(x.shape, at.get_constant(scales, 1).tolist()), read_rounding(at.node))
