"""Windows laid over arrays: padding around them, what each of them sees summed, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xrt.engines.toolkit.array_ops.windows import Placement
    from xrt.engines.toy.table import Array

__all__ = ["around", "fold", "sum_windows"]


def around(xp: Any, place: Placement, x: Array, fill: Any) -> Array:
    """Return the tensor (..., *spatial) with its padding."""
    if not any(place.begins) and not any(place.ends):
        return x
    lead = x.shape[: x.ndim - len(place.extents)]
    sizes = zip(place.begins, place.extents, place.ends, strict=True)
    out = xp.full((*lead, *(b + n + e for b, n, e in sizes)), fill, dtype=x.dtype)
    out[(..., *(slice(b, b + n) for b, n in zip(place.begins, place.extents, strict=True)))] = x
    return out


def fold(xp: Any, columns: Array, placement: Placement, extents: Sequence[int]) -> Array:
    """Return the sum of windows laid at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""
    out = xp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, picked in placement.offsets():
        out[picked] += columns[(slice(None), slice(None), *offset)]
    return out


def sum_windows(xp: Any, x: Array, place: Placement) -> Array:
    """Return the sum of what each window sees, padding being zero."""
    x = around(xp, place, x, 0)
    picks = place.offsets()
    total = x[next(picks)[1]].copy()
    for _, picked in picks:
        total += x[picked]
    return total
