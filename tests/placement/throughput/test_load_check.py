"""The load of a lock, repeated on simulated times: what holds, regresses, or is left open by the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.placement.throughput.simulated_bench import SimulatedBench, tune
from xrt.errors import LockError
from xrt.measure.statistics import RatioInterval
from xrt.placement.throughput import LoadCheckResult, ServingConfiguration, Split, check_load


def serve(split: Split, size: int) -> float:
    return 0.004 + 0.0005 * size


def lock() -> ServingConfiguration:
    """The configuration that a sweep on the simulated bench has chosen."""
    found = tune(SimulatedBench(serve)).configuration
    assert found is not None
    return found


def check(bench: SimulatedBench, locked: ServingConfiguration, limit: float = 0.05, **terms: Any) -> LoadCheckResult:
    return check_load(bench, locked, limit, 30.0, clock=bench.clock, **terms)


def test_the_same_machine_holds_the_rate_of_the_lock() -> None:
    bench, locked = SimulatedBench(serve), lock()
    found = check(bench, locked)
    assert (found.state, bool(found), found.rounds) == ("held", True, 4)
    split = Split(locked.instances, locked.threads)
    assert {*bench.loads} == {(split, locked.batch, locked.concurrency, 3.0)}
    assert found.to_dict()["locked"] == locked.to_dict()


def test_a_slower_model_regresses() -> None:
    locked = lock()
    found = check(SimulatedBench(lambda split, size: 1.3 * serve(split, size)), locked)
    assert (found.state, bool(found), found.rounds) == ("regressed", False, 8)
    assert found.now is not None
    assert found.now.median == pytest.approx(locked.rate / 1.3, rel=1e-4)


def test_what_the_limit_allows_is_no_regression() -> None:
    slower = SimulatedBench(lambda split, size: 1.1 * serve(split, size))
    assert check(slower, lock(), limit=0.2).state == "held"


def test_noise_leaves_it_open_until_the_time_is_up() -> None:
    bench = SimulatedBench(lambda split, size: (1.6 if len(bench.loads) % 2 else 1.0) * serve(split, size))
    found = check(bench, lock())
    assert (found.state, bool(found), found.rounds) == ("undecided", True, 10)
    assert bench.now >= 30.0


def test_rates_of_two_machines_are_not_compared() -> None:
    slower = SimulatedBench(lambda split, size: 1.3 * serve(split, size))
    found = check(slower, lock(), differs=["processor was A and is B"])
    assert found.state == "undecided"
    assert found.note == "rates of two machines are not compared, and processor was A and is B"
    assert check(SimulatedBench(serve), lock(), differs=["processor was A and is B"]).state == "held"


def test_a_short_budget_has_fewer_loads() -> None:
    bench = SimulatedBench(serve)
    assert check_load(bench, lock(), 0.05, 0.01, clock=bench.clock).rounds == 4


CONFIGURATION = ServingConfiguration(8, 2, 1, 16, 1000.0, 0.004, 0.018, 0.02, "N")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "load held: 990/s (980/s to 1000/s) in 6 loads, 1000/s in the lock"),
        ({"state": "regressed", "note": "a note"}, "load regressed: 990/s (980/s to 1000/s) in 6 loads, 1000/s in the lock"),
        ({"now": None, "note": "why"}, "load not repeated: why"),
    ],
    ids=["held", "regressed", "not repeated"],
)
def test_it_prints_as_text(changes: dict[str, Any], text: str) -> None:
    found = LoadCheckResult("held", 0.05, CONFIGURATION, RatioInterval(990, 980, 1000), 6)
    served = f"served as it was tuned: {CONFIGURATION}"
    lines = str(replace(found, **changes)).splitlines()
    assert lines[:2] == [text, served]
    assert lines[2:] == (["a note"] if changes.get("note") == "a note" else [])


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(LockError, match=r"^the lock's serving configuration has a rate of 0 requests per second; tune again$"):
        check(SimulatedBench(serve), replace(CONFIGURATION, rate=0.0))
