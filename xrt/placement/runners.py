"""Trials of engines in isolated worker processes, where a hang or a crash costs the time limit once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from xrt.engines.contract.proxy import RecordedSupportEngine, load_engine
from xrt.errors import EngineError, OptionError, OutOfDeviceMemory, RunFailed
from xrt.measure.timing import sample_call_times
from xrt.partition.support_matrix import ask_engine, number_questions
from xrt.placement.result import NOT_MEASURED
from xrt.processes.background import OutOfTime, begin, within
from xrt.runtime import adapt_to_host, make_timed_call
from xrt.runtime.inputs import copy_values
from xrt.worker.isolated_engine import IsolatedEngine, RemoteExecutable, WorkerLimits

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import Function


MOMENT = 0.02
"""Minimum seconds for a request."""
KEPT = 0.25
"""Seconds of compile time above which the worker keeps the executable for the race."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial of a Function on an engine."""

    results: Sequence[Any]
    samples: Sequence[float]
    """Seconds per call."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """The time limits of a trial, and what it times."""

    seconds: float
    """Seconds of sampling."""
    compiling: float | None = None
    """Seconds for the compile; None for no limit."""
    running: float | None = None
    """Seconds for all runs together."""
    total: float | None = None
    """Seconds for compile and runs together."""
    inner: bool = False
    """Whether to time it as an inner region, which writes its results into existing memory."""


class NotStarted(EngineError):
    """A killed worker did not restart in time."""


def _at_most(limit: float | None, left: float) -> float | None:
    """The smaller of a limit and the remaining time, but at least `MOMENT`."""
    return limit if left == float("inf") else max(left if limit is None else min(limit, left), MOMENT)


class Runner(Protocol):
    """Runs trials of an engine."""

    @property
    def compiler(self) -> GraphCompiler:
        """The engine that compiles for the race, in this process."""

    def start(self) -> None:
        """Start the engine and import its libraries; raises EngineError."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        """Compile, run and time a Function; raises EngineError."""

    def close(self) -> None:
        """Release its resources."""


class WorkerRunner(IsolatedEngine):
    """Compiles and measures an engine in a worker; its executables are loaded into this process, or compiled again here."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        """Raise OptionError if another process cannot import the engine's class."""
        super().__init__(engine, limits, runs=False)
        self.runs = False  # an executable that cannot be saved is compiled here, once it was harmless in the worker
        self.devices = engine.devices  # type: ignore[misc]  # the worker opens the device itself
        self._kept: dict[str, RemoteExecutable] = {}

    @property
    def compiler(self) -> GraphCompiler:
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], terms: TrialLimits) -> TrialResult:
        end = perf_counter() + (float("inf") if terms.total is None else terms.total)
        if not self._home.is_at_work:  # it was killed in an earlier trial
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
        """Restart the worker within ``seconds``; raises NotStarted."""
        self.bound(seconds)
        try:
            within(threading.TIMEOUT_MAX if seconds is None else seconds, self.start)
        except OutOfTime as error:
            raise NotStarted(f"engine {self.spec!r} was not started again within {seconds:.3g} s") from error

    def bound(self, limit: float | None) -> None:
        """Limit the seconds of each later request."""
        self._home.seconds = limit

    def compile(self, function: Function, context: CompileContext) -> Executable:
        kept = self._kept.pop(function.fingerprint, None)
        if kept is not None and kept.is_held:
            return self._loaded(kept, function, context)
        return super().compile(function, context)


class LocalRunner:
    """Runs an engine in this process, if no worker can or should; a crash ends the process, and a hang is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.compiler = engine

    @classmethod
    def of(cls, engine: GraphCompiler) -> LocalRunner:
        """Make a runner for an engine, without its isolating worker."""
        return cls(_inner(engine))

    def start(self) -> None:
        """Nothing to start."""

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
        """Nothing to release."""


def choose_runner(engine: GraphCompiler, limits: WorkerLimits) -> Runner:
    """Run the engine in a worker if possible, else in this process."""
    try:
        return WorkerRunner(_inner(engine), limits)
    except OptionError:
        return LocalRunner.of(engine)


def _inner(engine: GraphCompiler) -> GraphCompiler:
    return load_engine(engine.inner if isinstance(engine, IsolatedEngine) else engine)


PATIENCE = 3.0
"""Seconds after which the next engine starts even if the previous one has not answered: TVM, the slowest library, is imported in
2.3 s."""
END_PATIENCE = 0.2
"""Seconds that a search waits for each worker to end."""


@dataclass(eq=False)
class _QueriedEngine:
    """One engine of a search, its answers and its runner."""

    engine: GraphCompiler
    home: str
    runner: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """Answers by question number: None, or why the node is not supported."""
    has_begun: bool = False
    has_answered: bool = False
    """Whether all questions are answered, or the engine failed."""
    is_ready: bool = False
    """Whether its runner has started too, or the engine failed."""
    failure: str = ""
    """Why it cannot take part; empty if it can."""


class Inquiry:
    """Queries the engines of a search for the nodes they support, and starts their runners, in threads that may be abandoned."""

    def __init__(
        self,
        function: Function,
        engines: Sequence[GraphCompiler],
        contexts: Mapping[str, CompileContext],
        open_runner: Callable[[GraphCompiler], Runner],
    ) -> None:
        self.function = function
        self._open_runner = open_runner
        self._is_over = False
        self._changed = threading.Condition()
        self._may_ask = threading.Event()
        self._may_ask.set()
        self._numbers, self._firsts = number_questions(function)
        self._queried = {one.spec: _QueriedEngine(one, contexts[one.spec].device) for one in engines}

    # ------------------------------------------------------------------ waiting

    def start(self) -> None:
        """Start querying the engines.

        The next engine starts once the previous one has answered, or after `PATIENCE`: engines that import their libraries at
        once slow each other.
        """

        def start_all() -> None:
            for one in self._queried.values():
                self._may_ask.wait()
                if self._is_over:
                    return
                one.has_begun = True
                begin(partial(self._make_ready, one), f"xrt-ask-{one.engine.name}")
                with self._changed:
                    self._changed.wait_for(lambda one=one: one.has_answered or self._is_over, PATIENCE)  # type: ignore[misc]

        begin(start_all, "xrt-ask")

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait at most ``seconds`` until ``is_enough()``, which is checked whenever an engine has answered or is ready."""
        with self._changed:
            return self._changed.wait_for(is_enough, min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    @property
    def pending(self) -> list[str]:
        """The engines that are not ready yet."""
        return [spec for spec, one in self._queried.items() if not one.is_ready]

    @property
    def unanswered(self) -> list[str]:
        """The engines that have not answered all questions."""
        return [spec for spec, one in self._queried.items() if not one.has_answered]

    def list_answered(self) -> tuple[str, ...]:
        """The engines whose answers are final."""
        return tuple(spec for spec, one in self._queried.items() if one.has_answered)

    def list_ready(self) -> tuple[str, ...]:
        """The engines that are ready to be measured, or have failed."""
        return tuple(spec for spec, one in self._queried.items() if one.is_ready)

    def _make_ready(self, one: _QueriedEngine) -> None:
        """Start the engine's worker and query the engine meanwhile; runs in a thread."""
        try:
            one.runner = self._open_runner(one.engine)
            starting = begin(one.runner.start, f"xrt-start-{one.engine.name}")
            self._ask(one)
            self._tell(one, has_answered=True)
            starting.result()
        except EngineError as error:
            one.failure = " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            one.failure = f"{type(error).__name__}: {error}"
        self._tell(one, has_answered=True, is_ready=True)
        if self._is_over and one.runner is not None:
            one.runner.close()

    def _tell(self, one: _QueriedEngine, *, has_answered: bool, is_ready: bool = False) -> None:
        with self._changed:
            one.has_answered, one.is_ready = has_answered, is_ready
            self._changed.notify_all()

    def _ask(self, one: _QueriedEngine) -> None:
        for number, node in enumerate(self._firsts):
            self._may_ask.wait()
            if self._is_over:
                return
            one.answers[number] = ask_engine(one.engine, one.home, node, self.function)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Pause queries while something is measured. A query in progress continues."""
        self._may_ask.clear()
        try:
            yield
        finally:
            self._may_ask.set()

    # ------------------------------------------------------------------ answers and runners

    @property
    def runners(self) -> dict[str, Runner]:
        """The runners of the engines that are ready."""
        return {
            spec: one.runner for spec, one in self._queried.items() if one.is_ready and one.runner is not None and not one.failure
        }

    def engines(self, *, started: bool = False) -> list[GraphCompiler]:
        """All engines with their answers; an engine without answers, or not ``started`` if required, supports nothing."""
        return [self._by_answers(one, started=started) for one in self._queried.values()]

    def _by_answers(self, one: _QueriedEngine, *, started: bool) -> GraphCompiler:
        if (reason := self._why_not(one, started=started)) is not None:
            return RecordedSupportEngine(
                one.engine, dict.fromkeys((node.name for node in self.function.nodes), f"{NOT_MEASURED}{reason}")
            )
        pairs = zip(self.function.nodes, self._numbers, strict=True)
        reasons = {node.name: reason for node, number in pairs if (reason := one.answers[number]) is not None}
        return RecordedSupportEngine(one.engine, reasons)

    def why_not_ready(self, spec: str) -> str | None:
        """Explain why the engine could not be measured; None if it could."""
        return self._why_not(self._queried[spec], started=True)

    def _why_not(self, one: _QueriedEngine, *, started: bool) -> str | None:
        if one.failure:
            return one.failure
        if len(one.answers) == len(self._firsts):
            return None if one.is_ready or not started else "it had not started before the budget ended"
        if not one.has_begun:
            return "it was not asked before the budget ended"
        return "the budget ended while it was asked which nodes it supports"

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close the runners; one that is still starting is closed as soon as it has started."""
        self._is_over = True
        self._may_ask.set()
        with self._changed:
            self._changed.notify_all()
        for one in self._queried.values():
            if one.is_ready and one.runner is not None:
                with suppress(OutOfTime):
                    within(END_PATIENCE, one.runner.close)
