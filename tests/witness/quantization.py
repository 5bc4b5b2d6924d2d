"""Integers in place of floats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tests.witness.case import Array, Case, Drawn, case

DRAWN = Drawn("quantization")


def _quantized(x: Array, scale: Array, zero: Array) -> Array:
    """Divide, round halves to even, add the zero point, and keep to the type."""
    limits = ml_dtypes.iinfo(zero.dtype)
    wide = np.rint(x.astype(np.float32) / scale) + zero.astype(np.float32)
    return np.clip(wide, int(limits.min), int(limits.max)).astype(zero.dtype)


def _dequantized(x: Array, scale: Array, zero: Any = 0) -> Array:
    return (x.astype(np.int32) - np.asarray(zero).astype(np.int32)).astype(np.float32) * scale


def linear() -> Iterator[Case]:
    x = DRAWN.floats(3, 4, scale=40)
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4):
        low = int(ml_dtypes.iinfo(dtype).min)
        scale, zero = np.array(0.75, np.float32), np.array(low + 5).astype(dtype)
        yield case("QuantizeLinear", [x, scale, zero], formula=_quantized)
        given = DRAWN.integers(low, 8, 3, 4).astype(dtype) if low < 0 else DRAWN.integers(0, 16, 3, 4).astype(dtype)
        yield case("DequantizeLinear", [given, scale, zero], formula=_dequantized)
        for axis in (0, 1):
            scales = np.abs(DRAWN.floats(x.shape[axis])) + np.float32(0.25)
            zeros = np.full(x.shape[axis], low + 3).astype(dtype)
            shape = (-1, 1) if axis == 0 else (1, -1)
            per = lambda x, s, z, f=_quantized, n=shape: f(x, s.reshape(n), z.reshape(n))
            yield case("QuantizeLinear", [x, scales, zeros], {"axis": axis}, formula=per)
            back = lambda x, s, z, n=shape: _dequantized(x, s.reshape(n), z.reshape(n))
            yield case("DequantizeLinear", [given, scales, zeros], {"axis": axis}, formula=back)
    blocks = np.abs(DRAWN.floats(3, 2)) + np.float32(0.5)
    halves = lambda x, s, z: _dequantized(x, np.repeat(s, 2, axis=1), np.repeat(z, 2, axis=1))
    yield case(
        "DequantizeLinear",
        [DRAWN.integers(-90, 90, 3, 4, dtype=np.int8), blocks, np.array([[1, 2]] * 3, np.int8)],
        {"axis": 1, "block_size": 2},
        formula=halves,
    )
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    yield case("QuantizeLinear", [ties, np.array(1, np.float32), np.array(0, np.int8)], label="ties", formula=_quantized)
    yield case(
        "DequantizeLinear", [DRAWN.integers(-900, 900, 6, dtype=np.int32), np.array(0.5, np.float32)], formula=_dequantized
    )
    for x in (DRAWN.floats(3, 5), np.abs(DRAWN.floats(4)) + 1, -np.abs(DRAWN.floats(4)) - 1):
        yield case("DynamicQuantizeLinear", [x], outputs=3)


def products() -> Iterator[Case]:
    for left, right in ((np.uint8, np.uint8), (np.int8, np.int8), (np.uint8, np.int8)):
        a, b = (DRAWN.integers(0, 90, *shape, dtype=dtype) for shape, dtype in (((3, 4), left), ((4, 5), right)))
        zeros = [np.array(3, left), np.array(4, right)]
        formula = lambda a, b, za, zb: (
            (a.astype(np.int32) - za.astype(np.int32)) @ (b.astype(np.int32) - zb.astype(np.int32))
        ).astype(np.int32)
        yield case("MatMulInteger", [a, b, *zeros], formula=formula)
        scales = [np.array(v, np.float32) for v in (0.02, 0.03, 0.05)]
        given = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], np.array(7, left)]
        product = lambda a, sa, za, b, sb, zb, sy, zy: _quantized(_dequantized(a, sa, za) @ _dequantized(b, sb, zb), sy, zy)
        yield case("QLinearMatMul", given, formula=product)
    x, w = DRAWN.integers(0, 255, 1, 2, 6, 5, dtype=np.uint8), DRAWN.integers(0, 255, 4, 2, 3, 2, dtype=np.uint8)
    scales = [np.array(v, np.float32) for v in (0.02, 0.01, 0.1)]
    zeros = [np.array(v, np.uint8) for v in (120, 130, 110)]
    given = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]]
    for options in ({}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}, {"dilations": [2, 1]}):
        yield case("QLinearConv", given, options, label=str(options))
    yield case("QLinearConv", [*given, DRAWN.integers(-900, 900, 4, dtype=np.int32)], label="bias")


def families() -> Iterator[Case]:
    for family in (linear, products):
        yield from family()
