"""Operators that read or write at positions given by indices or masks, and operators that find positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import along
from xrt.engines.kernels.table import Array, Run, eager, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Function, Node

# ---------------------------------------------------------------------- reading at indices


@ops("GatherElements")
def gather_elements(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis", 0)
    return lambda x, indices: env.xp.asarray(x)[_element_places(env.xp, indices, axis)]


def _element_places(xp: Any, indices: Array, axis: int) -> tuple[Array, ...]:
    """Coordinates of all elements of ``indices``, where the coordinate along ``axis`` is replaced by the index."""
    places = _own_places(xp, indices.shape)
    places[axis] = indices
    return tuple(places)


def _own_places(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """Coordinates along each axis, shaped to broadcast over the others."""
    return [along(xp.arange(extent), axis, len(shape)) for axis, extent in enumerate(shape)]


@ops("GatherND")
def gather_nd(node: Node, env: NodeContext) -> Run:
    """Each row of the last axis of indices is a position in the axes after the batch axes."""
    xp, batch = env.xp, node.attr("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        own = _own_places(xp, indices.shape[:batch])
        own = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in own]
        return xp.asarray(x)[(*own, *xp.moveaxis(indices, -1, 0))]

    return run


@ops("Gather")
def gather(node: Node, env: NodeContext) -> Run:
    take, axis = env.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, env: NodeContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        picked = env.xp.take(x, indices.reshape(-1), axis=-1)
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run


@eager("Compress")
def compress(node: Node, env: NodeContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: env.xp.compress(condition, x, axis=axis)


# ---------------------------------------------------------------------- writing at indices


def _why_not_multiplied(node: Node, function: Function) -> str | None:
    """CuPy's `at` supports sums, minima and maxima only."""
    on_device = node.device.partition(":")[0] not in ("", "cpu")
    return "CuPy cannot multiply at places" if on_device and node.attr("reduction", "none") == "mul" else None


@ops("Scatter", "ScatterElements", why_not=_why_not_multiplied, mutable=(0,))
def scatter_elements(node: Node, env: NodeContext) -> Run:
    axis, reduction = node.attr("axis", 0), node.attr("reduction", "none")
    return _scattering(env.xp, reduction, lambda indices: _element_places(env.xp, indices, axis))


@ops("ScatterND", why_not=_why_not_multiplied, mutable=(0,))
def scatter_nd(node: Node, env: NodeContext) -> Run:
    return _scattering(env.xp, node.attr("reduction", "none"), lambda indices: tuple(env.xp.moveaxis(indices, -1, 0)))


def _scattering(xp: Any, reduction: str, find_places: Callable[[Array], tuple[Array, ...]]) -> Run:
    """Make a kernel that writes updates at positions; ``out`` is written in place and may be the first argument."""

    def run(x: Array, indices: Array, updates: Array, **named: Array) -> Array:
        return xp.scatter(x, find_places(indices), updates, reduction, **named)

    return run


@ops("TensorScatter", mutable=(0,))
def tensor_scatter(node: Node, env: NodeContext) -> Run:
    """Write to each batch entry of a cache from its write index on; wraps around in circular mode."""
    xp, axis, circular = env.xp, node.attr("axis", -2), node.attr("mode", "linear") == "circular"

    def run(cache: Array, update: Array, starts: Array | None = None, **named: Array) -> Array:
        along, batch = axis % cache.ndim, cache.shape[0]
        first = xp.zeros(batch, dtype=np.int64) if starts is None else starts
        places = first[:, None] + xp.arange(update.shape[along])
        places = places % cache.shape[along] if circular else places
        rows, new = xp.moveaxis(cache, along, 1), xp.moveaxis(update, along, 1)
        turned = {name: xp.moveaxis(array, along, 1) for name, array in named.items()}
        return xp.moveaxis(xp.scatter(rows, (xp.arange(batch)[:, None], places), new, "none", **turned), 1, along)

    return run


# ---------------------------------------------------------------------- looking for places


@eager("NonZero")
def non_zero(node: Node, env: NodeContext) -> Run:
    """A 0-d tensor has positions without coordinates: the result has no rows."""
    xp = env.xp

    def run(x: Array) -> Array:
        return xp.astype(xp.stack(xp.nonzero(xp.atleast_1d(x))), np.int64)[: x.ndim]

    return run


@eager("Unique")
def unique(node: Node, env: NodeContext) -> Run:
    """Distinct elements (or slices along an axis), first positions, inverse indices, and counts."""
    xp, axis, in_order = env.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)
            first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(xp.astype(v, np.int64) for v in (first, inverse, counts))

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, env: NodeContext) -> Run:
    xp, axis = env.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        classes = along(xp.arange(count), axis, indices.ndim + 1)
        hits = xp.expand_dims(xp.where(indices < 0, indices + count, indices), axis) == classes
        return xp.where(hits, values[1], values[0])

    return run


def _top(xp: Any, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis, sorted, and their indices; ties by index, NaN counts as largest."""
    order = xp.take(xp.order(x, axis % x.ndim, largest), xp.arange(k), axis=axis)
    return xp.take_along_axis(x, order, axis=axis), xp.astype(order, np.int64)


@ops("TopK", host=(1,))
def top_k(node: Node, env: NodeContext) -> Run:
    axis, largest, listed = node.attr("axis", -1), bool(node.attr("largest", 1)), node.attr("k")
    return lambda x, k=None: _top(env.xp, x, listed if k is None else int(k.reshape(())), axis, largest)
