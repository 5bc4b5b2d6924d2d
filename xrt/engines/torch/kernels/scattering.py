"""Operators that write at places given by indices."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernels.indexing import count_from_start, make_coordinates
from xrt.engines.torch.kernels.precision import is_whole
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

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
