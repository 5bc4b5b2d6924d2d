"""Closed-loop load: a fixed number of requests in flight, where each response triggers the next request.

Triton's perf_analyzer works the same way. There are no load-generating threads: an instance that finishes a batch issues as many
new requests, so generating load costs no CPU time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.measure.timing import Clock

Instance: TypeAlias = Callable[[int, int], object]
"""Serves ``count`` requests, given the number of the first one and ``count``."""

WARM_CALLS = 2
LEAST_CALLS = 5
"""Minimum calls per instance, regardless of the time."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Throughput and latency at one concurrency."""

    concurrency: int
    """Requests in flight."""
    rate: float
    """Requests per second."""
    requests: int
    """Number of latencies counted."""
    p50: float
    """Median latency in seconds, from request to result."""
    p99: float
    """99th percentile of the latency in seconds: an observed value, not interpolated."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict."""
        return asdict(self)


def run_closed_loop(
    instances: Sequence[Instance], batch: int, concurrency: int, seconds: float, *, clock: Clock = time.perf_counter
) -> LoadResult:
    """Measure instances, one thread each, that serve batches of ``batch`` with ``concurrency`` requests in flight.

    The concurrency must be at least ``batch`` per instance, so that every batch is full. Exceptions of an instance are raised.
    """
    waiting: deque[float] = deque()  # when each waiting request was issued
    began = 0.0

    def start() -> None:
        nonlocal began
        began = clock()
        waiting.extend([began] * concurrency)

    # All instances start together, after their warm-up.
    lock, barrier = threading.Lock(), threading.Barrier(len(instances), start)

    def serve(number: int) -> list[tuple[float, list[float]]]:
        instance, first = instances[number], number * batch
        try:
            for _ in range(WARM_CALLS):
                instance(first, batch)
            barrier.wait()
        except BaseException:
            barrier.abort()  # release the other instances
            raise
        done: list[tuple[float, list[float]]] = []
        while len(done) < LEAST_CALLS or clock() < began + seconds:
            with lock:
                issued = [waiting.popleft() for _ in range(batch)]
            instance(first, batch)
            first += batch
            end = clock()
            with lock:
                waiting.extend([end] * batch)
            done.append((end, issued))
        return done

    calls = [serve(0)] if len(instances) == 1 else _run_in_threads(serve, len(instances))
    until = min(instance_calls[-1][0] for instance_calls in calls)  # afterwards some instances are idle
    counted = [(end, issued) for instance_calls in calls for end, issued in instance_calls if end <= until]
    # The first requests were all issued at once and waited less than later ones. Count them only if the time was too short for
    # others.
    latencies = [end - time_ for end, issued in counted for time_ in issued if time_ > began]
    latencies = latencies or [end - time_ for end, issued in counted for time_ in issued]
    p50, p99 = (float(value) for value in np.quantile(latencies, (0.5, 0.99), method="higher"))
    return LoadResult(concurrency, batch * len(counted) / (until - began), len(latencies), p50, p99)


def _run_in_threads(serve: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(serve, number) for number in range(count)]
    errors = [error for run in runs if (error := run.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):  # raise the first failure, not the broken barriers it caused
            raise error
    return [run.result() for run in runs]
