"""A queue with batches, from times alone: when batches start, what a load that is simulated gives, and what a load took.

Requests arrive at intended times, whatever the server does, and a latency counts from the intended arrival: a server that is late
cannot hide its delay by making requests wait unsent (coordinated omission). One rule decides when a batch starts and how many
rows it has; the simulation and `xrt.measure.open_loop`, which runs real calls, share it. Nothing here reads a clock.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Batching", "LoadResult", "Times", "draw_arrivals", "simulate_queue", "summarize_load"]

Times: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
"""Seconds, one for each request, in the order of arrival."""

WARM = 0.1
"""Share of the requests that do not count: they meet a queue that is still empty."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How waiting requests become a batch: it starts when it is full, or when the oldest request has waited long enough."""

    most: int = 1
    """Rows of a full batch."""
    max_wait: float = 0.0
    """Seconds that the oldest request waits for others while an instance is idle."""
    sizes: tuple[int, ...] = ()
    """The only rows that a call may have, ascending from 1: a batch of fewer is filled up with a repeated row. Empty where a call
    may have any number up to ``most``."""

    def find_size(self, rows: int) -> int:
        """Return the rows of the call for a batch.

        >>> Batching(8).find_size(5), Batching(8, sizes=(1, 2, 4, 8)).find_size(5)
        (5, 8)
        """
        return rows if not self.sizes else min(size for size in self.sizes if size >= rows)

    def find_start(self, arrivals: Sequence[float], first: int, free: float) -> float:
        """Return when the batch starts whose oldest request is the ``first``, on an instance that is free from then on."""
        full = first + self.most - 1
        due = arrivals[first] + self.max_wait
        if full < len(arrivals):
            due = min(due, arrivals[full])
        return max(free, due)

    def take(self, arrivals: Sequence[float], first: int, now: float) -> int:
        """Return how many requests the batch takes that starts now: at least the ``first``, which has arrived."""
        until = bisect.bisect_right(arrivals, now, first, min(first + self.most, len(arrivals)))
        return max(until - first, 1)


def draw_arrivals(rate: float, count: int, seed: int) -> Times:
    """Return the arrival times of a Poisson process of that many requests per second.

    With one seed, the arrivals of two rates are the same sample on two scales, with the same bursts.
    """
    return np.cumsum(np.random.default_rng(seed).exponential(1.0, count)) / rate


def simulate_queue(arrivals: Times, batching: Batching, service: Callable[[int], float], instances: int = 1) -> Times:
    """Return when each request is done, by a simulation of discrete events; ``service`` gives the seconds of a call of rows.

    The oldest requests go to the instance that is free first.
    """
    done, times = np.empty(len(arrivals)), arrivals.tolist()  # a list is quicker to read one by one
    free = [0.0] * instances
    first = 0
    while first < len(times):
        start = batching.find_start(times, first, free[0])
        rows = batching.take(times, first, start)
        end = start + service(batching.find_size(rows))
        done[first : first + rows] = end
        heapq.heapreplace(free, end)
        first += rows
    return done


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of a load."""

    rate: float
    """Requests per second that arrived, as asked for."""
    requests: int
    """Requests that count."""
    p50: float
    """Seconds from the intended arrival to the result, the median; infinite where the run was given up."""
    p99: float
    """The same, which 99 of 100 requests do not exceed: one of the latencies that were seen, not a value between two."""
    mean: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)


def summarize_load(rate: float, arrivals: Times, done: Times) -> LoadResult:
    """Return the latencies of a load; requests that were not served are infinitely late."""
    late = (done - arrivals)[int(WARM * len(arrivals)) :]
    low, high = (float(value) for value in np.quantile(late, (0.5, 0.99), method="higher"))
    return LoadResult(rate, len(late), low, high, float(np.mean(late)))
