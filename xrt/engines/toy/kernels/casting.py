"""Conversion between element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from onnx.numpy_helper import saturate_cast, to_float8e8m0

from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import DType, Node

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext

__all__ = ["conversion"]

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
