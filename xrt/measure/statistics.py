"""What is made of seconds: medians, ratios within rounds, their intervals, and what these tell of two candidates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from xrt.measure.timing import Call, Clock, choose_calls, seconds_per_call, seconds_per_turn

__all__ = [
    "FLOOR",
    "Interval",
    "RatioInterval",
    "Timing",
    "bootstrap",
    "compute_geometric_mean",
    "compute_quartiles",
    "compute_ratio_of_medians",
    "compute_round_ratio",
    "compute_round_ratio_with_drift",
    "interleave",
    "rank",
    "ratio",
    "rotate",
    "take_turns",
]

FLOOR = 0.01
"""No two candidates are called different for less than this, however quiet the machine was."""
TIE = 0.1
"""The largest difference that an interval may leave open for a tie: an engine against itself, in 20 rounds on two shared cores,
had intervals of up to 9 % on each side. What leaves more open is too noisy to rank."""
RESAMPLES = 2000
Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The median of per-round ratios and the bounds around it: of the 95 per cent interval, unless it says otherwise."""

    median: float
    low: float
    high: float

    @property
    def is_win(self) -> bool:
        """Whether the whole interval is below one by more than the floor."""
        return self.high < 1 - FLOOR

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is above one by more than the floor."""
        return self.low > 1 + FLOOR

    @property
    def is_settled(self) -> bool:
        """Whether more rounds would tell no more: the interval is narrower than the gain, or than the floor."""
        width = self.high - self.low
        return width < max(abs(1 - self.median), FLOOR)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(ratios: Sequence[float], confidence: float = 0.95, seed: int = 0) -> RatioInterval:
    """Return the median with its interval by the percentile bootstrap (Efron 1979), drawn from a fixed seed.

    The interval always holds the median; of a single ratio it is that ratio and says nothing.
    """
    sample = np.asarray(ratios, np.float64)
    medians = _resample_medians(sample, np.random.default_rng(seed))
    return _make_interval(float(np.median(sample)), medians, confidence)


def _resample_medians(sample: Array, generator: np.random.Generator) -> Array:
    return np.asarray(np.median(generator.choice(sample, (RESAMPLES, sample.size)), axis=1), np.float64)


def _make_interval(median: float, resampled: Array, confidence: float) -> RatioInterval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return RatioInterval(median, min(float(low), median), max(float(high), median))


def compute_round_ratio(of: Sequence[float], to: Sequence[float]) -> RatioInterval:
    """Return the ratio of two candidates' rounds; where one took part in fewer, those that both took part in count."""
    return bootstrap([a / b for a, b in zip(of, to, strict=False)])


def compute_ratio_of_medians(of: Sequence[float], to: Sequence[float], seed: int = 0) -> RatioInterval:
    """Return the ratio of two medians over the rounds in which both took part; the bootstrap draws rounds, not times.

    Unlike the median of ratios it is the quotient of two times that are shown. Drift cancels, as both medians are of one draw.
    """
    count = min(len(of), len(to))
    mine, theirs = np.asarray(of[:count], np.float64), np.asarray(to[:count], np.float64)
    drawn = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    medians = np.median(mine[drawn], axis=1) / np.median(theirs[drawn], axis=1)
    return _make_interval(float(np.median(mine) / np.median(theirs)), medians, 0.95)


def compute_round_ratio_with_drift(of: Sequence[float], to: Sequence[float], *, parts: int) -> RatioInterval:
    """Return the ratio of two candidates' rounds, of which there are at least ``parts``, in doubt by chance and by drift.

    The bootstrap takes rounds for independent. Where a machine's load changes for seconds at a time they are not, so the
    interval also holds the medians of so many equal parts of the rounds, one after the other.
    """
    interval = compute_round_ratio(of, to)
    ratios = [mine / theirs for mine, theirs in zip(of, to, strict=True)]
    length = len(ratios) // parts
    medians = [statistics.median(ratios[at : at + length]) for at in range(0, length * parts, length)]
    return RatioInterval(interval.median, min(interval.low, *medians), max(interval.high, *medians))


def compute_geometric_mean(
    rounds: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = 0.95, seed: int = 0
) -> RatioInterval | None:
    """Return the geometric mean over models of the median ratio, with its interval by bootstrap; None of no models.

    ``rounds`` has the rounds of two candidates on each model. Each model's rounds are drawn again, independently of the
    others': the interval is that of the measuring, not of the choice of models.
    """
    if not rounds:
        return None
    generator = np.random.default_rng(seed)
    ratios = [np.array([a / b for a, b in zip(of, to, strict=False)]) for of, to in rounds]
    logs = [np.log(_resample_medians(each, generator)) for each in ratios]
    mean = float(np.exp(np.mean([np.log(np.median(each)) for each in ratios])))
    return _make_interval(mean, np.exp(np.mean(logs, axis=0)), confidence)


def compute_quartiles(values: Sequence[float]) -> RatioInterval:
    """Return the median with the quartiles as bounds, which are never outside of what was seen; of two values or more."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return RatioInterval(median, low, high)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one entry per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def interval(self) -> Interval:
        """Where the median would lie in 95 of 100 such runs."""
        ratio_interval = bootstrap(self.seconds)
        return Interval(ratio_interval.low, ratio_interval.high)


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of a median, by the bootstrap over rounds."""

    low: float
    high: float


def ratio(of: Timing, to: Sequence[Timing]) -> RatioInterval:
    """Return, round by round, the time of one candidate over the sum of the others'; the bounds are quartiles."""
    return compute_quartiles([a / sum(t.seconds[i] for t in to) for i, a in enumerate(of.seconds)])


def rank(to_fastest: RatioInterval) -> Literal["slower", "tie", "too noisy"]:
    """Judge a candidate by the interval of its ratio to the fastest one."""
    if to_fastest.is_loss:
        return "slower"
    return "tie" if to_fastest.high <= 1 + TIE else "too noisy"


T = TypeVar("T")


def interleave(
    candidates: Mapping[str, Call], *, rounds: int = 30, budget: float = 0.02, clock: Clock = time.perf_counter, idle: float = 0
) -> dict[str, Timing]:
    """Return the timings of the candidates, run in turn; a round repeats a quick one for about ``budget`` seconds.

    Threads of a library may spin after a call, at the cost of the next candidate: with ``idle``, a turn waits so many seconds at
    most until they sleep, and begins with a call that does not count.

    For what runs in one thread and waits for nothing, `time.process_time` is a clock that a busy machine hardly stretches.
    """
    repeats = {name: choose_calls(call, budget, clock) for name, call in candidates.items()}
    turn = partial(seconds_per_turn, idle=idle) if idle else seconds_per_call
    turns = {name: partial(turn, call, repeats[name], clock) for name, call in candidates.items()}
    return {name: Timing(tuple(seconds)) for name, seconds in take_turns(turns, rounds).items()}


def take_turns(
    turns: Mapping[str, Callable[[], T]],
    rounds: int,
    is_over: Callable[[int, Mapping[str, Sequence[T]]], bool] = lambda rounds, taken: False,
) -> dict[str, list[T]]:
    """Take the turns round by round, in the order of `rotate`; return what each gave, one entry per round.

    ``is_over`` is asked before each round whether the rounds that there are suffice.
    """
    taken: dict[str, list[T]] = {name: [] for name in turns}
    for number in range(rounds):
        if is_over(number, taken):
            break
        for name in rotate(list(turns), number):
            taken[name].append(turns[name]())
    return taken


def rotate(items: Sequence[T], turn: int) -> list[T]:
    """Return the items, begun at another one each turn, so that each follows each pause as often as the others.

    Every other turn goes backwards: no item always runs after the same one, whose threads may not be asleep yet.

    >>> rotate("abc", 1), rotate("abc", 4)
    (['b', 'a', 'c'], ['b', 'c', 'a'])
    """
    start = turn % len(items) if items else 0
    order = [*items[start:], *items[:start]]
    return [*order[:1], *order[:0:-1]] if turn % 2 else order
