"""Candidates that take turns: their order, the ratios of their times within rounds, and the intervals of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = ["FLOOR", "RESAMPLES", "RatioInterval", "bootstrap", "compute_round_ratio", "rotate"]

FLOOR = 0.01
"""No two candidates are called different for less than this, however quiet the machine was."""
RESAMPLES = 2000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The median of per-round ratios and the bounds around it: of the 95 per cent interval, unless it says otherwise."""

    median: float
    low: float
    high: float

    @property
    def is_win(self) -> bool:
        """Whether the whole interval is below one by more than the floor."""
        return self.high < 1 - FLOOR

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is above one by more than the floor."""
        return self.low > 1 + FLOOR

    @property
    def is_settled(self) -> bool:
        """Whether more rounds would tell no more: the interval is narrower than the gain, or than the floor."""
        width = self.high - self.low
        return width < max(abs(1 - self.median), FLOOR)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(ratios: Sequence[float], confidence: float = 0.95, seed: int = 0) -> RatioInterval:
    """Return the median with its interval by the percentile bootstrap (Efron 1979), drawn from a fixed seed.

    The interval always holds the median; of a single ratio it is that ratio and says nothing.
    """
    given = np.asarray(ratios, np.float64)
    drawn = np.random.default_rng(seed).choice(given, (RESAMPLES, given.size))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(drawn, axis=1), (tail, 1 - tail))
    median = float(np.median(given))
    return RatioInterval(median, min(float(low), median), max(float(high), median))


def compute_round_ratio(of: Sequence[float], to: Sequence[float]) -> RatioInterval:
    """Return the ratio of two candidates' rounds; where one took part in fewer, those that both took part in count."""
    return bootstrap([a / b for a, b in zip(of, to, strict=False)])


def rotate(items: Sequence[T], turn: int) -> list[T]:
    """Return the items, begun at another one each turn, so that each follows each pause as often as the others.

    Every other turn goes backwards: no item always runs after the same one, whose threads may not be asleep yet.

    >>> rotate("abc", 1), rotate("abc", 4)
    (['b', 'a', 'c'], ['b', 'c', 'a'])
    """
    start = turn % len(items) if items else 0
    order = [*items[start:], *items[:start]]
    return [*order[:1], *order[:0:-1]] if turn % 2 else order
