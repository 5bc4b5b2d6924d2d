"""Resize and Upsample: along one axis after the other, each new element is a weighted sum of a few old ones.

Which ones, and with what weights, is computed by NumPy while the node is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand, ops

__all__ = ["Sampling", "weight"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How new elements are made of old ones: the node's attributes."""

    mode: str = "nearest"
    nearest: str = "round_prefer_floor"
    coordinates: str = "half_pixel"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    @property
    def reach(self) -> int:
        """How many old elements to each side take part."""
        return 2 if self.mode == "cubic" else 1


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis that is resized."""

    index: int
    extent: int
    target: int
    """The new extent."""
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The part of the axis that is taken, as shares of it; the whole but for ``tf_crop_and_resize``."""

    @property
    def width(self) -> float:
        """The new extent before it was rounded."""
        return self.extent * self.scale

    @property
    def stays(self) -> bool:
        """Whether nothing changes along it."""
        return self.target == self.extent and self.scale == 1 and (self.start, self.end) == (0, 1)

    def places(self, coordinates: str) -> Array:
        """Return where each new element lies among the old ones, in double precision."""
        i = np.arange(self.target, dtype=np.float64)
        if coordinates == "asymmetric":
            return i / self.scale
        if coordinates == "align_corners":
            return i * ((self.extent - 1) / (self.width - 1)) if self.width != 1 else 0 * i
        if coordinates == "tf_crop_and_resize":
            span, first = (self.end - self.start) * (self.extent - 1), self.start * (self.extent - 1)
            return first + (i * span / (self.width - 1) if self.width != 1 else 0 * i + span / 2)
        centred = (i + 0.5) / self.scale - 0.5
        if coordinates == "pytorch_half_pixel" and self.width == 1:
            return 0 * i - 0.5
        if coordinates == "half_pixel_symmetric":
            return centred + self.extent / 2 * (1 - self.target / self.width)
        return centred


def _rounded(places: Array, how: str) -> Array:
    if how.startswith("round"):
        return np.ceil(places - 0.5) if how == "round_prefer_floor" else np.floor(places + 0.5)
    return np.floor(places) if how == "floor" else np.ceil(places)


def weight(xp: Any, distance: Operand, mode: str, cubic: float = -0.75) -> Operand:
    """Return the weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = xp.abs(distance)
    if mode == "linear":
        return xp.maximum(1 - d, 0)
    near = ((cubic + 2) * d - (cubic + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * cubic - 4 * cubic
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


def _taps(axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Return the old elements that take part in each new one (new, taps), and their weights."""
    places = axis.places(sampling.coordinates)
    if sampling.mode == "nearest":
        indices = _rounded(places, sampling.nearest)[:, None]
        return np.clip(indices, 0, axis.extent - 1).astype(np.int64), np.ones(indices.shape)
    shrink = min(axis.scale, 1.0) if sampling.antialias else 1.0
    reach = ceil(sampling.reach / shrink)
    indices = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
    weights = weight(np, (indices - places[:, None]) * shrink, sampling.mode, sampling.cubic)
    if sampling.exclude_outside:
        weights = weights * ((indices >= 0) & (indices < axis.extent))
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(indices, 0, axis.extent - 1).astype(np.int64), weights


def _resized(x: Operand, axis: Axis, sampling: Sampling) -> Operand:
    indices, weights = _taps(axis, sampling)
    beside = (-1, *(1,) * (x.ndim - 1 - axis.index))
    columns = (jnp.take(x, column, axis=axis.index, mode="clip") for column in indices.T)
    if sampling.mode == "nearest":
        y = next(columns)
    else:
        shares = (column.astype(x.dtype).reshape(beside) for column in weights.T)
        y = sum(column * share for column, share in zip(columns, shares, strict=True))
    if sampling.coordinates != "tf_crop_and_resize":
        return y
    places = axis.places(sampling.coordinates)
    outside = (places < 0) | (places > axis.extent - 1)
    return jnp.where(outside.reshape(beside), sampling.extrapolation, y).astype(x.dtype)


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


# ---------------------------------------------------------------------- how large


Parts = Sequence[tuple[float, float]]
"""Start and end of what is taken of each axis."""


def _scaled(x: Operand, scales: Sequence[float], chosen: Sequence[int], parts: Parts) -> list[Axis]:
    """Return the axes for given scales; extents are rounded down."""
    triples = zip(chosen, scales, parts, strict=True)
    return [Axis(i, x.shape[i], floor(x.shape[i] * (e - s) * scale), scale, s, e) for i, scale, (s, e) in triples]


def _sized(x: Operand, sizes: Sequence[int], chosen: Sequence[int], parts: Parts, policy: str) -> list[Axis]:
    """Return the axes for given extents, or for the one scale that keeps the aspect ratio and is not larger, or not smaller."""
    scales = [size / x.shape[i] for i, size in zip(chosen, sizes, strict=True)]
    if policy != "stretch":
        one = min(scales) if policy == "not_larger" else max(scales)
        scales, sizes = [one] * len(scales), [int(x.shape[i] * one + 0.5) for i in chosen]
    quadruples = zip(chosen, sizes, scales, parts, strict=True)
    return [Axis(i, x.shape[i], size, scale, s, e) for i, size, scale, (s, e) in quadruples]


def _sampling(at: Site) -> Sampling:
    return Sampling(
        at.attr("mode", "nearest"),
        at.attr("nearest_mode", "round_prefer_floor"),
        at.attr("coordinate_transformation_mode", "half_pixel"),
        at.attr("cubic_coeff_a", -0.75),
        bool(at.attr("antialias", 0)),
        bool(at.attr("exclude_outside", 0)),
        at.attr("extrapolation_value", 0.0),
    )


@ops("Resize", since=11)
def resize(at: Site, x: Operand, roi: Operand = None, scales: Operand = None, sizes: Operand = None) -> Operand:
    sampling, listed = _sampling(at), at.attr("axes")
    chosen = list(range(x.ndim)) if listed is None else [axis % x.ndim for axis in listed]
    n, parts = len(chosen), [(0.0, 1.0)] * len(chosen)
    if sampling.coordinates == "tf_crop_and_resize" and roi is not None and roi.size:
        region = at.known(roi, 1).tolist()
        parts = list(zip(region[:n], region[n:], strict=True))
    if sizes is not None and sizes.size:
        axes = _sized(x, at.ints(sizes, 3), chosen, parts, at.attr("keep_aspect_ratio_policy", "stretch"))
    elif scales is not None and scales.size:
        axes = _scaled(x, at.known(scales, 2).tolist(), chosen, parts)
    else:
        raise at.refuse("is given neither scales nor sizes")
    return _resize(x, axes, sampling)


@ops("Upsample", since=9)
@ops("Resize", since=10, until=10)
def upsample(at: Site, x: Operand, scales: Operand) -> Operand:
    """Places are divided by the scale, and rounded down."""
    sampling = Sampling("linear" if "linear" in at.attr("mode", "nearest") else "nearest", "floor", "asymmetric")
    return _resize(x, _scaled(x, at.known(scales, 1).tolist(), range(x.ndim), [(0.0, 1.0)] * x.ndim), sampling)
