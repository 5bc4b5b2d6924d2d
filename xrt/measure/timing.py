"""The time of a call: of one, of a turn, or in samples that are taken until the interval of their median is narrow."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

__all__ = [
    "Call",
    "Clock",
    "Warmup",
    "choose_calls",
    "choose_calls_per_turn",
    "is_steady",
    "median_interval",
    "sample_call_times",
    "seconds_per_call",
    "seconds_per_turn",
    "time_call",
    "wait_until_idle",
    "warm_up",
]

Call: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]
SAMPLE = 0.002
"""Seconds of a sample: a quick call is repeated for so long, so that the clock's own time does not count."""
ENOUGH = 7
"""Samples without which no interval is believed."""
MOST = 500
NAP = 0.004
"""Seconds after which it is looked whether a process is idle..."""
IDLE = 0.25
"""... which is if it used less than this part of one core."""
LONGEST_WAIT = 0.2
"""Seconds after which it is not waited for any longer."""
WARM_SHARE = 0.2
"""Share of the time that goes to calls before the first sample, which allocate, choose kernels and wake threads."""
WARM_CALLS = 20
MOST_CALLS = 20_000
"""Calls of the quickest in one turn."""
FAR = 10
"""Turns that the first call takes, from which on it is believed to be slow, and not only the first."""
T = TypeVar("T")


def sample_call_times(call: Call, seconds: float, *, within: float = 0.02, clock: Clock = time.perf_counter) -> list[float]:
    """Return seconds per call, sample by sample, until the interval is narrower than that part of the median.

    It takes about ``seconds`` at most, and one call more than that where a call takes longer; at least one sample comes back.
    """
    end = clock() + seconds
    repeats = _warmed(call, seconds * WARM_SHARE, clock)
    samples = [seconds_per_call(call, repeats, clock)]
    while clock() < end and len(samples) < MOST and not _is_narrow(samples, within):
        samples.append(seconds_per_call(call, repeats, clock))
    return samples


def _warmed(call: Call, seconds: float, clock: Clock) -> int:
    """Make the first calls, and return how many calls a sample is."""
    taken = [seconds_per_call(call, 1, clock)]
    while sum(taken) < seconds and len(taken) < WARM_CALLS:
        taken.append(seconds_per_call(call, 1, clock))
    return choose_calls_per_turn(min(taken), SAMPLE)


def choose_calls_per_turn(seconds: float, turn: float) -> int:
    """Return how many calls that take so long each fill a turn; at least one.

    >>> choose_calls_per_turn(0.001, 0.01), choose_calls_per_turn(5.0, 0.01)
    (10, 1)
    """
    return max(1, round(turn / max(seconds, 1e-7)))


def choose_calls(call: Call, turn: float, clock: Clock = time.perf_counter) -> int:
    """Return how many calls fill a turn of so many seconds, found by making some; a call that takes longer runs once.

    The first call may be slow because it is the first; only one far over the turn is believed.
    """
    if seconds_per_call(call, 1, clock) > FAR * turn:
        return 1
    return min(MOST_CALLS, choose_calls_per_turn(seconds_per_call(call, 3, clock), turn))


def time_call(call: Callable[[], T], clock: Clock = time.perf_counter) -> tuple[T, float]:
    """Return what a call returns, and its seconds."""
    began = clock()
    result = call()
    return result, clock() - began


def seconds_per_call(call: Call, repeats: int = 1, clock: Clock = time.perf_counter) -> float:
    """Return the mean seconds of a call over that many, one right after the other."""
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def seconds_per_turn(
    call: Call, repeats: int = 1, clock: Clock = time.perf_counter, *, idle: float = LONGEST_WAIT, warms: bool = True
) -> float:
    """Return the mean seconds of the calls of a turn, which begins when the threads of the turn before have gone to sleep.

    It waits ``idle`` seconds for that at most. With ``warms`` one more call comes first and does not count: it wakes this
    candidate's threads, and its values have left the caches.
    """
    wait_until_idle(idle)
    if warms:
        call()
    return seconds_per_call(call, repeats, clock)


def wait_until_idle(longest: float = LONGEST_WAIT) -> None:
    """Wait until this process uses next to no processor, at most so many seconds.

    Threads may spin after a call, to be ready for another: OpenBLAS's for 0.1 s, if an engine or the caller multiplies with
    NumPy. A timed call then has a core less.
    """
    for _ in range(round(longest / NAP)):
        began = time.process_time()
        time.sleep(NAP)
        if time.process_time() - began < IDLE * NAP:
            return


def _is_narrow(samples: Sequence[float], within: float) -> bool:
    if len(samples) < ENOUGH:
        return False
    median, low, high = median_interval(samples)
    return high - low <= within * median


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median with its 95 per cent interval, which are two of the samples: whatever they are drawn from.

    By ranks, with the binomial's normal approximation (Conover, Practical Nonparametric Statistics); of fewer than six
    samples the interval is all that was seen.

    >>> median_interval([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    ordered = sorted(samples)
    count = len(ordered)
    half = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - half))
    high = min(count - 1, math.ceil(count / 2 + half))
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, min(ordered[low], middle), max(ordered[high], middle)


WINDOW = 5
"""Calls whose median is compared with that of as many before them."""
WITHIN = 0.03
"""Share of a call's time that counts as no change."""
WARMUP_CALLS = 200


@dataclass(frozen=True, slots=True)
class Warmup:
    """How warming up went."""

    calls: int
    steady: bool
    """Whether the times had settled, as opposed to: calls or seconds ran out."""


def warm_up(call: Call, *, seconds: float, clock: Clock = time.perf_counter) -> Warmup:
    """Call until the last calls are as quick as those before them, or for that many seconds, or `MOST_CALLS` times."""
    taken: list[float] = []
    while len(taken) < WARMUP_CALLS and (not taken or sum(taken) < seconds):
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
