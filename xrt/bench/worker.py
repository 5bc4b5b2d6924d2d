"""A worker: the process in which one candidate compiles and runs, so that its memory, its threads and its crashes are its own.

It reads a job from standard input, answers with a Start, then with a Turn for each further line, until the input ends.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xrt.bench.machine import peak_bytes
from xrt.bench.outputs import write_outputs
from xrt.bench.protocol import Failure, Job, Start, Turn
from xrt.bench.turns import Call, repeats_for, seconds_per_call
from xrt.bench.warming import Warmth, warm_up
from xrt.cache import CompileCache
from xrt.engines import registry
from xrt.errors import XRTError
from xrt.models import sample_inputs
from xrt.module import XRTModule

__all__ = ["serve"]

ALONE = 5
"""Turns taken right after warming up."""


def serve() -> None:
    """Serve one job; nothing but answers goes to standard output, whatever a library prints."""
    answers = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answers, "w", buffering=1) as out:
        try:
            for message in _messages():
                out.write(message.to_line())
        except Exception as error:  # noqa: BLE001  # an engine may raise anything; it is that candidate's result
            kind = "" if isinstance(error, XRTError) else f"{type(error).__name__}: "
            out.write(Failure(f"{kind}{error}").to_line())


def _messages() -> Any:
    job = Job.from_line(sys.stdin.readline())
    call, repeats, start = _start(job)
    yield start
    for _ in sys.stdin:
        yield Turn(seconds_per_call(call, repeats))


def _start(job: Job) -> tuple[Call, int, Start]:
    """Load, compile, call once, warm up."""
    function = job.subject.load(job.seed)
    given = sample_inputs(function, job.seed)
    values = [given[value.name] for value in function.inputs]
    versions, import_seconds = _timed(lambda: tuple(registry.create(spec).version() for spec in job.candidate.engines))
    loaded = peak_bytes()
    module, compile_seconds = _timed(lambda: _compiled(function, job, given))
    results, first_seconds = _timed(lambda: module(*values))
    write_outputs(Path(job.outputs), results if isinstance(results, tuple) else (results,))
    repeats, warmth, alone = _warmed(lambda: module(*values), job)
    regions = tuple(launch.engine for launch in module.plan.launches)
    spent = (import_seconds, compile_seconds, first_seconds)
    start = Start(versions, regions, *spent, warmth.calls, warmth.steady, alone, loaded, peak_bytes())
    return lambda: module(*values), repeats, start


def _compiled(function: Any, job: Job, given: dict[str, Any]) -> XRTModule:
    """Compile with an empty cache, whatever the default one holds, and without the implicit reference engine."""
    options: dict[str, Any] = {"strict": True, "threads": job.threads, "cache": CompileCache()}
    module = XRTModule(function, list(job.candidate.engines), pins=job.candidate.pins, **options)
    module.compile(**given)
    return module


def _warmed(call: Call, job: Job) -> tuple[int, Warmth, float]:
    if not job.warm_seconds:
        return 1, Warmth(0, False), 0.0
    warmth = warm_up(call, seconds=job.warm_seconds)
    repeats = repeats_for(call, job.turn_seconds)
    return repeats, warmth, _alone(call, repeats, job.warm_seconds)


def _alone(call: Call, repeats: int, seconds: float) -> float:
    taken: Sequence[float] = [seconds_per_call(call, repeats)]
    while len(taken) < ALONE and sum(taken) * repeats < seconds:
        taken = [*taken, seconds_per_call(call, repeats)]
    return statistics.median(taken)


def _timed(do: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return do(), time.perf_counter() - began


if __name__ == "__main__":
    serve()
