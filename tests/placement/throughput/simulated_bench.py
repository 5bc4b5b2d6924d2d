"""A bench whose calls take known times on a clock that only its own work moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from xrt.measure.queueing import Batching, Times, simulate_queue
from xrt.placement.throughput.request import Split, ThroughputRequest
from xrt.placement.throughput.result import ThroughputResult
from xrt.placement.throughput.session import ThroughputSession

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
    loads: list[tuple[Split, Batching, float]] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.now

    def _draw(self, split: Split, size: int) -> float:
        return self.service(split, size) * float(np.exp(self.noise * self._generator.standard_normal()))

    def sample_calls(self, split: Split, size: int) -> Sequence[float]:
        found = [self._draw(split, size) for _ in range(9)]
        self.now += sum(found)
        return found

    def run_load(self, split: Split, batching: Batching, arrivals: Times, most_late: float) -> Times:
        self.loads.append((split, batching, len(arrivals) / float(arrivals[-1])))
        done = simulate_queue(arrivals, batching, lambda rows: self._draw(split, rows), split.instances)
        self.now += float(done[-1])
        return done

    def describe_plan(self, split: Split, size: int) -> str:
        return "one" if size < 8 else "two"

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        return 1000 + 100 * split.instances * len(sizes)


def tune(bench: SimulatedBench, **terms: object) -> ThroughputResult:
    request = ThroughputRequest(**{"splits": SPLITS, "bound": 0.02, "budget": 120.0, **terms})  # type: ignore[arg-type]
    return ThroughputSession(bench, request, clock=bench.clock).run()
