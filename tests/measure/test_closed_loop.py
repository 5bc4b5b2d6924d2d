"""Load in a closed loop, on a clock that only the calls move: throughput and latency follow from the time of a call."""

from __future__ import annotations

import threading

import pytest

from xrt.measure.timing import run_closed_loop


class Served:
    """An instance whose call takes a known time."""

    def __init__(self, call: float) -> None:
        self.call, self.now = call, 0.0
        self.calls: list[tuple[int, int]] = []

    def __call__(self, first: int, count: int) -> None:
        self.calls.append((first, count))
        self.now += self.call


@pytest.mark.parametrize(("depth", "latency"), [(1, 0.5), (2, 1.0), (3, 1.5)])
def test_a_request_waits_for_the_batches_before_its_own(depth: int, latency: float) -> None:
    first = Served(0.5)
    result = run_closed_loop([first], 4, 4 * depth, 20.0, clock=lambda: first.now)
    assert (result.concurrency, result.rate) == (4 * depth, pytest.approx(8.0))
    assert (result.p50, result.p99) == (pytest.approx(latency), pytest.approx(latency))


def test_every_call_has_a_full_batch_of_the_next_requests() -> None:
    first = Served(1.0)
    run_closed_loop([first], 2, 4, 3.0, clock=lambda: first.now)
    assert first.calls[:5] == [(0, 2), (0, 2), (0, 2), (2, 2), (4, 2)]


def test_a_call_longer_than_the_time_is_repeated_five_times() -> None:
    first = Served(10.0)
    result = run_closed_loop([first], 1, 2, 0.1, clock=lambda: first.now)
    assert len(first.calls) == 2 + 5
    assert result.rate == pytest.approx(0.1)


def test_instances_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    result = run_closed_loop([lambda first, count: both.wait()] * 2, 1, 2, 0.0)
    assert result.requests >= 2


def test_a_request_of_the_first_moment_counts_if_there_is_no_other() -> None:
    """The five calls answer requests that were all issued at the start."""
    first = Served(1.0)
    measured = run_closed_loop([first], 1, 8, 0.0, clock=lambda: first.now)
    assert (measured.requests, measured.p50, measured.p99) == (5, 3.0, 5.0)


def test_an_instance_that_fails_is_reported() -> None:
    def fail(first: int, count: int) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_closed_loop([fail, lambda first, count: None], 1, 2, 0.0)
