"""Engines measured behind a wall: each compiles and runs in a worker of its own, where a hang or a crash costs its limit once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.deferred import loaded
from xrt.errors import EngineError, OptionError, OutOfDeviceMemory, RunFailed
from xrt.graph import Function
from xrt.runtime import hosted, repeated
from xrt.runtime.isolation import Isolated, Limits, RemoteExecutable
from xrt.runtime.timing import sampled
from xrt.tune.bounded import OutOfTime, within
from xrt.verify.running import copied

__all__ = ["Apart", "Here", "NotStarted", "Terms", "Trial", "Way", "way_of"]

MOMENT = 0.02
"""Seconds that a request is given at least."""
KEPT = 0.25
"""Seconds of a compile from which on the worker keeps what it compiled, for the contest."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a Function on an engine."""

    results: Sequence[Any]
    samples: Sequence[float]
    """Seconds per call."""


@dataclass(frozen=True, slots=True)
class Terms:
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


class Way(Protocol):
    """How an engine is tried."""

    @property
    def front(self) -> GraphCompiler:
        """What the contest compiles with, in this process."""

    def meet(self) -> None:
        """Start and import what a trial needs; raises EngineError."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: Terms) -> Trial:
        """Compile, run and take samples; raises EngineError."""

    def close(self) -> None:
        """Let go of what it holds."""


class Apart(Isolated):
    """An engine that compiles and is measured in a worker; what it compiled there is loaded here, or compiled once more."""

    def __init__(self, engine: GraphCompiler, limits: Limits) -> None:
        """Raises OptionError where no other process can import the engine's class."""
        super().__init__(engine, limits, runs=False)
        self.runs = False  # what cannot be saved is compiled here: in the worker it did no harm
        self.devices = engine.devices  # type: ignore[misc]  # there it runs on a device of its own process
        self._kept: dict[str, RemoteExecutable] = {}

    @property
    def front(self) -> GraphCompiler:
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: Terms) -> Trial:
        end = perf_counter() + (float("inf") if terms.total is None else terms.total)
        if not self._home.is_at_work:  # it was killed for what it did before
            self._start_anew(terms.compiling)
        began = perf_counter()
        self.bound(_at_most(terms.compiling, end - began))
        remote = RemoteExecutable(self._home, function, context)
        took = perf_counter() - began
        self.bound(_at_most(terms.running, end - perf_counter()))
        try:
            results, samples = remote.measured(inputs, terms.seconds, inner=terms.inner)
        except BaseException:
            remote.close()
            raise
        if took > KEPT and function.fingerprint not in self._kept:
            self._kept[function.fingerprint] = remote
        else:
            remote.close()
        return Trial(results, samples)

    def _start_anew(self, seconds: float | None) -> None:
        """Start a worker, within so many seconds; raises NotStarted."""
        self.bound(seconds)
        try:
            within(threading.TIMEOUT_MAX if seconds is None else seconds, self.meet)
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


class Here:
    """An engine that can, or is to, be in no other process; a crash of it is one of this process, and a hang is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.front = engine

    @classmethod
    def of(cls, engine: GraphCompiler) -> Here:
        """Return the way of an engine without the worker that it may stand in front of."""
        return cls(_inner(engine))

    def meet(self) -> None:
        """The engine is here."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: Terms) -> Trial:
        limits = [seconds for seconds in (terms.compiling, terms.running) if seconds is not None]
        if not limits:
            return self._tried(function, context, inputs, terms)
        try:
            return within(sum(limits), partial(self._tried, function, context, inputs, terms))
        except OutOfTime as error:
            told = f"engine {self.front.spec!r} gave no answer within {sum(limits):.3g} s"
            raise RunFailed(told) from TimeoutError(str(error))

    def _tried(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: Terms) -> Trial:
        given = [copied(value) for value in inputs]
        try:
            executable = hosted(self.front.compile(function, context), context)
            try:
                executable.prepare()
                results = [copied(value) for value in executable.run(given)]
                return Trial(results, sampled(repeated(executable, given, results if terms.inner else None), terms.seconds))
            finally:
                executable.close()
        except (EngineError, OutOfDeviceMemory):
            raise
        except Exception as error:
            raise RunFailed(f"engine {self.front.spec!r} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


def way_of(engine: GraphCompiler, limits: Limits) -> Way:
    """Return how an engine is tried: behind a wall, where there can be one."""
    try:
        return Apart(_inner(engine), limits)
    except OptionError:
        return Here.of(engine)


def _inner(engine: GraphCompiler) -> GraphCompiler:
    return loaded(engine.inner if isinstance(engine, Isolated) else engine)
