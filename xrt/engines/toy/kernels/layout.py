"""Operators that repeat elements, clear a triangle of them, or put others around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.numpy_helper import saturate_cast, to_float8e8m0

from xrt.engines.toolkit.array_ops.elements import trim
from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import DType, Node

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext

__all__ = ["apply_padding", "conversion"]


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


SATURABLE = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})


def conversion(to: DType, saturate: bool = True, round_mode: str = "up") -> Callable[[Array], Array]:
    """Return the function that converts arrays of any type to that one, as ONNX's Cast does."""

    def convert(x: Array) -> Array:
        if to is DType.STRING:
            return _as_text(x)
        if x.dtype == object:
            x = _numbers(x, to)
        if to in SATURABLE and saturate and x.dtype != to.numpy:
            return saturate_cast(x, to.numpy)
        if to is DType.FLOAT8E8M0:
            return to_float8e8m0(x, saturate, round_mode).astype(to.numpy)
        return x.astype(to.numpy)

    return convert


def _as_text(x: Array) -> Array:
    """Numbers are spelt in as few digits as tell them from their neighbours."""
    if x.dtype == object:
        return x
    return x.astype(np.str_).astype(object)


def _numbers(text: Array, to: DType) -> Array:
    """Return the numbers that strings spell, in a type that holds them exactly."""
    if to is DType.BOOL or to.is_integer:
        return np.array([int(float(s)) if not s.lstrip("+-").isdigit() else int(s) for s in text.flat], dtype=np.int64).reshape(
            text.shape
        )
    return text.astype(np.float64 if to is not DType.FLOAT32 else np.float32)


@ops("Cast")
def cast(node: Node, env: KernelContext) -> Run:
    to = node.attr("to")
    dtype = DType.parse(_LEGACY.get(to, to.lower())) if isinstance(to, str) else DType.from_onnx(to)
    return conversion(dtype, bool(node.attr("saturate", 1)), node.attr("round_mode", "up"))


_LEGACY = {"FLOAT": "float32", "DOUBLE": "float64"}
"""Names of types, before version 6, that are not the lower case of ours."""


@ops("CastLike")
def cast_like(node: Node, env: KernelContext) -> Run:
    saturate, round_mode = bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
    return lambda x, like: conversion(DType.of(like), saturate, round_mode)(x)


@ops("BitCast")
def bit_cast(node: Node, env: KernelContext) -> Run:
    dtype = DType.from_onnx(node.attr("to")).numpy
    return lambda x: x.view(dtype)
