"""Calibration methods: each collects statistics of a value over batches and chooses its range."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import CalibrationError, CalibrationWarning, OptionError, did_you_mean, warn
from xrt.forking import renew_after_fork
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Function, TensorType

Array: TypeAlias = np.ndarray[Any, Any]
BINS = 2048


class MagnitudeHistogram:
    """A histogram of magnitudes with equal bins from 0 to `limit`, a power of two; zeros are counted separately.

    When a larger magnitude is added, the limit doubles and pairs of bins are merged. The counts therefore do not depend on the
    order of the data.
    """

    def __init__(self) -> None:
        self.counts: Array = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.limit = 0.0
        """Upper end of the histogram, above all magnitudes; 0 if there were only zeros."""

    def add(self, numbers: Array) -> None:
        """Add finite numbers to the histogram, in linear time."""
        magnitudes = np.abs(numbers.reshape(-1).astype(np.float64))
        magnitudes = magnitudes[magnitudes > 0]
        self.zeros += numbers.size - magnitudes.size
        if magnitudes.size:
            self._raise_limit(float(magnitudes.max()))
            self.counts += np.bincount((magnitudes * (BINS / self.limit)).astype(np.int64), minlength=BINS)

    def _raise_limit(self, largest: float) -> None:
        """Double the limit until it exceeds ``largest``."""
        # A power of two: bins of any two histograms then have edges in common.
        limit = math.ldexp(1.0, math.frexp(largest)[1])
        if not self.limit:
            self.limit = limit
        while self.limit < limit:
            halved = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([halved, np.zeros(BINS // 2, np.int64)])
            self.limit *= 2

    @property
    def total(self) -> int:
        """Count of all numbers, including zeros."""
        return int(self.counts.sum()) + self.zeros

    @property
    def width(self) -> float:
        """Width of a bin."""
        return self.limit / BINS


LEVELS = 256
"""Number of quantization levels in a byte."""


class Collector:
    """Collects statistics of one value of the model over batches; `choose` computes the range to quantize to."""

    needs_batches = False
    """Whether the method is unreliable after only one batch; the caller then warns."""

    def __init__(self) -> None:
        self.least = math.inf
        self.most = -math.inf
        self.batches = 0

    def add(self, numbers: Array) -> None:
        """Add a batch of finite numbers, at least one."""
        low, high = float(numbers.min()), float(numbers.max())
        self.see(numbers, low, high)
        self.least, self.most = min(self.least, low), max(self.most, high)
        self.batches += 1

    def see(self, numbers: Array, low: float, high: float) -> None:
        """Update the statistics of the method. ``low`` and ``high`` are the minimum and maximum of the batch."""

    def choose(self) -> tuple[float, float]:
        """Compute the range to quantize to: its low and its high end."""
        return self.least, self.most


class MinMax(Collector):
    """The range from the minimum to the maximum of all batches; nothing is clipped."""


class MovingAverage(Collector):
    """The range between the exponential moving averages of the batches' minima and of their maxima."""

    needs_batches = True

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = _check_share("momentum", momentum)
        self._averages: tuple[float, float] | None = None

    def see(self, numbers: Array, low: float, high: float) -> None:
        momentum = self.momentum
        # The first batch sets the averages, so that no arbitrary start is averaged in.
        old_low, old_high = self._averages or (low, high)
        self._averages = momentum * old_low + (1 - momentum) * low, momentum * old_high + (1 - momentum) * high

    def choose(self) -> tuple[float, float]:
        return self._averages or super().choose()


class _ThresholdCollector(Collector):
    """A method that clips magnitudes above a threshold chosen from their histogram."""

    needs_batches = True

    def __init__(self) -> None:
        super().__init__()
        self.histogram = MagnitudeHistogram()

    def see(self, numbers: Array, low: float, high: float) -> None:
        self.histogram.add(numbers)

    def choose(self) -> tuple[float, float]:
        # Only zeros were seen: there is no magnitude to choose a threshold from.
        if not self.histogram.limit:
            return self.least, self.most
        threshold = self.find_threshold()
        return max(self.least, -threshold), min(self.most, threshold)

    def find_threshold(self) -> float:
        raise NotImplementedError


class Percentile(_ThresholdCollector):
    """Clips at the magnitude that ``percentile`` percent of the numbers do not exceed, to the precision of a bin."""

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        self.share = _check_share("percentile", percentile, 100.0)

    def find_threshold(self) -> float:
        counts = np.cumsum(self.histogram.counts) + self.histogram.zeros
        wanted = math.ceil(self.share * self.histogram.total)
        return float(int(np.searchsorted(counts, wanted)) + 1) * self.histogram.width


class Entropy(_ThresholdCollector):
    """Clips at the threshold with the least Kullback-Leibler divergence between the numbers and their quantized form.

    As in TensorRT (Migacz 2017, "8-bit inference with TensorRT"). Zeros are not counted: they are exact at any threshold.
    """

    def find_threshold(self) -> float:
        return find_entropy_threshold(self.histogram, LEVELS // 2 if self.least < 0 else LEVELS)


class SquaredError(_ThresholdCollector):
    """Clips at the threshold with the least squared error of clipping and rounding."""

    def find_threshold(self) -> float:
        return find_squared_error_threshold(self.histogram, self.least, self.most)


def find_entropy_threshold(histogram: MagnitudeHistogram, levels: int) -> float:
    """Find the threshold whose quantized distribution diverges least from the histogram, with ``levels`` quantization levels."""
    counts = histogram.counts.astype(np.float64)
    last = int(np.flatnonzero(counts)[-1]) + 1
    # Candidate thresholds, as numbers of bins: about 128 of them, since each costs a pass over the histogram.
    ends = range(min(levels, last), last + 1, max(1, (last - levels) // 128)) if last > levels else (last,)
    best = min((_compute_divergence(counts, end, levels), end) for end in {*ends, last})
    return float(best[1] * histogram.width)


def _compute_divergence(counts: Array, end: int, levels: int) -> float:
    """Compute the divergence between the distribution clipped to the first ``end`` bins and its form in ``levels`` levels."""
    cut = counts[:end].copy()
    # Clipped numbers become the largest level.
    cut[-1] += counts[end:].sum()
    level = np.arange(end) * levels // end if end > levels else np.arange(end)
    inside = counts[:end]
    sums = np.bincount(level, weights=inside)
    filled = np.bincount(level, weights=inside > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        even = np.where(inside > 0, (sums / filled)[level], 0.0)
    used = cut > 0
    total = even.sum()
    # The divergence is infinite where clipped numbers lie in a bin that was empty.
    if not total or (even[used] == 0).any():
        return math.inf
    p, q = cut[used] / cut.sum(), even[used] / total
    return float((p * np.log(p / q)).sum())


def find_squared_error_threshold(histogram: MagnitudeHistogram, least: float, most: float) -> float:
    """Find the threshold with the least sum of squared errors; ``least`` and ``most`` are the extremes of the numbers."""
    counts = histogram.counts.astype(np.float64)
    width = histogram.width
    centers = (np.arange(BINS) + 0.5) * width
    ends = (np.arange(BINS) + 1) * width
    # Clipping: the sum of (center - end)**2 over the bins above each end, expanded into moments, which are cumulative sums.
    above = [np.cumsum((counts * centers**power)[::-1])[::-1] - counts * centers**power for power in (0, 1, 2)]
    cut_off = above[2] - 2 * ends * above[1] + ends**2 * above[0]
    # Rounding: the variance of a uniform error, step**2 / 12, for each number.
    step = (np.minimum(max(most, 0.0), ends) - np.maximum(min(least, 0.0), -ends)) / (LEVELS - 1)
    return float(ends[int(np.argmin(cut_off + counts.sum() * step**2 / 12))])


METHODS: Mapping[str, Callable[..., Collector]] = {
    "minmax": MinMax,
    "moving_average": MovingAverage,
    "entropy": Entropy,
    "percentile": Percentile,
    "mse": SquaredError,
}
"""Calibration methods by name."""


def make_collector(method: str, parameters: Mapping[str, float]) -> Collector:
    """Create a collector; raises OptionError for an unknown method or parameter, or an invalid value."""
    if method not in METHODS:
        raise OptionError(
            f"there is no calibration method {method!r}.{did_you_mean(method, METHODS)} There is: {', '.join(METHODS)}"
        )
    names = list(inspect.signature(METHODS[method]).parameters)
    for name in parameters:
        if name not in names:
            has = f"its parameters are {', '.join(names)}" if names else "it has none"
            raise OptionError(f"calibration method {method!r} has no parameter {name!r}; {has}.{did_you_mean(name, names)}")
    return METHODS[method](**parameters)


def complete_parameters(method: str, parameters: Mapping[str, float]) -> dict[str, float]:
    """Fill in the defaults of the method's parameters that are not passed."""
    defaults = inspect.signature(METHODS[method]).parameters
    return {name: float(parameters.get(name, parameter.default)) for name, parameter in defaults.items()}


def _check_share(name: str, value: float, whole: float = 1.0) -> float:
    """Convert ``value`` to a fraction of ``whole``. Raises OptionError unless it is above 0 and at most ``whole``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= whole:
        raise OptionError(f"{name} must be a number above 0, at most {whole:g}; got {value!r}")
    return value / whole


class Observer:
    """Collects the ranges of values, by their `xrt.graph.hash_values`. Raises OptionError for an unknown method."""

    def __init__(self, method: str = "minmax", parameters: Mapping[str, float] | None = None) -> None:
        self.method, self._kwargs = method, dict(parameters or {})
        # Raises OptionError here instead of at the first batch.
        make_collector(method, self._kwargs)
        self._collectors: dict[str, tuple[str, Collector]] = {}
        self._lock = renew_after_fork(threading.Lock())
        self.batches = 0
        """Number of observed calls of the model."""

    def check(self, values: Iterable[tuple[str, Any]], kind: str = "value") -> None:
        """Raise CalibrationError if an array has NaN or infinity. ``values`` are names with arrays; errors call them ``kind``."""
        for name, array in values:
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
                nans, infinities = int(np.isnan(array).sum()), int(np.isinf(array).sum())
                raise CalibrationError(
                    f"{kind} {name!r} of calibration batch {self.batches + 1} has {nans} NaN and {infinities} infinities among "
                    f"its {array.size} numbers; calibrate on data for which the model's values are finite"
                )

    def add(self, values: Mapping[str, tuple[str, Array]]) -> None:
        """Update the statistics with the arrays of one batch.

        ``values`` maps the hash of a value to its name, for messages, and its array. Raises CalibrationError, and changes
        nothing, if an array has NaN or infinity.
        """
        with self._lock:
            # Before any value is added: a batch counts as a whole or not at all.
            self.check(values.values())
            self.batches += 1
            for key, (name, array) in values.items():
                if array.size:
                    if key not in self._collectors:
                        self._collectors[key] = name, make_collector(self.method, self._kwargs)
                    self._collectors[key][1].add(array)

    def make_table(self) -> CalibrationTable:
        """Choose a range for each value by the method. Raises CalibrationError if no batch was added."""
        with self._lock:
            if not self.batches:
                raise CalibrationError("calibration has seen no batch; call the model on examples of its inputs")
            ranges = tuple(_make_range(key, name, collector) for key, (name, collector) in self._collectors.items())
            needs_more = any(collector.needs_batches for _, collector in self._collectors.values())
        if self.batches == 1 and needs_more:
            warn(
                f"calibration by {self.method!r} has seen one batch, and needs the statistics of several; add batches, "
                "or use method='minmax'",
                CalibrationWarning,
            )
        return CalibrationTable(method=self.method, parameters=complete_parameters(self.method, self._kwargs), ranges=ranges)


def _make_range(key: str, name: str, collector: Collector) -> ValueRange:
    low, high = collector.choose()
    least, most, batches = collector.least, collector.most, collector.batches
    return ValueRange(key=key, low=low, high=high, least=least, most=most, batches=batches, name=name[:4000])


MAX_GROUP_BYTES = 256 << 20
"""Maximum bytes of the values that one run of the model outputs for observation."""
DEFAULT_VALUE_BYTES = 8 << 20
"""Assumed size of a value whose shape is unknown."""


def group_by_bytes(names: Sequence[str], function: Function) -> Iterator[tuple[str, ...]]:
    """Group names so that the values of a group take at most `MAX_GROUP_BYTES`."""
    group: list[str] = []
    size = 0
    for name in names:
        type_ = function.get_type(name)
        nbytes = (type_.nbytes if isinstance(type_, TensorType) else None) or DEFAULT_VALUE_BYTES
        if group and size + nbytes > MAX_GROUP_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(name)
        size += nbytes
    if group:
        yield tuple(group)
