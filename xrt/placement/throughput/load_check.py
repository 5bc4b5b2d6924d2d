"""The load check: repeat the load of a lock that was tuned for throughput, in its configuration.

In a closed loop the mean latency is the concurrency over the rate, so the rate alone decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from xrt.errors import LockError
from xrt.measure.closed_loop import LoadResult
from xrt.measure.statistics import RatioInterval, compute_round_ratio_with_drift
from xrt.measure.timing import Clock
from xrt.placement.throughput.result import ServingConfiguration, Split, format_rate

__all__ = ["LoadBench", "LoadCheckResult", "LoadState", "check_load"]

LoadState: TypeAlias = Literal["held", "regressed", "undecided"]

ROUNDS = 10
"""Loads that fit in the budget."""
SURE = 8
"""Loads before which nothing is called a regression, unless the time is up."""
PARTS = 4
"""Parts of the loads whose medians lie in the interval; the fewest loads, however short the time is."""


class LoadBench(Protocol):
    """Runs a load. `xrt.placement.throughput.sweep.ServingBench` is one."""

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        """Measure throughput and latency with that many requests in flight."""


@dataclass(frozen=True, slots=True)
class LoadCheckResult:
    """Outcome of repeating the load of a lock. True unless it has regressed; prints as text."""

    state: LoadState
    limit: float
    """By which part the throughput may be lower."""
    locked: ServingConfiguration
    now: RatioInterval | None = None
    """Requests per second. None where no load was run."""
    rounds: int = 0
    note: str = ""

    def __bool__(self) -> bool:
        return self.state != "regressed"

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {**asdict(self), "locked": self.locked.to_dict()}

    def __str__(self) -> str:
        served = f"served as it was tuned: {self.locked}"
        if self.now is None:
            return f"load not repeated: {self.note}\n{served}"
        note = f"\n{self.note}" if self.note else ""
        rates = [format_rate(one) for one in (self.now.median, self.now.low, self.now.high, self.locked.rate)]
        found = f"{rates[0]} ({rates[1]} to {rates[2]}) in {self.rounds} loads, {rates[3]} in the lock"
        return f"load {_PHRASES[self.state]}: {found}\n{served}{note}"


_PHRASES = {"held": "held", "regressed": "regressed", "undecided": "not decided, the noise is too large"}


def check_load(
    bench: LoadBench,
    locked: ServingConfiguration,
    limit: float,
    budget: float,
    *,
    differs: Sequence[str] = (),
    clock: Clock = time.perf_counter,
) -> LoadCheckResult:
    """Check whether the configuration of a lock still has its rate, except for the part ``limit``.

    ``differs`` says in which ways this machine differs from the lock's: rates of two machines are not compared, so no
    regression is reported there. Raises LockError for a configuration that serves nothing.
    """
    if not locked.rate:
        raise LockError("the lock's serving configuration has a rate of 0 requests per second; tune again")
    split, least = Split(locked.instances, locked.threads), locked.rate / (1 + limit)
    concurrency = max(locked.concurrency, locked.batch * locked.instances)
    rates: list[float] = []
    until = clock() + budget
    while True:
        rates.append(bench.run_load(split, locked.batch, concurrency, budget / ROUNDS).rate)
        is_late = clock() >= until
        if len(rates) < PARTS:
            continue
        now = compute_round_ratio_with_drift(rates, [1.0] * len(rates), parts=PARTS)
        state: LoadState = "held" if now.low >= least else "regressed" if now.high < least else "undecided"
        if is_late or state == "held" or (state == "regressed" and len(rates) >= SURE):
            break
    note = ""
    if state == "regressed" and differs:
        state, note = "undecided", f"rates of two machines are not compared, and {'; '.join(differs)}"
    return LoadCheckResult(state, limit, locked, now, len(rates), note)
