"""A search for throughput: candidates pruned by the time of their calls, and the best of them confirmed under load."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from xrt.measure.queueing import Batching, LoadResult, Times, draw_arrivals, summarize_load
from xrt.measure.rate_search import search_rate
from xrt.measure.timing import Clock
from xrt.placement.throughput.prediction import ServiceTimes, predict_rate
from xrt.placement.throughput.request import Split, ThroughputRequest
from xrt.placement.throughput.result import (
    ServingCandidate,
    ServingConfiguration,
    ThroughputResult,
    format_latency,
    format_rate,
)

__all__ = ["ServingBench", "Tell", "ThroughputSession"]

Tell: TypeAlias = Callable[[str], object]
"""Takes what is being done, in a few words."""

FINALISTS = 5
"""Candidates that are put under load, unless none of them is within the bound."""
TRIALS = 6
"""Loads of one candidate, at most."""
START = 0.9
"""Part of the predicted rate at which the trials of a candidate begin."""
NEAR = 0.95
"""A candidate that is not expected to serve more than this part of the best one is not put under load."""
LEAST, MOST = 200, 500_000
"""Requests of a load. Of fewer than 200 the 99th percentile is the latest one or the second."""
FEWEST = 50
"""Requests of a load where time is short."""
SHARE = 0.7
"""Share of the time left, after calls are timed, that goes to trials; the rest confirms the choice."""
LATE = 3.0
"""Times the bound that a request may start late before a load is given up."""
SPANS = 5.0
"""Times the bound that a load takes at least, where the budget allows it: a queue that grows must have time to grow."""
BACK = (0.95, 0.88, 0.75)
"""Factors from a rate that fresh arrivals did not confirm to the next."""
HELD_OUT = 1_000_003
"""Added to the seed of the arrivals that confirm a choice: they are not those that led to it."""


class ServingBench(Protocol):
    """What measures configurations. A test has one that simulates."""

    dim: str
    """The symbolic dim that counts requests; empty where a call is one request."""
    is_exact: bool
    """Whether calls have the tuned sizes alone; otherwise any number of requests up to the batch."""

    def sample_calls(self, split: Split, size: int) -> Sequence[float]:
        """Return seconds of calls of so many requests, while all instances are busy. The plan is chosen before."""

    def run_load(self, split: Split, batching: Batching, arrivals: Times, most_late: float) -> Times:
        """Return when each request was done."""

    def describe_plan(self, split: Split, size: int) -> str:
        """Return the engines of the plan for so many requests."""

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        """Return the bytes that all instances hold for calls of these sizes, as far as engines report them."""


@dataclass(eq=False, slots=True)
class ThroughputSession:
    """One search."""

    bench: ServingBench
    request: ThroughputRequest
    clock: Clock = time.perf_counter
    tell: Tell = lambda text: None
    notes: tuple[str, ...] = ()
    _found: list[ServingCandidate] = field(default_factory=list)
    _times: dict[Split, ServiceTimes] = field(default_factory=dict)
    _began: float = 0.0
    _is_short: bool = False
    """Whether time was missing for a load."""
    _is_unconfirmed: bool = False
    """Whether time was missing to confirm the choice."""

    def run(self) -> ThroughputResult:
        """Return the result; Ctrl-C ends the search with what is confirmed by then."""
        self._began = self.clock()
        is_interrupted = False
        try:
            self._time_calls()
            self._put_under_load()
            self._confirm()
        except KeyboardInterrupt:
            is_interrupted = True
        return self._conclude(is_interrupted=is_interrupted)

    @property
    def _left(self) -> float:
        return self._began + self.request.budget - self.clock()

    # ------------------------------------------------------------------ times of calls

    def _time_calls(self) -> None:
        request, bench = self.request, self.bench
        for split in request.splits:
            samples: dict[int, Sequence[float]] = {}
            for size in request.batches:
                self.tell(f"calls of {size}, {split}")
                samples[size] = bench.sample_calls(split, size)
                if min(samples[size]) > request.bound:
                    break  # larger batches take longer still
            self._times[split] = ServiceTimes(samples)
            self._found += self._judge(split, self._times[split])

    def _judge(self, split: Split, times: ServiceTimes) -> Iterator[ServingCandidate]:
        bound, measured = self.request.bound, list(times.medians)
        for batch in measured:
            one = ServingCandidate(batch, split, plan=self.bench.describe_plan(split, batch), seconds=times.medians[batch])
            sizes = self._list_sizes(batch)
            one = replace(one, memory=self.bench.measure_memory(split, sizes or [s for s in measured if s <= batch]))
            if reason := times.find_reason_against(batch, bound):
                yield replace(one, verdict="declined", note=reason)
                continue
            yield one
        for batch in self.request.batches[len(measured) :]:
            took = f"calls of {measured[-1]} already take {format_latency(min(times.samples[measured[-1]]))}"
            yield ServingCandidate(batch, split, "declined", note=took)

    def _list_sizes(self, batch: int) -> tuple[int, ...]:
        return tuple(size for size in self.request.batches if size <= batch) if self.bench.is_exact else ()

    def _make_batching(self, one: ServingCandidate) -> Batching:
        return Batching(one.batch, one.max_wait, self._list_sizes(one.batch))

    # ------------------------------------------------------------------ loads

    def _put_under_load(self) -> None:
        """Put candidates under load, the most promising first, until no other can serve as much as the best one."""
        until, best, searched = self.clock() + SHARE * max(self._left, 0.0), 0.0, 0
        waiting = [number for number, one in enumerate(self._found) if one.verdict == "predicted"]
        while waiting and (not searched or self.clock() < until) and (searched < FINALISTS or not best):
            number = max(waiting, key=lambda number: self._estimate(self._found[number]))
            one = self._found[number]
            if self._estimate(one) <= NEAR * best:
                break
            if one.predicted is None:
                self._found[number] = self._predict(one)
                continue  # another one may be more promising now
            waiting.remove(number)
            if not one.predicted:
                continue
            share = max(until - self.clock(), 0.0) / max(FINALISTS - searched, 1)
            one = self._found[number] = self._search(one, share)
            best, searched = max(best, one.load.rate if one.load else 0.0), searched + 1
        for number in waiting:
            if self._found[number].predicted is None:
                note = f"serves {format_rate(self._found[number].capacity or 0.0)} at most"
                self._found[number] = replace(self._found[number], note=note)

    def _estimate(self, one: ServingCandidate) -> float:
        """Return the rate that a candidate is not expected to exceed."""
        return one.predicted if one.predicted is not None else one.capacity or 0.0

    def _predict(self, one: ServingCandidate) -> ServingCandidate:
        self.tell(f"batches of {one.batch}, {one.split}, simulated")
        terms = self.request.bound, self._list_sizes(one.batch), self.request.seed
        rate, batching = predict_rate(self._times[one.split], one.batch, one.split.instances, *terms)
        note = "" if rate else "no rate is within the bound"
        return replace(one, predicted=rate, max_wait=batching.max_wait, note=note)

    def _search(self, one: ServingCandidate, seconds: float) -> ServingCandidate:
        """Return a candidate with the highest rate within the bound that trials within that time find."""
        assert one.predicted is not None
        until, taken = self.clock() + seconds, 0
        span = 0.0 if math.isinf(self.request.bound) else SPANS * self.request.bound

        def load(rate: float) -> LoadResult | None:
            nonlocal taken
            length = max(seconds / TRIALS, min(max(LEAST / rate, span), seconds / 2))
            if taken and length > until - self.clock():
                self._is_short = True
                return None
            taken += 1
            return self._run(one, rate, length, seed=0)

        ceiling = one.capacity or one.predicted
        search = search_rate(load, START * one.predicted, ceiling, self.request.bound, TRIALS)
        if search.best is None:
            lowest = min(trial.rate for trial in search.trials)
            return replace(one, verdict="over", trials=search.trials, note=f"over the bound at {format_rate(lowest)}")
        return replace(one, verdict="within", trials=search.trials, load=search.best)

    def _run(self, one: ServingCandidate, rate: float, seconds: float, *, seed: int) -> LoadResult:
        """Return what comes of a load of about so many seconds."""
        self.tell(f"{format_rate(rate)} to batches of {one.batch}, {one.split}")
        count = int(min(max(FEWEST, rate * seconds), MOST))
        self._is_short = self._is_short or count < LEAST
        arrivals = draw_arrivals(rate, count, self.request.seed + seed)
        most_late = LATE * self.request.bound
        done = self.bench.run_load(one.split, self._make_batching(one), arrivals, most_late)
        if math.isinf(self.request.bound):  # nothing else says that the instances keep up
            rate = min(rate, count / float(np.max(done)))
        return summarize_load(rate, arrivals, done)

    # ------------------------------------------------------------------ the choice

    def _confirm(self) -> None:
        """Give the best candidate fresh arrivals, until the best one is one that was confirmed.

        A rate that exceeds the bound then is lowered, and another candidate may be the best.
        """
        confirmed: set[int] = set()
        while (number := self._find_best()) is not None and number not in confirmed:
            if confirmed and self._left <= 0:
                self._is_unconfirmed = True
                return
            one = self._found[number]
            assert one.load is not None
            rate, trials = one.load.rate, list(one.trials)
            load: LoadResult | None = None
            for attempt, back in enumerate((1.0, *BACK)):
                if attempt and self._left <= 0:
                    break
                rate *= back
                seconds = max(self._left, 0.0) / (1 + len(BACK) - attempt)
                trial = self._run(one, rate, seconds, seed=HELD_OUT + attempt)
                trials.append(trial)
                if trial.p99 <= self.request.bound:
                    load = trial
                    break
            confirmed.add(number)
            verdict: dict[str, object] = {"verdict": "within"} if load else {"verdict": "over", "note": "not confirmed"}
            self._found[number] = replace(one, load=load, trials=tuple(trials), **verdict)  # type: ignore[arg-type]

    def _find_best(self) -> int | None:
        """Return the candidate of the highest measured rate; of equal ones that with the smallest batch."""
        within = [number for number, one in enumerate(self._found) if one.load is not None]
        return min(within, key=lambda number: self._rank(self._found[number]), default=None)

    def _rank(self, one: ServingCandidate) -> tuple[float, float, int, int]:
        rate = one.load.rate if one.load else 0.0
        return -rate, -(one.predicted or 0.0), one.batch, one.split.instances

    def _conclude(self, *, is_interrupted: bool) -> ThroughputResult:
        number, configuration, notes = self._find_best(), None, list(self.notes)
        if number is not None:
            one = self._found[number] = replace(self._found[number], verdict="chosen")
            configuration = self._configure(one)
        if self._is_short:
            notes.append(f"budget={self.request.budget:g} s is short for these rates; a larger one finds them more closely")
        ordered = tuple(sorted(self._found, key=self._rank))
        if self._is_unconfirmed:
            notes.append("no time was left to confirm the choice with fresh arrivals")
        spent = self.clock() - self._began
        return ThroughputResult(
            configuration, ordered, self.request.bound, self.request.budget, spent, tuple(notes), is_interrupted
        )

    def _configure(self, one: ServingCandidate) -> ServingConfiguration:
        assert one.load is not None
        sizes = self._list_sizes(one.batch)
        plans = tuple(self.bench.describe_plan(one.split, size) for size in sizes or (one.batch,))
        load = one.load
        made = ServingConfiguration(
            one.batch,
            one.split.instances,
            one.split.threads,
            one.max_wait,
            load.rate,
            load.p50,
            load.p99,
            self.request.bound,
            self.bench.dim,
            sizes,
            plans,
            one.memory or 0,
        )
        return made.round()
