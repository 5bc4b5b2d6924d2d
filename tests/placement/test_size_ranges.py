"""Ranges of sizes: which measured placement a size takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.module.small_models import relu
from xrt.graph import DType, TensorType, Value
from xrt.partition import Plan
from xrt.placement import TuningResult
from xrt.placement.size_ranges import SizeRanges, format_sizes, name_open_axes, parse_sizes, read_sizes, resize_values

TUNED = TuningResult(Plan(relu(), (), ()))
SIZE = st.integers(1, 5000)


def test_octaves_are_ranges_of_their_own() -> None:
    ranges = SizeRanges({})
    keys = [ranges.get_key({"s": size}) for size in (0, 1, 2, 3, 4, 7, 8, 1023, 1024)]
    assert keys == [(0,), (1,), (2,), (2,), (3,), (3,), (4,), (10,), (11,)]
    assert ranges.list_representatives({"s": 5, "b": 2}) == [{"s": 5, "b": 2}]


@pytest.mark.parametrize(("size", "near"), [(1, 16), (45, 16), (46, 128), (128, 128), (260, 512), (256, 128), (9000, 512)])
def test_asked_sizes_serve_up_to_the_geometric_mean(size: int, near: int) -> None:
    ranges = SizeRanges(parse_sizes({"s": [512, 16, 128]}))
    assert ranges.list_representatives({"b": 3, "s": size})[0] == {"b": 3, "s": near}
    assert {one["s"] for one in ranges.list_representatives({"b": 3, "s": size})} == {16, 128, 512}
    assert ranges.get_key({"b": 3, "s": size}) == (2, near)


@pytest.mark.slow
@given(st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=8), SIZE, SIZE, st.lists(SIZE, max_size=3))
def test_a_size_takes_its_range_or_the_nearest_one(known: list[tuple[int, int]], b: int, s: int, asked: list[int]) -> None:
    ranges = SizeRanges(parse_sizes({"s": asked}) if asked else {})
    assert ranges.find({"b": b, "s": s}) is None
    for pair in known:
        ranges.add(dict(zip("bs", pair, strict=True)), TUNED)
    sizes = {"b": b, "s": s}
    found = ranges.find(sizes)
    assert found is not None
    if ranges.is_measured(sizes):
        assert ranges.get_key(found.sizes) == ranges.get_key(sizes)
    else:
        logs = {one: sum(abs(np.log2(x + 0.5) - np.log2(y + 0.5)) for x, y in zip(one, (b, s), strict=True)) for one in known}
        kept = {tuple(one.sizes.values()) for one in ranges}
        assert logs[tuple(found.sizes.values())] == min(logs[one] for one in kept)


OPEN = (
    Value("x", TensorType(DType.FLOAT32, ("b", "s", 3))),
    Value("n", TensorType(DType.INT64, ())),
    Value("y", TensorType(DType.INT64, ("s", None))),
)


def test_extents_without_a_name_have_one() -> None:
    assert name_open_axes(OPEN) == ["b", "s", "s", "y[1]"]
    values = [np.zeros((2, 5, 3)), np.int64(1), np.zeros((5, 4), "int64")]
    assert read_sizes(OPEN, values) == {"b": 2, "s": 5, "y[1]": 4}
    assert format_sizes(read_sizes(OPEN, values)) == "b=2, s=5, y[1]=4"


@pytest.mark.slow
@given(st.integers(0, 4), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_values_of_other_sizes_are_made_of_those_given(b: int, s: int, more_b: int, more_s: int) -> None:
    rng = np.random.default_rng(0)
    values: list[Any] = [rng.random((b, s, 3)), np.int64(7), rng.integers(0, 9, (s, 4))]
    made = resize_values(OPEN, values, {"b": more_b, "s": more_s, "y[1]": 4})
    assert [x.shape for x in made] == [(more_b, more_s, 3), (), (more_s, 4)]
    assert [x.dtype for x in made] == [x.dtype for x in values]
    assert set(made[2].ravel()) <= {*values[2].ravel(), *([0] if not s else [])}
    same = resize_values(OPEN, values, {"b": b, "s": s, "y[1]": 4})
    assert all(one is other for one, other in zip(same, values, strict=True))
