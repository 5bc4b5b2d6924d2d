"""Operators that write at places given by indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from xrt.engines.xla.kernels.indexing import count_from_start, make_coordinates
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


def _written(at: LoweringContext, x: Operand, places: tuple[Operand, ...], values: Operand) -> Operand:
    """Return the tensor with values written at places; with a reduction, places that occur twice take part twice."""
    target: Any = jnp.asarray(x).at[places]
    reduction = at.attr("reduction", "none")
    write = {"none": target.set, "add": target.add, "mul": target.multiply, "min": target.min, "max": target.max}[reduction]
    return write(values)


@ops("Scatter", "ScatterElements")
def scatter_elements(at: LoweringContext, x: Operand, indices: Operand, updates: Operand) -> Operand:
    axis = at.attr("axis", 0)
    return _written(at, x, make_coordinates(indices, axis, x.shape[axis]), updates)


@ops("ScatterND")
def scatter_nd(at: LoweringContext, x: Operand, indices: Operand, updates: Operand) -> Operand:
    rows = jnp.moveaxis(jnp.asarray(indices), -1, 0)
    return _written(at, x, tuple(count_from_start(row, n) for row, n in zip(rows, x.shape, strict=False)), updates)


@ops("TensorScatter")
def tensor_scatter(at: LoweringContext, cache: Operand, update: Operand, starts: Operand = None) -> Operand:
    """Each batch entry of a cache is written from its own place on, around the end when circular."""
    along, batch = at.attr("axis", -2) % cache.ndim, cache.shape[0]
    first = jnp.zeros(batch, jnp.int64) if starts is None else jnp.asarray(starts)
    places = first[:, None] + jnp.arange(update.shape[along])
    if at.attr("mode", "linear") == "circular":
        places = places % cache.shape[along]
    view = jnp.moveaxis(jnp.asarray(cache), along, 1)
    written = view.at[jnp.arange(batch)[:, None], places].set(jnp.moveaxis(update, along, 1))
    return jnp.moveaxis(written, 1, along)


@ops("OneHot")
def one_hot(at: LoweringContext, indices: Operand, depth: Operand, values: Operand) -> Operand:
    count, axis = at.ints(depth, 1)[0], at.attr("axis", -1)
    rank = indices.ndim + 1
    whole = indices.astype(jnp.int64)
    classes = jnp.arange(count).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    hits = jnp.expand_dims(count_from_start(whole, count), axis) == classes
    return jnp.where(hits, values[1], values[0])
