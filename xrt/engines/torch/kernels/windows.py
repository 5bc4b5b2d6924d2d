"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from xrt.engines.toolkit.array_ops.windows import Placement, Window, compute_padding_trims, make_window
from xrt.engines.torch.kernel_context import Run, Tensor, find_known, ops
from xrt.engines.torch.kernels.arithmetic import extreme, round_once
from xrt.engines.torch.kernels.layout import apply_padding
from xrt.graph import Function, Node, TensorType

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["around", "convolve", "why_not_rank"]

CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def why_not_rank(index: int) -> Callable[[Node, Function], str | None]:
    """Return a predicate: torch slides windows over one to three axes, which the tensor in that place of the inputs has."""

    def why_not(node: Node, function: Function) -> str | None:
        type_ = function.get_type(node.inputs[index])
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is None:
            return f"the rank of {node.inputs[index]!r} is not known, and torch has {node.op} for one, two or three spatial axes"
        if not 1 <= len(shape) - 2 <= 3:
            return f"torch has {node.op} for one, two or three spatial axes, and {node.inputs[index]!r} has {len(shape) - 2}"
        return None

    return why_not


def around(place: Placement, x: Tensor, fill: float) -> Tensor:
    """Return the tensor (..., *spatial) with its padding."""
    if not any(place.begins) and not any(place.ends):
        return x
    return functional.pad(x, [n for both in reversed(place.pads) for n in both], value=fill)


def convolve(x: Tensor, w: Tensor, window: Window, group: int, bias: Tensor = None, *, is_computed: bool = False) -> Tensor:
    """Return the convolution of (N, C, *spatial) by (M, C/group, *kernel), summed in the tensors' own type.

    ``is_computed`` says that the weights are no constant: they may be the gradient of another convolution's result.
    """
    place = window.over(x.shape[2:])
    if group == 1 and bias is None and is_computed and _is_gradient(x, place):
        return _convolve_as_gradient(x, w, place)
    even = place.begins == place.ends and all(n >= 0 for n in place.begins)
    pads = place.begins if even else (0,) * len(place.begins)
    source = x if even else around(place, x, 0)
    return CONVOLVE[x.ndim - 2](source, w, bias, window.strides, pads, window.dilations, group)


def _is_gradient(x: Tensor, place: Placement) -> bool:
    """Whether the window has four times as many elements as there are results: so the gradient of weights is written.

    PyTorch's own function for that gradient is quicker then. It has one padding for both ends, by which it must read as much.
    """
    window = place.window
    usual = type(x) is torch.Tensor and x.dtype in (torch.float32, torch.float64)
    if not usual or not 0 < 4 * prod(place.positions) <= window.size or any(n < 0 for n in place.begins):
        return False
    rests = (
        begin + extent + begin - ((kernel - 1) * dilation + (count - 1) * stride + 1)
        for begin, extent, kernel, dilation, count, stride in zip(
            place.begins, place.extents, window.kernel, window.dilations, place.positions, window.strides, strict=True
        )
    )
    return all(0 <= rest < dilation for rest, dilation in zip(rests, window.dilations, strict=True))


def _convolve_as_gradient(x: Tensor, w: Tensor, place: Placement) -> Tensor:
    """Return the convolution as the gradient of the weights (M, N, *positions) of one by which W is the gradient of the result.

    Batch and channels are exchanged for it, and strides and dilations.
    """
    window, source, arriving = place.window, x.transpose(0, 1), w.transpose(0, 1)
    weights = source.new_empty((arriving.shape[1], source.shape[1], *place.positions))
    lengths = (list(window.dilations), list(place.begins), list(window.strides))
    zeros, wanted = [0] * len(place.positions), [False, True, False]
    found = torch.ops.aten.convolution_backward(arriving, source, weights, None, *lengths, False, zeros, 1, wanted)
    return found[1].transpose(0, 1)


@ops("Conv", why_not=why_not_rank(0))
def conv(at: TorchKernelContext) -> Run:
    group = at.attr("group", 1)
    is_computed = find_known(at.node, at.function, 1) is None
    compute = round_once(
        lambda x, w, bias: convolve(x, w, make_window(at.node, w.shape[2:]), group, bias, is_computed=is_computed)
    )
    return lambda x, w, bias=None: compute(x, w, bias)


@ops("ConvTranspose", why_not=why_not_rank(0))
def conv_transpose(at: TorchKernelContext) -> Run:
    group = at.attr("group", 1)

    def compute(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        window, count = make_window(at.node, w.shape[2:]), x.ndim - 2
        lengths = zip(x.shape[2:], window.strides, window.spans, strict=True)
        trims = compute_padding_trims(at.node, window, [(n - 1) * s + span for n, s, span in lengths], x.shape[2:])
        pads = [-begin for begin in trims[:count]]
        more = [pad + end for pad, end in zip(pads, trims[count:], strict=True)]
        limits = zip(pads, more, window.strides, window.dilations, strict=True)
        if all(pad >= 0 and 0 <= end < max(s, d) for pad, end, s, d in limits):
            y = TRANSPOSE[count](x, w, None, window.strides, pads, more, group, window.dilations)
        else:
            whole = TRANSPOSE[count](x, w, None, window.strides, 0, 0, group, window.dilations)
            y = apply_padding(whole, trims, "constant", 0, range(2, x.ndim))
        return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))

    once = round_once(compute)
    return lambda x, w, bias=None: once(x, w, bias)


@ops("Col2Im")
def col2im(at: TorchKernelContext) -> Run:
    """Columns of windows back to images: what overlaps is summed."""
    extents_of, kernel_of = at.read_numbers(1), at.read_numbers(2)

    def run(x: Tensor, extents: Tensor, kernel: Tensor) -> Tensor:
        window, sizes = make_window(at.node, kernel_of(kernel)), extents_of(extents)
        place = window.over(sizes)
        columns = x.reshape(len(x), x.shape[1] // prod(window.kernel), *window.kernel, *place.positions)
        padded = [b + n + e for b, n, e in zip(place.begins, sizes, place.ends, strict=True)]
        whole = columns.new_zeros((*columns.shape[:2], *padded))
        for offset, picked in place.offsets():
            whole[picked] += columns[(slice(None), slice(None), *offset)]
        return whole[(..., *(slice(b, b + n) for b, n in zip(place.begins, sizes, strict=True)))]

    return run


POOL: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


@ops("MaxPool")
def max_pool(at: TorchKernelContext) -> Run:
    window = make_window(at.node, at.attr("kernel_shape"))
    by_columns, with_places = bool(at.attr("storage_order", 0)), at.wants(1)

    def run(x: Tensor) -> Any:
        place = window.over(x.shape[2:])
        if with_places or x.ndim - 2 not in POOL or not x.dtype.is_floating_point:
            return _max_and_places(x, place, by_columns)
        return POOL[x.ndim - 2](around(place, x, float("-inf")), window.kernel, window.strides, 0, window.dilations)

    return run


def _max_and_places(x: Tensor, place: Placement, by_columns: bool) -> tuple[Tensor, Tensor]:
    """Return each window's greatest element and its place in the flattened tensor (planes flattened by columns if asked)."""
    rank, lowest = len(place.extents), extreme(x.dtype, lowest=True)
    own = torch.arange(prod(place.extents))
    own = own.reshape(place.extents[::-1]).permute(*range(rank)[::-1]) if by_columns else own.reshape(place.extents)
    whole, places = around(place, x, lowest), around(place, own, -1)
    shape = (*x.shape[:2], *place.positions)
    top, where = torch.full(shape, lowest, dtype=x.dtype), torch.full(shape, -1, dtype=torch.int64)
    for _, picked in place.offsets():
        seen, index = whole[picked], places[picked]
        better = (index >= 0) & ((where < 0) | (seen > top) | ((seen != seen) & (top == top)))
        top, where = torch.where(better, seen, top), torch.where(better, index, where)
    planes = torch.arange(prod(x.shape[:2])) * own.numel()
    return top, where + planes.reshape(*x.shape[:2], *(1,) * rank)


def _sum_windows(place: Placement, x: Tensor) -> Tensor:
    """Return (N, C, *spatial) with the sum of what each window sees."""
    whole, window = around(place, x, 0), place.window
    if len(place.extents) == 2 and set(window.dilations) == {1}:
        return functional.avg_pool2d(whole, window.kernel, window.strides, divisor_override=1)
    total: Any = sum(whole[picked] for _, picked in place.offsets())
    return total


@ops("AveragePool")
def average_pool(at: TorchKernelContext) -> Run:
    window, with_padding = make_window(at.node, at.attr("kernel_shape")), bool(at.attr("count_include_pad", 0))

    def compute(x: Tensor) -> Tensor:
        place = window.over(x.shape[2:])
        return _sum_windows(place, x) / _counts(place, with_padding).to(x.dtype)

    return round_once(compute)


def _counts(place: Placement, with_padding: bool) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(place.counts(np, with_padding)))


def _power(x: Tensor, p: int) -> Tensor:
    return x.abs() if p == 1 else x * x if p == 2 else x.abs() ** p


def _root(x: Tensor, p: int) -> Tensor:
    return x if p == 1 else torch.sqrt(x) if p == 2 else x ** (1 / p)


@ops("LpPool", since=2)
def lp_pool(at: TorchKernelContext) -> Run:
    window, p = make_window(at.node, at.attr("kernel_shape")), at.attr("p", 2)
    return round_once(lambda x: _root(_sum_windows(window.over(x.shape[2:]), _power(x, p)), p))


ops("GlobalAveragePool")(lambda at: round_once(lambda x: x.mean(list(range(2, x.ndim)), keepdim=True)))
ops("GlobalMaxPool")(lambda at: lambda x: x.amax(list(range(2, x.ndim)), keepdim=True))


@ops("GlobalLpPool", since=2)
def global_lp_pool(at: TorchKernelContext) -> Run:
    p = at.attr("p", 2)
    return round_once(lambda x: _root(_power(x, p).sum(list(range(2, x.ndim)), keepdim=True), p))


@ops("MaxUnpool")
def max_unpool(at: TorchKernelContext) -> Run:
    """Each element goes back to the place it came from; the rest is zero."""
    window, sizes_of = make_window(at.node, at.attr("kernel_shape")), at.read_numbers(2)

    def run(x: Tensor, places: Tensor, asked: Tensor = None) -> Tensor:
        natural = (*x.shape[:2], *window.spread(x.shape[2:]))
        whole = x.new_zeros(prod(natural)).index_put((places.reshape(-1),), x.reshape(-1)).reshape(natural)
        if asked is None:
            return whole
        out = x.new_zeros(sizes_of(asked))
        out[tuple(slice(n) for n in natural)] = whole
        return out

    return run
