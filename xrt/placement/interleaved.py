"""The contest: plans take turns in one process, and the ratio within a round decides.

On a shared machine times drift by tens of per cent while the ratio of two neighbours hardly moves. So each round gives
every plan one turn, in an order that rotates and every other time goes backwards. A turn is several calls, one right after the
other, as a serving loop makes them. It begins when the threads of the turn before have gone to sleep, and its first call is
not counted: that wakes its own threads, and its values have left the caches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xrt.measure.interleave import rotate
from xrt.measure.statistics import compute_round_ratio
from xrt.measure.timing import Clock, choose_calls_per_turn, seconds_per_turn

__all__ = ["StoppingRule", "TimedCandidate", "choose_baseline", "run_interleaved"]


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """How a contest goes."""

    turn: float = 0.03
    """Seconds of a turn; a slower call is made once, after the one that is not counted."""
    least: int = 6
    """Rounds before which nothing is decided."""
    most: int = 60
    """Rounds after which it ends: what is not decided then is a tie."""

    slack: float = 0.3
    """Seconds by which a turn may be expected to end too late."""

    def seconds(self, calls: Iterable[float]) -> float:
        """Return what the fewest rounds take, and the turns that come before them, of those whose calls take so many seconds."""
        return (self.least + 1) * sum(call + max(call, self.turn) for call in calls)


@dataclass(slots=True, eq=False)
class TimedCandidate:
    """One who takes part."""

    call: Callable[[], object]
    is_simple: bool
    """Whether the candidate may be the baseline, as a placement without mixing. Others are compared with the fastest of these."""
    repeats: int = 1
    rounds: list[float] = field(default_factory=list)
    """Seconds per call, round by round."""
    expected: float = 0.0
    """Seconds that a call is known to take before there are rounds."""
    is_out: bool = False
    failure: str = ""
    """Why it takes part no more, where a call raised."""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def turn(self) -> float:
        """Seconds that a turn should take, the call that is not counted included."""
        return (1 + self.repeats) * (self.median if self.rounds else self.expected)

    def take_turn(self, clock: Clock) -> None:
        """Make the calls of a turn; what one raises is the entrant's own failure."""
        try:
            self.rounds.append(seconds_per_turn(self.call, self.repeats, clock))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            self.is_out, self.failure = True, f"{type(error).__name__}: {error}"


class OnRound(Protocol):
    """Called after each round with the fastest candidate so far."""

    def __call__(self, turn: int, best: TimedCandidate) -> object: ...


def run_interleaved(
    entrants: Sequence[TimedCandidate],
    *,
    until: float,
    rules: StoppingRule = StoppingRule(),
    clock: Clock = time.perf_counter,
    watch: OnRound = lambda turn, best: None,
) -> int:
    """Let the entrants take turns until all is decided, or the clock shows ``until``; return the number of rounds.

    Who has lost for certain leaves; the quickest simple one stays to the end. A turn is begun where it should end in time.
    """
    _set_repeats(entrants, until, rules, clock)
    for turn in range(rules.most):
        active = [entrant for entrant in entrants if not entrant.is_out]
        if not active or not _round(active, turn, until + rules.slack, clock):
            return turn
        active = [entrant for entrant in active if not entrant.is_out]
        if active:
            watch(turn + 1, min(active, key=lambda entrant: entrant.median))
        if turn + 1 >= rules.least and _is_decided(active):
            return turn + 1
    return rules.most


def _set_repeats(entrants: Iterable[TimedCandidate], until: float, rules: StoppingRule, clock: Clock) -> None:
    """Find out how many calls make a turn, by a turn of one call that does not count: the others have not been heard."""
    for entrant in entrants:
        if clock() + entrant.turn < until + rules.slack:
            entrant.take_turn(clock)
        if entrant.rounds:
            entrant.expected = entrant.rounds.pop()
            entrant.repeats = choose_calls_per_turn(entrant.expected, rules.turn)


def _round(active: Sequence[TimedCandidate], turn: int, until: float, clock: Clock) -> bool:
    """Give each its turn; return whether there was time for all of them. Who came to its turn before the others keeps no lead."""
    took: list[TimedCandidate] = []
    for entrant in rotate(active, turn):
        if clock() + entrant.turn >= until:
            for early in took:
                early.rounds.pop()
            return False
        entrant.take_turn(clock)
        took += [] if entrant.is_out else [entrant]
    return True


def choose_baseline(entrants: Sequence[TimedCandidate]) -> TimedCandidate:
    """Return the baseline of the comparison: the fastest simple candidate, or the fastest of all if none is simple."""
    simple = [entrant for entrant in entrants if entrant.is_simple]
    return min(simple or entrants, key=lambda entrant: entrant.median)


def _is_decided(active: Sequence[TimedCandidate]) -> bool:
    """Send away who has lost to the baseline for certain, and say whether it is known how the others stand to the leader."""
    if not active:
        return True
    baseline, leader = choose_baseline(active), min(active, key=lambda entrant: entrant.median)
    for entrant in active:
        entrant.is_out = entrant is not baseline and compute_round_ratio(entrant.rounds, baseline.rounds).is_loss
    ratios = [compute_round_ratio(entrant.rounds, leader.rounds) for entrant in active if entrant is not leader]
    return all(ratio.is_loss or ratio.is_settled for ratio in ratios)
