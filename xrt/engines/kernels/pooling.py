"""Pools: what a sliding window sees, or a whole plane, reduced to its mean or its greatest element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.kernels.table import Array, Run, ops
from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.toolkit.array_ops.windows import make_window

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext
    from xrt.graph import Node

__all__: list[str] = []


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
