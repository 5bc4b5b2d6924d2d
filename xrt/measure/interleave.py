"""Candidates that take turns.

On a shared machine a time drifts by tens of per cent while the ratio of two neighbours hardly moves. So every round
runs each candidate once, in an order that rotates, and what counts is the ratio within a round. Nothing here asserts
anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from xrt.measure.statistics import Timing
from xrt.measure.timing import Call, Clock, choose_calls, seconds_per_call, seconds_per_turn

__all__ = ["interleave", "rotate", "take_turns"]

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
