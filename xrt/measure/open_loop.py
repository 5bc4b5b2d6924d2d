"""Instances under an open-loop load: requests arrive at their intended times, however late the instances are.

No thread generates load. The arrivals are known in advance, so an instance that is free looks at the clock for what has arrived
by now. That costs no processor time of its own, and no request can be sent late.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import numpy as np

from xrt.measure.queueing import Batching, Times
from xrt.measure.timing import Clock

__all__ = ["Instance", "Sleep", "run_open_loop", "sample_busy_instances"]

Instance: TypeAlias = Callable[[int, int], object]
"""Serves requests: the number of the first, and how many."""
Sleep: TypeAlias = Callable[[float], object]

T = TypeVar("T")

AHEAD = 0.01
"""Seconds before the first arrival, in which the threads start."""
CALLS = 1000
"""Batches of requests that are always waiting, which are repeated."""
SHORTEST = 1e-6
"""Seconds that are not worth a sleep."""


class _Load:
    """The requests that are still to be taken, in the order of arrival."""

    def __init__(self, arrivals: Times, batching: Batching, clock: Clock, sleep: Sleep, most_late: float) -> None:
        self._arrivals: list[float] = arrivals.tolist()
        self._batching, self._clock, self._sleep = batching, clock, sleep
        self._most_late = most_late
        self._next, self._lock = 0, threading.Lock()
        self.done: Times = np.full(len(arrivals), math.inf)
        self.began = clock() + AHEAD

    def serve(self, instance: Instance) -> None:
        """Serve batches until there is no further request."""
        while (taken := self._take()) is not None:
            first, rows = taken
            instance(first, rows)
            self.done[first : first + rows] = self._clock() - self.began

    def serve_one(self, instance: Instance) -> None:
        """Serve a batch; after the last request the first one comes again."""
        if (taken := self._take()) is None:
            self._next = 0
            taken = 0, self._batching.most
        instance(*taken)
        self.done[taken[0] : sum(taken)] = self._clock() - self.began

    def stop(self) -> None:
        with self._lock:
            self._next = len(self._arrivals)

    def _take(self) -> tuple[int, int] | None:
        """Return the next batch once it is to start; None where no request is left, or the next one is hopelessly late.

        The instance that waits for a batch has the lock: the others come after it, in any case.
        """
        with self._lock:
            first = self._next
            if first >= len(self._arrivals):
                return None
            now = self._clock() - self.began
            start = self._batching.find_start(self._arrivals, first, now)
            while start - now > SHORTEST:
                self._sleep(start - now)
                now = self._clock() - self.began
            if now - self._arrivals[first] > self._most_late:
                self._next = len(self._arrivals)
                return None
            rows = self._batching.take(self._arrivals, first, max(now, start))
            self._next += rows
            return first, rows


def run_open_loop(
    instances: Sequence[Instance],
    arrivals: Times,
    batching: Batching,
    *,
    most_late: float = math.inf,
    clock: Clock = time.perf_counter,
    sleep: Sleep = time.sleep,
) -> Times:
    """Return when each request was done, counted from the same moment as the arrivals; each instance has a thread.

    Once a request starts more than ``most_late`` seconds after its arrival, the run is given up: what is left has an infinite
    time. An exception of an instance ends the run and is raised.
    """
    load = _Load(arrivals, batching, clock, sleep, most_late)
    if len(instances) == 1:
        load.serve(instances[0])
        return load.done
    with ThreadPoolExecutor(len(instances)) as pool:
        runs = [pool.submit(load.serve, instance) for instance in instances]
        try:
            for run in runs:
                run.result()
        finally:
            load.stop()  # the others end too where one has failed
    return load.done


def sample_busy_instances(
    instances: Sequence[Instance], rows: int, seconds: float, *, least: int = 5, clock: Clock = time.perf_counter
) -> list[float]:
    """Return the seconds of single calls of ``rows`` requests, while all instances call one after the other without a pause.

    What it takes to form a batch is part of that. Each makes two calls that do not count and at least ``least`` that do. What is
    returned is of the time in which all were busy.
    """
    barrier = threading.Barrier(len(instances))
    load = _Load(np.zeros(rows * CALLS), Batching(rows), clock, time.sleep, math.inf)
    load.began -= AHEAD  # all requests are there

    def call(number: int) -> list[tuple[float, float]]:
        instance, taken = instances[number], list[tuple[float, float]]()
        try:
            for _ in range(2):
                instance(0, rows)
            barrier.wait()
        except BaseException:
            barrier.abort()  # the others wait no longer
            raise
        end = clock() + seconds
        while len(taken) < least or clock() < end:
            began = clock()
            load.serve_one(instance)
            taken.append((began, clock()))
        return taken

    if len(instances) == 1:
        return [end - began for began, end in call(0)]
    with ThreadPoolExecutor(len(instances)) as pool:
        found = _gather([pool.submit(call, number) for number in range(len(instances))])
    until = min(one[-1][1] for one in found)
    return [end - began for one in found for began, end in one if end <= until]


def _gather(runs: Sequence[Future[T]]) -> list[T]:
    """Return the results; raises what the first instance raised that failed by itself."""
    errors = [error for run in runs if (error := run.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [run.result() for run in runs]
