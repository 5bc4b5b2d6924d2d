"""How the benchmarks measure: the candidates take turns, and what counts is the ratio within a turn.

On a shared machine a time drifts by tens of per cent while the ratio of two neighbours hardly moves. So every round runs
each candidate once, in an order that rotates, and the figures are the median of the per-round ratios with their
quartiles. Nothing here asserts anything.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

__all__ = ["Timing", "interleaved", "machine", "ratio"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one entry per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median and quartiles of per-round ratios."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 30,
    budget: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Return the timings of the candidates, run in turn; a round repeats a quick one for about ``budget`` seconds.

    For what runs in one thread and waits for nothing, `time.process_time` is a clock that a busy machine hardly stretches.
    """
    repeats = {name: _repeats(call, budget, clock) for name, call in candidates.items()}
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for turn in range(rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            taken[name].append(_time(candidates[name], repeats[name], clock))
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}


def _repeats(call: Callable[[], object], budget: float, clock: Callable[[], float]) -> int:
    first = _time(call, 1, clock)
    if first > budget:
        return 1
    return max(1, min(20_000, int(budget / max(_time(call, 3, clock), 1e-9))))


def _time(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def ratio(of: Timing, to: Sequence[Timing]) -> Ratio:
    """Return, round by round, the time of one candidate over the sum of the others'."""
    rounds = [a / sum(t.seconds[i] for t in to) for i, a in enumerate(of.seconds)]
    low, median, high = statistics.quantiles(rounds, n=4)
    return Ratio(median, low, high)


def machine(*distributions: str) -> str:
    """Name the machine and the versions of what was measured, in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "onnx", *distributions))
    return f"{platform.machine()} {platform.system()}, Python {platform.python_version()}, {versions}"
