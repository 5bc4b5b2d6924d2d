"""Convolutions, and the sum of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.elements import round_once
from xrt.engines.toolkit.array_ops.windows import make_window

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__ = ["with_bias"]


def with_bias(y: Array, bias: Array | None) -> Array:
    """Add one number per channel, in place where arrays can be written to."""
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


@ops("Conv")
def conv(node: Node, env: NodeContext) -> Run:
    group = node.attr("group", 1)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        return with_bias(env.primitives.convolve(x, w, make_window(node, w.shape[2:]), group), bias)

    return round_once(run)


@ops("Col2Im", host=(1, 2))
def col2im(node: Node, env: NodeContext) -> Run:
    """Columns of windows back to images: what overlaps is summed."""

    def run(x: Array, extents: Array, kernel: Array) -> Array:
        window, sizes = make_window(node, kernel.tolist()), extents.tolist()
        place = window.over(sizes)
        columns = x.reshape(len(x), x.shape[1] // window.size, *window.kernel, *place.positions)
        whole = env.primitives.fold(columns, place, [b + n + e for b, n, e in zip(place.begins, sizes, place.ends, strict=True)])
        return whole[(..., *(slice(b, b + n) for b, n in zip(place.begins, sizes, strict=True)))]

    return run


@ops("AveragePool")
def average_pool(node: Node, env: NodeContext) -> Run:
    xp, window = env.xp, make_window(node, node.attr("kernel_shape"))
    with_padding = bool(node.attr("count_include_pad", 0))

    def run(x: Array) -> Array:
        place = window.over(x.shape[2:])
        return env.primitives.sum_windows(x, place) / place.counts(xp, with_padding).astype(x.dtype)

    return round_once(run)


@ops("GlobalAveragePool")
def global_average_pool(node: Node, env: NodeContext) -> Run:
    return round_once(lambda x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True))


@ops("GlobalMaxPool")
def global_max_pool(node: Node, env: NodeContext) -> Run:
    return lambda x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
