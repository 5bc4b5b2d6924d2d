"""Operators that repeat elements, clear a triangle of them, or put others around them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.shape import trim
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["MOST_KNOWN", "apply_padding"]


@ops("Expand")
def expand(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, at.ints(target, 1))
    return (np if _is_few(x, extents) else jnp).broadcast_to(x, extents)


MOST_KNOWN = 1024
"""Elements up to which what is made of something known is known as well."""


def _is_few(x: Operand, extents: Sequence[int]) -> bool:
    return isinstance(x, np.ndarray) and prod(extents) <= MOST_KNOWN


@ops("Tile", since=6)
def tile(at: LoweringContext, x: Operand, repeats: Operand) -> Operand:
    counts = at.ints(repeats, 1)
    few = isinstance(x, np.ndarray) and x.size * prod(counts) <= MOST_KNOWN
    return (np if few else jnp).tile(x, counts)


@ops("Trilu")
def trilu(at: LoweringContext, x: Operand, k: Operand = None) -> Operand:
    """Element (i, j) belongs to the upper triangle where ``j - i >= k``, to the lower where ``j - i <= k``."""
    offset = 0 if k is None else k.reshape(())
    ahead = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    return jnp.where(ahead >= offset if at.attr("upper", 1) else ahead <= offset, x, jnp.zeros((), x.dtype))


def apply_padding(x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if mode == "constant":
        return jnp.pad(x, more, constant_values=value)
    return jnp.pad(x, more, mode=mode)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return apply_padding(x, at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0))


@ops("Pad", since=11)
def pad(at: LoweringContext, x: Operand, pads: Operand, value: Operand = None, axes: Operand = None) -> Operand:
    fill = 0 if value is None else value.reshape(())
    return apply_padding(x, at.ints(pads, 1), at.attr("mode", "constant"), fill, None if axes is None else at.ints(axes, 3))
