"""Windows laid over tensors: padding around them, what each window sees combined, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from xrt.engines.toolkit.array_ops.windows import Placement
    from xrt.engines.xla.table import Operand

__all__ = ["around", "combine_windows", "fold"]


def around(place: Placement, x: Operand, fill: Any) -> Operand:
    """Return the tensor (..., *spatial) with its padding."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(place.extents)) + place.pads, constant_values=fill)


def combine_windows(place: Placement, x: Operand, combine: Any, neutral: Any) -> Operand:
    """Return (N, C, *spatial) with what each window sees combined, ``neutral`` being what padding is."""
    window = place.window
    return jax.lax.reduce_window(
        x,
        np.asarray(neutral, x.dtype),
        combine,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *place.pads],
        window_dilation=(1, 1, *window.dilations),
    )


def fold(columns: Operand, placement: Placement, extents: Sequence[int]) -> Operand:
    """Return the sum of windows laid at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""
    out: Any = jnp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, picked in placement.offsets():
        out = out.at[picked].add(columns[(slice(None), slice(None), *offset)])
    return out
