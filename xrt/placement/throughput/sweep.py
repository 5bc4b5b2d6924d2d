"""A sweep for throughput: each batch size on each division of the threads, in a closed loop at two concurrencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from xrt.errors import XRTError
from xrt.measure.closed_loop import LoadResult
from xrt.measure.timing import Clock
from xrt.placement.throughput.result import (
    ServingCandidate,
    ServingConfiguration,
    Split,
    ThroughputRequest,
    ThroughputResult,
    format_latency,
)

__all__ = ["ServingBench", "Tell", "ThroughputSweep"]

Tell: TypeAlias = Callable[[str], object]
"""Receives the state of the sweep in a few words."""

DEPTHS = (1, 2)
"""Full batches in flight per instance. With two, a request waits for one call before its own, as in a service at full load."""
EQUAL = 0.03
"""Rates that differ by less than this part count as equal: runs of the same configuration differ by as much."""
LONGEST = 5.0
"""Seconds of one measurement at most."""


class ServingBench(Protocol):
    """Measures configurations. Tests have one that simulates."""

    dim: str
    """The symbolic dim that counts requests; empty where a call is one request."""
    is_exact: bool
    """Whether calls have the tuned sizes only; otherwise any number of requests up to the batch."""

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        """Measure throughput and latency with that many requests in flight."""

    def describe_plan(self, split: Split, size: int) -> str:
        """Return the engines of the plan for that many requests; the plan is chosen at the first question."""

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        """Return the bytes that all instances hold for calls of these sizes, as far as engines report them."""


@dataclass(eq=False, slots=True)
class ThroughputSweep:
    """One sweep."""

    bench: ServingBench
    request: ThroughputRequest
    clock: Clock = time.perf_counter
    tell: Tell = lambda text: None
    notes: tuple[str, ...] = ()
    _found: list[ServingCandidate] = field(default_factory=list)

    def run(self) -> ThroughputResult:
        """Measure all points; Ctrl-C ends the sweep with the points measured so far."""
        began, is_interrupted = self.clock(), False
        try:
            self._list_candidates()
            self._measure(began + self.request.budget)
        except KeyboardInterrupt:
            is_interrupted = True
        number, configuration = self._find_best(), None
        if number is not None:
            one = self._found[number] = replace(self._found[number], verdict="chosen")
            configuration = self._configure(one)
        ordered = tuple(sorted(self._found, key=lambda one: (one.verdict != "chosen", -one.rate, one.batch, one.concurrency)))
        bound, budget, spent = self.request.bound, self.request.budget, self.clock() - began
        return ThroughputResult(configuration, ordered, bound, budget, spent, self.notes, is_interrupted)

    def _list_candidates(self) -> None:
        """List the points of the sweep. Plans are searched for here, so that their searches take no time of a measurement."""
        for split in self.request.splits:
            for batch in self.request.batches:
                self.tell(f"plan for calls of {batch}, {split}")
                plan = self.bench.describe_plan(split, batch)
                for depth in DEPTHS:
                    self._found.append(ServingCandidate(batch, split, depth * batch * split.instances, plan=plan))

    def _measure(self, until: float) -> None:
        memory: dict[tuple[Split, int], int | None] = {}
        errors: list[XRTError] = []
        for number, one in enumerate(self._found):
            if note := self._find_reason_against(one, is_late=number > 0 and self.clock() >= until):
                self._found[number] = replace(one, note=note)
                continue
            self.tell(f"{one.concurrency} requests in flight, batches of {one.batch}, {one.split}")
            seconds = min(max(until - self.clock(), 0.0) / (len(self._found) - number), LONGEST)
            place = one.split, one.batch
            try:
                load = self.bench.run_load(one.split, one.batch, one.concurrency, seconds)
                if place not in memory:
                    memory[place] = self.bench.measure_memory(one.split, self._list_sizes(one.batch) or (one.batch,))
            except XRTError as error:  # a batch that needs too much memory, for example: the other points stay
                errors.append(error)
                self._found[number] = replace(one, note=str(error))
                continue
            verdict = "within" if load.p99 <= self.request.bound else "over"
            self._found[number] = replace(one, verdict=verdict, load=load, memory=memory[place])  # type: ignore[arg-type]
        if errors and all(one.load is None for one in self._found):
            raise errors[0]

    def _find_reason_against(self, one: ServingCandidate, *, is_late: bool) -> str:
        """Explain why a point is not measured; empty if it is."""
        if is_late:
            return f"no time was left of budget={self.request.budget:g} s"
        for other in self._found:
            if other.split == one.split and other.verdict == "over" and other.load is not None and other.batch <= one.batch:
                is_call = other.concurrency == other.batch * other.split.instances
                if is_call or other.batch == one.batch:
                    return f"batches of {other.batch} already take {format_latency(other.load.p99)}"
        return ""

    def _list_sizes(self, batch: int) -> tuple[int, ...]:
        return tuple(size for size in self.request.batches if size <= batch) if self.bench.is_exact else ()

    def _find_best(self) -> int | None:
        """The point of the highest rate within the bound; of rates that are equal, the smallest batch and concurrency."""
        within = [number for number, one in enumerate(self._found) if one.verdict == "within"]
        most = max((self._found[number].rate for number in within), default=0.0)
        equal = [number for number in within if self._found[number].rate >= (1 - EQUAL) * most]
        return min(equal, key=lambda n: (self._found[n].batch, self._found[n].concurrency, -self._found[n].rate), default=None)

    def _configure(self, one: ServingCandidate) -> ServingConfiguration:
        assert one.load is not None
        sizes, load = self._list_sizes(one.batch), one.load
        made = ServingConfiguration(
            one.batch,
            one.split.instances,
            one.split.threads,
            one.concurrency,
            load.rate,
            load.p50,
            load.p99,
            self.request.bound,
            self.bench.dim,
            sizes,
            tuple(self.bench.describe_plan(one.split, size) for size in sizes or (one.batch,)),
            one.memory or 0,
        )
        return made.round()
