"""How far a measured error may be from that of all inputs: upper ends of 95 % intervals over the examples.

Items are independent; what one item holds, such as the rows of a batch, need not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from xrt.errors import CalibrationError

__all__ = ["bound_mean", "bound_metric", "bound_share", "find_t"]

MOST_GROUPS = 20
"""How often a metric is computed again, each time without another group of items."""
NORMAL = 1.959964
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


def find_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to three digits."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return NORMAL + 2.3722 / freedom + 2.8225 / freedom**2  # Abramowitz and Stegun 26.7.5


def bound_mean(values: Sequence[float]) -> float:
    """Return how far above the mean of some values that of all may be: by Student's t; 0 of one value."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return find_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def bound_share(shares: Sequence[tuple[int, int]]) -> float:
    """Return the upper end of a share of rows, for the hits and the rows of each item.

    That is Wilson's interval for independent rows, which is above zero without a hit too; or that of the items' own shares by
    Student's t where it is wider, since rows of one item may be alike.
    """
    hits, rows = sum(own for own, _ in shares), sum(count for _, count in shares)
    share, square = hits / rows, NORMAL**2
    middle = share + square / (2 * rows)
    spread = NORMAL * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    by_items = share + bound_mean([own / count for own, count in shares if count])
    return min(1.0, max((middle + spread) / (1 + square / rows), by_items))


def bound_metric(loss: Callable[[Sequence[int]], float], items: int) -> float | None:
    """Return the upper end of the loss of a metric over so many items; None of one item, or where parts of them give none.

    ``loss`` takes the places of the items that count, and may raise CalibrationError. The interval is that of the jackknife
    (Quenouille 1956, Tukey 1958): the loss is computed without each of at most 20 groups of items. For a mean over items that is
    Student's interval; a metric that jumps, such as a median, has a wider or narrower one than it should.
    """
    groups = min(items, MOST_GROUPS)
    if groups < 2:
        return None
    try:
        parts = [loss([at for at in range(items) if at % groups != group]) for group in range(groups)]
        whole = loss(range(items))
    except CalibrationError:
        return None
    spread = math.sqrt((groups - 1) * float(np.var(parts)))
    return whole + find_t(groups - 1) * spread
