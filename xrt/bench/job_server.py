"""The worker process of one candidate, which isolates its memory, threads and crashes, and the messages to and from it.

The first request has a `Job`: the worker compiles, warms up and replies with a `StartupReport`. Each later request runs one turn
(the reply is the mean seconds per call) or measures the regions (the reply is a `MeanCall`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from xrt.bench.report import read_peak_memory
from xrt.bench.targets import BenchCandidate, BenchTarget, from_files, set_shapes
from xrt.cache import CompileCache
from xrt.engines import RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.shared_values import put_values
from xrt.graph import FrozenDict
from xrt.html.views import MeanCall, PlanRegion
from xrt.measure.timing import Warmup, choose_calls, measure_call, time_call, wait_until_idle, warm_up
from xrt.models import sample_inputs
from xrt.module import XRTModule
from xrt.module.engines import is_auto
from xrt.partition.plan import list_regions
from xrt.processes.ipc import Message, Request, serve
from xrt.runtime import to_host


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Accuracy and limits of a comparison."""

    rounds: int = 20
    turn_seconds: float = 0.05
    """Duration of a turn of a fast call; a slower one is called once."""
    warm_seconds: float = 5.0
    """Maximum warm-up time; 0 if only the results are needed."""
    limit_seconds: float = 120.0
    """Maximum time per candidate to import, search, compile and warm up. All its turns together have the same limit."""
    seed: int = 0
    budget_seconds: float = 20.0
    """Maximum search time of ``auto``, which counts against `limit_seconds`."""
    device: str = "cpu"
    devices: Mapping[str, str] = FrozenDict()
    """Devices of single engines, as XRTModule's ``devices``; a candidate without the engine ignores its entry."""


@dataclass(frozen=True, slots=True)
class Job:
    """The model and candidate that a worker compiles and runs."""

    subject: BenchTarget
    candidate: BenchCandidate
    threads: int
    settings: BenchOptions


@dataclass(frozen=True, slots=True)
class StartupReport:
    """The time and memory that a candidate needs until its calls take a steady time, measured while no other candidate runs."""

    versions: tuple[str, ...]
    regions: tuple[str, ...]
    """The engine of each region in execution order."""
    import_seconds: float
    compile_seconds: float
    first_seconds: float
    warm_calls: int
    steady: bool
    alone_seconds: float
    """Median seconds of a call before any other candidate ran; 0 if not measured."""
    loaded_bytes: int
    """Peak resident memory before the compile: interpreter, libraries and model."""
    peak_bytes: int
    """Peak resident memory after the warm-up."""
    plan: tuple[PlanRegion, ...] = ()
    engines: tuple[str, ...] = ()
    """Specs of the engines, for ``auto`` those that it selected."""
    placement: tuple[str, ...] = ()
    """How ``auto`` chose the plan, line by line; empty for other candidates."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    reason: str


SOLO_TURNS = 5
"""Number of turns measured right after the warm-up, before other candidates run."""
MIN_PROFILED, MAX_PROFILED = 3, 100
"""Bounds on the number of calls that a profile averages."""


def main(handle: str) -> None:
    """Serve the requests for one job on the socket with this handle."""
    prepared: _PreparedCandidate | None = None

    def answer(request: Request) -> Message:
        nonlocal prepared
        if request.message["do"] == "start":
            prepared, start, results = _start_job(msgspec.convert(request.message["job"], Job))
            return {"answer": msgspec.to_builtins(start), "results": put_values(request.buffer, results)}
        assert prepared is not None  # the client sends the job first
        response = prepared.profile() if request.message["do"] == "profile" else prepared.take_turn()
        return {"answer": msgspec.to_builtins(response)}

    serve(handle, answer)


@dataclass(frozen=True, slots=True)
class _PreparedCandidate:
    """A candidate that is compiled and warmed up, with the inputs of its calls."""

    module: XRTModule
    values: Sequence[Any]
    options: RunOptions | None
    """Options of each call; None on the CPU, where passing options would make a small call slower."""
    repeats: int = 1

    def call(self) -> Any:
        return self.module(*self.values, options=self.options)

    def take_turn(self) -> float:
        """Run one turn; return the mean seconds per call."""
        seconds = measure_call(self.call, self.repeats)
        wait_until_idle()  # spinning threads would slow down the next process's turn
        return seconds

    def profile(self) -> MeanCall:
        """Profile as many calls as a turn has, but at least `MIN_PROFILED` and at most `MAX_PROFILED`."""
        calls, options = max(MIN_PROFILED, min(self.repeats, MAX_PROFILED)), RunOptions(block=True, profile=True)
        _, seconds = time_call(lambda: [self.module(*self.values, options=options) for _ in range(calls)])
        launches = self.module.profile().launches
        return MeanCall(calls, seconds / calls, tuple(launch.seconds / max(launch.calls, 1) for launch in launches))


def _start_job(job: Job) -> tuple[_PreparedCandidate, StartupReport, Sequence[Any]]:
    """Load, compile, call once and warm up; return the candidate, the start-up costs, and the results of the first call."""
    settings = job.settings
    function = job.subject.load(settings.seed)
    arrays = from_files(job.subject.files, function)
    function = set_shapes(function, arrays)
    inputs = sample_inputs(function, settings.seed) | arrays
    # An empty cache, so that the compile is measured; strict, so that no other engine takes over.
    options: dict[str, Any] = {"strict": True, "threads": job.threads, "cache": CompileCache()}
    if is_auto(list(job.candidate.engines)):
        options["budget"] = settings.budget_seconds
    options |= {"device": settings.device, "devices": job.candidate.select_devices(settings.devices)}
    module, import_seconds = time_call(
        lambda: XRTModule(function, list(job.candidate.engines), pins=job.candidate.pins, **options)
    )
    versions = tuple(registry.create(spec).version() for spec in module.engines)
    loaded_bytes = read_peak_memory()  # of the imports and the model, without the compile
    _, compile_seconds = time_call(lambda: module.compile(**inputs))
    # On a device a call returns before its results are computed, unless it blocks.
    call_options = None if settings.device == "cpu" else RunOptions(block=True)
    prepared = _PreparedCandidate(module, [inputs[value.name] for value in function.inputs], call_options)
    results, first_seconds = time_call(prepared.call)
    repeats, warmup, alone_seconds = 1, Warmup(0, False), 0.0
    if settings.warm_seconds:  # otherwise only the results are needed
        warmup = warm_up(prepared.call, seconds=settings.warm_seconds)
        repeats = choose_calls(prepared.call, settings.turn_seconds)
        times = [measure_call(prepared.call, repeats)]
        # A slow call is measured once: the warm-up time limits this measurement too.
        while len(times) < SOLO_TURNS and sum(times) * repeats < settings.warm_seconds:
            times.append(measure_call(prepared.call, repeats))
        alone_seconds = statistics.median(times)
    start = StartupReport(
        versions=versions,
        regions=tuple(launch.engine for launch in module.plan.launches),
        import_seconds=import_seconds,
        compile_seconds=compile_seconds,
        first_seconds=first_seconds,
        warm_calls=warmup.calls,
        steady=warmup.steady,
        alone_seconds=alone_seconds,
        loaded_bytes=loaded_bytes,
        peak_bytes=read_peak_memory(),
        plan=list_regions(module.plan),
        engines=module.engines,
        placement=tuple(str(module.tuned).splitlines()) if module.tuned else (),
    )
    outputs = results if isinstance(results, tuple) else (results,)
    return replace(prepared, repeats=repeats), start, [to_host(output) for output in outputs]
