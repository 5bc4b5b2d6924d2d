"""What the times of calls lead to: whether a larger batch pays, and the rate of requests that a queue of them can serve."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xrt.measure.queueing import Batching, LoadResult, draw_arrivals, simulate_queue, summarize_load
from xrt.measure.rate_search import search_rate

__all__ = ["GAIN", "ServiceTimes", "predict_rate"]

DRAWN = 997
"""Times of calls that are drawn of each size, and repeated."""
CALM = 0.9
"""Share of the calls, the quickest, that a prediction rests on: what a busy machine delays is met under load."""
GAIN = 0.03
"""Part of the time per request that a larger batch must save over every smaller one: each request waits longer for it."""
REQUESTS, MOST = 1000, 50_000
"""Requests of a simulated load, at least and at most."""
SPANS = 10.0
"""Times the bound that it takes: a queue that grows must have time to grow."""
TRIALS = 8
WAITS = (0.0, 0.15)
"""Parts of the bound that requests may wait for others, of which the best is predicted."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Seconds of calls by their number of requests, measured while all instances of a split were busy."""

    samples: Mapping[int, Sequence[float]]
    medians: Mapping[int, float] = field(init=False)

    def __post_init__(self) -> None:
        medians = {size: statistics.median(several) for size, several in sorted(self.samples.items())}
        object.__setattr__(self, "medians", medians)

    def find_reason_against(self, batch: int, bound: float) -> str:
        """Return why a batch size cannot be the best one; empty where it may be."""
        mine = self.medians[batch]
        if mine > bound:
            return f"a call takes {1e3 * mine:.3g} ms, longer than a request may"
        smaller = [(self.medians[size] / size, size) for size in self.medians if size < batch]
        least, size = min(smaller, default=(math.inf, 0))
        if mine / batch > (1 - GAIN) * least:
            return f"batching does not pay: {1e3 * mine / batch:.3g} ms per request, and {1e3 * least:.3g} ms in calls of {size}"
        return ""

    def make_service(self, seed: int) -> Callable[[int], float]:
        """Return what gives the seconds of a call: one that was measured; between two measured sizes by interpolation.

        The slowest calls are left out.
        """
        generator, sizes = np.random.default_rng(seed), list(self.medians)
        drawn = {size: itertools.cycle(generator.choice(_select_calm(self.samples[size]), DRAWN).tolist()) for size in sizes}
        scales: dict[int, tuple[int, float]] = {}

        def serve(rows: int) -> float:
            if rows not in scales:
                scales[rows] = self._find_scale(sizes, rows)
            size, scale = scales[rows]
            return scale * float(next(drawn[size]))

        return serve

    def _find_scale(self, sizes: list[int], rows: int) -> tuple[int, float]:
        """Return the measured size that a number of rows is drawn from, and the factor of the time."""
        at = bisect.bisect_left(sizes, rows)
        high = sizes[min(at, len(sizes) - 1)]
        if rows >= high or at == 0:
            return high, 1.0
        low = sizes[at - 1]
        share = (rows - low) / (high - low)
        return high, (self.medians[low] + share * (self.medians[high] - self.medians[low])) / self.medians[high]


def _select_calm(samples: Sequence[float]) -> list[float]:
    return sorted(samples)[: max(1, math.ceil(CALM * len(samples)))]


def predict_rate(
    times: ServiceTimes, batch: int, instances: int, bound: float, sizes: tuple[int, ...], seed: int
) -> tuple[float, Batching]:
    """Return the highest rate within the bound by simulation, and the wait for full batches at which it is reached.

    The rate is 0 where none is within the bound. ``sizes`` are those that a batch may have, as in `Batching`.
    """
    capacity = instances * batch / times.medians[batch]
    if math.isinf(bound):
        return capacity, Batching(batch, 0.0, sizes)
    chosen, best = Batching(batch, 0.0, sizes), 0.0
    for share in WAITS if batch > 1 else WAITS[:1]:
        batching = Batching(batch, share * bound, sizes)

        def simulate(rate: float, batching: Batching = batching) -> LoadResult:
            arrivals = draw_arrivals(rate, int(min(max(REQUESTS, SPANS * bound * rate), MOST)), seed)
            done = simulate_queue(arrivals, batching, times.make_service(seed), instances)
            return summarize_load(rate, arrivals, done)

        found = search_rate(simulate, 0.8 * capacity, capacity, bound, TRIALS).best
        if found is not None and found.rate > best * (1 + GAIN):
            chosen, best = batching, found.rate
    return best, chosen
