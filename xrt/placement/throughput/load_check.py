"""The load check: the load of a lock that was tuned for throughput, repeated at its configuration.

A search pushes the rate until the 99th percentile meets the bound, so fresh arrivals at that rate are over it about every other
time. The check therefore asks for the lowest rate that the limit allows, and for the whole interval of the percentile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from xrt.errors import LockError
from xrt.measure.queueing import Batching, Times, draw_arrivals, summarize_load
from xrt.measure.statistics import RatioInterval, compute_round_ratio_with_drift
from xrt.measure.timing import Clock
from xrt.placement.throughput.request import Split
from xrt.placement.throughput.result import ServingConfiguration, format_latency, format_rate

__all__ = ["LoadBench", "LoadCheckResult", "LoadState", "check_load"]

LoadState: TypeAlias = Literal["held", "regressed", "undecided"]

ROUNDS = 10
"""Loads that fit in the budget; more are run where they take less time."""
MOST_ROUNDS = 30
LEAST_ROUNDS = 6
SURE = 8
"""Loads before which nothing is called a regression, unless the time is up."""
PARTS = 4
"""Parts of the loads whose medians lie in the interval; the fewest loads, however short the time is."""
LEAST, MOST = 200, 500_000
"""Requests of a load. Of fewer than 200 the 99th percentile is the latest one or the second."""
FEWEST = 50
"""Requests of a load where time is short."""
SPANS = 5.0
"""Times the bound that a load takes at least, where the budget allows it: a queue that grows must have time to grow."""
LATE = 3.0
"""Times the bound that a request may start late before a load is given up."""
WORST = 10.0
"""Times the bound that a percentile counts as at most; a load that was given up has none."""
FULL = 1.25
"""Part of the locked rate at which requests arrive where latency is not bounded, so that no instance waits for them."""
SEED = 2_000_003
"""Added to the seed of the arrivals: they are not those of the search."""


class LoadBench(Protocol):
    """What runs a load. `xrt.placement.throughput.session.ServingBench` is one."""

    def run_load(self, split: Split, batching: Batching, arrivals: Times, most_late: float) -> Times:
        """Return when each request was done."""


@dataclass(frozen=True, slots=True)
class LoadCheckResult:
    """What came of repeating the load of a lock. True unless it has regressed; prints as text."""

    state: LoadState
    limit: float
    """By which part the throughput may be lower."""
    locked: ServingConfiguration
    offered: float
    """Requests per second that arrived."""
    now: RatioInterval | None = None
    """With a bound the 99th percentile in seconds; without one requests per second. None where no load was run."""
    rounds: int = 0
    seconds: float = 0.0
    """Of a load, about."""
    note: str = ""

    def __bool__(self) -> bool:
        return self.state != "regressed"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {**asdict(self), "locked": self.locked.to_dict()}

    def __str__(self) -> str:
        served = f"served as it was tuned: {self.locked}"
        if self.now is None:
            return f"load not repeated: {self.note}\n{served}"
        note = f"\n{self.note}" if self.note else ""
        return f"load {_PHRASES[self.state]}: {self._describe(self.now)}\n{served}{note}"

    def _describe(self, now: RatioInterval) -> str:
        is_bounded = not math.isinf(self.locked.bound)
        spell = format_latency if is_bounded else format_rate
        found = f"{spell(now.median)} ({spell(now.low)} to {spell(now.high)}) in {self.rounds} loads of {self.seconds:.2g} s"
        least, was = (format_rate(one) for one in (self.locked.rate / (1 + self.limit), self.locked.rate))
        if is_bounded:
            return f"{least} within a p99 of {format_latency(self.locked.bound)}: p99 {found}; {was} in the lock"
        return f"at least {least}: {found}, {was} in the lock"


_PHRASES = {"held": "held", "regressed": "regressed", "undecided": "not decided, the noise is too large"}


def check_load(
    bench: LoadBench,
    locked: ServingConfiguration,
    limit: float,
    budget: float,
    *,
    seed: int = 0,
    differs: Sequence[str] = (),
    clock: Clock = time.perf_counter,
) -> LoadCheckResult:
    """Return whether the configuration of a lock still serves its rate, but for the part ``limit``, within its bound.

    Loads with fresh arrivals are repeated for at most ``budget`` seconds, at the rate that the limit leaves. Without a bound
    they arrive faster than the lock's rate, and what is served counts. ``differs`` says in which ways this is another machine
    than the lock's: rates of two machines are not compared, so that nothing is called a regression there.
    Raises LockError for a configuration that serves nothing.
    """
    if not locked.rate:
        raise LockError("the lock's serving configuration has a rate of 0 requests per second; tune again")
    is_bounded = not math.isinf(locked.bound)
    offered = locked.rate / (1 + limit) if is_bounded else FULL * locked.rate
    seconds = _choose_length(offered, locked.bound, budget)
    count = int(min(max(FEWEST, offered * seconds), MOST))
    found: list[float] = []
    until = clock() + budget
    while True:
        found.append(_run(bench, locked, offered, draw_arrivals(offered, count, seed + SEED + len(found))))
        is_late = clock() >= until
        if len(found) < (PARTS if is_late else LEAST_ROUNDS):
            continue
        now = compute_round_ratio_with_drift(found, [1.0] * len(found), parts=PARTS)
        state = _decide(now, locked, limit)
        if is_late or len(found) >= MOST_ROUNDS or state == "held" or (state == "regressed" and len(found) >= SURE):
            break
    note = ""
    if state == "regressed" and differs:
        state, note = "undecided", f"rates of two machines are not compared, and {'; '.join(differs)}"
    return LoadCheckResult(state, limit, locked, offered, now, len(found), count / offered, note)


def _choose_length(rate: float, bound: float, budget: float) -> float:
    """Return the seconds of a load: of enough requests, and long enough for a queue to grow, if several such fit."""
    span = 0.0 if math.isinf(bound) else SPANS * bound
    return min(max(LEAST / rate, span, budget / ROUNDS), budget / LEAST_ROUNDS)


def _run(bench: LoadBench, locked: ServingConfiguration, rate: float, arrivals: Times) -> float:
    """Return the 99th percentile of a load in seconds; without a bound the requests per second that were served."""
    split = Split(locked.instances, locked.threads)
    done = bench.run_load(split, locked.batching, arrivals, LATE * locked.bound)
    if math.isinf(locked.bound):
        return len(arrivals) / float(np.max(done))
    return min(summarize_load(rate, arrivals, done).p99, WORST * locked.bound)


def _decide(now: RatioInterval, locked: ServingConfiguration, limit: float) -> LoadState:
    if math.isinf(locked.bound):
        least = locked.rate / (1 + limit)
        return "held" if now.low >= least else "regressed" if now.high < least else "undecided"
    return "held" if now.high <= locked.bound else "regressed" if now.low > locked.bound else "undecided"
