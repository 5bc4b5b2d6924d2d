"""Calibration methods. Each collects statistics of a value over batches and chooses the range to quantize to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import CalibrationError, CalibrationWarning, OptionError, did_you_mean, warn
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Function, TensorType

Array: TypeAlias = np.ndarray[Any, Any]
BINS = 2048
"""Number of bins of a histogram. Even, because pairs of bins are merged."""


class MagnitudeHistogram:
    """A histogram of magnitudes with `BINS` equal bins from 0 to `limit`, a power of two. Zeros are counted separately.

    When a larger magnitude is added, the limit doubles and pairs of bins are merged. The counts therefore do not depend on the
    order of the data.
    """

    def __init__(self) -> None:
        self.counts: Array = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.limit = 0.0
        """Upper end of the histogram, larger than all magnitudes; 0 if there were only zeros."""

    def add(self, numbers: Array) -> None:
        magnitudes = np.abs(numbers.reshape(-1).astype(np.float64))
        magnitudes = magnitudes[magnitudes > 0]
        self.zeros += numbers.size - magnitudes.size
        if magnitudes.size:
            self._raise_limit(float(magnitudes.max()))
            self.counts += np.bincount((magnitudes * (BINS / self.limit)).astype(np.int64), minlength=BINS)

    def _raise_limit(self, largest: float) -> None:
        # A power of two, so that the bins of a larger limit are unions of bins.
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
        return self.limit / BINS


LEVELS = 256
"""Number of values that a quantized byte can have."""


class Collector:
    """Collects statistics of one value of the model over batches; `choose` computes the range to quantize to."""

    needs_batches = False
    """Whether the method is unreliable after one batch, for which `Observer.make_table` warns."""

    def __init__(self) -> None:
        self.least = math.inf
        self.most = -math.inf
        self.batches = 0

    def add(self, numbers: Array) -> None:
        """Add a batch of at least one number. The numbers must be finite."""
        low, high = float(numbers.min()), float(numbers.max())
        self.update(numbers, low, high)
        self.least, self.most = min(self.least, low), max(self.most, high)
        self.batches += 1

    def update(self, numbers: Array, low: float, high: float) -> None:
        """Update the statistics of the method. ``low`` and ``high`` are the minimum and maximum of the batch."""

    def choose(self) -> tuple[float, float]:
        """Choose the range to quantize to: its low and its high end."""
        return self.least, self.most


class MinMax(Collector):
    """The range from the minimum to the maximum of all batches; nothing is clipped."""


class MovingAverage(Collector):
    """The range between the exponential moving averages of the batches' minima and of their maxima."""

    needs_batches = True

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = _parse_share("momentum", momentum)
        self._averages: tuple[float, float] | None = None

    def update(self, numbers: Array, low: float, high: float) -> None:
        momentum = self.momentum
        # The averages start at the first batch.
        old_low, old_high = self._averages or (low, high)
        new_low = momentum * old_low + (1 - momentum) * low
        new_high = momentum * old_high + (1 - momentum) * high
        self._averages = new_low, new_high

    def choose(self) -> tuple[float, float]:
        return self._averages or super().choose()


class _ThresholdCollector(Collector):
    """Base class of methods that clip magnitudes above a threshold, which they choose from a histogram."""

    needs_batches = True

    def __init__(self) -> None:
        super().__init__()
        self.histogram = MagnitudeHistogram()

    def update(self, numbers: Array, low: float, high: float) -> None:
        self.histogram.add(numbers)

    def choose(self) -> tuple[float, float]:
        # Without magnitudes other than zero there is no threshold.
        if not self.histogram.limit:
            return self.least, self.most
        threshold = self.find_threshold()
        return max(self.least, -threshold), min(self.most, threshold)

    def find_threshold(self) -> float:
        raise NotImplementedError


class Percentile(_ThresholdCollector):
    """Clips at the magnitude that ``percentile`` percent of the numbers do not exceed, rounded up to the end of a bin."""

    def __init__(self, percentile: float = 99.99) -> None:
        super().__init__()
        self.share = _parse_share("percentile", percentile, 100.0)

    def find_threshold(self) -> float:
        counts_up_to_bin = np.cumsum(self.histogram.counts) + self.histogram.zeros
        needed = math.ceil(self.share * self.histogram.total)
        last_bin = int(np.searchsorted(counts_up_to_bin, needed))
        return (last_bin + 1) * self.histogram.width


class Entropy(_ThresholdCollector):
    """Clips at the threshold with the least Kullback-Leibler divergence between the numbers and their quantized form.

    This is TensorRT's method (Migacz 2017, "8-bit inference with TensorRT"). Zeros are not counted, as any threshold represents
    them exactly.
    """

    def find_threshold(self) -> float:
        # With negative numbers, each sign has half of the levels.
        return find_entropy_threshold(self.histogram, LEVELS // 2 if self.least < 0 else LEVELS)


class SquaredError(_ThresholdCollector):
    """Clips at the threshold with the least squared error of clipping and rounding."""

    def find_threshold(self) -> float:
        counts = self.histogram.counts.astype(np.float64)
        centers = (np.arange(BINS) + 0.5) * self.histogram.width
        ends = (np.arange(BINS) + 1) * self.histogram.width
        # Clipping at each end: the sum of count * (center - end)**2 over the bins above it. The square is expanded, so that the
        # sums over bins are cumulative sums of counts, counts * centers and counts * centers**2.
        moments = [counts * centers**power for power in (0, 1, 2)]
        above = [np.cumsum(moment[::-1])[::-1] - moment for moment in moments]
        clipping = above[2] - 2 * ends * above[1] + ends**2 * above[0]
        # Rounding: a uniform error has the variance step**2 / 12.
        high = np.minimum(max(self.most, 0.0), ends)
        low = np.maximum(min(self.least, 0.0), -ends)
        step = (high - low) / (LEVELS - 1)
        rounding = counts.sum() * step**2 / 12
        return float(ends[int(np.argmin(clipping + rounding))])


def find_entropy_threshold(histogram: MagnitudeHistogram, levels: int) -> float:
    """Find the threshold whose quantized distribution, of ``levels`` levels, diverges least from the histogram."""
    counts = histogram.counts.astype(np.float64)
    used_bins = int(np.flatnonzero(counts)[-1]) + 1
    # Candidate thresholds, as numbers of bins: about 128, since each costs a pass over the histogram.
    candidates = {used_bins}
    if used_bins > levels:
        candidates.update(range(levels, used_bins, max(1, (used_bins - levels) // 128)))
    _, best = min((_compute_divergence(counts, end, levels), end) for end in candidates)
    return best * histogram.width


def _compute_divergence(counts: Array, end: int, levels: int) -> float:
    """Compute the divergence between the numbers, clipped to the first ``end`` bins, and their form in ``levels`` levels."""
    inside = counts[:end]
    clipped = inside.copy()
    clipped[-1] += counts[end:].sum()
    # Quantization spreads the count of each level evenly over the bins of this level that have numbers.
    level_of_bin = np.arange(end) * levels // end if end > levels else np.arange(end)
    level_counts = np.bincount(level_of_bin, weights=inside)
    filled_bins = np.bincount(level_of_bin, weights=inside > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        quantized = np.where(inside > 0, (level_counts / filled_bins)[level_of_bin], 0.0)
    used = clipped > 0
    # The divergence is infinite if clipped numbers lie in a bin that was empty.
    if quantized.sum() == 0 or (quantized[used] == 0).any():
        return math.inf
    p, q = clipped[used] / clipped.sum(), quantized[used] / quantized.sum()
    return float((p * np.log(p / q)).sum())


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


def _parse_share(name: str, value: float, maximum: float = 1.0) -> float:
    """Convert an option to its fraction of the maximum. Raises OptionError unless it is above 0 and at most the maximum."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= maximum:
        raise OptionError(f"{name} must be a number above 0, at most {maximum:g}; got {value!r}")
    return value / maximum


class Observer:
    """Collects the ranges of values over batches. A value is identified by its hash, from `xrt.graph.hash_values`."""

    def __init__(self, method: str = "minmax", parameters: Mapping[str, float] | None = None) -> None:
        self.method, self._kwargs = method, dict(parameters or {})
        # For its OptionError, which would otherwise be raised at the first batch.
        make_collector(method, self._kwargs)
        self._collectors: dict[str, tuple[str, Collector]] = {}
        self.batches = 0

    def add(self, keys: Mapping[str, str], values: Mapping[str, Any]) -> None:
        """Update the statistics with the values of one batch, by name; ``keys`` has the hashes of the values to add.

        Raises CalibrationError if a value has NaN or infinity.
        """
        # Values with equal hashes are equal, and are added once.
        for key, name in {key: name for name, key in keys.items()}.items():
            array = np.asarray(values[name])
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                nans, infinities = int(np.isnan(array).sum()), int(np.isinf(array).sum())
                raise CalibrationError(
                    f"value {name!r} of calibration batch {self.batches + 1} has {nans} NaN and {infinities} infinities "
                    f"among its {array.size} numbers; calibrate on data for which the model's values are finite"
                )
            if array.size:
                if key not in self._collectors:
                    self._collectors[key] = name, make_collector(self.method, self._kwargs)
                self._collectors[key][1].add(array)
        self.batches += 1

    def make_table(self) -> CalibrationTable:
        """Choose a range for each value by the method. Raises CalibrationError if no batch was added."""
        if not self.batches:
            raise CalibrationError("calibration has seen no batch; pass a list with at least one, each the inputs of a call")
        ranges = []
        for key, (name, collector) in self._collectors.items():
            low, high = collector.choose()
            extremes = {"least": collector.least, "most": collector.most}
            ranges.append(ValueRange(key=key, low=low, high=high, **extremes, batches=collector.batches, name=name[:4000]))
        needs_more = any(collector.needs_batches for _, collector in self._collectors.values())
        if self.batches == 1 and needs_more:
            warn(
                f"calibration by {self.method!r} has seen one batch, and needs the statistics of several; add batches, "
                "or use method='minmax'",
                CalibrationWarning,
            )
        defaults = inspect.signature(METHODS[self.method]).parameters
        parameters = {name: float(self._kwargs.get(name, parameter.default)) for name, parameter in defaults.items()}
        return CalibrationTable(method=self.method, parameters=parameters, ranges=tuple(ranges))


MAX_GROUP_BYTES = 256 << 20
"""Maximum bytes of the inner values that one run of the model outputs for calibration."""
DEFAULT_VALUE_BYTES = 8 << 20
"""Assumed bytes of a value whose shape is unknown."""


def read_values(
    function: Function,
    names: Collection[str],
    inputs: Mapping[str, Any],
    run: Callable[[tuple[str, ...]], Iterable[Any]],
) -> dict[str, Any]:
    """Return the inputs and inner values with these names for one batch. ``run`` runs the model and returns the named values."""
    values = {name: inputs[name] for name in names if name in inputs}
    for group in _group_by_bytes([name for name in names if name not in inputs], function):
        values.update(zip(group, run(group), strict=True))
    return values


def _group_by_bytes(names: Sequence[str], function: Function) -> Iterator[tuple[str, ...]]:
    """Group the names of values so that each group has at most `MAX_GROUP_BYTES`, or one value."""
    group: list[str] = []
    size = 0
    for name in names:
        type_ = function.get_type(name)
        known_bytes = type_.nbytes if isinstance(type_, TensorType) else None
        nbytes = known_bytes or DEFAULT_VALUE_BYTES
        if group and size + nbytes > MAX_GROUP_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(name)
        size += nbytes
    if group:
        yield tuple(group)
