"""Resize and Upsample: along one axis after the other, each new element is a weighted sum of a few old ones.

Which ones, and with what weights, is computed by NumPy while the node is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.resampling import (
    Axis,
    Sampling,
    read_resize_axes,
    read_rounding,
    read_sampling,
    scale_coordinates,
    taps,
)
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


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
