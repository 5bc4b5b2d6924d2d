"""Engines measured behind a wall: each compiles and runs in a worker of its own, where a hang or a crash costs its limit once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from xrt.engines.contract.proxy import load_engine
from xrt.errors import EngineError, OptionError, OutOfDeviceMemory, RunFailed
from xrt.measure.timing import sample_call_times
from xrt.placement.time_limit import OutOfTime, within
from xrt.runtime import adapt_to_host, make_timed_call
from xrt.verify.execution import copy_values
from xrt.worker.isolated_engine import IsolatedEngine, RemoteExecutable, WorkerLimits

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import Function

__all__ = ["LocalRunner", "NotStarted", "Runner", "TrialLimits", "TrialResult", "WorkerRunner", "choose_runner"]

MOMENT = 0.02
"""Seconds that a request is given at least."""
KEPT = 0.25
"""Seconds of a compile from which on the worker keeps what it compiled, for the contest."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a Function on an engine."""

    results: Sequence[Any]
    samples: Sequence[float]
    """Seconds per call."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """How long a trial may take, and what is timed."""

    seconds: float
    """For how long samples are taken."""
    compiling: float | None = None
    """Seconds that the compile may take; None is no limit."""
    running: float | None = None
    """Seconds that the runs may take, all together."""
    total: float | None = None
    """Seconds that compile and runs may take together."""
    inner: bool = False
    """Whether it is timed as what other regions read: its results lie in memory that is there."""


class NotStarted(EngineError):
    """A worker that had been killed was not there again in time."""


def _at_most(limit: float | None, left: float) -> float | None:
    """Return the lesser of a limit and what is left; a request is given a moment in any case."""
    return limit if left == float("inf") else max(left if limit is None else min(limit, left), MOMENT)


class Runner(Protocol):
    """How an engine is tried."""

    @property
    def compiler(self) -> GraphCompiler:
        """What the contest compiles with, in this process."""

    def start(self) -> None:
        """Start and import what a trial needs; raises EngineError."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        """Compile, run and take samples; raises EngineError."""

    def close(self) -> None:
        """Let go of what it holds."""


class WorkerRunner(IsolatedEngine):
    """An engine that compiles and is measured in a worker; what it compiled there is loaded here, or compiled once more."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        """Raises OptionError where no other process can import the engine's class."""
        super().__init__(engine, limits, runs=False)
        self.runs = False  # what cannot be saved is compiled here: in the worker it did no harm
        self.devices = engine.devices  # type: ignore[misc]  # there it runs on a device of its own process
        self._kept: dict[str, RemoteExecutable] = {}

    @property
    def compiler(self) -> GraphCompiler:
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        end = perf_counter() + (float("inf") if terms.total is None else terms.total)
        if not self._home.is_at_work:  # it was killed for what it did before
            self._restart(terms.compiling)
        began = perf_counter()
        self.bound(_at_most(terms.compiling, end - began))
        remote = RemoteExecutable(self._home, function, context)
        took = perf_counter() - began
        self.bound(_at_most(terms.running, end - perf_counter()))
        try:
            results, samples = remote.measure(inputs, terms.seconds, inner=terms.inner)
        except BaseException:
            remote.close()
            raise
        if took > KEPT and function.fingerprint not in self._kept:
            self._kept[function.fingerprint] = remote
        else:
            remote.close()
        return TrialResult(results, samples)

    def _restart(self, seconds: float | None) -> None:
        """Start a worker, within so many seconds; raises NotStarted."""
        self.bound(seconds)
        try:
            within(threading.TIMEOUT_MAX if seconds is None else seconds, self.start)
        except OutOfTime as error:
            raise NotStarted(f"engine {self.spec!r} was not started again within {seconds:.3g} s") from error

    def bound(self, limit: float | None) -> None:
        """Let each request from now on take at most so many seconds."""
        self._home.seconds = limit

    def compile(self, function: Function, context: CompileContext) -> Executable:
        kept = self._kept.pop(function.fingerprint, None)
        if kept is not None and kept.is_held:
            return self._loaded(kept, function, context)
        return super().compile(function, context)


class LocalRunner:
    """An engine that can, or is to, be in no other process; a crash of it is one of this process, and a hang is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.compiler = engine

    @classmethod
    def of(cls, engine: GraphCompiler) -> LocalRunner:
        """Return the way of an engine without the worker that it may stand in front of."""
        return cls(_inner(engine))

    def start(self) -> None:
        """The engine is here."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        limits = [seconds for seconds in (terms.compiling, terms.running) if seconds is not None]
        if not limits:
            return self._tried(function, context, inputs, terms)
        try:
            return within(sum(limits), partial(self._tried, function, context, inputs, terms))
        except OutOfTime as error:
            said = f"engine {self.compiler.spec!r} gave no answer within {sum(limits):.3g} s"
            raise RunFailed(said) from TimeoutError(str(error))

    def _tried(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        given = [copy_values(value) for value in inputs]
        try:
            executable = adapt_to_host(self.compiler.compile(function, context), context)
            try:
                executable.prepare()
                results = [copy_values(value) for value in executable.run(given)]
                call = make_timed_call(executable, given, results if terms.inner else None, function)
                return TrialResult(results, sample_call_times(call, terms.seconds))
            finally:
                executable.close()
        except (EngineError, OutOfDeviceMemory):
            raise
        except Exception as error:
            raise RunFailed(f"engine {self.compiler.spec!r} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


def choose_runner(engine: GraphCompiler, limits: WorkerLimits) -> Runner:
    """Return how an engine is tried: behind a wall, where there can be one."""
    try:
        return WorkerRunner(_inner(engine), limits)
    except OptionError:
        return LocalRunner.of(engine)


def _inner(engine: GraphCompiler) -> GraphCompiler:
    return load_engine(engine.inner if isinstance(engine, IsolatedEngine) else engine)
