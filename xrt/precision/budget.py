"""Error budgets: how the outputs of a plan are compared with those of the exact plan, and how large the difference may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from xrt.errors import CalibrationError, OptionError, did_you_mean
from xrt.placement.report import MEASURES, format_error

__all__ = [
    "ErrorBudget",
    "Measure",
    "MeasuredError",
    "bound_mean",
    "bound_metric",
    "bound_share",
    "find_fault",
    "find_t",
    "parse_budget",
]

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


Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = Sequence[Sequence[Any]]
"""The outputs of a model, in order, for each item."""
Measure: TypeAlias = Literal["relative", "cosine", "top1"]
Metric: TypeAlias = Callable[[list[Any], list[Any]], float]
WRONG = 0.5
"""Relative error from which outputs are wrong and not inexact, whatever the budget."""


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """The error of a plan on some items."""

    error: float
    """Over all items."""
    high: float | None = None
    """Upper end of its 95 % interval; None where there is none: of a metric that parts of the examples do not serve."""
    worst: float | None = None
    """The error of the item with the largest one."""

    @property
    def bound(self) -> float:
        """What must be within the budget: the upper end of the interval, where there is one."""
        return self.error if self.high is None else max(self.error, self.high)


@dataclass(frozen=True)
class ErrorBudget:
    """The largest error that a plan may have, against the model in float32.

    ``measure`` is ``"relative"``, the norm of the difference over that of the output; ``"cosine"``, one less the cosine;
    ``"top1"``, the share of rows whose largest element is another one; or a metric of your own: a function of the outputs of all
    items and of the items, as they were given, to a number such as an accuracy, which may be lower by ``limit`` (or higher by it,
    with ``higher_is_better=False``). Of several outputs the one with the largest error counts.
    """

    limit: float
    measure: Measure | Metric = "relative"
    higher_is_better: bool = True
    """Of a metric of your own: whether a lower value is the worse one."""

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int | float) or not 0 <= self.limit < math.inf:
            raise OptionError(f"the limit of an ErrorBudget is a number, 0 or more, such as 0.01; got {self.limit!r}")
        if not callable(self.measure) and self.measure not in get_args(Measure):
            known = get_args(Measure)
            raise OptionError(
                f"measure must be one of {', '.join(known)}, or a function of outputs and items; got {self.measure!r}."
                f"{did_you_mean(str(self.measure), known)}"
            )

    @property
    def name(self) -> str:
        """What the measure is called."""
        if isinstance(self.measure, str):
            return self.measure
        return str(getattr(self.measure, "__qualname__", type(self.measure).__qualname__))

    def __str__(self) -> str:
        return f"{MEASURES.get(self.name, f'loss of {self.name}')} at most {format_error(self.limit, self.name)}"

    def measure_error(self, expected: Outputs, found: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Return the error; ``items`` are what a metric receives. Raises CalibrationError for a metric that fails."""
        if callable(self.measure):
            return self._measure_loss(self.measure, expected, found, items)
        if self.measure == "top1":
            return _measure_other_rows(expected, found)
        own = [_DISTANCES[self.measure](a, b) for a, b in zip(expected, found, strict=True)]
        places = range(len(own[0]) if own else 0)
        return max((_summarize([item[place] for item in own]) for place in places), key=lambda one: one.bound)

    def _measure_loss(self, metric: Metric, expected: Outputs, found: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Return by how much a metric is worse, with its interval over the items."""
        sign = 1.0 if self.higher_is_better else -1.0

        def measure_loss(places: Sequence[int]) -> float:
            own = [items[at] for at in places]
            before, after = (self._call(metric, [outputs[at] for at in places], own) for outputs in (expected, found))
            return sign * (before - after)

        loss = measure_loss(range(len(items)))
        high = bound_metric(measure_loss, len(items))
        return MeasuredError(max(0.0, loss), None if high is None else max(0.0, loss, high))

    def _call(self, metric: Metric, outputs: Outputs, items: Sequence[Any]) -> float:
        """Return what the metric gives for outputs: an array for a model of one output, else a tuple of arrays, for each item."""
        given = [item[0] if len(item) == 1 else tuple(item) for item in outputs]
        try:
            value = float(metric(given, list(items)))
        except Exception as error:
            raise CalibrationError(f"the metric {self.name} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise CalibrationError(f"the metric {self.name} returned {value}; it must return a finite number")
        return value


def parse_budget(given: Any) -> ErrorBudget | None:
    """Return the budget for what a caller gave: a share, an ErrorBudget or None; raises OptionError for anything else."""
    if given is None or isinstance(given, ErrorBudget):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise OptionError(f"max_error is a share such as 0.01, an xrt.ErrorBudget or None; got {given!r}")
    if not 0 <= given < WRONG:
        hint = f"; did you mean {given / 100:g}?" if WRONG <= given < 100 * WRONG else ""
        raise OptionError(f"max_error is a share of 0 to below {WRONG}, such as 0.01 for 1 %; got {given!r}{hint}")
    return ErrorBudget(float(given))


# ---------------------------------------------------------------------- distances


def _list_floats(expected: Sequence[Any], found: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Return the pairs of outputs of floats; where there are none, all outputs as numbers."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=True)]
    floats = [(a, b) for a, b in pairs if a.dtype.kind == "f"]
    return [(a.astype(np.float64), b.astype(np.float64)) for a, b in floats or pairs if a.dtype.kind in "fiub"]


def _measure_relative(expected: Sequence[Any], found: Sequence[Any]) -> list[tuple[float, float]]:
    """Return for each output the squared norms of the difference and of the output."""
    return [_square(a, b) for a, b in _list_floats(expected, found)]


def _square(a: Array, b: Array) -> tuple[float, float]:
    usable = np.isfinite(a)
    if not np.array_equal(a[~usable], b[~usable], equal_nan=True) or not np.isfinite(b[usable]).all():
        return math.inf, 1.0
    return float(((a[usable] - b[usable]) ** 2).sum()), float((a[usable] ** 2).sum())


def _measure_cosine(expected: Sequence[Any], found: Sequence[Any]) -> list[tuple[float, float]]:
    """Return for each output the square of one less the cosine, and 1: distances of items are averaged as they are."""
    distances = []
    for a, b in _list_floats(expected, found):
        norm = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
        equal = np.array_equal(a, b, equal_nan=True)
        distances.append(0.0 if equal else 1.0 - float((a * b).sum()) / norm if norm > 0 and math.isfinite(norm) else math.inf)
    return [(max(0.0, one) ** 2, 1.0) for one in distances]


_DISTANCES = {"relative": _measure_relative, "cosine": _measure_cosine}


def _summarize(squares: Sequence[tuple[float, float]]) -> MeasuredError:
    """Return the error of one output over items: the root of the sums, its interval by those of items, and the worst item."""
    total, norm = (sum(column) for column in zip(*squares, strict=True))
    if not math.isfinite(total) or (total and not norm):
        return MeasuredError(math.inf, math.inf, math.inf)
    error = math.sqrt(total / norm) if total else 0.0
    own = [math.sqrt(a / b) if b else (math.inf if a else 0.0) for a, b in squares]
    return MeasuredError(error, error + bound_mean(own), max(own))


def _measure_other_rows(expected: Outputs, found: Outputs) -> MeasuredError:
    """Return the share of rows whose largest element is another one, its interval, and the share of the worst item."""
    shares = [_count_other_rows(a, b) for a, b in zip(expected, found, strict=True)]
    rows = sum(count for _, count in shares)
    if not rows:
        raise CalibrationError(
            "measure='top1' compares the largest elements of rows, and no output has rows of floats; use measure='relative' or a "
            "metric of your own"
        )
    worst = max(other / count for other, count in shares if count)
    return MeasuredError(sum(other for other, _ in shares) / rows, bound_share(shares), worst)


def _count_other_rows(expected: Sequence[Any], found: Sequence[Any]) -> tuple[int, int]:
    """Return in how many rows of the first output of floats the largest element is another one, and how many rows there are."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=True)]
    a, b = next(((a, b) for a, b in pairs if a.dtype.kind == "f" and a.ndim), (np.zeros((0, 1)), np.zeros((0, 1))))
    if not a.size:
        return 0, 0
    rows = a.reshape(-1, a.shape[-1])
    same = rows.argmax(-1) == b.reshape(-1, a.shape[-1]).argmax(-1)
    return int((~same).sum()), len(rows)


# ---------------------------------------------------------------------- what is wrong, whatever the budget


def find_fault(expected: Outputs, found: Outputs) -> str:
    """Return what is wrong with outputs whatever the budget: numbers that are none, a constant, half of the output or more.

    Empty where nothing is.
    """
    for exact, near in zip(expected, found, strict=True):
        for place, (a, b) in enumerate(zip(exact, near, strict=True)):
            if (reason := _find_fault(np.asarray(a), np.asarray(b))) is not None:
                return f"output {place} {reason}"
    relative = ErrorBudget(1.0).measure_error(expected, found, []).error if len(expected) else 0.0
    return f"it differs by {relative:.0%} of the output" if relative > WRONG else ""


def _find_fault(a: Array, b: Array) -> str | None:
    if a.dtype.kind != "f" or not a.size:
        return None
    lost = int((np.isfinite(a) & ~np.isfinite(b)).sum())
    if lost:
        return f"has {lost} NaN or infinities where numbers are due"
    usable = np.isfinite(a)
    if a[usable].size > 1 and np.ptp(a[usable]) > 0 and np.ptp(b[usable]) == 0:
        return f"is {b[usable].flat[0]:g} everywhere, where the reference is not constant"
    return None


def check_labels(item: Mapping[str, Any], names: Sequence[str], budget: ErrorBudget | None) -> None:
    """Raise OptionError for an entry of an item that is no input, unless a metric may read it."""
    other = [name for name in item if name not in names]
    if other and not (budget is not None and callable(budget.measure)):
        raise OptionError(
            f"an example has {other[0]!r}, which is no input.{did_you_mean(other[0], names)} Inputs: {', '.join(names)}. "
            "What else an example holds is for a metric of your own: max_error=xrt.ErrorBudget(limit, metric)"
        )
