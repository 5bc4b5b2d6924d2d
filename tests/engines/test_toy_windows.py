"""Toy's convolutions and pools against loops that follow the definition word by word, and against numbers computed by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.engines.toy_running import Array, f32, i64, one, same
from xrt.engines.toy.kernels import windows

SEED = np.random.default_rng(7)


def drawn(*shape: int) -> Array:
    return SEED.standard_normal(shape).astype(np.float32)


def looped(x: Array, w: Array, strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...], group: int) -> Array:
    """Return the convolution, one product after the other, in double precision."""
    rank = x.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, strides, strict=True)]
    y = np.zeros((len(x), len(w), *sizes))
    each = len(w) // group
    for n, m, *at in product(range(len(x)), range(len(w)), *map(range, sizes)):
        for c, *k in product(range(w.shape[1]), *map(range, w.shape[2:])):
            place = tuple(a * s + o * d for a, s, o, d in zip(at, strides, k, dilations, strict=True))
            y[(n, m, *at)] += x[(n, m // each * w.shape[1] + c, *place)] * w[(m, c, *k)]
    return y.astype(np.float32)


CASES = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 2)),
        "dilations": st.tuples(st.integers(1, 2), st.integers(1, 3)),
        "pads": st.tuples(*[st.integers(0, 2)] * 4),
        "group": st.sampled_from([1, 2, 4]),
        "each": st.sampled_from([1, 2]),
    }
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(CASES)
def test_conv(case: dict[str, Any]) -> None:
    x, w = drawn(2, 4, 7, 8), drawn(4 * case["each"], 4 // case["group"], *case["kernel"])
    attributes = {name: case[name] for name in ("strides", "dilations", "pads", "group")}
    bias = drawn(len(w))
    same(one("Conv", x, w, bias, **attributes), looped(x, w, **attributes) + bias[:, None, None])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(CASES)
def test_conv_transpose_is_the_transposed_map(case: dict[str, Any]) -> None:
    """The scalar product of conv(x) with y is that of x with conv_transpose(y), whatever x and y."""
    x, w = drawn(1, 4, 7, 8), drawn(4 * case["each"], 4 // case["group"], *case["kernel"])
    attributes = {name: case[name] for name in ("strides", "dilations", "pads", "group")}
    forward = one("Conv", x, w, **attributes)
    y = drawn(*forward.shape)
    spans = [(k - 1) * d + 1 for k, d in zip(case["kernel"], case["dilations"], strict=True)]
    pads = case["pads"]
    rests = [
        (n + b + e - span) % s for n, b, e, span, s in zip(x.shape[2:], pads[:2], pads[2:], spans, case["strides"], strict=True)
    ]
    back = one("ConvTranspose", y, w, output_padding=rests, **attributes)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.vdot(forward, y), np.vdot(x, back), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(5,), (4, 5, 3)])
def test_conv_of_other_ranks(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    x, w = drawn(1, 2, *shape), drawn(3, 2, *(2,) * rank)
    same(one("Conv", x, w), looped(x, w, (1,) * rank, (1,) * rank, (0,) * 2 * rank, 1))


def test_conv_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(2, 3, 11, 9), drawn(4, 3, 3, 3)
    whole = one("Conv", x, w, strides=[2, 1])
    monkeypatch.setattr(windows, "BLOCK", 1)
    same(one("Conv", x, w, strides=[2, 1]), whole)


@pytest.mark.parametrize(
    ("auto_pad", "expected"),
    [("SAME_UPPER", [3, 5, 7, 4]), ("SAME_LOWER", [1, 3, 5, 7]), ("VALID", [3, 5, 7])],
)
def test_auto_pad(auto_pad: str, expected: list[float]) -> None:
    x, w = f32([[[1, 2, 3, 4]]]), f32([[[1, 1]]])
    same(one("Conv", x, w, auto_pad=auto_pad), f32([[expected]]))


def test_conv_of_half_precision_is_rounded_once() -> None:
    x, w = np.full((1, 64, 1), 2.0, np.float16), np.full((1, 64, 1), 16.0, np.float16)
    x[0, 0] = 2.0**-4
    same(one("Conv", x, w), np.array([[[2017.0]]], np.float16))


def test_conv_transpose_to_a_shape() -> None:
    x, w = f32([[[1, 2]]]), f32([[[1, 10, 100]]])
    same(one("ConvTranspose", x, w), f32([[[1, 12, 120, 200]]]))
    same(one("ConvTranspose", x, w, strides=[2]), f32([[[1, 10, 102, 20, 200]]]))
    same(one("ConvTranspose", x, w, strides=[2], output_shape=[4]), f32([[[10, 102, 20, 200]]]))
    same(one("ConvTranspose", x, w, strides=[2], auto_pad="SAME_UPPER"), f32([[[1, 10, 102, 20]]]))
    same(one("ConvTranspose", x, w, strides=[2], pads=[1, 0], output_padding=[1]), f32([[[10, 102, 20, 200, 0]]]))


def test_col2im_sums_what_overlaps() -> None:
    columns = f32([[[1, 2, 3], [10, 20, 30]]])
    same(one("Col2Im", columns, i64([4]), i64([2])), f32([[[1, 12, 23, 30]]]))


# ---------------------------------------------------------------------- pools

ROW = f32([[[1, 5, 2, 4, 3]]])


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("MaxPool", {}, [5, 5, 4, 4]),
        ("MaxPool", {"strides": [2]}, [5, 4]),
        ("MaxPool", {"strides": [2], "ceil_mode": 1}, [5, 4, 3]),
        ("MaxPool", {"pads": [1, 1]}, [1, 5, 5, 4, 4, 3]),
        ("MaxPool", {"dilations": [2]}, [2, 5, 3]),
        ("AveragePool", {}, [3, 3.5, 3, 3.5]),
        ("AveragePool", {"strides": [2], "ceil_mode": 1}, [3, 3, 3]),
        ("AveragePool", {"pads": [1, 1]}, [1, 3, 3.5, 3, 3.5, 3]),
        ("AveragePool", {"pads": [1, 1], "count_include_pad": 1}, [0.5, 3, 3.5, 3, 3.5, 1.5]),
        ("AveragePool", {"strides": [4], "pads": [0, 1], "count_include_pad": 1, "ceil_mode": 1}, [3, 1.5]),
        ("LpPool", {"p": 1}, [6, 7, 6, 7]),
    ],
)
def test_pools(op: str, attributes: dict[str, Any], expected: list[float]) -> None:
    same(one(op, ROW, kernel_shape=[2], **attributes), f32([[expected]]))


def test_a_window_that_would_start_in_the_padding_is_left_out() -> None:
    x = f32([[[1, 2, 3]]])
    same(one("MaxPool", x, kernel_shape=[1], strides=[2], pads=[0, 1], ceil_mode=1), f32([[[1, 3]]]))


def test_padding_never_wins() -> None:
    same(one("MaxPool", -ROW, kernel_shape=[2], pads=[1, 1]), f32([[[-1, -1, -2, -2, -3, -3]]]))
    same(one("MaxPool", np.array([[[-3, -5]]], np.int8), kernel_shape=[2], pads=[1, 0]), np.array([[[-3, -3]]], np.int8))


def test_places_of_the_greatest() -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    top, places = one("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[1, 2])
    same(top, x[:, :, 1:, 1::2])
    same(places, top.astype(np.int64))
    _, places = one("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[1, 2], storage_order=1)
    same(places[0, 0], i64([[1 * 3 + 1, 3 * 3 + 1], [1 * 3 + 2, 3 * 3 + 2]]))
    back = one(
        "MaxUnpool",
        top,
        one("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[1, 2])[1],
        i64(1, 2, 3, 4),
        kernel_shape=[2, 2],
        strides=[1, 2],
    )
    same(back, np.where(np.isin(x, top), x, f32(0.0)))


def test_global_pools() -> None:
    x = drawn(2, 3, 4, 5)
    same(one("GlobalAveragePool", x), x.mean(axis=(2, 3), keepdims=True))
    same(one("GlobalMaxPool", x), x.max(axis=(2, 3), keepdims=True))
    same(one("GlobalLpPool", x, p=2), np.sqrt((x * x).sum(axis=(2, 3), keepdims=True)))


def test_a_window_that_does_not_fit_says_so() -> None:
    from xrt.errors import RunFailed

    with pytest.raises(
        RunFailed, match=r"ValueError: a window of \[4\] does not fit into a tensor of \[3\] padded by \(0,\) and \(0,\)"
    ):
        one("Conv", f32([[[1, 2, 3]]]), f32([[[1, 1, 1, 1]]]))


# ---------------------------------------------------------------------- regions


def test_max_roi_pool() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    same(
        one("MaxRoiPool", x, f32([[0, 0, 0, 3, 3], [0, 1, 1, 1, 1]]), pooled_shape=[2, 2]),
        f32([[[[5, 7], [13, 15]]], [[[5, 5], [5, 5]]]]),
    )


def test_overlapping_boxes_are_dropped() -> None:
    boxes = f32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4], [1, 1, 3, 3]]])
    scores = f32([[[0.5, 0.9, 0.1, 0.6]]])
    limits = (i64([9]), f32([0.5]))
    same(one("NonMaxSuppression", boxes, scores, *limits), i64([[0, 0, 1], [0, 0, 3], [0, 0, 2]]))
    same(one("NonMaxSuppression", boxes, scores, *limits, f32([0.2])), i64([[0, 0, 1], [0, 0, 3]]))
    same(one("NonMaxSuppression", boxes, scores), np.empty((0, 3), np.int64))
