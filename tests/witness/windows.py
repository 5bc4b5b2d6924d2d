"""Convolutions and pools over kernels, strides, dilations, pads, groups and rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.signal

from tests.witness.case import Array, Case, Drawn, case

DRAWN = Drawn("windows")

CONV = (
    {},
    {"pads": [1, 0, 2, 1]},
    {"strides": [2, 3], "pads": [1, 1, 1, 1]},
    {"dilations": [2, 1], "pads": [2, 2, 2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [1, 2]},
    {"auto_pad": "VALID"},
)


def convolutions() -> Iterator[Case]:
    for group, dtype in ((1, np.float32), (2, np.float32), (4, np.float32), (1, np.float64)):
        for options in CONV if dtype is np.float32 else CONV[:1]:
            weights, bias = DRAWN.floats(4, 4 // group, 3, 2, dtype=dtype), DRAWN.floats(4, dtype=dtype)
            if dtype is np.float64:
                yield case("Conv", [DRAWN.floats(1, 1, 7, 8, dtype=dtype), weights[:1, :1]], formula=_correlated, source="SciPy")
                continue
            x = DRAWN.floats(2, 4, 7, 8, dtype=dtype)
            yield case("Conv", [x, weights, bias], {"group": group, **options})
            yield case("Conv", [x, weights], {"group": group, **options}, label=f"plain,{group},{options}")
    yield case("Conv", [DRAWN.floats(1, 2, 9), DRAWN.floats(3, 2, 4)], {"strides": [2], "pads": [1, 2]})
    yield case(
        "Conv", [DRAWN.floats(1, 2, 5, 4, 6), DRAWN.floats(3, 2, 2, 3, 2)], {"pads": [1, 0, 1, 0, 1, 1], "dilations": [2, 1, 1]}
    )
    yield case(
        "ConvInteger",
        [
            DRAWN.integers(0, 255, 1, 2, 5, 5, dtype=np.uint8),
            DRAWN.integers(0, 255, 3, 2, 2, 2, dtype=np.uint8),
            np.array(7, np.uint8),
        ],
        {"pads": [1, 1, 1, 1]},
    )


def _correlated(x: Array, w: Array) -> Array:
    return scipy.signal.correlate2d(x[0, 0], w[0, 0], "valid")[None, None]


def transposed() -> Iterator[Case]:
    for group in (1, 2):
        for options in (
            {},
            {"strides": [2, 3]},
            {"pads": [1, 0, 1, 1]},
            {"strides": [2, 2], "output_padding": [1, 1]},
            {"dilations": [2, 1]},
            {"strides": [2, 2], "output_shape": [9, 8]},
            {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        ):
            x, w = DRAWN.floats(1, 4, 4, 4), DRAWN.floats(4, 3, 3, 2)
            yield case("ConvTranspose", [x, w, DRAWN.floats(3 * group)], {"group": group, **options})
    yield case("ConvTranspose", [DRAWN.floats(1, 2, 5), DRAWN.floats(2, 3, 4)], {"strides": [2]})


def pools() -> Iterator[Case]:
    kernels = (
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [2, 2], "strides": [2, 3]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 0, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "strides": [2, 1]},
        {"kernel_shape": [2, 2], "dilations": [2, 3]},
    )
    for options in kernels:
        x = DRAWN.floats(2, 3, 8, 9)
        yield case("MaxPool", [x], options, outputs=2)
        for order in (1,):
            yield case("MaxPool", [x], {**options, "storage_order": order}, outputs=2)
        for include in (0, 1):
            yield case("AveragePool", [x], {**options, "count_include_pad": include}, opset=19)
        if "dilations" not in options:
            yield case("LpPool", [x], {**options, "p": 3}, opset=18)
    for shape, kernel in (((1, 2, 7), [3]), ((1, 2, 4, 5, 6), [2, 3, 2])):
        yield case("MaxPool", [DRAWN.floats(*shape)], {"kernel_shape": kernel})
        yield case("AveragePool", [DRAWN.floats(*shape)], {"kernel_shape": kernel})
    x = DRAWN.floats(2, 3, 4, 5)
    yield case("GlobalAveragePool", [x], formula=lambda x: x.mean(axis=(2, 3), keepdims=True))
    yield case("GlobalMaxPool", [x], formula=lambda x: x.max(axis=(2, 3), keepdims=True))
    yield case("GlobalLpPool", [x], {"p": 3}, formula=lambda x: (np.abs(x) ** 3).sum(axis=(2, 3), keepdims=True) ** (1 / 3))
    indices = np.array([[[[5, 7], [13, 15]]]])
    yield case("MaxUnpool", [DRAWN.floats(1, 1, 2, 2), indices], {"kernel_shape": [2, 2], "strides": [2, 2]})
    padded = lambda x, *_: np.array(
        [[[[0] * 5, [0, x[0, 0, 0, 0], 0, x[0, 0, 0, 1], 0], [0] * 5, [0, x[0, 0, 1, 0], 0, x[0, 0, 1, 1], 0], [0] * 5]]], x.dtype
    )
    unpooled = [DRAWN.floats(1, 1, 2, 2), indices, np.array([1, 1, 5, 5])]
    yield case("MaxUnpool", unpooled, {"kernel_shape": [2, 2], "strides": [2, 2]}, label="larger", formula=padded)
    yield case(
        "MaxRoiPool",
        [DRAWN.floats(2, 3, 8, 8), np.array([[0, 0, 0, 5, 5], [1, 2, 1, 7, 6]], np.float32)],
        {"pooled_shape": [2, 3], "spatial_scale": 1.0},
    )


def columns() -> Iterator[Case]:
    for options in ({}, {"pads": [1, 0, 1, 1]}, {"strides": [2, 1]}, {"dilations": [1, 2]}):
        height, width = (_places(i, options) for i in (0, 1))
        yield case("Col2Im", [DRAWN.floats(1, 3 * 4, height * width), np.array([5, 6]), np.array([2, 2])], options)


def _places(axis: int, options: dict[str, list[int]]) -> int:
    pads, stride, dilation = (
        options.get(name, default) for name, default in (("pads", [0] * 4), ("strides", [1, 1]), ("dilations", [1, 1]))
    )
    return ((5, 6)[axis] + pads[axis] + pads[axis + 2] - dilation[axis] - 1) // stride[axis] + 1


def families() -> Iterator[Case]:
    for family in (convolutions, transposed, pools, columns):
        yield from family()
