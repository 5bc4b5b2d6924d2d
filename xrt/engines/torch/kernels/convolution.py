"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from xrt.engines.toolkit.array_ops.windows import Placement, Window, compute_padding_trims, make_window
from xrt.engines.torch.kernel_context import find_known
from xrt.engines.torch.kernels.layout import apply_padding
from xrt.engines.torch.kernels.precision import round_once
from xrt.engines.torch.table import Run, Tensor, ops
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
