"""Operators that repeat elements, clear a triangle of them, or put others around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.shape import trim
from xrt.engines.toy.table import Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__ = ["apply_padding"]


@ops("Expand", host=(1,))
def expand(node: Node, env: KernelContext) -> Run:
    xp = env.xp
    return lambda x, target: xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target.tolist())))


@ops("Tile", until=5, host=(1, 2))
def tile_one_axis(node: Node, env: KernelContext) -> Run:
    """Version 1 repeats along one axis, both given as scalars."""

    def run(x: Array, tiles: Array, axis: Array) -> Array:
        repeats = [1] * x.ndim
        repeats[int(axis.reshape(()))] = int(tiles.reshape(()))
        return env.xp.tile(x, repeats)

    return run


@ops("Tile", since=6, host=(1,))
def tile(node: Node, env: KernelContext) -> Run:
    return lambda x, repeats: env.xp.tile(x, repeats.tolist())


@ops("Trilu", host=(1,))
def trilu(node: Node, env: KernelContext) -> Run:
    keep = env.xp.triu if node.attr("upper", 1) else env.xp.tril
    return lambda x, k=None: keep(x, 0 if k is None else int(k.reshape(())))


def apply_padding(xp: Any, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if mode != "constant":
        return xp.pad(x, more, mode=mode)
    out = xp.full([n + b + e for n, (b, e) in zip(x.shape, more, strict=True)], value, dtype=x.dtype)
    out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, more, strict=True))] = x
    return out


@ops("Pad", until=10)
def pad_by_attributes(node: Node, env: KernelContext) -> Run:
    pads, mode, value = node.attr("pads", node.attr("paddings")), node.attr("mode", "constant"), node.attr("value", 0.0)
    return lambda x: apply_padding(env.xp, x, pads, mode, value)


@ops("Pad", since=11, host=(1, 2, 3))
def pad(node: Node, env: KernelContext) -> Run:
    xp, mode = env.xp, node.attr("mode", "constant")

    def run(x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
        fill = ("" if x.dtype == object else 0) if value is None else value.reshape(()).item()
        return apply_padding(xp, x, pads.tolist(), mode, fill, None if axes is None else axes.tolist())

    return run
