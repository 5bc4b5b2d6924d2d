"""GridSample: read a tensor at places between its elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from xrt.engines.toy.env import Env
from xrt.engines.toy.kernels.resize import Sampling, weight
from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import Node

__all__: list[str] = []

LEGACY_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What version 16 called the modes."""


def _denormalised(grid: Array, extent: int, corners: bool) -> Array:
    """Return places between -1 and 1 as places among the elements: the ends are the outer elements' centres, or their borders."""
    return (grid + 1) / 2 * (extent - 1) if corners else ((grid + 1) * extent - 1) / 2


def _within(xp: Any, places: Array, extent: int, padding: str, corners: bool) -> Array:
    """Return places beyond the ends as the padding mode reads them: as the end, as reflected, or (zeros) as they are."""
    if padding == "border":
        return xp.clip(places, 0, extent - 1)
    if padding == "zeros":
        return places
    low, span = (0.0, extent - 1.0) if corners else (-0.5, float(extent))
    if span == 0:
        return xp.zeros_like(places)
    distance = xp.mod(places - low, 2 * span)
    reflected = low + xp.minimum(distance, 2 * span - distance)
    return xp.where((places < low) | (places > low + span), reflected, places)


def _taps(xp: Any, places: Array, mode: str) -> list[tuple[Array, Array]]:
    """Return the neighbours of each place along one axis, with their weights."""
    if mode == "nearest":
        return [(places, xp.ones_like(places))]
    reach = 2 if mode == "cubic" else 1
    first = xp.floor(places)
    neighbours = [first + offset for offset in range(1 - reach, reach + 1)]
    return [(tap, weight(xp, tap - places, Sampling(mode))) for tap in neighbours]


@ops("GridSample")
def grid_sample(node: Node, env: Env) -> Run:
    xp, corners, padding = env.xp, bool(node.attr("align_corners", 0)), node.attr("padding_mode", "zeros")
    mode = LEGACY_MODES.get(node.attr("mode", "linear"), node.attr("mode", "linear"))

    def axis_taps(grid: Array, axis: int, extent: int) -> list[tuple[Array, Array]]:
        places = _denormalised(grid[..., -1 - axis], extent, corners).astype(np.float64)
        places = xp.rint(places) if mode == "nearest" else places
        return _taps(xp, _within(xp, places, extent, padding, corners), mode)

    def run(x: Array, grid: Array) -> Array:
        extents = x.shape[2:]
        batch = xp.arange(len(x)).reshape(-1, *(1,) * len(extents))
        total = xp.zeros((len(x), *grid.shape[1:-1], x.shape[1]), dtype=np.float64)
        for combination in product(*(axis_taps(grid, axis, extent) for axis, extent in enumerate(extents))):
            index, share = [batch], xp.ones(grid.shape[:-1])
            for (tap, factor), extent in zip(combination, extents, strict=True):
                place = _within(xp, tap, extent, padding, corners)
                share = share * factor * ((place >= 0) & (place <= extent - 1))
                index.append(xp.clip(place, 0, extent - 1).astype(np.int64))
            total += share[..., None] * xp.moveaxis(x, 1, -1)[tuple(index)]
        return xp.moveaxis(total, -1, 1).astype(x.dtype)

    return run
