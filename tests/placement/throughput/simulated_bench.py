"""A bench whose calls take known times on a clock that only its own work moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from xrt.formats.placement_file import Split
from xrt.measure.timing import LoadResult
from xrt.placement.throughput import ThroughputRequest, ThroughputResult, ThroughputSweep

SPLITS = (Split(1, 2), Split(2, 1))


@dataclass(eq=False)
class SimulatedBench:
    """Calls of ``size`` requests on a split take ``service(split, size)`` seconds."""

    service: Callable[[Split, int], float]
    noise: float = 0.0
    """Deviation of the logarithm of a call's time."""
    dim: str = "N"
    is_exact: bool = False
    now: float = 0.0
    loads: list[tuple[Split, int, int, float]] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.now

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        self.loads.append((split, batch, concurrency, seconds))
        call = self.service(split, batch) * float(np.exp(self.noise * self._generator.standard_normal()))
        self.now += max(seconds, 5 * call)
        latency = concurrency / (batch * split.instances) * call
        return LoadResult(concurrency, batch * split.instances / call, 100, latency, 1.1 * latency)

    def describe_plan(self, split: Split, size: int) -> str:
        return "one" if size < 8 else "two"

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        return 1000 + 100 * split.instances * len(sizes)


def tune(bench: SimulatedBench, **terms: object) -> ThroughputResult:
    request = ThroughputRequest(**{"splits": SPLITS, "bound": 0.02, "budget": 120.0, **terms})  # type: ignore[arg-type]
    return ThroughputSweep(bench, request, clock=bench.clock).run()
