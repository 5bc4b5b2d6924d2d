"""What is made of the seconds: medians, ratios within rounds, intervals by bootstrap, the noise floor, and ties."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xrt.measure.statistics import FLOOR, RatioInterval, bootstrap, compute_round_ratio

__all__ = ["Interval", "Timing", "compute_ratio_interval", "is_tie", "noise_floor", "ratio"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one entry per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def interval(self) -> Interval:
        """Where the median would lie in 95 of 100 such runs."""
        found = bootstrap(self.seconds)
        return Interval(found.low, found.high)


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of a median, by the bootstrap over rounds."""

    low: float
    high: float


def ratio(of: Timing, to: Sequence[Timing]) -> RatioInterval:
    """Return, round by round, the time of one candidate over the sum of the others'; the bounds are quartiles."""
    rounds = [a / sum(t.seconds[i] for t in to) for i, a in enumerate(of.seconds)]
    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")  # never outside of what was seen
    return RatioInterval(median, low, high)


def compute_ratio_interval(of: Timing, to: Timing) -> RatioInterval:
    """Return the median of the per-round ratios of two candidates, with its 95 per cent interval.

    Where one took part in fewer rounds, those that both took part in count.
    """
    return compute_round_ratio(of.seconds, to.seconds)


def noise_floor(timings: Iterable[Timing]) -> float:
    """Return how far a candidate may seem to be from itself: the largest bound of the ratios of its neighbouring rounds.

    Rounds are taken in pairs, so that each counts once; at least `FLOOR`.
    """
    bounds = [bootstrap(pairs) for timing in timings if (pairs := _pairs(timing.seconds))]
    return max([FLOOR, *(max(1 - bound.low, bound.high - 1) for bound in bounds)])


def _pairs(seconds: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(seconds[::2], seconds[1::2], strict=False)]


def is_tie(to_best: RatioInterval, noise: float) -> bool:
    """Whether a candidate is indistinguishable from the best: the interval of its ratio reaches into the noise around one."""
    return to_best.low <= 1 + noise
