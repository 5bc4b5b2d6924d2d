"""Which plans are tried, which of them race, and which one wins: decisions on measurements, without a clock.

A larger budget is never slower by the same measurements: each step here gives a larger budget all that a smaller one has. What
is tried does not depend on the budget but for the targets, what races depends on the errors and times of plans alone, and the
fastest that is faster than the exact plan for certain wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["MeasuredPlan", "choose_fastest", "list_contenders", "list_targets"]

TARGETS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
"""Errors for which nodes are kept in float32."""
LAYERS = 3
"""How many plans that are both faster and as exact put another out of the race."""
FAR = 1.25
"""A plan whose first calls take so many times those of the exact plan does not race."""


class MeasuredPlan(Protocol):
    """A plan of lower precision, as far as a decision needs it."""

    @property
    def bound(self) -> float:
        """What must be within the budget."""

    @property
    def first_calls(self) -> float:
        """Seconds of its fastest call so far."""


P = TypeVar("P", bound=MeasuredPlan)


def list_targets(limit: float, measure: str) -> tuple[float, ...]:
    """Return the errors that forms with nodes in float32 are made for, in the unit of the measure, the largest first.

    Those of a smaller limit are among them.

    >>> list_targets(0.012, "relative")
    (0.01, 0.005, 0.002, 0.001, 0.0005)
    """
    targets = (one**2 / 2 if measure == "cosine" else one for one in TARGETS)
    return tuple(one for one in targets if one <= limit)


def list_contenders(plans: Sequence[P], limit: float, exact: float) -> list[P]:
    """Return the plans within a limit that race with the exact one, whose first calls took ``exact`` seconds.

    Each has less than three others that are as exact and were faster. So a plan that races under a smaller limit races under a
    larger one too: what only the larger limit admits is less exact.
    """
    within = [one for one in plans if one.bound <= limit and one.first_calls <= FAR * exact]
    ranks = {id(one): (one.bound, one.first_calls, place) for place, one in enumerate(within)}

    def is_put_out(one: P) -> bool:
        bound, seconds, place = ranks[id(one)]
        better = sum(b <= bound and (s, p) < (seconds, place) for b, s, p in ranks.values())
        return better >= LAYERS

    return [one for one in within if not is_put_out(one)]


def choose_fastest(ratios: Sequence[tuple[float, float]], floor: float) -> int | None:
    """Return the place of the winner; None where the exact plan stays.

    ``ratios`` has for each plan of the race the median of its ratio to the exact plan and the upper end of its interval. The
    lowest median wins, among those whose interval is wholly below one by more than the floor.

    >>> choose_fastest([(0.5, 1.2), (0.8, 0.9), (0.7, 0.8)], 0.01), choose_fastest([(0.5, 1.2)], 0.01)
    (2, None)
    """
    certain = [(median, place) for place, (median, high) in enumerate(ratios) if high < 1 - floor]
    return min(certain)[1] if certain else None
