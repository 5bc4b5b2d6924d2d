"""Statistics of timings: medians, ratios within rounds, bootstrap intervals, and verdicts on two candidates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from xrt.measure.timing import Call, Clock, choose_calls, measure_call, measure_turn

MIN_DIFFERENCE = 0.01
"""Two candidates whose times differ by less than this share are equal, regardless of the intervals."""
MAX_TIE = 0.1
"""Two candidates are tied if the interval of their ratio ends below 1 + MAX_TIE; a wider interval is too noisy to rank them. An
engine against itself, in 20 rounds on two shared cores, had intervals of up to 9 % on each side."""
RESAMPLES = 2000
"""Number of bootstrap samples."""
Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The median of per-round ratios with its 95 % interval, unless a function states another interval."""

    median: float
    low: float
    high: float

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is above 1 by more than `MIN_DIFFERENCE`."""
        return self.low > 1 + MIN_DIFFERENCE

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(ratios: Sequence[float]) -> RatioInterval:
    """Compute the median with its percentile bootstrap interval (Efron 1979), with a fixed seed.

    The interval always contains the median. For a single ratio, both bounds are that ratio.
    """
    sample = np.asarray(ratios, np.float64)
    return _make_interval(float(np.median(sample)), _resample_medians(sample, np.random.default_rng(0)))


def _resample_medians(sample: Array, generator: np.random.Generator) -> Array:
    return np.asarray(np.median(generator.choice(sample, (RESAMPLES, sample.size)), axis=1), np.float64)


def _make_interval(median: float, resampled: Array) -> RatioInterval:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return RatioInterval(median, min(float(low), median), max(float(high), median))


def compute_round_ratio(times: Sequence[float], base_times: Sequence[float]) -> RatioInterval:
    """Compute the median of the ratios ``times / base_times`` over the rounds that both candidates have."""
    return bootstrap([time / base for time, base in zip(times, base_times, strict=False)])


def compute_ratio_of_medians(times: Sequence[float], base_times: Sequence[float]) -> RatioInterval:
    """Compute the ratio of two medians over common rounds. The bootstrap resamples rounds, not single times.

    Unlike the median of ratios, it is the quotient of the two medians that a table shows. Drift cancels, because both medians are
    of the same rounds.
    """
    # A candidate that ran out of time has fewer rounds.
    count = min(len(times), len(base_times))
    numerator = np.asarray(times[:count], np.float64)
    denominator = np.asarray(base_times[:count], np.float64)
    # The same rounds for both candidates keep them paired.
    samples = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    medians = np.median(numerator[samples], axis=1) / np.median(denominator[samples], axis=1)
    return _make_interval(float(np.median(numerator) / np.median(denominator)), medians)


def compute_round_ratio_with_drift(times: Sequence[float], base_times: Sequence[float], *, parts: int) -> RatioInterval:
    """Compute the median ratio over rounds, with an interval that accounts for drift.

    The bootstrap assumes independent rounds, which a change of load over seconds contradicts. The interval is therefore widened
    to contain the medians of ``parts`` consecutive segments of rounds. Needs at least ``parts`` rounds.
    """
    interval = compute_round_ratio(times, base_times)
    ratios = [time / base for time, base in zip(times, base_times, strict=True)]
    length = len(ratios) // parts
    medians = [statistics.median(ratios[start : start + length]) for start in range(0, length * parts, length)]
    return RatioInterval(interval.median, min(interval.low, *medians), max(interval.high, *medians))


def compute_geometric_mean(rounds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> RatioInterval | None:
    """Compute the geometric mean over models of the median ratios, with its bootstrap interval. None without models.

    ``rounds`` has the times of two candidates for each model. Each model is resampled: the interval covers measurement noise, not
    the choice of models.
    """
    if not rounds:
        return None
    generator = np.random.default_rng(0)
    ratios_by_model = [
        np.array([time / base for time, base in zip(times, base_times, strict=False)]) for times, base_times in rounds
    ]
    logs = [np.log(_resample_medians(ratios, generator)) for ratios in ratios_by_model]
    mean = float(np.exp(np.mean([np.log(np.median(ratios)) for ratios in ratios_by_model])))
    return _make_interval(mean, np.exp(np.mean(logs, axis=0)))


def compute_quartiles(values: Sequence[float]) -> RatioInterval:
    """Compute the median, with the quartiles as bounds. Needs two or more values."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return RatioInterval(median, low, high)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one entry per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def interval(self) -> Interval:
        ratio_interval = bootstrap(self.seconds)
        return Interval(ratio_interval.low, ratio_interval.high)


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of the confidence interval of a median."""

    low: float
    high: float


def compute_ratio(timing: Timing, bases: Sequence[Timing]) -> RatioInterval:
    """Divide a candidate's time by the sum of the bases' times in the same round; return the median with quartiles."""
    sums = [sum(round_times) for round_times in zip(*(base.seconds for base in bases), strict=True)]
    return compute_quartiles([seconds / total for seconds, total in zip(timing.seconds, sums, strict=True)])


def judge_ratio(ratio: RatioInterval) -> Literal["slower", "tie", "too noisy"]:
    if ratio.is_loss:
        return "slower"
    return "tie" if ratio.high <= 1 + MAX_TIE else "too noisy"


T = TypeVar("T")


def interleave(
    candidates: Mapping[str, Call], *, rounds: int = 30, budget: float = 0.02, clock: Clock = time.perf_counter, idle: float = 0
) -> dict[str, Timing]:
    """Time the candidates in turns of about ``budget`` seconds, in each of which a fast call is repeated.

    The threads of a library may spin after a call, which slows down the next candidate. If ``idle`` is not 0, each turn waits
    until they sleep, for at most ``idle`` seconds, and then makes an uncounted call before those that are timed.

    For single-threaded code that never waits, the clock `time.process_time` is almost independent of the machine's load.
    """
    repeats = {name: choose_calls(call, budget, clock) for name, call in candidates.items()}
    measure = partial(measure_turn, idle=idle) if idle else measure_call
    turns = {name: partial(measure, call, repeats[name], clock) for name, call in candidates.items()}
    return {name: Timing(tuple(seconds)) for name, seconds in take_turns(turns, rounds).items()}


def take_turns(
    turns: Mapping[str, Callable[[], T]],
    rounds: int,
    is_over: Callable[[int, Mapping[str, Sequence[T]]], bool] = lambda rounds, results: False,
) -> dict[str, list[T]]:
    """Run the candidates round by round, in the order of `rotate`; return the results per candidate.

    ``is_over`` is called before each round and can end the measurement.
    """
    results: dict[str, list[T]] = {name: [] for name in turns}
    for number in range(rounds):
        if is_over(number, results):
            break
        for name in rotate(list(turns), number):
            results[name].append(turns[name]())
    return results


def rotate(items: Sequence[T], turn: int) -> list[T]:
    """Rotate the order of candidates in each round, so that each candidate is equally often the first.

    Every other round is reversed: no candidate always follows the same candidate, whose threads may still be spinning.

    >>> rotate("abc", 1), rotate("abc", 4)
    (['b', 'a', 'c'], ['b', 'c', 'a'])
    """
    start = turn % len(items) if items else 0
    order = [*items[start:], *items[:start]]
    if turn % 2:
        order[1:] = reversed(order[1:])
    return order
