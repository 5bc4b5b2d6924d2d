"""Candidates that take turns, and the clock.

On a shared machine a time drifts by tens of per cent while the ratio of two neighbours hardly moves. So every round
runs each candidate once, in an order that rotates, and what counts is the ratio within a round. Nothing here asserts
anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from xrt.measure.ratios import Timing
from xrt.measure.statistics import rotate
from xrt.measure.timing import Clock, seconds_per_call

__all__ = ["Call", "choose_calls_per_round", "interleave"]

Call: TypeAlias = Callable[[], object]

MOST = 20_000
"""Repeats of the quickest call in one turn."""
FAR = 10


def interleave(
    candidates: Mapping[str, Call], *, rounds: int = 30, budget: float = 0.02, clock: Clock = time.perf_counter
) -> dict[str, Timing]:
    """Return the timings of the candidates, run in turn; a round repeats a quick one for about ``budget`` seconds.

    For what runs in one thread and waits for nothing, `time.process_time` is a clock that a busy machine hardly stretches.
    """
    repeats = {name: choose_calls_per_round(call, budget, clock) for name, call in candidates.items()}
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in rotate(list(candidates), turn):
            taken[name].append(seconds_per_call(candidates[name], repeats[name], clock))
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}


def choose_calls_per_round(call: Call, budget: float, clock: Clock = time.perf_counter) -> int:
    """Return how often to repeat a call so that it takes about ``budget`` seconds; one that takes longer runs once.

    The first call may be slow because it is the first; only one far over the budget is believed.
    """
    first = seconds_per_call(call, 1, clock)
    if first > FAR * budget:
        return 1
    return max(1, min(MOST, int(budget / max(seconds_per_call(call, 3, clock), 1e-9))))
