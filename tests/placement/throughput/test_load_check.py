"""The load of a lock, repeated on simulated times: what holds, regresses, or is left open by the noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.placement.throughput.simulated_bench import SimulatedBench, tune
from xrt.errors import LockError
from xrt.measure.queueing import Batching, Times
from xrt.measure.statistics import RatioInterval
from xrt.placement.throughput.load_check import LoadCheckResult, check_load
from xrt.placement.throughput.request import Split
from xrt.placement.throughput.result import ServingConfiguration


def serve(split: Split, size: int) -> float:
    return 0.004 + 0.0005 * size


def lock(**terms: Any) -> ServingConfiguration:
    """The configuration that a search on the simulated bench has chosen."""
    found = tune(SimulatedBench(serve), **terms).configuration
    assert found is not None
    return found


def check(bench: SimulatedBench, locked: ServingConfiguration, limit: float = 0.05, **terms: Any) -> LoadCheckResult:
    return check_load(bench, locked, limit, 30.0, clock=bench.clock, **terms)


@pytest.mark.slow
def test_the_same_machine_holds_the_rate_of_the_lock() -> None:
    bench, locked = SimulatedBench(serve), lock()
    found = check(bench, locked)
    assert (found.state, bool(found), found.rounds) == ("held", True, 6)
    assert found.seconds == pytest.approx(3.0, rel=0.01)  # a tenth of the budget
    assert {one[:2] for one in bench.loads} == {(Split(locked.instances, locked.threads), locked.batching)}
    rates = {rate for _, _, rate in bench.loads}
    assert len(rates) == len(bench.loads)  # fresh arrivals for each
    assert all(rate == pytest.approx(locked.rate / 1.05, rel=0.1) for rate in rates)
    assert found.to_dict()["locked"] == locked.to_dict()


def test_a_slower_model_regresses_by_its_percentile() -> None:
    locked = lock()
    found = check(SimulatedBench(lambda split, size: 1.3 * serve(split, size)), locked)
    assert (found.state, bool(found), found.rounds) == ("regressed", False, 8)
    assert found.now is not None
    assert found.now.low > locked.bound


@pytest.mark.slow
def test_what_the_limit_allows_is_no_regression() -> None:
    slower = SimulatedBench(lambda split, size: 1.1 * serve(split, size))
    assert check(slower, lock(), limit=0.6).state == "held"


def test_without_a_bound_the_rate_is_compared() -> None:
    locked = lock(bound=math.inf, budget=20.0)
    assert check(SimulatedBench(serve), locked).state == "held"
    slower = check(SimulatedBench(lambda split, size: 1.2 * serve(split, size)), locked)
    assert slower.state == "regressed"
    assert slower.now is not None
    assert slower.now.median == pytest.approx(2 * 32 / (1.2 * serve(Split(2, 1), 32)), rel=0.02)
    assert check(SimulatedBench(lambda split, size: 1.2 * serve(split, size)), locked, limit=0.3).state == "held"


class Stalling(SimulatedBench):
    """Every third load stalls for so long that it is given up."""

    def run_load(self, split: Split, batching: Batching, arrivals: Times, most_late: float) -> Times:
        done = super().run_load(split, batching, arrivals, most_late)
        if len(self.loads) % 3 == 0:
            done[len(done) // 2 :] = math.inf
        return done


@pytest.mark.slow
def test_noise_leaves_it_open_until_the_time_is_up() -> None:
    bench, locked = Stalling(serve), lock()
    found = check(bench, locked)
    assert (found.state, bool(found)) == ("undecided", True)
    assert bench.now >= 30.0
    assert found.now is not None
    assert found.now.high == 10 * locked.bound  # a load that was given up has no percentile


@pytest.mark.slow
def test_rates_of_two_machines_are_not_compared() -> None:
    slower = SimulatedBench(lambda split, size: 1.3 * serve(split, size))
    found = check(slower, lock(), differs=["processor was A and is B"])
    assert found.state == "undecided"
    assert found.note == "rates of two machines are not compared, and processor was A and is B"
    assert check(SimulatedBench(serve), lock(), differs=["processor was A and is B"]).state == "held"


def test_a_short_budget_has_fewer_and_shorter_loads() -> None:
    bench = SimulatedBench(serve)
    found = check_load(bench, lock(), 0.05, 0.01, clock=bench.clock)
    assert found.rounds == 4
    assert found.seconds < 1.0


CONFIGURATION = ServingConfiguration(8, 2, 1, 0.0, 1000.0, 0.004, 0.018, 0.02, "N")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "load held: 952/s within a p99 of 20 ms: p99 12 ms (11 ms to 13 ms) in 6 loads of 3 s; 1000/s in the lock"),
        (
            {"state": "regressed", "note": "a note"},
            "load regressed: 952/s within a p99 of 20 ms: p99 12 ms (11 ms to 13 ms) in 6 loads of 3 s; 1000/s in the lock",
        ),
        ({"now": None, "note": "why"}, "load not repeated: why"),
    ],
    ids=["held", "regressed", "not repeated"],
)
def test_it_prints_as_text(changes: dict[str, Any], text: str) -> None:
    found = LoadCheckResult("held", 0.05, CONFIGURATION, 952.4, RatioInterval(0.012, 0.011, 0.013), 6, 3.0)
    served = f"served as it was tuned: {CONFIGURATION}"
    lines = str(replace(found, **changes)).splitlines()
    assert lines[:2] == [text, served]
    assert lines[2:] == (["a note"] if changes.get("note") == "a note" else [])


def test_it_prints_a_rate_without_a_bound() -> None:
    found = LoadCheckResult("held", 0.05, replace(CONFIGURATION, bound=math.inf), 1250.0, RatioInterval(990, 980, 1000), 6, 3.0)
    assert str(found).startswith("load held: at least 952/s: 990/s (980/s to 1000/s) in 6 loads of 3 s, 1000/s in the lock\n")


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(LockError, match=r"^the lock's serving configuration has a rate of 0 requests per second; tune again$"):
        check(SimulatedBench(serve), replace(CONFIGURATION, rate=0.0))
