"""Operators that read at places given by indices, ranges or conditions, and those that look for places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernel_context import Run, Tensor, ops
from xrt.engines.torch.kernels.arithmetic import is_whole

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["count_from_start", "make_coordinates"]

# ---------------------------------------------------------------------- ranges


def _slice(
    x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Tensor:
    """Return parts of axes; a step downwards, which torch's slices do not have, turns the part around."""
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i] % x.ndim
        step, extent = 1 if steps is None else steps[i], x.shape[axis]
        lead = (slice(None),) * axis
        if step > 0:
            x = x[(*lead, slice(start, end, step))]
            continue
        first = min(max(start + extent if start < 0 else start, 0), extent - 1)
        last = max(end + extent if end < 0 else end, -1)
        x = x[(*lead, slice(last + 1, first + 1))].flip(axis)[(*lead, slice(None, None, -step))]
    return x


@ops("Slice", until=9)
def slice_by_attributes(at: TorchKernelContext) -> Run:
    starts, ends, axes = at.attr("starts"), at.attr("ends"), at.attr("axes")
    return lambda x: _slice(x, starts, ends, axes or None, None)


@ops("Slice", since=10)
def slice_(at: TorchKernelContext) -> Run:
    reads = [at.read_numbers(i) for i in range(1, 5)]

    def run(x: Tensor, *given: Tensor) -> Tensor:
        lists = [read(tensor) for read, tensor in zip(reads, given, strict=False)]
        return _slice(x, lists[0], lists[1], *(lists[i] if len(given) > i and given[i] is not None else None for i in (2, 3)))

    return run


# ---------------------------------------------------------------------- reading at indices


def count_from_start(indices: Tensor, extent: int) -> Tensor:
    """Return indices of which negative ones counted from the end, as int64."""
    return torch.where(indices < 0, indices + extent, indices).long()


@ops("Gather")
def gather(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 0)

    def run(x: Tensor, indices: Tensor) -> Tensor:
        along = axis % x.ndim
        picked = x.index_select(along, count_from_start(indices.reshape(-1), x.shape[along]))
        return picked if indices.ndim == 1 else picked.reshape((*x.shape[:along], *indices.shape, *x.shape[along + 1 :]))

    return run


def make_coordinates(indices: Tensor, axis: int, extent: int) -> tuple[Tensor, ...]:
    """Return full coordinates: each index's own, but the index itself along the axis."""
    places = _own(indices.shape, indices.ndim)
    places[axis] = count_from_start(indices, extent)
    return tuple(places)


def _own(shape: Sequence[int], rank: int) -> list[Tensor]:
    """Return for each axis the coordinates along it, to spread over the others of so many."""
    return [torch.arange(n).reshape([-1 if i == k else 1 for i in range(rank)]) for k, n in enumerate(shape)]


@ops("GatherElements")
def gather_elements(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 0)
    return lambda x, indices: x[make_coordinates(indices, axis % x.ndim, x.shape[axis])]


@ops("GatherND")
def gather_nd(at: TorchKernelContext) -> Run:
    """Each row of the last axis of indices is a place in the axes after the batch axes."""
    batch = at.attr("batch_dims", 0)

    def run(x: Tensor, indices: Tensor) -> Tensor:
        own = _own(indices.shape[:batch], indices.ndim - 1)
        rows = [count_from_start(row, n) for row, n in zip(indices.unbind(-1), x.shape[batch:], strict=False)]
        return x[(*own, *rows)]

    return run


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(at: TorchKernelContext) -> Run:
    def run(x: Tensor, indices: Tensor) -> Tensor:
        picked = x.index_select(-1, count_from_start(indices.reshape(-1), x.shape[-1]))
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run


# ---------------------------------------------------------------------- looking for places


@ops("ArgMax", "ArgMin")
def arg_extreme(at: TorchKernelContext) -> Run:
    axis, keep, last = at.attr("axis", 0), bool(at.attr("keepdims", 1)), at.attr("select_last_index", 0)
    find = torch.argmax if at.node.op_type == "ArgMax" else torch.argmin
    if not last:
        return lambda x: find(x, axis, keep)
    return lambda x: x.shape[axis] - 1 - find(x.flip(axis), axis, keep)


def _top(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Return the k extreme elements along an axis, in order, and their places; equal elements by place, NaN as the greatest."""
    values, places = torch.sort(x, stable=True, dim=axis, descending=largest)
    return values.narrow(axis, 0, k), places.narrow(axis, 0, k)


@ops("TopK", until=9)
def top_k_by_attribute(at: TorchKernelContext) -> Run:
    k, axis = at.attr("k"), at.attr("axis", -1)
    return lambda x: _top(x, k, axis, largest=True)


@ops("TopK", since=10)
def top_k(at: TorchKernelContext) -> Run:
    k_of, axis, largest = at.read_numbers(1), at.attr("axis", -1), bool(at.attr("largest", 1))
    return lambda x, k: _top(x, k_of(k)[0], axis, largest)


@ops("Compress")
def compress(at: TorchKernelContext) -> Run:
    axis = at.attr("axis")

    def run(x: Tensor, condition: Tensor) -> Tensor:
        places = condition.nonzero()[:, 0]
        return x.reshape(-1).index_select(0, places) if axis is None else x.index_select(axis, places)

    return run


ops("NonZero")(lambda at: lambda x: x.nonzero().T)


@ops("Unique")
def unique(at: TorchKernelContext) -> Run:
    """Return the distinct elements (or parts along an axis), their first positions, which is where, and how many of each."""
    axis, in_order = at.attr("axis"), bool(at.attr("sorted", 1))

    def run(x: Tensor) -> tuple[Tensor, ...]:
        y, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
        inverse = inverse.reshape(-1)
        first = torch.zeros(len(counts), dtype=torch.int64)
        first.scatter_reduce_(0, inverse, torch.arange(len(inverse)), "amin", include_self=False)
        if not in_order:
            order = torch.argsort(first)
            first, counts, inverse = first[order], counts[order], torch.argsort(order)[inverse]
            y = y.index_select(0 if axis is None else axis, order)
        return y, first, inverse, counts

    return run


_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}
_COMBINE: dict[str, Any] = {"add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}


def _write(x: Tensor, places: tuple[Tensor, ...], values: Tensor, reduction: str) -> Tensor:
    """Return the tensor with values written at places; with a reduction, places that occur twice take part twice."""
    if reduction == "none":
        return x.index_put(places, values)
    if reduction == "add" and x.dtype is not torch.bool:
        return x.index_put(places, values, accumulate=True)
    rows, shape = prod(x.shape[: len(places)]), x.shape
    steps = [prod(shape[i + 1 : len(places)]) for i in range(len(places))]
    flat: Any = sum(place * step for place, step in zip(places, steps, strict=True))
    if x.dtype is torch.bool:
        wide = _write(x.to(torch.uint8), places, values.to(torch.uint8), "max" if reduction in ("add", "max") else "min")
        return wide.to(torch.bool)
    target = x.reshape(rows, -1)
    index = flat.reshape(-1, 1).expand(-1, target.shape[1])
    parts = values.expand(*flat.shape, *shape[len(places) :]).reshape(index.shape)
    return target.scatter_reduce(0, index, parts, _REDUCTIONS[reduction]).reshape(shape)


@ops("Scatter", "ScatterElements")
def scatter_elements(at: TorchKernelContext) -> Run:
    axis, reduction = at.attr("axis", 0), at.attr("reduction", "none")
    return lambda x, indices, updates: _write(x, make_coordinates(indices, axis % x.ndim, x.shape[axis]), updates, reduction)


@ops("ScatterND")
def scatter_nd(at: TorchKernelContext) -> Run:
    reduction = at.attr("reduction", "none")

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        places = tuple(count_from_start(row, n) for row, n in zip(indices.unbind(-1), x.shape, strict=False))
        if places:
            return _write(x, places, updates, reduction)
        for update in updates.reshape(-1, *x.shape).unbind():  # an index of no numbers is the whole tensor
            x = update if reduction == "none" else _COMBINE[reduction](x, update)
        return x

    return run


@ops("TensorScatter")
def tensor_scatter(at: TorchKernelContext) -> Run:
    """Each batch entry of a cache is written from its own place on, around the end when circular."""
    axis, circular = at.attr("axis", -2), at.attr("mode", "linear") == "circular"

    def run(cache: Tensor, update: Tensor, starts: Tensor = None) -> Tensor:
        along, batch = axis % cache.ndim, cache.shape[0]
        first = torch.zeros(batch, dtype=torch.int64) if starts is None else starts.long()
        places = first[:, None] + torch.arange(update.shape[along])
        places = places % cache.shape[along] if circular else places
        written = cache.movedim(along, 1).index_put((torch.arange(batch)[:, None], places), update.movedim(along, 1))
        return written.movedim(1, along)

    return run


@ops("OneHot")
def one_hot(at: TorchKernelContext) -> Run:
    axis, count_of = at.attr("axis", -1), at.read_numbers(1)

    def run(indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
        count, rank = int(count_of(depth)[0]), indices.ndim + 1
        whole = indices if is_whole(indices) else indices.to(torch.int64)
        classes = torch.arange(count).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
        hits = torch.where(whole < 0, whole + count, whole).unsqueeze(axis) == classes
        return torch.where(hits, values[1], values[0])

    return run
