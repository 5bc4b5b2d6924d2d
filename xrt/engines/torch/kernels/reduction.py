"""Reductions over axes, and running sums along one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernels.precision import extreme, is_whole, widen
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []

Reduce = Callable[[Tensor, list[int], bool], Tensor]
"""Takes the tensor, the axes, of which there is one at least, and whether they are kept with extent 1."""


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.mean(x.double() if is_whole(x) else x, axes, keep)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _extreme(name: str, lowest: bool) -> Reduce:
    reduce: Any = getattr(torch, name)

    def run(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if all(x.shape[axis] for axis in axes):
            return reduce(x, axes, keep)
        return torch.full_like(_sum(x, axes, keep), extreme(x.dtype, lowest=lowest))

    return run


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x.double() if is_whole(x) else x, axes, keep)


REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: _sum(torch.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme("amax", lowest=True),
    "ReduceMean": _mean,
    "ReduceMin": _extreme("amin", lowest=False),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}
FIRST_WITH_INPUT = {"ReduceSum": 13}
"""The opset since when the axes are an input, where it is not 18."""


def _reduce(compute: Reduce, x: Tensor, axes: Sequence[int] | None, keep: bool) -> Tensor:
    """Reduce, in float32 for narrower floats; the result has the tensor's type."""
    wide = widen(x)
    if axes is None:
        axes = range(x.ndim)
    chosen = [axis % x.ndim for axis in axes]
    if not chosen:  # nothing is reduced, but each element is computed as if it were a sum of one
        return compute(wide.unsqueeze(0), [0], False).to(x.dtype)
    return compute(wide, chosen, keep).to(x.dtype)


def _by_attribute(compute: Reduce) -> Callable[[TorchKernelContext], Run]:
    def factory(at: TorchKernelContext) -> Run:
        axes, keep = at.attr("axes") or None, bool(at.attr("keepdims", 1))
        return lambda x: _reduce(compute, x, axes, keep)

    return factory


def _by_input(compute: Reduce) -> Callable[[TorchKernelContext], Run]:
    def factory(at: TorchKernelContext) -> Run:
        axes_of, keep = at.read_numbers(1), bool(at.attr("keepdims", 1))
        empty: tuple[int, ...] | None = () if at.attr("noop_with_empty_axes", 0) else None
        return lambda x, axes=None: _reduce(compute, x, axes_of(axes) or empty, keep)

    return factory


for _op, _compute in REDUCTIONS.items():
    ops(_op, until=FIRST_WITH_INPUT.get(_op, 18) - 1)(_by_attribute(_compute))
    ops(_op, since=FIRST_WITH_INPUT.get(_op, 18))(_by_input(_compute))


@ops("CumSum", "CumProd")
def cumulative(at: TorchKernelContext) -> Run:
    accumulate, neutral = (torch.cumsum, 0) if at.node.op_type == "CumSum" else (torch.cumprod, 1)
    backwards, exclusive, axis_of = at.attr("reverse", 0), at.attr("exclusive", 0), at.read_numbers(1)

    def run(x: Tensor, axis: Tensor) -> Tensor:
        along, wide = axis_of(axis)[0] % x.ndim, widen(x)
        wide = wide.flip(along) if backwards else wide
        total = accumulate(wide, along, dtype=wide.dtype)
        if exclusive and x.shape[along]:
            first = torch.full_like(total.narrow(along, 0, 1), neutral)
            total = torch.cat([first, total.narrow(along, 0, x.shape[along] - 1)], along)
        return (total.flip(along) if backwards else total).to(x.dtype)

    return run
