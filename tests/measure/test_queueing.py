"""Queues whose waiting times are known: Pollaczek and Khinchine's mean, batches, several servers, the latency of a late start."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xrt.measure.open_loop import run_open_loop, sample_busy_instances
from xrt.measure.queueing import Batching, Times, draw_arrivals, simulate_queue, summarize_load
from xrt.measure.rate_search import search_rate


def _estimate(values: Times, parts: int = 40) -> tuple[float, float]:
    """Return a mean with its standard error by the means of batches, which the correlation of neighbors does not deceive."""
    means = np.array([part.mean() for part in np.array_split(values, parts)])
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(parts))


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_queue_of_constant_times_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    service = 0.01
    arrivals = draw_arrivals(load / service, 60_000, seed=3)
    waits = simulate_queue(arrivals, Batching(), lambda rows: service) - arrivals - service
    mean, error = _estimate(waits)
    assert abs(mean - load * service / (2 * (1 - load))) < 4 * error


@pytest.mark.slow
def test_a_queue_of_varying_times_waits_as_pollaczek_and_khinchine_say() -> None:
    generator, rate = np.random.default_rng(5), 50.0
    arrivals = draw_arrivals(rate, 60_000, seed=4)
    done = simulate_queue(arrivals, Batching(), lambda rows: 0.01 * generator.exponential())
    mean, error = _estimate(done - arrivals)
    assert abs(mean - 1 / (100.0 - rate)) < 4 * error  # M/M/1: the time in the system


@pytest.mark.slow
def test_two_servers_wait_as_erlang_says() -> None:
    generator, rate, service = np.random.default_rng(6), 120.0, 0.01
    arrivals = draw_arrivals(rate, 60_000, seed=5)
    done = simulate_queue(arrivals, Batching(), lambda rows: service * generator.exponential(), instances=2)
    offered = rate * service
    busy = offered**2 / (offered**2 + (2 - offered) * (1 + offered))  # Erlang's C of two servers
    mean, error = _estimate(done - arrivals)
    assert abs(mean - service - busy * service / (2 - offered)) < 4 * error


def test_batches_serve_what_single_calls_cannot() -> None:
    arrivals = draw_arrivals(500.0, 5000, seed=0)

    def service(rows: int) -> float:
        return 0.008 + 0.001 * rows

    alone = summarize_load(500.0, arrivals, simulate_queue(arrivals, Batching(), service))
    joined = summarize_load(500.0, arrivals, simulate_queue(arrivals, Batching(32), service))
    assert alone.p50 > 5.0
    assert joined.p99 < 0.05


def test_a_batch_starts_when_it_is_full_or_the_oldest_has_waited() -> None:
    arrivals = np.array([0.0, 0.001, 0.002, 0.1])
    taken: list[int] = []

    def service(rows: int) -> float:
        taken.append(rows)
        return 0.01

    done = simulate_queue(arrivals, Batching(3, max_wait=0.05), service)
    assert taken == [3, 1]
    np.testing.assert_allclose(done, [0.012, 0.012, 0.012, 0.16])


def test_calls_have_tuned_sizes_alone() -> None:
    taken: list[int] = []

    def service(rows: int) -> float:
        taken.append(rows)
        return 0.01

    simulate_queue(np.zeros(13), Batching(8, sizes=(1, 2, 4, 8)), service)
    assert taken == [8, 8]  # the last five requests, filled up


class Clock:
    """Time that passes only by sleeping and by calls."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("batching", [Batching(), Batching(4), Batching(4, 0.003), Batching(8, 0.0, (1, 2, 4, 8))])
def test_real_calls_are_served_as_the_simulation_says(batching: Batching) -> None:
    clock, arrivals = Clock(), draw_arrivals(300.0, 400, seed=2)
    served: list[int] = []

    def instance(first: int, rows: int) -> None:
        served.extend(range(first, first + rows))
        clock.now += 0.002 + 0.0005 * batching.find_size(rows)

    done = run_open_loop([instance], arrivals, batching, clock=clock, sleep=clock.sleep)
    assert served == list(range(400))
    expected = simulate_queue(arrivals + 0.01, batching, lambda rows: 0.002 + 0.0005 * rows) - 0.01
    np.testing.assert_allclose(done, expected, atol=1e-9)


def test_the_latency_of_requests_behind_a_stall_counts_from_their_arrival() -> None:
    """A server that stops for a second must not hide it: the requests of that second are late, though not yet sent."""
    clock, arrivals = Clock(), np.arange(0, 2.0, 0.01)
    calls: list[int] = []

    def instance(first: int, rows: int) -> None:
        calls.append(first)
        clock.now += 1.0 if len(calls) == 50 else 0.001

    done = run_open_loop([instance], arrivals, Batching(), clock=clock, sleep=clock.sleep)
    late = done - arrivals
    assert np.count_nonzero(late > 0.5) > 45
    assert summarize_load(100.0, arrivals, done).p99 > 0.95


def test_a_hopeless_load_is_given_up() -> None:
    clock, arrivals = Clock(), draw_arrivals(1000.0, 1000, seed=0)

    def instance(first: int, rows: int) -> None:
        clock.now += 0.01

    done = run_open_loop([instance], arrivals, Batching(), most_late=0.1, clock=clock, sleep=clock.sleep)
    assert math.isinf(summarize_load(1000.0, arrivals, done).p99)
    assert clock.now < 100.5


def test_every_request_is_served_once_by_several_threads() -> None:
    served: list[int] = []

    def instance(first: int, rows: int) -> None:
        served.extend(range(first, first + rows))

    done = run_open_loop([instance] * 4, np.zeros(2000), Batching(3))
    assert sorted(served) == list(range(2000))
    assert np.isfinite(done).all()


def test_the_error_of_an_instance_ends_the_run() -> None:
    def instance(first: int, rows: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_open_loop([instance] * 2, np.zeros(100), Batching())
    with pytest.raises(ValueError, match="no"):
        sample_busy_instances([instance] * 2, 1, 0.01)


def test_busy_instances_are_timed_call_by_call() -> None:
    clock = Clock()

    def instance(first: int, rows: int) -> None:
        clock.now += 0.001 * rows

    found = sample_busy_instances([instance], 4, 0.05, clock=clock)
    np.testing.assert_allclose(found, 0.004)
    assert 12 <= len(found) <= 14


@pytest.mark.parametrize("start", [20.0, 55.0, 90.0])
def test_the_highest_rate_within_the_bound_is_found(start: float) -> None:
    """With constant times and one sample of arrivals a latency only grows with the rate: there is one answer."""

    def load(rate: float) -> object:
        arrivals = draw_arrivals(rate, 500, seed=1)
        return summarize_load(rate, arrivals, simulate_queue(arrivals, Batching(), lambda rows: 0.01))

    found = search_rate(load, start, 100.0, 0.04, 40)  # type: ignore[arg-type]
    assert found.best is not None
    assert found.is_settled
    every = [load(rate) for rate in np.arange(found.best.rate * 0.9, 100.0, 1.0)]
    highest = max(one.rate for one in every if one.p99 <= 0.04)  # type: ignore[attr-defined]
    assert highest / 1.02 <= found.best.rate <= highest + 1.0
