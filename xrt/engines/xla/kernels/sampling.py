"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax.numpy as jnp

from xrt.engines.xla.kernels.resize import weight
from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand, ops

__all__: list[str] = []

LEGACY_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What version 16 called the modes."""


def _denormalised(grid: Operand, extent: int, corners: bool) -> Operand:
    """Return places between -1 and 1 as places among the elements: the ends are the outer elements' centres, or their borders."""
    return (grid + 1) / 2 * (extent - 1) if corners else ((grid + 1) * extent - 1) / 2


def _within(places: Operand, extent: int, padding: str, corners: bool) -> Operand:
    """Return places beyond the ends as the padding mode reads them: as the end, as reflected, or (zeros) as they are."""
    if padding == "border":
        return jnp.clip(places, 0, extent - 1)
    if padding == "zeros":
        return places
    low, span = (0.0, extent - 1.0) if corners else (-0.5, float(extent))
    if span == 0:
        return jnp.zeros_like(places)
    distance = jnp.mod(places - low, 2 * span)
    reflected = low + jnp.minimum(distance, 2 * span - distance)
    return jnp.where((places < low) | (places > low + span), reflected, places)


def _taps(places: Operand, mode: str) -> list[tuple[Operand, Operand]]:
    """Return the neighbours of each place along one axis, with their weights."""
    if mode == "nearest":
        return [(places, jnp.ones_like(places))]
    reach = 2 if mode == "cubic" else 1
    first = jnp.floor(places)
    neighbours = [first + offset for offset in range(1 - reach, reach + 1)]
    return [(tap, weight(jnp, tap - places, mode)) for tap in neighbours]


@ops("GridSample")
def grid_sample(at: Site, x: Operand, grid: Operand) -> Operand:
    corners, padding = bool(at.attr("align_corners", 0)), at.attr("padding_mode", "zeros")
    mode = LEGACY_MODES.get(at.attr("mode", "linear"), at.attr("mode", "linear"))
    extents, last = x.shape[2:], jnp.moveaxis(jnp.asarray(x), 1, -1)

    def axis_taps(axis: int, extent: int) -> list[tuple[Operand, Operand]]:
        places = _denormalised(grid[..., -1 - axis], extent, corners).astype(jnp.float64)
        places = jnp.rint(places) if mode == "nearest" else places
        return _taps(_within(places, extent, padding, corners), mode)

    total: Any = jnp.zeros((len(x), *grid.shape[1:-1], x.shape[1]), jnp.float64)
    for combination in product(*(axis_taps(axis, extent) for axis, extent in enumerate(extents))):
        index: list[Operand] = [jnp.arange(len(x)).reshape(-1, *(1,) * len(extents))]
        share: Any = 1.0
        for (tap, factor), extent in zip(combination, extents, strict=True):
            place = _within(tap, extent, padding, corners)
            share = share * factor * ((place >= 0) & (place <= extent - 1))
            index.append(jnp.clip(place, 0, extent - 1).astype(jnp.int64))
        total += share[..., None] * last[tuple(index)]
    return jnp.moveaxis(total, -1, 1).astype(x.dtype)
