"""Operators by element on what was expanded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.passes.gradient.checking import Array, make_function, run
from xrt import ops
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.gradient.differentiation import read_before_expansion

DRAW = np.random.default_rng(9)


def f(*shape: int) -> Array:
    return DRAW.standard_normal(shape)


def repeat(x: Any) -> Any:
    return ops.Expand(x, np.asarray([2, 3, 4]))


@pytest.mark.parametrize(
    "build",
    [
        lambda x, s: repeat(s) + x,
        lambda x, s: x / repeat(s),
        lambda x, s: ops.Sum(x, repeat(s), x),
        lambda x, s: (repeat(s) * 2) * x,
        lambda x, s: ((3 - repeat(s) / 2) * repeat(s)) * x,
    ],
    ids=["Add", "Div", "Sum", "scalar", "chain"],
)
def test_an_operator_repeats_by_itself(build: Callable[..., Any]) -> None:
    inputs = f(2, 3, 4), f(3, 1)
    function = infer_shapes(make_function(build, inputs))
    changed = drop_dead_nodes(read_before_expansion(function))
    assert "Expand" not in [node.op for node in changed.nodes]
    for mine, wanted in zip(run(changed, inputs), run(function, inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize(
    "build",
    [lambda x, s: repeat(s), lambda x, s: repeat(s) + s, lambda x, s: ops.Max(repeat(s), x), lambda x, s: repeat(s) * repeat(x)],
    ids=["result", "smaller", "other operator", "both"],
)
def test_an_expansion_that_is_needed_stays(build: Callable[..., Any]) -> None:
    inputs = f(2, 1, 1), f(3, 1)
    function = infer_shapes(make_function(build, inputs))
    changed = drop_dead_nodes(read_before_expansion(function))
    assert "Expand" in [node.op for node in changed.nodes]
    for mine, wanted in zip(run(changed, inputs), run(function, inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)
