"""Collectors of ranges against their definitions in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from xrt.errors import OptionError
from xrt.precision.collectors import BINS, LEVELS, METHODS, MagnitudeHistogram, find_entropy_threshold, make_collector

Array = np.ndarray[Any, Any]
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
BATCHES = st.lists(arrays(np.float32, st.integers(1, 40), elements=NUMBERS), min_size=1, max_size=6)


def collect(method: str, batches: list[Array], **parameters: float) -> tuple[float, float]:
    collector = make_collector(method, parameters)
    for batch in batches:
        collector.add(batch)
    return collector.choose()


@pytest.mark.slow
@given(BATCHES)
def test_a_histogram_does_not_depend_on_the_order_of_the_data(batches: list[Array]) -> None:
    streamed, whole = MagnitudeHistogram(), MagnitudeHistogram()
    for batch in batches:
        streamed.add(batch)
    whole.add(np.concatenate(batches[::-1]))
    assert np.array_equal(streamed.counts, whole.counts)
    assert (streamed.limit, streamed.zeros, streamed.total) == (whole.limit, whole.zeros, sum(map(len, batches)))
    if whole.limit:
        magnitudes = np.abs(np.concatenate(batches).astype(np.float64))
        counts, _ = np.histogram(magnitudes[magnitudes > 0], BINS, (0, whole.limit))
        assert np.array_equal(streamed.counts, counts)


@pytest.mark.slow
@given(BATCHES, st.sampled_from([*METHODS]))
def test_every_range_is_within_the_extremes(batches: list[Array], method: str) -> None:
    low, high = collect(method, batches)
    least, most = min(float(b.min()) for b in batches), max(float(b.max()) for b in batches)
    slack = 1e-6 * max(abs(least), abs(most))  # of an average
    assert least - slack <= low <= high <= most + slack
    if method == "minmax":
        assert (low, high) == (least, most)


def test_a_moving_average_is_the_recurrence() -> None:
    batches = [np.array([-1.0, 2.0]), np.array([-3.0, 1.0]), np.array([0.0, 8.0])]
    low, high = collect("moving_average", batches, momentum=0.5)
    assert (low, high) == (((-1 - 3) / 2 + 0) / 2, ((2 + 1) / 2 + 8) / 2)


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.9, 100.0])
def test_a_percentile_is_numpys_up_to_a_bin(percentile: float) -> None:
    batches = [np.random.default_rng(seed).standard_normal(500).astype(np.float32) for seed in range(4)]
    batches = [np.append(batch, np.float32(6)) for batch in batches]
    low, high = collect("percentile", batches, percentile=percentile)
    exact = float(np.percentile(np.abs(np.concatenate(batches)), percentile, method="inverted_cdf"))
    width = math.ldexp(1.0, math.frexp(max(float(np.abs(b).max()) for b in batches))[1]) / BINS
    assert abs(high - exact) <= width
    assert low in (-high, min(float(b.min()) for b in batches))


def find_by_definition(numbers: Array) -> float:
    """Return the threshold of least squared error, tried at the end of each bin on the numbers themselves."""
    limit = math.ldexp(1.0, math.frexp(float(np.abs(numbers).max()))[1])
    best = (math.inf, 0.0)
    for end in (np.arange(BINS) + 1) * limit / BINS:
        low, high = max(float(numbers.min()), -end), min(float(numbers.max()), end)
        step = (max(high, 0) - min(low, 0)) / (LEVELS - 1)
        error = float(((numbers - np.clip(numbers, -end, end)) ** 2).sum() + numbers.size * step**2 / 12)
        best = min(best, (error, float(end)))
    return best[1]


@pytest.mark.parametrize("is_positive", [True, False])
def test_the_least_squared_error_is_found(is_positive: bool) -> None:
    numbers = np.append(np.random.default_rng(1).laplace(size=20000), 30.0)
    numbers = np.abs(numbers) if is_positive else numbers
    _, high = collect("mse", [numbers])
    assert high == pytest.approx(find_by_definition(numbers), rel=0.05)
    assert high < 30  # one far number is cut off


def diverge_by_definition(counts: Array, end: int, levels: int) -> float:
    """Return what Migacz's pseudo-code gives, by loops."""
    reference = counts[:end].astype(float)
    reference[-1] += counts[end:].sum()
    rounded = np.zeros(end)
    for level in range(levels):
        inside = [i for i in range(end) if i * levels // end == level]
        used = [i for i in inside if counts[i]]
        for i in used:
            rounded[i] = counts[inside].sum() / len(used)
    p, q = reference / reference.sum(), rounded / rounded.sum()
    return float(sum(math.inf if q[i] == 0 else p[i] * math.log(p[i] / q[i]) for i in range(end) if p[i]))


def test_entropy_finds_the_least_divergence() -> None:
    histogram = MagnitudeHistogram()
    histogram.add(np.random.default_rng(2).laplace(size=20000))
    last = int(np.flatnonzero(histogram.counts)[-1]) + 1
    ends = sorted({*range(128, last + 1, max(1, (last - 128) // 128)), last})
    best = min((diverge_by_definition(histogram.counts, end, 128), end) for end in [*ends[:: len(ends) // 8], last])
    threshold = find_entropy_threshold(histogram, 128)
    assert diverge_by_definition(histogram.counts, round(threshold / histogram.width), 128) <= best[0] + 1e-12


def test_zeros_alone_have_the_range_of_zero() -> None:
    assert {collect(method, [np.zeros(4), np.zeros(2)]) for method in METHODS} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("entropie", {}, "there is no calibration method 'entropie'. Did you mean 'entropy'? There is: minmax, moving_average"),
        ("minmax", {"momentum": 0.5}, "calibration method 'minmax' has no parameter 'momentum'; it has none."),
        ("percentile", {"percent": 9}, "'percent'; its parameters are percentile. Did you mean 'percentile'?"),
        ("percentile", {"percentile": 0}, "percentile must be a number above 0, at most 100; got 0"),
        ("moving_average", {"momentum": "x"}, "momentum must be a number above 0, at most 1; got 'x'"),
    ],
)
def test_impossible_methods_are_refused(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_collector(method, parameters)
    assert message in str(caught.value)
