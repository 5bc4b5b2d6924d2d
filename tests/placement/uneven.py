"""Searches on an engine that is slow at some operators: what is worth mixing is known beforehand, and a simulated clock tells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.module.test_faults import X, chain
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Function
from xrt.measure.timing import sample_call_times
from xrt.placement import TuningResult, tune
from xrt.placement.result import PlacementRequest
from xrt.testing.fault_injection import ObservedExecutable, RecordingEngine

sleep = time.sleep
"""Passes the time of a call; `simulate_time` replaces it."""
CALL = 0.0001
"""Simulated seconds of a call, besides its slow nodes."""


class SimulatedClock:
    """A clock that only calls of `Uneven` move, and each look at it a little, so that every loop ends."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let a call take that long."""
        self.now += CALL + seconds


def simulate_time(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    """Have samples and turns measure simulated time; return the clock, which a search needs too."""
    clock = SimulatedClock()
    monkeypatch.setattr("tests.placement.uneven.sleep", clock.sleep)
    monkeypatch.setattr("xrt.placement.profiler.sample_call_times", partial(sample_call_times, clock=clock))
    monkeypatch.setattr("xrt.measure.timing.wait_until_idle", lambda longest=0.0: None)
    return clock


@dataclass(frozen=True)
class Uneven(RecordingEngine):
    """The reference, and so many seconds for each node of some operators."""

    name: ClassVar[str] = "uneven"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    slow: str = ""
    """Operators, with ``|`` between them."""
    seconds: float = 0.004

    def compile(self, function: Function, context: CompileContext) -> Executable:
        executable = _Sleeping(super().compile(function, context), self.journal)
        executable.seconds = self.seconds_of(function)
        return executable

    def seconds_of(self, function: Function) -> float:
        """Return how much longer than the reference a call of the Function takes."""
        return self.seconds * sum(node.op in self.slow.split("|") for node in function.nodes)


class _Sleeping(ObservedExecutable):
    seconds = 0.0

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        sleep(self.seconds)
        return super().run(inputs, options)


TOY = registry.create("toy")
PAIR = chain("Exp", "Cos")
TERMS = {field.name for field in fields(PlacementRequest)}
SLOW_EXP, SLOW_COS = Uneven(slow="Exp"), Uneven(slow="Cos")


def tuned(function: Function, *engines: GraphCompiler, **options: Any) -> TuningResult:
    results = {"budget": 60.0, "context": CompileContext(threads=1)} | {k: options.pop(k) for k in TERMS & options.keys()}
    options = {"inputs": [X], "cache": CompileCache(), "reference": evaluate} | options
    return tune(PlacementRequest(function, engines, **results), **options)


def verdicts(result: TuningResult) -> dict[str, str]:
    return {candidate.title: candidate.verdict for candidate in result.record.candidates}
