"""A larger budget is never slower by the same measurements, and never slower than the exact plan."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from xrt.measure.statistics import FLOOR
from xrt.precision.integer_search import FAR, LAYERS, choose_fastest, list_contenders, list_targets

pytestmark = pytest.mark.slow

EXACT = 1.0


@dataclass(frozen=True)
class Measured:
    """A plan with what would be measured of it: its error, its first calls, and the ratio of a race, with its upper end."""

    name: int
    bound: float
    first_calls: float
    median: float
    high: float


ERRORS = st.floats(0, 1) | st.sampled_from([0.01, 0.05, 0.1])
TIMES = st.floats(0.01, 3) | st.sampled_from([0.5, 0.9, 1.0])


@st.composite
def draw_plans(draw: st.DrawFn) -> list[Measured]:
    rows = draw(st.lists(st.tuples(ERRORS, TIMES, TIMES, st.floats(0, 0.5)), max_size=14))
    return [Measured(at, bound, first, median, median + width) for at, (bound, first, median, width) in enumerate(rows)]


def choose(plans: list[Measured], limit: float) -> Measured | None:
    """Return what wins under a limit, the exact plan as None: the decision as the search takes it."""
    racing = list_contenders(plans, limit, EXACT)
    place = choose_fastest([(one.median, one.high) for one in racing], FLOOR)
    return None if place is None else racing[place]


LIMITS = st.tuples(ERRORS, ERRORS).map(sorted)


@given(draw_plans(), LIMITS)
def test_a_larger_budget_is_never_slower(plans: list[Measured], limits: list[float]) -> None:
    smaller, larger = (choose(plans, limit) for limit in limits)
    assert (1.0 if larger is None else larger.median) <= (1.0 if smaller is None else smaller.median)


@given(draw_plans(), ERRORS)
def test_what_wins_is_within_the_budget_and_faster_than_the_exact_plan_for_certain(plans: list[Measured], limit: float) -> None:
    found = choose(plans, limit)
    assert found is None or (found.bound <= limit and found.high < 1 - FLOOR)


@given(draw_plans(), LIMITS)
def test_what_races_under_a_budget_races_under_a_larger_one(plans: list[Measured], limits: list[float]) -> None:
    smaller, larger = (list_contenders(plans, limit, EXACT) for limit in limits)
    assert set(smaller) <= set(larger)


@given(draw_plans(), ERRORS)
def test_only_plans_that_others_dominate_are_out_of_the_race(plans: list[Measured], limit: float) -> None:
    racing = list_contenders(plans, limit, EXACT)
    for one in plans:
        better = [two for two in plans if two.bound <= one.bound and two.first_calls <= one.first_calls and two != one]
        if one.bound <= limit and one.first_calls <= FAR * EXACT and len(better) < LAYERS:
            assert one in racing
    assert not racing or min(one.first_calls for one in racing) == min(one.first_calls for one in plans if one.bound <= limit)


@given(st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)).map(sorted), st.sampled_from(["relative", "cosine", "top1"]))
def test_the_targets_of_a_smaller_budget_are_among_those_of_a_larger_one(limits: list[float], measure: str) -> None:
    smaller, larger = (list_targets(limit, measure) for limit in limits)
    assert set(smaller) <= set(larger) and all(one <= limits[0] for one in smaller)
    assert list(larger) == sorted(larger, reverse=True)
