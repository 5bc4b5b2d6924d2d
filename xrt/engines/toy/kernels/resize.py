"""Resize and Upsample: along one axis after the other, each new element is a weighted sum of a few old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.engines.toy.env import Env
from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import Node

__all__ = ["Sampling", "weight"]


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

    def places(self, xp: Any, coordinates: str) -> Array:
        """Return where each new element lies among the old ones, in double precision."""
        i = xp.arange(self.target, dtype=np.float64)
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


def _rounded(xp: Any, places: Array, how: str) -> Array:
    rules = {
        "round_prefer_floor": lambda: xp.ceil(places - 0.5),
        "round_prefer_ceil": lambda: xp.floor(places + 0.5),
        "floor": lambda: xp.floor(places),
        "ceil": lambda: xp.ceil(places),
    }
    return rules[how]()


def weight(xp: Any, distance: Array, sampling: Sampling) -> Array:
    """Return the weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = xp.abs(distance)
    if sampling.mode == "linear":
        return xp.maximum(1 - d, 0)
    a = sampling.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


def _taps(xp: Any, axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Return the old elements that take part in each new one (new, taps), and their weights."""
    places = axis.places(xp, sampling.coordinates)
    if sampling.mode == "nearest":
        indices = _rounded(xp, places, sampling.nearest)[:, None]
        return xp.clip(indices, 0, axis.extent - 1).astype(np.int64), xp.ones(indices.shape)
    shrink = min(axis.scale, 1.0) if sampling.antialias else 1.0
    reach = int(np.ceil(sampling.reach / shrink))
    indices = xp.floor(places)[:, None] + xp.arange(1 - reach, reach + 1)
    weights = weight(xp, (indices - places[:, None]) * shrink, sampling)
    if sampling.exclude_outside:
        weights = weights * ((indices >= 0) & (indices < axis.extent))
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return xp.clip(indices, 0, axis.extent - 1).astype(np.int64), weights


def _resized(xp: Any, x: Array, axis: Axis, sampling: Sampling) -> Array:
    indices, weights = _taps(xp, axis, sampling)
    if sampling.mode == "nearest":
        y = xp.take(x, indices[:, 0], axis=axis.index)
    else:
        beside = (-1, *(1,) * (x.ndim - 1 - axis.index))
        columns = zip(indices.T, weights.T, strict=True)
        y = sum(xp.take(x, column, axis=axis.index) * weight.reshape(beside) for column, weight in columns)
    if sampling.coordinates != "tf_crop_and_resize":
        return y
    places = axis.places(xp, sampling.coordinates)
    outside = (places < 0) | (places > axis.extent - 1)
    return xp.where(outside.reshape(-1, *(1,) * (x.ndim - 1 - axis.index)), sampling.extrapolation, y).astype(x.dtype)


def _resize(xp: Any, x: Array, axes: Sequence[Axis], sampling: Sampling) -> Array:
    """Resize axis by axis: in double precision unless elements are only picked; integers are rounded and saturated."""
    y = x if sampling.mode == "nearest" else x.astype(np.float64)
    for axis in axes:
        if axis.target != axis.extent or axis.scale != 1 or (axis.start, axis.end) != (0, 1):
            y = _resized(xp, y, axis, sampling)
    if x.dtype.kind in "iu" and y.dtype != x.dtype:
        info = np.iinfo(x.dtype)
        y = xp.clip(xp.rint(y), info.min, info.max)
    return y.astype(x.dtype, copy=False)


# ---------------------------------------------------------------------- how large


def _scaled(x: Array, scales: Sequence[float], chosen: Sequence[int], parts: Sequence[tuple[float, float]]) -> list[Axis]:
    """Return the axes for given scales; extents are rounded down."""
    triples = zip(chosen, scales, parts, strict=True)
    return [Axis(i, x.shape[i], int(np.floor(x.shape[i] * (e - s) * scale)), scale, s, e) for i, scale, (s, e) in triples]


def _sized(
    x: Array, sizes: Sequence[int], chosen: Sequence[int], parts: Sequence[tuple[float, float]], policy: str
) -> list[Axis]:
    """Return the axes for given extents, or for the one scale that keeps the aspect ratio and is not larger, or not smaller."""
    scales = [size / x.shape[i] for i, size in zip(chosen, sizes, strict=True)]
    if policy != "stretch":
        one = min(scales) if policy == "not_larger" else max(scales)
        scales, sizes = [one] * len(scales), [int(x.shape[i] * one + 0.5) for i in chosen]
    quadruples = zip(chosen, sizes, scales, parts, strict=True)
    return [Axis(i, x.shape[i], size, scale, s, e) for i, size, scale, (s, e) in quadruples]


@ops("Resize", since=11, host=(1, 2, 3))
def resize(node: Node, env: Env) -> Run:
    xp, policy, listed = env.xp, node.attr("keep_aspect_ratio_policy", "stretch"), node.attr("axes")
    sampling = Sampling(
        node.attr("mode", "nearest"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        node.attr("extrapolation_value", 0.0),
    )
    crops = sampling.coordinates == "tf_crop_and_resize"

    def run(x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
        chosen = range(x.ndim) if listed is None else [axis % x.ndim for axis in listed]
        n = len(chosen)
        parts = [(0.0, 1.0)] * n
        if crops and roi is not None and roi.size:
            parts = list(zip(roi[:n].tolist(), roi[n:].tolist(), strict=True))
        if sizes is not None and sizes.size:
            axes = _sized(x, sizes.tolist(), chosen, parts, policy)
        elif scales is not None and scales.size:
            axes = _scaled(x, scales.tolist(), chosen, parts)
        else:
            raise ValueError("neither scales nor sizes are given")
        return _resize(xp, x, axes, sampling)

    return run


def _floored(node: Node) -> Sampling:
    """Return what Upsample and the first Resize do: places are divided by the scale, and rounded down."""
    return Sampling("linear" if "linear" in node.attr("mode", "nearest") else "nearest", "floor", "asymmetric")


def _by_scales(xp: Any, x: Array, scales: Sequence[float], sampling: Sampling) -> Array:
    return _resize(xp, x, _scaled(x, scales, range(x.ndim), [(0.0, 1.0)] * x.ndim), sampling)


@ops("Upsample", since=9, host=(1,))
@ops("Resize", until=10, host=(1,))
def upsample(node: Node, env: Env) -> Run:
    sampling = _floored(node)
    return lambda x, scales: _by_scales(env.xp, x, scales.tolist(), sampling)


@ops("Upsample", until=8)
def upsample_by_attributes(node: Node, env: Env) -> Run:
    """Version 1 names the two scales of an image; version 7 lists one per axis."""
    sampling = _floored(node)
    scales = node.attr("scales") or (1.0, 1.0, node.attr("height_scale"), node.attr("width_scale"))
    return lambda x: _by_scales(env.xp, x, scales, sampling)
