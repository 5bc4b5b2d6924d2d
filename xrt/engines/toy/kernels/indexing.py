"""Operators that read or write at places given by indices, ranges or conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Function, Node

__all__: list[str] = []


# ---------------------------------------------------------------------- ranges


def _sliced(
    x: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Array:
    ranges = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step = 1 if steps is None else steps[i]
        # Downwards, an end before the first element is written as a number less than -extent; a slice wants None for it.
        # A start there is the first element all the same (ONNX clamps it to 0); a slice would begin before it.
        extent = x.shape[axis]
        before_first = step < 0 and end < -extent
        ranges[axis] = slice(max(start, -extent) if step < 0 else start, None if before_first else end, step)
    return x[tuple(ranges)]


@ops("Slice", until=9)
def slice_by_attributes(node: Node, env: KernelContext) -> Run:
    starts, ends, axes = node.attr("starts"), node.attr("ends"), node.attr("axes")
    return lambda x: _sliced(x, starts, ends, axes or None, None)


@ops("Slice", since=10, host=(1, 2, 3, 4))
def slice_(node: Node, env: KernelContext) -> Run:
    def run(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
        lists = (None if given is None else given.reshape(-1).tolist() for given in (axes, steps))
        return _sliced(x, starts.reshape(-1).tolist(), ends.reshape(-1).tolist(), *lists)

    return run


# ---------------------------------------------------------------------- reading at indices


@ops("Gather")
def gather(node: Node, env: KernelContext) -> Run:
    take, axis = env.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("GatherElements")
def gather_elements(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis", 0)

    def run(x: Array, indices: Array) -> Array:
        return x[_element_places(env.xp, x, indices, axis)]

    return run


def _element_places(xp: Any, x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return full coordinates: each index's own, but the index itself along the axis."""
    places = _own_places(xp, indices.shape)
    places[axis] = indices
    return tuple(places)


def _own_places(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """Return for each axis the coordinates along it, to spread over the others."""
    return [_along(xp.arange(extent), axis, len(shape)) for axis, extent in enumerate(shape)]


@ops("GatherND")
def gather_nd(node: Node, env: KernelContext) -> Run:
    """Each row of the last axis of indices is a place in the axes after the batch axes."""
    xp, batch = env.xp, node.attr("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        own = _own_places(xp, indices.shape[:batch])
        own = [axis.reshape(axis.shape + (1,) * (indices.ndim - 1 - batch)) for axis in own]
        return x[(*own, *xp.moveaxis(indices, -1, 0))]

    return run


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, env: KernelContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        picked = env.xp.take(x, indices.reshape(-1), axis=-1)
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run


@ops("Compress")
def compress(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: env.xp.compress(condition, x, axis=axis)


@ops("NonZero")
def non_zero(node: Node, env: KernelContext) -> Run:
    """A tensor without axes has places without coordinates: its result has no rows."""
    xp = env.xp

    def run(x: Array) -> Array:
        return xp.stack(xp.nonzero(xp.atleast_1d(x))).astype(np.int64, copy=False)[: x.ndim]

    return run


@ops("Unique")
def unique(node: Node, env: KernelContext) -> Run:
    """Return the distinct elements (or parts along an axis), their first positions, which is where, and how many of each."""
    xp, axis, in_order = env.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)
            first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(v.astype(np.int64, copy=False) for v in (first, inverse, counts))

    return run


# ---------------------------------------------------------------------- writing at indices


Write = Callable[[Array, Any, Array], None]


def _writer(xp: Any, reduction: str) -> Write:
    """Return what writes values at places of an array; places that occur twice take part twice."""
    if reduction == "none":
        return lambda target, places, values: target.__setitem__(places, values)
    combine = {"add": xp.add, "mul": xp.multiply, "min": xp.minimum, "max": xp.maximum}[reduction]
    return combine.at  # type: ignore[no-any-return]  # a method of a function of the array module


def _why_not_multiplied(node: Node, function: Function) -> str | None:
    """CuPy adds at places, and takes the least and the greatest, and has no other `at`."""
    on_device = node.device.partition(":")[0] not in ("", "cpu")
    return "CuPy cannot multiply at places" if on_device and node.attr("reduction", "none") == "mul" else None


@ops("Scatter", "ScatterElements", why_not=_why_not_multiplied)
def scatter_elements(node: Node, env: KernelContext) -> Run:
    xp, axis, write = env.xp, node.attr("axis", 0), _writer(env.xp, node.attr("reduction", "none"))

    def run(x: Array, indices: Array, updates: Array) -> Array:
        out = x.copy()
        write(out, _element_places(xp, x, indices, axis), updates)
        return out

    return run


@ops("ScatterND", why_not=_why_not_multiplied)
def scatter_nd(node: Node, env: KernelContext) -> Run:
    xp, write = env.xp, _writer(env.xp, node.attr("reduction", "none"))

    def run(x: Array, indices: Array, updates: Array) -> Array:
        out = x.copy()
        write(out, tuple(xp.moveaxis(indices, -1, 0)), updates)
        return out

    return run


@ops("TensorScatter")
def tensor_scatter(node: Node, env: KernelContext) -> Run:
    """Each batch entry of a cache is written from its own place on, around the end when circular."""
    xp, axis, circular = env.xp, node.attr("axis", -2), node.attr("mode", "linear") == "circular"

    def run(cache: Array, update: Array, starts: Array | None = None) -> Array:
        along, batch = axis % cache.ndim, cache.shape[0]
        first = xp.zeros(batch, dtype=np.int64) if starts is None else starts
        places = first[:, None] + xp.arange(update.shape[along])
        places = places % cache.shape[along] if circular else places
        out = cache.copy()
        view, new = xp.moveaxis(out, along, 1), xp.moveaxis(update, along, 1)
        view[xp.arange(batch)[:, None], places] = new
        return out

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, env: KernelContext) -> Run:
    xp, axis = env.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        hits = xp.expand_dims(indices % count, axis) == _along(xp.arange(count), axis, indices.ndim + 1)
        in_range = xp.expand_dims((indices >= -count) & (indices < count), axis)
        return xp.where(hits & in_range, values[1], values[0])

    return run


def _along(x: Array, axis: int, rank: int) -> Array:
    """Return a vector laid along one axis of a tensor of that rank."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
