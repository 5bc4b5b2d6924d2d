"""Warming up: call until the time of a call no longer falls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from xrt.measure.timing import Call, Clock, seconds_per_call

__all__ = ["Warmup", "is_steady", "warm_up"]

WINDOW = 5
"""Calls whose median is compared with that of as many before them."""
WITHIN = 0.03
"""Share of a call's time that counts as no change."""
MOST_CALLS = 200


@dataclass(frozen=True, slots=True)
class Warmup:
    """How warming up went."""

    calls: int
    steady: bool
    """Whether the times had settled, as opposed to: calls or seconds ran out."""


def warm_up(call: Call, *, seconds: float, clock: Clock = time.perf_counter) -> Warmup:
    """Call until the last calls are as quick as those before them, or for that many seconds, or `MOST_CALLS` times."""
    taken: list[float] = []
    while len(taken) < MOST_CALLS and (not taken or sum(taken) < seconds):
        taken.append(seconds_per_call(call, 1, clock))
        if is_steady(taken):
            return Warmup(len(taken), True)
    return Warmup(len(taken), False)


def is_steady(taken: Sequence[float]) -> bool:
    """Whether the medians of the last `WINDOW` times and of the `WINDOW` before differ by no more than the last ones spread.

    >>> is_steady([9, 5, 3, 2, 1.5, 1, 1, 1, 1, 1])
    False
    >>> is_steady([9, 5, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    True
    """
    if len(taken) < 2 * WINDOW:
        return False
    last, before = taken[-WINDOW:], taken[-2 * WINDOW : -WINDOW]
    low, middle, high = statistics.quantiles(last, n=4)
    return abs(statistics.median(before) - middle) <= max(WITHIN * middle, (high - low) / 2)
