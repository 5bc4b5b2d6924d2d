"""The exact partition of a sequence equals the best of all partitions."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrt.partition.interval_partition import Sequenced, cut_sequence, find_fewest_parts


@st.composite
def sequences(draw):
    count = draw(st.integers(1, 8))
    small = st.integers(0, 6)
    names = st.dictionaries(st.sampled_from("abcd"), st.just(1), max_size=2)
    sizes = {name: draw(small) for name in "abcd"}
    weights = [{name: sizes[name] for name in draw(names)} for _ in range(count)]
    costs = draw(st.lists(small, min_size=count, max_size=count))
    cuts = [0, *draw(st.lists(small, min_size=count - 1, max_size=count - 1)), 0]
    return Sequenced(costs, cuts, draw(st.lists(small, min_size=count, max_size=count)), weights)


def _measure(units: Sequenced, start: int, stop: int) -> tuple[float, int]:
    weights = {name: size for unit in units.weights[start:stop] for name, size in unit.items()}
    return sum(units.costs[start:stop]), sum(weights.values()) + max(units.live[start:stop])


def _list_all(units: Sequenced, parts: int, memory: int | None):
    """Yield every partition that fits, as (cost of the costliest part, bytes at the cuts)."""
    for inner in combinations(range(1, len(units)), parts - 1):
        edges = (0, *inner, len(units))
        measured = [_measure(units, start, stop) for start, stop in pairwise(edges)]
        if memory is None or all(held <= memory for _, held in measured):
            yield max(cost for cost, _ in measured), sum(units.cuts[cut] for cut in inner)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sequences(), st.integers(1, 5), st.one_of(st.none(), st.integers(0, 25)), st.sampled_from([0.0, 0.5]))
def test_no_partition_is_better(units, parts, memory, slack):
    every = list(_list_all(units, parts, memory)) if parts <= len(units) else []
    found = cut_sequence(units, parts, memory, slack)
    if not every:
        assert found is None
        return
    assert found is not None and found[-1] == len(units) and sorted(set(found)) == found and len(found) == parts
    edges = (0, *found)
    measured = [_measure(units, start, stop) for start, stop in pairwise(edges)]
    assert memory is None or max(held for _, held in measured) <= memory
    bound = min(cost for cost, _ in every) * (1 + slack)  # of integers and halves: exact
    assert max(cost for cost, _ in measured) <= bound
    assert sum(units.cuts[cut] for cut in found[:-1]) == min(moved for cost, moved in every if cost <= bound)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(sequences(), st.integers(0, 25))
def test_the_fewest_parts_are_those_below_which_there_are_none(units, memory):
    fewest = find_fewest_parts(units, memory)
    fitting = [parts for parts in range(1, len(units) + 1) if next(_list_all(units, parts, memory), None)]
    assert fewest == (fitting[0] if fitting else None)
