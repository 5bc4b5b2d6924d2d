"""Time a call: once, per turn, or in samples until the interval of the median is narrow; warm-up and idle detection.

Also closed-loop load: a fixed number of requests in flight, of which each response triggers the next request, as in Triton's
perf_analyzer. An instance that finishes a batch issues as many new requests, so no thread is needed to generate load.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import numpy as np

from xrt.errors import OptionError

Call: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]
SAMPLE_SECONDS = 0.002
"""Seconds per sample: a fast call is repeated for this long, so that the overhead of the clock is negligible."""
MIN_SAMPLES = 7
"""Minimum number of samples from which an interval is computed."""
MAX_INTERVAL_WIDTH = 0.02
"""Width of the interval of the median, relative to the median, at which sampling ends."""
MAX_SAMPLES = 500
"""Maximum number of samples, for calls that are so fast that the time would allow thousands."""
POLL_SECONDS = 0.004
"""Seconds between checks of whether the process is idle."""
MAX_IDLE_LOAD = 0.25
"""The process is idle if it uses less than this fraction of a core."""
MAX_IDLE_WAIT = 0.2
"""Maximum seconds to wait for idleness."""
WARM_UP_SHARE = 0.2
"""Fraction of the time for warm-up calls, which allocate, choose kernels and wake threads."""
MAX_SAMPLE_WARM_UP_CALLS = 20
MAX_CALLS_PER_TURN = 20_000
"""Maximum number of calls per turn."""
MAX_FIRST_CALL_TURNS = 10
"""A first call that takes as long as this many turns is not timed again: later calls are assumed to be slow too."""
T = TypeVar("T")


def sample_call_times(call: Call, seconds: float, *, clock: Clock = time.perf_counter) -> list[float]:
    """Sample seconds per call until the interval of the median is narrow (`MAX_INTERVAL_WIDTH`).

    Takes at most about ``seconds``, or one call if a call takes longer. Returns at least one sample.
    """
    end = clock() + seconds
    repeats = _warm_up_calls(call, seconds * WARM_UP_SHARE, clock)
    samples = [measure_call(call, repeats, clock)]
    while clock() < end and len(samples) < MAX_SAMPLES and not _is_narrow(samples):
        samples.append(measure_call(call, repeats, clock))
    return samples


def _warm_up_calls(call: Call, seconds: float, clock: Clock) -> int:
    times = [measure_call(call, 1, clock)]
    while sum(times) < seconds and len(times) < MAX_SAMPLE_WARM_UP_CALLS:
        times.append(measure_call(call, 1, clock))
    return choose_calls_per_turn(min(times), SAMPLE_SECONDS)


def choose_calls_per_turn(seconds: float, turn: float) -> int:
    """Compute how many calls fill a turn of ``turn`` seconds if a call takes ``seconds``; at least one.

    >>> choose_calls_per_turn(0.001, 0.01), choose_calls_per_turn(5.0, 0.01)
    (10, 1)
    """
    return max(1, round(turn / max(seconds, 1e-7)))


def choose_calls(call: Call, turn: float, clock: Clock = time.perf_counter) -> int:
    """Find by trial how many calls fill a turn of ``turn`` seconds; at least one.

    The first call is often slower than later calls. It decides only if it takes longer than `MAX_FIRST_CALL_TURNS` turns.
    """
    # Too slow to call three more times.
    if measure_call(call, 1, clock) > MAX_FIRST_CALL_TURNS * turn:
        return 1
    return min(MAX_CALLS_PER_TURN, choose_calls_per_turn(measure_call(call, 3, clock), turn))


def time_call(call: Callable[[], T], clock: Clock = time.perf_counter) -> tuple[T, float]:
    """Call once; return the result and the seconds that it took."""
    start = clock()
    result = call()
    return result, clock() - start


def measure_call(call: Call, repeats: int = 1, clock: Clock = time.perf_counter) -> float:
    """Measure the mean seconds of ``repeats`` back-to-back calls."""
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def measure_turn(
    call: Call, repeats: int = 1, clock: Clock = time.perf_counter, *, idle: float = MAX_IDLE_WAIT, warms: bool = True
) -> float:
    """Wait until the threads of the previous turn sleep, at most ``idle`` seconds; then measure the mean seconds of calls.

    With ``warms``, an uncounted call comes first: it wakes this candidate's threads and refills the caches.
    """
    wait_until_idle(idle)
    if warms:
        call()
    return measure_call(call, repeats, clock)


def wait_until_idle(longest: float = MAX_IDLE_WAIT) -> None:
    """Wait until this process uses almost no CPU, at most ``longest`` seconds.

    Threads may spin after a call (OpenBLAS's for 0.1 s) and take a core from the next timed call.
    """
    for _ in range(round(longest / POLL_SECONDS)):
        start = time.process_time()
        time.sleep(POLL_SECONDS)
        if time.process_time() - start < MAX_IDLE_LOAD * POLL_SECONDS:
            return


def _is_narrow(samples: Sequence[float]) -> bool:
    if len(samples) < MIN_SAMPLES:
        return False
    median, low, high = compute_median_interval(samples)
    return high - low <= MAX_INTERVAL_WIDTH * median


MAX_SECONDS = 1e9  # anything longer is an error of the clock


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Seconds per run of a region including its launch, with the confidence interval ``low`` to ``high``.

    Raises OptionError unless ``0 <= low <= seconds <= high`` and all are finite.
    """

    seconds: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not all(type(value) in (int, float) for value in (self.seconds, self.low, self.high)):
            raise OptionError(f"a measured cost is three numbers of seconds; got {self.seconds!r}, {self.low!r}, {self.high!r}")
        if not 0 <= self.low <= self.seconds <= self.high <= MAX_SECONDS:
            values = f"seconds={self.seconds}, low={self.low}, high={self.high}"
            raise OptionError(f"a measured cost needs 0 <= low <= seconds <= high <= {MAX_SECONDS:g}; got {values}")

    @classmethod
    def exactly(cls, seconds: float) -> MeasuredCost:
        return cls(seconds, seconds, seconds)


def compute_median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Compute the median and its distribution-free 95 % interval: the range of all but `_count_left_out` samples per side.

    >>> compute_median_interval([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    ordered = sorted(samples)
    left_out = _count_left_out(len(ordered))
    return statistics.median(ordered), ordered[left_out], ordered[-1 - left_out]


@cache
def _count_left_out(count: int) -> int:
    """The largest k >= 0 with P(Binomial(count, 1/2) <= k) <= 0.025, or 0 if there is none (Conover 1999, order statistics)."""
    # Of 2**count equally likely cases, those with at most k samples below the true median, for each k.
    cases = accumulate(math.comb(count, k) for k in range(count + 1))
    unlikely = [k for k, cases_to_k in enumerate(cases) if 40 * cases_to_k <= 2**count]
    return max(unlikely, default=0)


WINDOW_CALLS = 5
"""Number of calls in each of the two windows of `is_steady`."""
MAX_STEADY_CHANGE = 0.03
"""Relative change of the median below which times are steady."""
MAX_WARM_UP_CALLS = 200


@dataclass(frozen=True, slots=True)
class Warmup:
    calls: int
    steady: bool
    """Whether the times settled before calls or seconds ran out."""


def warm_up(call: Call, *, seconds: float, clock: Clock = time.perf_counter) -> Warmup:
    """Call until times are steady; at most for ``seconds``, and at most `MAX_WARM_UP_CALLS` times."""
    times: list[float] = []
    while len(times) < MAX_WARM_UP_CALLS and (not times or sum(times) < seconds):
        times.append(measure_call(call, 1, clock))
        if is_steady(times):
            return Warmup(len(times), True)
    return Warmup(len(times), False)


def is_steady(times: Sequence[float]) -> bool:
    """Whether the medians of the last two windows of calls differ by no more than the spread of the last window.

    >>> is_steady([9, 5, 3, 2, 1.5, 1, 1, 1, 1, 1])
    False
    >>> is_steady([9, 5, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    True
    """
    if len(times) < 2 * WINDOW_CALLS:
        return False
    previous = times[-2 * WINDOW_CALLS : -WINDOW_CALLS]
    last = times[-WINDOW_CALLS:]
    low, median, high = statistics.quantiles(last, n=4)
    return abs(statistics.median(previous) - median) <= max(MAX_STEADY_CHANGE * median, (high - low) / 2)


Instance: TypeAlias = Callable[[int, int], object]
"""Serves a batch of requests. The arguments are the index of the first request and the number of requests."""

MIN_CALLS_PER_INSTANCE = 5
"""Minimum calls per instance, regardless of the time."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Throughput in requests per second, and latency, at one concurrency."""

    concurrency: int
    rate: float
    requests: int
    p50: float
    """Median latency in seconds, from request to result."""
    p99: float
    """99th percentile of the latency in seconds: an observed value, not interpolated."""


def run_closed_loop(
    instances: Sequence[Instance], batch: int, concurrency: int, seconds: float, *, clock: Clock = time.perf_counter
) -> LoadResult:
    """Measure the load of instances, one thread each, that serve batches while ``concurrency`` requests are in flight.

    ``batch`` is the number of requests per batch. The concurrency must be at least ``batch`` per instance, so that every batch is
    full. Exceptions of an instance are raised.
    """
    issue_times: deque[float] = deque()  # of the waiting requests
    start_time = 0.0

    def issue_first_requests() -> None:
        nonlocal start_time
        start_time = clock()
        issue_times.extend([start_time] * concurrency)

    lock = threading.Lock()
    # All instances start together, after their warm-up.
    barrier = threading.Barrier(len(instances), issue_first_requests)

    def serve(number: int) -> list[tuple[float, list[float]]]:
        """Serve batches with one instance; return the end of each batch and when its requests were issued."""
        instance = instances[number]
        first = number * batch
        try:
            for _ in range(2):  # warm up
                instance(first, batch)
            barrier.wait()
        except BaseException:
            barrier.abort()  # release the other instances
            raise
        batches: list[tuple[float, list[float]]] = []
        while len(batches) < MIN_CALLS_PER_INSTANCE or clock() < start_time + seconds:
            with lock:
                issued = [issue_times.popleft() for _ in range(batch)]
            instance(first, batch)
            first += batch
            end = clock()
            with lock:
                issue_times.extend([end] * batch)
            batches.append((end, issued))
        return batches

    batches_by_instance = [serve(0)] if len(instances) == 1 else _run_in_threads(serve, len(instances))
    end_times = [end for *_, (end, _) in batches_by_instance]
    end_time = min(end_times)  # later, some instances are idle
    counted = [(end, issued) for batches in batches_by_instance for end, issued in batches if end <= end_time]
    requests = [(end, issue_time) for end, issued in counted for issue_time in issued]
    # The first requests were all issued at once and waited less than later requests: count them only if there are no others.
    later_requests = [(end, issue_time) for end, issue_time in requests if issue_time > start_time]
    latencies = [end - issue_time for end, issue_time in later_requests or requests]
    p50, p99 = (float(value) for value in np.quantile(latencies, (0.5, 0.99), method="higher"))
    rate = batch * len(counted) / (end_time - start_time)
    return LoadResult(concurrency, rate, len(latencies), p50, p99)


def _run_in_threads(serve: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(serve, number) for number in range(count)]
    errors = [error for run in runs if (error := run.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):  # raise the first failure, not the broken barriers it caused
            raise error
    return [run.result() for run in runs]
