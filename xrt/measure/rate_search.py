"""The highest rate of requests at which a percentile of the latency stays within a bound, found by trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xrt.measure.queueing import LoadResult

__all__ = ["RateSearch", "search_rate"]

RESOLUTION = 0.02
"""Rates that differ by no more than this part are not distinguished."""
STEP = 1.12
"""Factor between the first rate and the second."""
GROWTH = 1.8
"""How the step grows while no rate has been on the other side of the bound."""


@dataclass(frozen=True, slots=True)
class RateSearch:
    """The trials of a search, in their order."""

    bound: float
    """Seconds that the 99th percentile may take."""
    trials: tuple[LoadResult, ...] = ()

    @property
    def best(self) -> LoadResult | None:
        """The trial of the highest rate within the bound; None where no trial was."""
        within = [one for one in self.trials if one.p99 <= self.bound]
        return max(within, key=lambda one: one.rate, default=None)

    @property
    def least_over(self) -> float:
        """The lowest rate that exceeded the bound; infinite where none did."""
        return min((one.rate for one in self.trials if one.p99 > self.bound), default=math.inf)

    @property
    def is_settled(self) -> bool:
        """Whether the rates on both sides of the bound are as near to each other as they are to be."""
        return self.best is not None and self.least_over / self.best.rate <= 1 + RESOLUTION


def search_rate(
    load: Callable[[float], LoadResult | None], start: float, ceiling: float, bound: float, most_trials: int
) -> RateSearch:
    """Return the trials of a search for the highest rate up to ``ceiling`` whose 99th percentile is at most ``bound``.

    ``load`` runs one trial at a rate, or returns None where there is no time for it, which ends the search. The rate goes up or
    down from ``start`` in growing steps until the bound is between two rates, and then halves the ratio of the two.
    """
    found = RateSearch(bound)
    rate, step = min(start, ceiling), STEP
    for _ in range(most_trials):
        trial = load(rate)
        if trial is None:
            break
        found = RateSearch(bound, (*found.trials, trial))
        following = next(_propose(found, rate, step, ceiling), None)
        if following is None:
            break
        rate, step = following, 1 + (step - 1) * GROWTH
    return found


def _propose(found: RateSearch, rate: float, step: float, ceiling: float) -> Iterator[float]:
    """Yield the next rate, if there is one."""
    best, over = found.best, found.least_over
    if best is None:
        yield rate / step
    elif best.rate > over:  # a higher rate was within the bound than one that was over it: noise, which no trial resolves
        return
    elif math.isinf(over):
        if best.rate < ceiling:
            yield min(ceiling, best.rate * step)
    elif not found.is_settled:
        yield math.sqrt(best.rate * over)
