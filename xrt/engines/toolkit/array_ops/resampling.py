"""Source positions and weights of Resize and GridSample, for any array module ``xp`` with NumPy's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from xrt.graph import Node

__all__ = [
    "Axis",
    "Grid",
    "Sampling",
    "read",
    "read_resize_axes",
    "read_rounding",
    "read_sampling",
    "sample_grid",
    "scale_coordinates",
    "taps",
    "weight",
]

Array: TypeAlias = Any
"""An array of the module ``xp``."""


# ---------------------------------------------------------------------- how elements are made


@dataclass(frozen=True, slots=True)
class Sampling:
    """The attributes of a Resize, or their equivalent for other operators."""

    mode: str = "nearest"
    nearest: str = "round_prefer_floor"
    coordinates: str = "half_pixel"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    @property
    def reach(self) -> int:
        """Number of source elements on each side."""
        return 2 if self.mode == "cubic" else 1

    @property
    def crops(self) -> bool:
        """Whether positions outside the source use the extrapolation value."""
        return self.coordinates == "tf_crop_and_resize"


def read_sampling(node: Node) -> Sampling:
    """Read the attributes of a Resize since version 11."""
    return Sampling(
        node.attr("mode", "nearest"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        node.attr("extrapolation_value", 0.0),
    )


def read_rounding(node: Node) -> Sampling:
    """The sampling of Upsample and Resize 10: divide by the scale and round down."""
    return Sampling("linear" if "linear" in node.attr("mode", "nearest") else "nearest", "floor", "asymmetric")


def weight(xp: Any, distance: Array, sampling: Sampling) -> Array:
    """The weight of an element at a distance: a triangle, or the cubic convolution of Keys (1981)."""
    d = xp.abs(distance)
    if sampling.mode == "linear":
        return xp.maximum(1 - d, 0)
    a = sampling.cubic
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


# ---------------------------------------------------------------------- Resize, one axis after the other


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to resize."""

    index: int
    extent: int
    target: int
    """The new extent."""
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The sampled range as fractions of the axis; (0, 1) except for ``tf_crop_and_resize``."""

    @property
    def width(self) -> float:
        """The new extent before rounding."""
        return self.extent * self.scale

    @property
    def stays(self) -> bool:
        """Whether resizing leaves this axis unchanged."""
        return self.target == self.extent and self.scale == 1 and (self.start, self.end) == (0, 1)

    def places(self, xp: Any, coordinates: str) -> Array:
        """The source position of each new element, in float64."""
        i = xp.arange(self.target, dtype=np.float64)
        if coordinates == "asymmetric":
            return i / self.scale
        if coordinates == "align_corners":
            return i * ((self.extent - 1) / (self.width - 1)) if self.width != 1 else 0 * i
        if coordinates == "tf_crop_and_resize":
            span, first = (self.end - self.start) * (self.extent - 1), self.start * (self.extent - 1)
            return first + (i * span / (self.width - 1) if self.width != 1 else 0 * i + span / 2)
        # half_pixel; the remaining modes modify it.
        centred = (i + 0.5) / self.scale - 0.5
        if coordinates == "pytorch_half_pixel" and self.width == 1:
            return 0 * i - 0.5
        if coordinates == "half_pixel_symmetric":
            return centred + self.extent / 2 * (1 - self.target / self.width)
        return centred

    def outside(self, xp: Any, coordinates: str) -> Array:
        """Mask of the new elements whose source position is outside."""
        places = self.places(xp, coordinates)
        return (places < 0) | (places > self.extent - 1)


def taps(xp: Any, axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Indices of the source elements of each new element [new, taps] and their weights."""
    places = axis.places(xp, sampling.coordinates)
    if sampling.mode == "nearest":
        indices = _rounded(xp, places, sampling.nearest)[:, None]
        return xp.clip(indices, 0, axis.extent - 1).astype(np.int64), xp.ones(indices.shape)
    shrink = min(axis.scale, 1.0) if sampling.antialias else 1.0
    # With antialias the filter widens by the inverse of the scale when shrinking.
    reach = ceil(sampling.reach / shrink)
    indices = xp.floor(places)[:, None] + xp.arange(1 - reach, reach + 1)
    weights = weight(xp, (indices - places[:, None]) * shrink, sampling)
    if sampling.exclude_outside:
        weights = weights * ((indices >= 0) & (indices < axis.extent))
    # Excluded taps and the widened filter change the sum of weights, which must be 1.
    if sampling.exclude_outside or sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return xp.clip(indices, 0, axis.extent - 1).astype(np.int64), weights


def _rounded(xp: Any, places: Array, how: str) -> Array:
    if how.startswith("round"):
        return xp.ceil(places - 0.5) if how == "round_prefer_floor" else xp.floor(places + 0.5)
    return xp.floor(places) if how == "floor" else xp.ceil(places)


# ---------------------------------------------------------------------- how large

Parts: TypeAlias = Sequence[tuple[float, float]]
"""Start and end of the sampled range of each axis."""


def read_resize_axes(
    node: Node, shape: Sequence[int], roi: Sequence[float], scales: Sequence[float], sizes: Sequence[int]
) -> list[Axis]:
    """The resized axes of a Resize from the values of its inputs; an absent input is empty.

    Sizes take precedence over scales; raises ValueError if both are absent.
    """
    listed = node.attr("axes")
    chosen = range(len(shape)) if listed is None else [axis % len(shape) for axis in listed]
    n = len(chosen)
    parts = list(zip(roi[:n], roi[n:], strict=True)) if roi else [(0.0, 1.0)] * n
    if sizes:
        return _sized(shape, sizes, chosen, parts, node.attr("keep_aspect_ratio_policy", "stretch"))
    if not scales:
        raise ValueError("neither scales nor sizes are given")
    return _scaled(shape, scales, chosen, parts)


def scale_coordinates(shape: Sequence[int], scales: Sequence[float]) -> list[Axis]:
    """All axes of a tensor, one scale for each; extents are rounded down."""
    return _scaled(shape, scales, range(len(shape)), [(0.0, 1.0)] * len(shape))


def _scaled(shape: Sequence[int], scales: Sequence[float], chosen: Sequence[int], parts: Parts) -> list[Axis]:
    triples = zip(chosen, scales, parts, strict=True)
    return [Axis(i, shape[i], floor(shape[i] * (e - s) * scale), scale, s, e) for i, scale, (s, e) in triples]


def _sized(shape: Sequence[int], sizes: Sequence[int], chosen: Sequence[int], parts: Parts, policy: str) -> list[Axis]:
    """The axes for given sizes, or for the single scale that keeps the aspect ratio under the policy."""
    scales = [size / shape[i] for i, size in zip(chosen, sizes, strict=True)]
    if policy != "stretch":
        one = min(scales) if policy == "not_larger" else max(scales)
        # The same scale for all axes keeps the aspect ratio.
        scales, sizes = [one] * len(scales), [int(shape[i] * one + 0.5) for i in chosen]
    quadruples = zip(chosen, sizes, scales, parts, strict=True)
    return [Axis(i, shape[i], size, scale, s, e) for i, size, scale, (s, e) in quadruples]


# ---------------------------------------------------------------------- GridSample

LEGACY_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of the modes in version 16."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The attributes of a GridSample."""

    sampling: Sampling
    padding: str
    corners: bool
    """Whether -1 and 1 are the centers of the outer elements; otherwise their borders."""

    def places(self, grid: Array, extent: int) -> Array:
        """Convert positions from [-1, 1] to element indices."""
        return (grid + 1) / 2 * (extent - 1) if self.corners else ((grid + 1) * extent - 1) / 2

    def within(self, xp: Any, places: Array, extent: int) -> Array:
        """Map positions beyond the ends by the padding mode: clamp, reflect, or leave them for zeros.

        NaN reads the first element except with zeros: ONNX does not define it, and PyTorch does this.
        """
        if self.padding == "zeros":
            return places
        moved = xp.clip(places, 0, extent - 1) if self.padding == "border" else self._reflected(xp, places, extent)
        return xp.where(xp.isnan(moved), 0.0, moved)

    def _reflected(self, xp: Any, places: Array, extent: int) -> Array:
        low, span = (0.0, extent - 1.0) if self.corners else (-0.5, float(extent))
        if span == 0:
            return xp.zeros_like(places)
        distance = xp.mod(places - low, 2 * span)
        reflected = low + xp.minimum(distance, 2 * span - distance)
        return xp.where((places < low) | (places > low + span), reflected, places)

    def taps(self, xp: Any, grid: Array, extent: int) -> list[tuple[Array, Array]]:
        """Neighbors of each position along one axis, with their weights.

        A cubic position outside is not moved here; `read` pads each of its taps instead. Moving the position first would give
        other weights.
        """
        places = self.places(grid, extent).astype(np.float64)
        if self.sampling.mode == "nearest":
            nearest = self.within(xp, xp.rint(places), extent)
            return [(nearest, xp.ones_like(nearest))]
        if self.sampling.mode != "cubic":
            places = self.within(xp, places, extent)  # equivalent to moving the taps, and correct for infinities
        first, reach = xp.floor(places), self.sampling.reach
        part = places - first
        offsets = range(1 - reach, reach + 1)
        weights = [xp.where(xp.isnan(part), np.nan, weight(xp, offset - part, self.sampling)) for offset in offsets]
        return [(first + offset, factor) for offset, factor in zip(offsets, weights, strict=True)]


def sample_grid(node: Node) -> Grid:
    """Read the attributes of a GridSample."""
    mode = node.attr("mode", "linear")
    return Grid(Sampling(LEGACY_MODES.get(mode, mode)), node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0)))


def read(xp: Any, x: Array, grid: Array, how: Grid) -> Array:
    """Sample ``x`` (N, C, *spatial) at the positions of ``grid`` (N, *positions, axes); sums in float64."""
    extents, last = x.shape[2:], xp.moveaxis(x, 1, -1)
    total = xp.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=np.float64)
    for combination in product(*(how.taps(xp, grid[..., -1 - axis], extent) for axis, extent in enumerate(extents))):
        index, share = [xp.arange(len(x)).reshape(-1, *(1,) * len(extents))], xp.ones(grid.shape[:-1])
        for (tap, factor), extent in zip(combination, extents, strict=True):
            place = how.within(xp, tap, extent)
            share = xp.where((place >= 0) & (place <= extent - 1) | xp.isnan(factor), share * factor, 0.0)
            # Positions outside have weight 0, but the index must be valid.
            index.append(xp.clip(xp.where(xp.isnan(place), 0.0, place), 0, extent - 1).astype(np.int64))
        total += share[..., None] * last[tuple(index)]
    return xp.moveaxis(total, -1, 1).astype(x.dtype)
