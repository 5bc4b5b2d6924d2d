"""Scales and zero points from ranges, and numbers to integers by them, as QuantizeLinear defines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import DType

__all__ = ["SMALLEST_SCALE", "Parameters", "find_limits", "fit_activation", "fit_weight", "round_to_integers"]

Array: TypeAlias = np.ndarray[Any, Any]

SMALLEST_SCALE = 1e-30
"""A smaller scale is not used: with others it multiplies to numbers that engines take for zero."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Scales and zero points: one of each, one per channel, or one per block."""

    scale: Array
    """float32."""
    zero_point: Array
    """Of the integers' type."""


def find_limits(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.text.startswith("int") else (0, (1 << dtype.bits) - 1)


def fit_activation(low: float, high: float, dtype: DType, *, symmetric: bool) -> Parameters | None:
    """Return the parameters whose integers reach from low to high and have zero; None where the range is all but zero.

    A range of zeros alone has the scale 1.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    least, most = find_limits(dtype)
    if symmetric:
        middle = (least + most + 1) // 2
        scale, zero = max(-low, high) / (most - middle), middle
    else:
        scale = (high - low) / (most - least)
        zero = round(least - low / scale) if scale else least
    if 0 < scale < SMALLEST_SCALE:
        return None
    return Parameters(np.array(scale or 1.0, np.float32), np.array(min(max(zero, least), most), dtype.numpy))


def fit_weight(
    low: Array, high: Array, dtype: DType, *, symmetric: bool, reduce_range: bool = False, floor: Array | float = 0.0
) -> Parameters:
    """Return the parameters of weights with these extremes, which are per channel, per block or 0-d; no scale is below ``floor``.

    Symmetric ones leave out the least integer, so that both sides reach equally far. Channels of zeros alone have the scale of
    the widest channel.
    """
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    least, most = (-64, 64) if reduce_range else find_limits(dtype)
    if reduce_range and dtype is DType.UINT8:
        least, most = 0, 127
    middle = (least + most + 1) // 2
    scale = np.maximum(-low, high) / (most - middle) if symmetric else (high - low) / (most - least)
    widest = max(float(scale.max(initial=0.0)), SMALLEST_SCALE) if scale.any() else 1.0
    scale = np.maximum(np.where(scale > SMALLEST_SCALE, scale, widest), floor)
    zero = np.full(scale.shape, middle) if symmetric else np.clip(np.rint(least - low / scale), least, most)
    return Parameters(scale.astype(np.float32), zero.astype(dtype.numpy))


def round_to_integers(x: Array, parameters: Parameters, dtype: DType) -> Array:
    """Return the integers nearest to the numbers, ties to even, within the type; the parameters broadcast over them."""
    scaled = np.rint(x.astype(np.float32) / parameters.scale).astype(np.float64) + parameters.zero_point.astype(np.float64)
    return np.clip(scaled, *find_limits(dtype)).astype(np.int32).astype(dtype.numpy)
