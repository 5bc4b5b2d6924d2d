"""Methods of calibration: each sees the batches of one value and chooses a range for it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from xrt.calibration.histogram import BINS, MagnitudeHistogram
from xrt.errors import OptionError, did_you_mean

__all__ = [
    "METHODS",
    "Collector",
    "Entropy",
    "MinMax",
    "MovingAverage",
    "Percentile",
    "SquaredError",
    "find_entropy_threshold",
    "find_squared_error_threshold",
    "make_collector",
    "read_parameters",
]

Array: TypeAlias = np.ndarray[Any, Any]

LEVELS = 256
"""What a byte has."""


class Collector:
    """Sees the batches of one value; `choose` returns its range."""

    needs_batches = False
    """Whether one batch is too little for the method."""

    def __init__(self) -> None:
        self.least, self.most, self.batches = math.inf, -math.inf, 0

    def add(self, numbers: Array) -> None:
        """See the value in a batch: finite numbers, at least one."""
        low, high = float(numbers.min()), float(numbers.max())
        self.see(numbers, low, high)
        self.least, self.most = min(self.least, low), max(self.most, high)
        self.batches += 1

    def see(self, numbers: Array, low: float, high: float) -> None:
        """Keep what the method needs of a batch, whose extremes are known."""

    def choose(self) -> tuple[float, float]:
        """Return the range of what was seen: low and high."""
        return self.least, self.most


class MinMax(Collector):
    """The extremes: nothing that was seen is cut off."""


class MovingAverage(Collector):
    """The average of the batches' extremes, in which each batch weighs ``momentum`` times what the next one does."""

    needs_batches = True

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = _check_share("momentum", momentum)
        self._ends: tuple[float, float] | None = None

    def see(self, numbers: Array, low: float, high: float) -> None:
        kept, (old_low, old_high) = self.momentum, self._ends or (low, high)
        self._ends = kept * old_low + (1 - kept) * low, kept * old_high + (1 - kept) * high

    def choose(self) -> tuple[float, float]:
        return self._ends or super().choose()


class _Threshold(Collector):
    """A method that cuts off magnitudes above a threshold, which it finds from their histogram."""

    needs_batches = True

    def __init__(self) -> None:
        super().__init__()
        self.histogram = MagnitudeHistogram()

    def see(self, numbers: Array, low: float, high: float) -> None:
        self.histogram.add(numbers)

    def choose(self) -> tuple[float, float]:
        if not self.histogram.limit:
            return self.least, self.most
        threshold = self.find_threshold()
        return max(self.least, -threshold), min(self.most, threshold)

    def find_threshold(self) -> float:
        raise NotImplementedError


class Percentile(_Threshold):
    """The magnitude that ``percentile`` per cent of the numbers do not exceed, up to a bin of the histogram."""

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        self.share = _check_share("percentile", percentile, 100.0)

    def find_threshold(self) -> float:
        counts = np.cumsum(self.histogram.counts) + self.histogram.zeros
        wanted = math.ceil(self.share * self.histogram.total)
        return float(int(np.searchsorted(counts, wanted)) + 1) * self.histogram.width


class Entropy(_Threshold):
    """The threshold at which the numbers, cut off and rounded to the levels of a byte, lose least information.

    It is the one of least Kullback-Leibler divergence, as in TensorRT (Migacz 2017, "8-bit inference with TensorRT"). Zeros are
    not counted: they are exact at any threshold.
    """

    def find_threshold(self) -> float:
        return find_entropy_threshold(self.histogram, LEVELS // 2 if self.least < 0 else LEVELS)


class SquaredError(_Threshold):
    """The threshold of least squared error: of what is cut off, and of rounding to the levels of a byte."""

    def find_threshold(self) -> float:
        return find_squared_error_threshold(self.histogram, self.least, self.most)


def find_entropy_threshold(histogram: MagnitudeHistogram, levels: int) -> float:
    """Return the end of the bins whose distribution diverges least from their rounding to so many levels."""
    counts = histogram.counts.astype(np.float64)
    last = int(np.flatnonzero(counts)[-1]) + 1
    ends = range(min(levels, last), last + 1, max(1, (last - levels) // 128)) if last > levels else (last,)
    best = min((_diverge(counts, end, levels), end) for end in {*ends, last})
    return float(best[1] * histogram.width)


def _diverge(counts: Array, end: int, levels: int) -> float:
    """Return the divergence of the first bins, with all others in the last of them, from their rounding to levels."""
    cut = counts[:end].copy()
    cut[-1] += counts[end:].sum()
    level = np.arange(end) * levels // end if end > levels else np.arange(end)
    inside = counts[:end]
    sums = np.bincount(level, weights=inside)
    filled = np.bincount(level, weights=inside > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        even = np.where(inside > 0, (sums / filled)[level], 0.0)
    used = cut > 0
    total = even.sum()
    if not total or (even[used] == 0).any():
        return math.inf
    p, q = cut[used] / cut.sum(), even[used] / total
    return float((p * np.log(p / q)).sum())


def find_squared_error_threshold(histogram: MagnitudeHistogram, least: float, most: float) -> float:
    """Return the threshold at which cut-off and rounding together have the least squared error."""
    counts, width = histogram.counts.astype(np.float64), histogram.width
    centers, ends = (np.arange(BINS) + 0.5) * width, (np.arange(BINS) + 1) * width
    above = [np.cumsum((counts * centers**power)[::-1])[::-1] - counts * centers**power for power in (0, 1, 2)]
    cut_off = above[2] - 2 * ends * above[1] + ends**2 * above[0]
    step = (np.minimum(max(most, 0.0), ends) - np.maximum(min(least, 0.0), -ends)) / (LEVELS - 1)
    return float(ends[int(np.argmin(cut_off + counts.sum() * step**2 / 12))])


METHODS: Mapping[str, Callable[..., Collector]] = {
    "minmax": MinMax,
    "moving_average": MovingAverage,
    "entropy": Entropy,
    "percentile": Percentile,
    "mse": SquaredError,
}
"""By name."""


def make_collector(method: str, parameters: Mapping[str, float]) -> Collector:
    """Return a collector of that method; raises OptionError for an unknown method or parameter, or an impossible value."""
    if method not in METHODS:
        raise OptionError(
            f"there is no calibration method {method!r}.{did_you_mean(method, METHODS)} There is: {', '.join(METHODS)}"
        )
    known = list(inspect.signature(METHODS[method]).parameters)
    for name in parameters:
        if name not in known:
            has = f"its parameters are {', '.join(known)}" if known else "it has none"
            raise OptionError(f"calibration method {method!r} has no parameter {name!r}; {has}.{did_you_mean(name, known)}")
    return METHODS[method](**parameters)


def read_parameters(method: str, parameters: Mapping[str, float]) -> dict[str, float]:
    """Return all parameters of the method, defaults included."""
    defaults = inspect.signature(METHODS[method]).parameters
    return {name: float(parameters.get(name, one.default)) for name, one in defaults.items()}


def _check_share(name: str, given: float, whole: float = 1.0) -> float:
    """Return a number as a share of the whole."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= whole:
        raise OptionError(f"{name} must be a number above 0, at most {whole:g}; got {given!r}")
    return given / whole
