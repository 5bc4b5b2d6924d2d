"""Law 1: cutting a function anywhere, and running the pieces, equals running it whole; bit for bit on toy's kernels."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.laws.laws import bounded, doubles, living, on_toy, outputs_of, pins, same_bits
from xrt.testing.running import make_module
from xrt.testing.strategies import Form, functions, labels, make_random_inputs
from xrt.verify.execution import run_regions, split_regions

pytestmark = pytest.mark.slow

PURE = Form(aliases=False)


@bounded
@given(data=st.data())
def test_pieces_give_what_the_whole_gives(data):
    function = data.draw(functions(PURE))
    cut = data.draw(labels(function))
    found = same_bits(run_regions(function, cut, make_random_inputs(function, 7), on_toy), function, 7)
    assert found, found.message


@bounded
@given(data=st.data())
def test_every_node_is_in_one_piece(data):
    function = data.draw(functions(PURE))
    parts = split_regions(function, data.draw(labels(function)))
    assert sorted(node.name for part in parts for node in part.nodes) == sorted(node.name for node in function.nodes)
    assert all(not part.captures for part in parts), "a piece is closed"


@bounded
@given(data=st.data(), most=st.one_of(st.none(), st.integers(1, 3)))
def test_a_plan_gives_what_the_whole_gives(data, most):
    function = data.draw(living())
    engines = doubles()
    with make_module(function, engines, maximum_nodes=most, pins=data.draw(pins(function, engines))) as module:
        found = same_bits(outputs_of(module(*make_random_inputs(function, 8)), function), function, 8)
    assert found, found.message
