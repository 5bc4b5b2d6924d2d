"""Upper ends of intervals: they hold the true error as often as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from xrt.errors import CalibrationError
from xrt.precision.budget import ErrorBudget, bound_mean, bound_metric, bound_share, find_t

RANDOM = np.random.default_rng(0)


def test_quantiles_of_students_t() -> None:
    known = {1: 12.706, 4: 2.776, 19: 2.093, 25: 2.060, 40: 2.021, 120: 1.980, 100_000: 1.960}
    assert {freedom: find_t(freedom) for freedom in known} == pytest.approx(known, abs=1e-3)
    assert all(find_t(freedom) > find_t(freedom + 1) for freedom in range(1, 200))


def test_shares_have_wilsons_interval() -> None:
    assert bound_share([(0, 1)] * 40) == pytest.approx(0.0876, abs=1e-4)
    assert bound_share([(0, 1)] * 380) == pytest.approx(0.0100, abs=1e-4)
    assert bound_share([(1, 1), *[(0, 1)] * 99]) == pytest.approx(0.0545, abs=1e-4)
    assert bound_share([(1, 1)] * 4) == 1.0


@pytest.mark.slow
@given(st.lists(st.integers(1, 50).flatmap(lambda rows: st.tuples(st.integers(0, rows), st.just(rows))), min_size=1, max_size=30))
def test_a_share_is_within_its_interval_and_below_one(shares: list[tuple[int, int]]) -> None:
    share = sum(hits for hits, _ in shares) / sum(rows for _, rows in shares)
    assert share <= bound_share(shares) <= 1


def test_rows_of_one_item_that_are_alike_count_as_one() -> None:
    alike, spread = [(10, 10), *[(0, 10)] * 9], [(1, 10)] * 10
    assert bound_share(alike) > 0.3 > bound_share(spread)


@pytest.mark.parametrize("count", [5, 40])
def test_the_interval_of_a_share_holds_it(count: int) -> None:
    held = [bound_share([(int(hit), 1) for hit in RANDOM.random(count) < 0.1]) >= 0.1 for _ in range(1000)]
    assert np.mean(held) > 0.93


@pytest.mark.parametrize("count", [4, 12, 60])
def test_the_interval_of_a_metric_is_students_for_a_mean_and_holds_it(count: int) -> None:
    held = []
    for _ in range(300):
        losses = RANDOM.normal(0.02, 0.05, count)
        high = bound_metric(lambda places, losses=losses: float(np.mean([losses[at] for at in places])), count)
        assert high is not None
        if count <= 20:
            assert high == pytest.approx(float(losses.mean()) + bound_mean(list(losses)))
        held.append(high >= 0.02)
    assert np.mean(held) > 0.93  # the upper end of an interval of 95 % is passed in 2.5 of 100 cases


def measure_accuracy(outputs: list[Any], labels: list[Any]) -> float:
    return float(np.mean([output.argmax() == label for output, label in zip(outputs, labels, strict=True)]))


def test_a_metric_is_in_the_budget_only_with_its_interval() -> None:
    labels = [at % 3 for at in range(24)]
    exact = [[np.eye(3, dtype="float32")[label]] for label in labels]
    near = [[np.eye(3, dtype="float32")[(label + (at == 5)) % 3]] for at, label in enumerate(labels)]
    found = ErrorBudget(0.05, measure_accuracy).measure_error(exact, near, labels)
    assert found.error == pytest.approx(1 / 24) and found.high is not None and found.bound == found.high > 0.1
    same = ErrorBudget(0.05, measure_accuracy).measure_error(exact, exact, labels)
    assert (same.error, same.high) == (0.0, 0.0)
    other = ErrorBudget(0.05, "top1").measure_error(exact, near, labels)
    assert other.error == pytest.approx(1 / 24) and other.high == pytest.approx(bound_share([(1, 1), *[(0, 1)] * 23]))
    assert other.worst == 1.0


def test_a_metric_that_parts_do_not_serve_has_no_interval() -> None:
    def measure(outputs: list[Any], items: list[Any]) -> float:
        if len(items) < 6:
            raise ValueError("all six")
        return 1.0

    found = ErrorBudget(0.05, measure).measure_error([[0]] * 6, [[0]] * 6, range(6))
    assert (found.error, found.high, found.bound) == (0.0, None, 0.0)
    assert ErrorBudget(0.05, lambda outputs, items: 1.0).measure_error([[0]], [[0]], [0]).high is None


def test_other_answers_need_rows_of_floats() -> None:
    with pytest.raises(CalibrationError) as caught:
        ErrorBudget(0.05, "top1").measure_error([[np.array([1, 2])]], [[np.array([1, 2])]], [0])
    assert str(caught.value) == (
        "measure='top1' compares the largest elements of rows, and no output has rows of floats; use measure='relative' or a "
        "metric of your own"
    )
