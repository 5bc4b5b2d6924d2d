"""Images read between their elements: Resize, GridSample, AffineGrid, RoiAlign, DeformConv."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.interpolate
import scipy.signal

from tests.witness.case import Array, Case, Drawn, case, forms

DRAWN = Drawn("resampling")

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize", "half_pixel_symmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized() -> Iterator[Case]:
    x = DRAWN.floats(1, 2, 5, 4)
    roi = np.array([0, 0, 0.25, 0.125, 1, 1, 0.875, 0.75], np.float32)
    for coordinates in COORDINATES:
        region = roi if coordinates == "tf_crop_and_resize" else None
        smaller = (
            [1, 2, 4, 2] if coordinates == "half_pixel_symmetric" else [1, 2, 3, 2]
        )  # no place on an element, but for rounding
        for sizes in ([1, 2, 10, 8], smaller, [1, 2, 7, 6]):
            modes = [{"mode": "linear"}, {"mode": "cubic"}, *({"mode": "nearest", "nearest_mode": how} for how in NEAREST)]
            for mode in modes:
                given = [x, region, None, np.array(sizes)]
                options = {**mode, "coordinate_transformation_mode": coordinates}
                if coordinates == "tf_crop_and_resize":
                    options["extrapolation_value"] = 7.5
                label = f"{sizes},{','.join(map(str, options.values()))}"
                yield case("Resize", given, options, opset=19, label=label, constants=(1, 2, 3))
    for scales, mode in product(([1, 1, 2, 3], [1, 1, 0.5, 0.75], [1, 1, 1.5, 2.5]), ("linear", "cubic", "nearest")):
        yield case(
            "Resize", [x, None, np.array(scales, np.float32)], {"mode": mode}, label=f"scales {scales},{mode}", constants=(1, 2)
        )
    for mode, sizes, outside in product(("linear", "cubic"), ([1, 2, 3, 2], [1, 2, 9, 7]), (0, 1)):
        options = {"mode": mode, "antialias": 1, "exclude_outside": outside if mode == "cubic" else 0}
        yield case(
            "Resize", [x, None, None, np.array(sizes)], options, label=f"antialias,{mode},{sizes},{outside}", constants=(1, 2, 3)
        )
    for policy, axes in product(("not_larger", "not_smaller"), ([2, 3], [3, 2])):
        options = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": axes}
        yield case("Resize", [x, None, None, np.array([9, 9])], options, label=f"{policy},{axes}", constants=(1, 2, 3))
    for mode in ("nearest", "linear"):
        yield case("Upsample", [x, np.array([1, 1, 2, 3], np.float32)], {"mode": mode}, opset=9, constants=(1,))
        yield case("Resize", [x, np.array([1, 1, 2, 2], np.float32)], {"mode": mode}, opset=10, constants=(1,))


def sampled() -> Iterator[Case]:
    for mode, padding, corners in product(("linear", "cubic", "nearest"), ("zeros", "border", "reflection"), (0, 1)):
        options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        for extents in ((4, 5), (1, 3), (7, 2)):
            given = [DRAWN.floats(2, 3, *extents), DRAWN.floats(2, 3, 4, 2, scale=1.5)]
            yield case("GridSample", given, options, opset=20)
            legacy = {**options, "mode": {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)}
            yield case("GridSample", given, legacy, opset=16)
        if mode != "cubic":
            yield case("GridSample", [DRAWN.floats(2, 3, 4, 5, 3), DRAWN.floats(2, 3, 4, 2, 3, scale=1.5)], options, opset=20)


def affine() -> Iterator[Case]:
    for corners in (0, 1):
        for size in ([2, 3, 4, 5], [2, 3, 1, 4], [2, 3, 3, 4, 2]):
            axes = len(size) - 2
            theta = DRAWN.floats(2, axes, axes + 1)
            yield case(
                "AffineGrid",
                [theta, np.array(size)],
                {"align_corners": corners},
                opset=20,
                label=f"{size},{corners}",
                formula=lambda t, s, c=corners: _grid(t, s, c),
            )


def _grid(theta: Array, size: Array, corners: int) -> Array:
    """Places from -1 to 1 along each axis, the last axis first, one behind them, times the matrix: as torch describes it."""
    axes = [_places(int(n), corners) for n in size[2:]]
    mesh = np.stack([*np.meshgrid(*axes, indexing="ij")][::-1], axis=-1)
    homogeneous = np.concatenate([mesh, np.ones((*mesh.shape[:-1], 1))], axis=-1)
    return np.einsum("...j,nij->n...i", homogeneous, theta.astype(np.float64)).astype(theta.dtype)


def _places(count: int, corners: int) -> Array:
    if corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(1) - 1
    return (2 * np.arange(count) + 1) / count - 1


def regions() -> Iterator[Case]:
    boxes = np.array([[0, 0, 5.5, 5], [1.5, 2, 6, 7.5], [-1, 3, 9, 9], [3, 3, 3.2, 3.1]], np.float32)
    images = np.array([0, 1, 0, 1])
    for options in forms(
        mode=("avg",), sampling_ratio=(0, 1, 2), coordinate_transformation_mode=("half_pixel", "output_half_pixel")
    ):
        yield case(
            "RoiAlign",
            [DRAWN.floats(2, 3, 8, 8), boxes, images],
            {"output_height": 2, "output_width": 3, "spatial_scale": 0.75, **options},
        )
    yield case(
        "RoiAlign",
        [np.abs(DRAWN.floats(2, 3, 8, 8)), boxes, images],
        {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "mode": "max"},
    )
    yield case(
        "RoiAlign",
        [DRAWN.floats(2, 3, 8, 8), boxes, images],
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
        opset=10,
    )


def deformed() -> Iterator[Case]:
    for group, offsets, masked in product((1, 2), (1, 2), (False, True)):
        x, w = DRAWN.floats(2, 4, 5, 6), DRAWN.floats(4, 4 // group, 2, 2)
        offset, mask = DRAWN.floats(2, offsets * 8, 4, 5), DRAWN.floats(2, offsets * 4, 4, 5) if masked else None
        options = {"group": group, "offset_group": offsets, "kernel_shape": [2, 2]}
        formula = lambda x, w, o, b, m=None, g=group, n=offsets: _deformed(x, w, o, b, m, g, n)
        yield case(
            "DeformConv",
            [x, w, offset, DRAWN.floats(4), mask],
            options,
            label=f"{group},{offsets},{masked}",
            formula=formula,
            source="SciPy",
        )
    strided = {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}
    given = [DRAWN.floats(1, 2, 5, 6), DRAWN.floats(2, 2, 2, 2), np.zeros((1, 8, 3, 5), np.float32)]
    yield case("DeformConv", given, strided, label="strided", formula=_unbent, source="SciPy")
    for shape in ((1, 1, 1, 6), (1, 1, 5, 1)):  # an axis of one element has no distance to measure by
        kernel = [min(2, n) for n in shape[2:]]
        places = [n - k + 1 for n, k in zip(shape[2:], kernel, strict=True)]
        given = [DRAWN.floats(*shape), DRAWN.floats(1, 1, *kernel), DRAWN.floats(1, 4, *places, scale=0.4), DRAWN.floats(1)]
        yield case(
            "DeformConv",
            given,
            {"kernel_shape": kernel},
            formula=lambda x, w, o, b: _deformed(x, w, o, b, None, 1, 1),
            source="SciPy",
        )


def _unbent(x: Array, w: Array, offset: Array) -> Array:
    """Return the plain convolution of strides 2 and 1, a dilation of 2 along the last axis, and pads."""
    padded = np.pad(x[0], ((0, 0), (1, 1), (0, 1)))
    wide = np.zeros((*w.shape[:3], 3), w.dtype)
    wide[..., ::2] = w
    found = [sum(scipy.signal.correlate2d(padded[c], one[c], "valid") for c in range(len(padded))) for one in wide]
    return np.stack(found)[None, :, ::2].astype(x.dtype)


def _deformed(x: Array, w: Array, offset: Array, bias: Array, mask: Array | None, group: int, offsets: int) -> Array:
    """Read each element of each window where its offset moves it, between elements linearly, zero outside."""
    n, channels, *extents = x.shape
    kernel = list(np.ndindex(*w.shape[2:]))
    places = offset.shape[2:]
    moves = offset.reshape(n, offsets, len(kernel), 2, *places)
    weights = np.ones((n, offsets, len(kernel), *places)) if mask is None else mask.reshape(n, offsets, len(kernel), *places)
    out = np.zeros((n, len(w), *places)) + bias[:, None, None]
    for image, channel in np.ndindex(n, channels):
        read = scipy.interpolate.RegularGridInterpolator(
            [np.arange(-1, extent + 1) for extent in extents], np.pad(x[image, channel], 1), bounds_error=False, fill_value=0
        )
        by = channel // (channels // offsets)
        for number, (row, column) in enumerate(kernel):
            corner = np.stack(np.meshgrid(*map(np.arange, places), indexing="ij")) + np.array([row, column])[:, None, None]
            found = read((corner + moves[image, by, number]).transpose(1, 2, 0)) * weights[image, by, number]
            for made in range(len(w)):
                if made // (len(w) // group) == channel // (channels // group):
                    out[image, made] += found * w[made, channel % (channels // group), row, column]
    return out.astype(x.dtype)


def families() -> Iterator[Case]:
    for family in (resized, sampled, affine, regions, deformed):
        yield from family()
