"""Few regions, against the shortest sequence, and few values between them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from xrt.partition.clustering import (
    CutCounter,
    DependencyGraph,
    QuotientGraph,
    find_earliest_slots,
    find_engine_sequence,
    minimize_cut,
)

DEVICES = ("", "cuda:0", "cuda:1")


@st.composite
def units(draw: st.DrawFn, most: int = 7, engines: int = 3, devices: int = 3) -> QuotientGraph:
    count = draw(st.integers(0, most))
    before = [tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else () for i in range(count)]
    wanted = [draw(st.integers(0, engines - 1)) for _ in range(count)]
    places_ = [DEVICES[draw(st.integers(0, devices - 1))] for _ in range(count)]
    return QuotientGraph.of(DependencyGraph(before), wanted, places_)


def seeded(count: int, kinds: int, seed: int, window: int = 10) -> QuotientGraph:
    chance = random.Random(seed)
    before = [
        tuple({chance.randrange(max(0, i - window), i) for _ in range(chance.randint(0, 2))}) if i else () for i in range(count)
    ]
    return QuotientGraph.of(DependencyGraph(before), [chance.randrange(kinds) for _ in range(count)], [""] * count)


def is_grouping(units: QuotientGraph, group: list[int]) -> bool:
    """Whether the groups are numbered as they can run, without gaps, each of kinds that one of them accepts."""
    if any(group[earlier] > group[unit] for unit, before in enumerate(units.graph.predecessors) for earlier in before):
        return False
    kinds: dict[int, set[int]] = {}
    for unit, own in enumerate(group):
        kinds.setdefault(own, set()).add(units.kind[unit])
    accepted = [units.kinds.find_compatible(k) for k in range(len(units.kinds))]
    return sorted(kinds) == list(range(len(kinds))) and all(any(k <= a for a in accepted) for k in kinds.values())


@pytest.mark.slow
@given(units())
def test_a_sequence_gives_a_grouping(units: QuotientGraph) -> None:
    assert is_grouping(units, minimize_cut(units, find_engine_sequence(units), (), None))


@pytest.mark.parametrize("seed", range(25))
def test_the_count_of_regions_is_near_the_least(seed: int) -> None:
    units = seeded(30, 4, seed)
    assert shortest(units) <= len(find_engine_sequence(units)) <= shortest(units) + 1


def shortest(units: QuotientGraph) -> int:
    """Return the length of the shortest sequence of kinds in which all can run: breadth first, over what has run."""
    reached, length = {frozenset[int]()}, 0
    while all(len(ran) < len(units) for ran in reached):
        reached = {exhausted(units, ran, kind) for ran in reached for kind in range(len(units.kinds))}
        length += 1
    return length


def exhausted(units: QuotientGraph, ran: frozenset[int], kind: int) -> frozenset[int]:
    then = set(ran)
    for unit, before in enumerate(units.graph.predecessors):
        if units.kind[unit] == kind and then.issuperset(before):
            then.add(unit)
    return frozenset(then)


@pytest.mark.slow
@given(units(most=14, devices=1), st.sampled_from([0, 1, None]))
def test_sweeps_let_fewer_values_cross(units: QuotientGraph, sweeps: int | None) -> None:
    found = find_engine_sequence(units)
    ends = [unit for unit in range(len(units)) if unit % 3 == 0]
    swept = minimize_cut(units, found, ends, sweeps)
    assert is_grouping(units, swept)
    assert crossings(units, swept, ends) <= crossings(units, find_earliest_slots(units, found), ends)
    if sweeps is None:
        assert crossings(units, swept, ends) <= crossings(units, minimize_cut(units, found, ends, 1), ends)


def test_a_sweep_moves_a_side_branch_to_its_reader() -> None:
    """x -> a(0) -> b(1) -> c(0), and s(0) from nothing into c: s belongs to c's region, not to a's."""
    units = QuotientGraph.of(DependencyGraph([(), (), (0,), (1, 2)]), [0, 0, 1, 0], [""] * 4)
    assert find_earliest_slots(units, find_engine_sequence(units)) == [0, 0, 1, 2]
    assert minimize_cut(units, find_engine_sequence(units), (), 1) == [0, 2, 1, 2]


def test_a_sweep_that_saves_nothing_is_taken_back() -> None:
    """s(0) reads p and q(0), which b(1) reads too, and c(0) reads b and s: moving s to c only lets p and q cross instead."""
    units = QuotientGraph.of(DependencyGraph([(), (), (0, 1), (0, 1), (2, 3)]), [0, 0, 0, 1, 0], [""] * 5)
    state = CutCounter(units, find_engine_sequence(units), (), find_earliest_slots(units, find_engine_sequence(units)))
    assert state.sweep() == 0
    assert state.place == [0, 0, 2, 1, 2]
    assert minimize_cut(units, find_engine_sequence(units), (), 1) == [0, 0, 0, 1, 2]


def crossings(units: QuotientGraph, place: list[int], ends: list[int]) -> int:
    after = units.graph.successors()
    total = 0
    for unit, at in enumerate(place):
        elsewhere = {place[later] for later in after[unit]} - {at}
        total += len(elsewhere) + bool(elsewhere or unit in ends)
    return total
