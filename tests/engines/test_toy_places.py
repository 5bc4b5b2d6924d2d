"""Toy's kernels that move elements about or read between them, on the inputs that are easy to get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines.toy_running import drawn, f32, i64, one, same

# ---------------------------------------------------------------------- places


def test_slices_backwards() -> None:
    x = np.arange(5, dtype=np.float32)
    for start, end, step, expected in [(-1, -99, -1, x[::-1]), (3, 0, -2, x[3:0:-2]), (9, 1, -1, x[:1:-1]), (1, 99, 2, x[1::2])]:
        same(one("Slice", x, i64([start]), i64([end]), i64([0]), i64([step])), expected)


def test_gather_counts_from_the_end() -> None:
    x = drawn(3, 4)
    same(one("Gather", x, i64([[-1, 0]]), axis=1), x[:, [[-1, 0]]])
    same(one("GatherElements", x, i64([[0, -1]]), axis=1), x[:1, [0, -1]])
    same(one("GatherND", x, i64([[2, -1], [0, 1]])), x[[2, 0], [-1, 1]])


def test_scatter_meets_a_place_twice() -> None:
    x, places, new = f32(1, 1, 1), i64(0, 0, -1), f32(5, 7, 3)
    same(one("ScatterElements", x, places, new, reduction="add"), f32(13, 1, 4))
    same(one("ScatterElements", x, places, new, reduction="max"), f32(7, 1, 3))
    same(one("ScatterElements", x, places, new), f32(7, 1, 3))
    same(one("ScatterND", x, places[:, None], new, reduction="mul"), f32(35, 1, 3))


def test_one_hot_outside_is_off() -> None:
    same(one("OneHot", i64(0, -1, 5), i64(3), f32(2, 9)), f32([[9, 2, 2], [2, 2, 9], [2, 2, 2]]))
    same(one("OneHot", i64(1), i64([2]), i64(0, 1), axis=0), i64(0, 1))


def test_unique_in_order_of_appearance_along_an_axis() -> None:
    x = f32([[2, 1, 2], [0, 3, 0]])
    y, first, inverse, counts = one("Unique", x, outputs=4, sorted=0, axis=1)
    same(y, f32([[2, 1], [0, 3]]))
    assert [first.tolist(), inverse.tolist(), counts.tolist()] == [[0, 1], [0, 1, 0], [2, 1]]
    same(one("Unique", i64([[3, 1], [3, 2]]), sorted=0), i64(3, 1, 2))


def test_padding_that_crops() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same(one("Pad", x, i64([0, -1, 1, 1])), f32([[1, 2, 0], [4, 5, 0], [0, 0, 0]]))
    same(one("Pad", x, i64([1, 1]), f32(9.0), i64([-1])), f32([[9, 0, 1, 2, 9], [9, 3, 4, 5, 9]]))
    text = np.array(["a"], dtype=object)
    assert one("Pad", text, i64([1, 0]), opset=25).tolist() == ["", "a"]


def test_reverse_sequence_both_ways() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same(one("ReverseSequence", x, i64(3, 2), batch_axis=0, time_axis=1), f32([[2, 1, 0], [4, 3, 5]]))
    same(one("ReverseSequence", x.T, i64(3, 2), batch_axis=1, time_axis=0), f32([[2, 1, 0], [4, 3, 5]]).T)


def test_no_elements_at_all() -> None:
    nothing = np.empty((0, 3), np.float32)
    assert one("NonZero", nothing).shape == (2, 0)
    assert one("NonZero", np.array(5)).shape == (0, 1)
    same(one("Concat", nothing, f32([[1, 2, 3]]), axis=0), f32([[1, 2, 3]]))
    assert one("Softmax", nothing).shape == (0, 3)


def test_range_does_not_accumulate_errors() -> None:
    same(one("Range", f32(0.0), f32(1.0), f32(0.1)), (np.arange(10, dtype=np.float32) * np.float32(0.1)))
    same(one("Range", i64(10), i64(4), i64(-3)), i64(10, 7))
    same(one("Range", i64(1), i64(1), i64(1)), i64([]))


# ---------------------------------------------------------------------- interpolation


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1.5, 2, 2.5, 3]),
        ({"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, [1, 1.6, 2.2, 2.8, 3]),
        ({"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}, [1, 1, 2, 2, 3]),
        ({"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}, [1, 2, 3, 3, 3]),
    ],
)
def test_resize(attributes: dict[str, Any], expected: list[float]) -> None:
    same(one("Resize", f32(1, 2, 3), None, None, i64([5]), **attributes), f32(expected))


def test_a_straight_line_stays_one() -> None:
    line = np.arange(8, dtype=np.float64)
    for mode in ("linear", "cubic"):
        y = one("Resize", line, None, f32([2.0]), mode=mode, cubic_coeff_a=-0.5)
        np.testing.assert_allclose(np.diff(y[5:-5]), 0.5, atol=1e-6)
    shrunk = one("Resize", line, None, f32([0.5]), mode="linear", antialias=1)
    np.testing.assert_allclose(np.diff(shrunk[1:-1]), 2)


def test_resize_of_integers_rounds_and_saturates() -> None:
    x = np.array([0, 0, 255, 255], np.uint8)
    y = one("Resize", x, None, f32([2.0]), mode="cubic")
    assert (y.dtype, y.max(), y.min()) == (np.uint8, 255, 0)
