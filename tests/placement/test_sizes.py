"""Sizes of symbolic dims, and values of other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from xrt.graph import DType, TensorType, Value
from xrt.placement.sizes import format_sizes, list_open_axes, read_sizes, resize_values

OPEN = (
    Value("x", TensorType(DType.FLOAT32, ("b", "s", 3))),
    Value("n", TensorType(DType.INT64, ())),
    Value("y", TensorType(DType.INT64, ("s", None))),
)


def test_extents_without_a_name_have_one() -> None:
    assert [name for _, _, name in list_open_axes(OPEN)] == ["b", "s", "s", "y[1]"]
    values = [np.zeros((2, 5, 3)), np.int64(1), np.zeros((5, 4), "int64")]
    assert read_sizes(OPEN, values) == {"b": 2, "s": 5, "y[1]": 4}
    assert format_sizes(read_sizes(OPEN, values)) == "b=2, s=5, y[1]=4"


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
