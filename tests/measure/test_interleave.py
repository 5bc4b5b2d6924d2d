"""Candidates in turns: who runs when, and what is counted."""

from __future__ import annotations

import itertools

import pytest

from xrt.measure import timing
from xrt.measure.statistics import interleave


@pytest.mark.parametrize("idle", [0, 0.1])
def test_a_turn_waits_for_threads_and_calls_once_more_only_if_that_is_asked(monkeypatch: pytest.MonkeyPatch, idle: float) -> None:
    seconds = itertools.count()  # each look at the clock is a second later, so that each turn has one call
    log: list[object] = []
    monkeypatch.setattr(timing, "wait_until_idle", log.append)
    calls = {name: lambda name=name: log.append(name) for name in "ab"}
    times = interleave(calls, rounds=3, clock=lambda: float(next(seconds)), idle=idle)
    assert {name: one.seconds for name, one in times.items()} == {"a": (1.0,) * 3, "b": (1.0,) * 3}
    turn = {"a": [idle, "a", "a"], "b": [idle, "b", "b"]} if idle else {"a": ["a"], "b": ["b"]}
    rounds = [*turn["a"], *turn["b"], *turn["b"], *turn["a"], *turn["a"], *turn["b"]]
    assert log[-len(rounds) :] == rounds
