"""The profiler: run engines in workers, and measure parts of a model on them, one after the other, into a cost table."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.cache import CompileCache
from xrt.engines.contract.proxy import RecordedSupportEngine, load_engine
from xrt.errors import CompileFailed, CompileRefused, EngineError, InputError, OptionError, OutOfDeviceMemory, RunFailed, XRTError
from xrt.graph import Function, TensorType
from xrt.measure.timing import Clock, median_interval, sample_call_times
from xrt.operators import is_deterministic
from xrt.partition import partition
from xrt.partition.cost_table import CostTable, MeasuredCost, RegionCost
from xrt.partition.support_matrix import classify_nodes, query_engine
from xrt.placement.result import NOT_MEASURED
from xrt.placement.search import UNCERTAINTY
from xrt.processes.background import OutOfTime, begin, within, within_or_stopped
from xrt.runtime import Program, adapt_to_host, compile_plan, make_timed_call, to_host
from xrt.runtime.inputs import copy_values
from xrt.verify.comparison import OutputJudge, Verdict, compare_at_precision, is_lowered
from xrt.verify.execution import Stopped, expose_inner_values, run_pieces, split_regions
from xrt.worker.isolated_engine import IsolatedEngine, RemoteExecutable, WorkerLimits

if TYPE_CHECKING:
    from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
    from xrt.graph import Function
    from xrt.partition import Plan
    from xrt.placement.result import PlacementRequest
    from xrt.placement.search import ProfilingRequest


def check_against_reference(
    function: Function,
    inputs: Sequence[Any],
    results: Sequence[Any],
    expected: Sequence[Any],
    reference: Reference,
    options: ExecutionOptions,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[str, str]:
    """Compare results with the expected ones; return an error and a remark, both empty if they agree.

    If the options allow a lower precision, its tolerance applies, and the remark has the error. Raises Stopped if
    ``is_stopped()`` becomes true before there is a verdict.
    """
    if is_lowered(options.precision) or len(results) != len(expected):
        return compare_at_precision(function, results, expected, options.precision)
    judgment = OutputJudge(function.replace(aliases=()), inputs, reference, is_stopped).judge(results, expected)
    return judgment.message if judgment.verdict is Verdict.DISAGREES else "", ""


Reference: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Computes the correct outputs of a Function."""
STRETCH = 32
"""Nodes per run of the reference, which may be stopped between runs."""
MOST_BYTES = 1 << 30
"""Limit on the bytes of captured values; later inner values are dropped, and regions that need them are not measured."""


def capture_activations(
    function: Function,
    inputs: Sequence[Any],
    reference: Reference,
    most: int = MOST_BYTES,
    *,
    stretch: int = STRETCH,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Capture inputs, constants and node outputs, by name, from one run of the reference.

    Outputs are always captured, inner values in node order up to ``most`` bytes. The reference runs ``stretch`` nodes at a time;
    Stopped is raised between two runs once ``is_stopped()`` is true.
    """
    names = dict.fromkeys(value.name for value in function.outputs)  # whatever their size: each plan is compared with them
    nbytes = ran = 0
    for name in (name for node in function.nodes for name in node.outputs if name):
        type_ = function.get_type(name)
        nbytes += (type_.nbytes or 0) if isinstance(type_, TensorType) else 0
        names.update({name: None} if nbytes <= most else {})

    def run(part: Function, arguments: Sequence[Any]) -> Sequence[Any]:
        nonlocal ran
        if is_stopped():
            raise Stopped(f"after {ran} of {len(function.nodes)} nodes")
        ran += len(part.nodes)
        return reference(part, arguments) if part.outputs else ()

    whole = expose_inner_values(function, list(names))
    # Values that no later part reads are released: all inner values of a large model do not fit into memory.
    parts = split_regions(whole, [index // stretch for index in range(len(function.nodes))])
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, array) for value, array in zip(function.inputs, inputs, strict=True))
    return {**values, **dict(zip(names, run_pieces(whole, parts, inputs, run), strict=True))}


def find_first_random_node(function: Function) -> str:
    """Describe the first nondeterministic node; empty if there is none."""
    node = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {node.name!r} ({node.op}) does not give the same twice" if node is not None else ""


LEAST = 0.1
"""Seconds for any step that is begun, even if the budget ends before."""
SLOW_COMPILE = 0.25
"""Seconds of compile time above which the worker keeps the executable for the race."""


Trial: TypeAlias = tuple[Sequence[Any], Sequence[float]]
"""The results of a trial of a Function on an engine, and samples of the seconds per call."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """The time limits of a trial, and whether it times an inner region."""

    seconds: float
    """Seconds of sampling."""
    compiling: float = math.inf
    """Seconds for the compile."""
    running: float = math.inf
    """Seconds for the first call and the sampling."""
    total: float = math.inf
    """Seconds for the trial, including a restart of the worker."""
    inner: bool = False
    """Whether to time it as an inner region, which writes its results into existing memory."""


class NotStarted(EngineError):
    """A killed worker did not restart in time."""


class WorkerRunner(IsolatedEngine):
    """Compiles and measures an engine in a worker; its executables are loaded into this process, or compiled again here."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        """Raise OptionError if another process cannot import the engine's class."""
        super().__init__(engine, limits, runs=False)
        self.runs = False  # an executable that cannot be saved is compiled here, once it was harmless in the worker
        self.devices = engine.devices  # type: ignore[misc]  # the worker opens the device itself
        self._executables: dict[str, RemoteExecutable] = {}

    @property
    def compiler(self) -> GraphCompiler:
        """The engine that compiles for the race, in this process."""
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        """Compile, run and time a Function; raises EngineError."""
        end = perf_counter() + limits.total
        # An engine that hung or crashed lost its worker; the next part of the model may still work.
        if not self._home.has_worker:
            self.bound(limits.compiling)
            try:
                within(min(limits.compiling, threading.TIMEOUT_MAX), self.start)
            except OutOfTime as error:
                raise NotStarted(f"engine {self.spec!r} was not started again within {limits.compiling:.3g} s") from error
        began = perf_counter()
        self.bound(max(min(limits.compiling, end - began), LEAST))
        remote = RemoteExecutable(self._home, function, context)
        took = perf_counter() - began
        self.bound(max(min(limits.running, end - perf_counter()), LEAST))
        try:
            results, samples = remote.measure(inputs, limits.seconds, inner=limits.inner)
        except BaseException:
            remote.close()
            raise
        # A long compile is not repeated for the race: the executable is fetched from the worker.
        if took > SLOW_COMPILE and function.fingerprint not in self._executables:
            self._executables[function.fingerprint] = remote
        else:
            remote.close()
        return results, samples

    def bound(self, limit: float) -> None:
        """Limit the seconds of each later request."""
        self._home.seconds = limit if math.isfinite(limit) else None

    def compile_in_worker(self, function: Function, context: CompileContext) -> RemoteExecutable:
        remote = self._executables.pop(function.fingerprint, None)
        return remote if remote is not None and remote.is_in_worker else super().compile_in_worker(function, context)


class LocalRunner:
    """Runs an engine in this process, if no worker can or should; a crash ends the process, and a hang is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.compiler = engine

    def start(self) -> None:
        """Nothing to start."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        # A thread cannot be stopped between compile and run, so that both limits are one.
        allowed = min(limits.compiling + limits.running, threading.TIMEOUT_MAX)
        try:
            return within(allowed, partial(self._run_trial, function, context, inputs, limits))
        except OutOfTime as error:
            message = f"engine {self.compiler.spec!r} gave no answer within {allowed:.3g} s"
            raise RunFailed(message) from TimeoutError(str(error))

    def _run_trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        # The inputs are the caller's arrays, and an executable may update its inputs in place.
        copies = [copy_values(value) for value in inputs]
        try:
            executable = adapt_to_host(self.compiler.compile(function, context), context)
            try:
                executable.prepare()
                results = [copy_values(value) for value in executable.run(copies)]
                call = make_timed_call(executable, copies, results if limits.inner else None, function)
                return results, sample_call_times(call, limits.seconds)
            finally:
                executable.close()
        except (EngineError, OutOfDeviceMemory):
            raise
        except Exception as error:
            raise RunFailed(f"engine {self.compiler.spec!r} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing to release."""


Runner: TypeAlias = WorkerRunner | LocalRunner


def choose_runner(engine: GraphCompiler, limits: WorkerLimits) -> Runner:
    """Run the engine, without its isolating worker, in a worker if possible, else in this process."""
    inner = load_engine(engine.inner if isinstance(engine, IsolatedEngine) else engine)
    try:
        return WorkerRunner(inner, limits)
    except OptionError:
        return LocalRunner(inner)


PATIENCE = 3.0
"""Seconds for what an engine does once: to import its library (TVM, the slowest: 2.3 s) before the next engine starts, and to
initialize in a first call before it is given up as far slower than another engine."""


@dataclass(eq=False)
class _QueriedEngine:
    """One engine of a search, its answers and its runner."""

    engine: GraphCompiler
    home: str
    runner: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """Answers by node class: None, or why the node is not supported."""
    has_begun: bool = False
    is_ready: bool = False
    """Whether nothing is left to wait for: the engine has answered and its runner has started, or the engine failed."""
    failure: str = ""
    """Why it cannot take part; empty if it can."""


class Inquiry:
    """Queries the engines of a search for the nodes they support, and starts their runners, in threads that may be abandoned."""

    def __init__(self, request: PlacementRequest, open_runner: Callable[[GraphCompiler], Runner]) -> None:
        """Raise DeviceError if a device is unavailable."""
        self.function = request.function
        self._open_runner = open_runner
        self._is_over = False
        self._changed = threading.Condition()
        self._may_query = threading.Event()
        self._may_query.set()
        self._class_of, self._examples = classify_nodes(request.function)
        self._queried = {engine.spec: _QueriedEngine(engine, request.contexts[engine.spec].device) for engine in request.engines}

    # ------------------------------------------------------------------ waiting

    def start(self) -> None:
        """Start querying the engines.

        The next engine starts once the previous one has answered, or after `PATIENCE`: engines that import their libraries at
        once slow each other.
        """

        def start_all() -> None:
            for entry in self._queried.values():
                self._may_query.wait()
                if self._is_over:
                    return
                entry.has_begun = True
                begin(partial(self._make_ready, entry), f"xrt-query-{entry.engine.name}")
                self.wait(lambda entry=entry: self._is_over or not self._is_unanswered(entry), PATIENCE)  # type: ignore[misc]

        begin(start_all, "xrt-query")

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait at most ``seconds`` until ``is_enough()``, which is checked whenever an engine has answered or is ready."""
        with self._changed:
            return self._changed.wait_for(is_enough, min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    @property
    def pending(self) -> list[str]:
        """The engines that are not ready yet."""
        return [spec for spec, entry in self._queried.items() if not entry.is_ready]

    @property
    def unanswered(self) -> list[str]:
        """The engines that have neither answered for all nodes nor failed."""
        return [spec for spec, entry in self._queried.items() if self._is_unanswered(entry)]

    def _is_unanswered(self, entry: _QueriedEngine) -> bool:
        return not entry.failure and len(entry.answers) < len(self._examples)

    def _make_ready(self, entry: _QueriedEngine) -> None:
        """Start the engine's worker and query the engine meanwhile; runs in a thread."""
        try:
            entry.runner = self._open_runner(entry.engine)
            # The worker imports the library while this process does, so that the two imports overlap.
            starting = begin(entry.runner.start, f"xrt-start-{entry.engine.name}")
            self._query(entry)
            # The answers suffice for a plan, before the worker is ready to measure it.
            self._notify()
            starting.result()
        except EngineError as error:
            entry.failure = " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            entry.failure = f"{type(error).__name__}: {error}"
        entry.is_ready = True
        self._notify()
        # The search has ended in the meantime, and did not close this runner.
        if self._is_over and entry.runner is not None:
            entry.runner.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _query(self, entry: _QueriedEngine) -> None:
        for number, node in enumerate(self._examples):
            self._may_query.wait()
            if self._is_over:
                return
            (entry.answers[number],) = query_engine(entry.engine, entry.home, [node], self.function)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Pause queries while something is measured. A query in progress continues."""
        self._may_query.clear()
        try:
            yield
        finally:
            self._may_query.set()

    # ------------------------------------------------------------------ answers and runners

    @property
    def runners(self) -> dict[str, Runner]:
        """The runners of the engines that are ready."""
        return {spec: x.runner for spec, x in self._queried.items() if x.is_ready and x.runner is not None and not x.failure}

    def engines(self, *, started: bool = False) -> list[GraphCompiler]:
        """All engines with their answers; an engine without answers, or not ``started`` if required, supports nothing."""
        return [self._record_answers(entry, started=started) for entry in self._queried.values()]

    def _record_answers(self, entry: _QueriedEngine, *, started: bool) -> GraphCompiler:
        if (reason := self.why_not_ready(entry.engine.spec, started=started)) is not None:
            reasons = dict.fromkeys((node.name for node in self.function.nodes), f"{NOT_MEASURED}{reason}")
        else:
            pairs = zip(self.function.nodes, self._class_of, strict=True)
            reasons = {node.name: answer for node, number in pairs if (answer := entry.answers[number]) is not None}
        return RecordedSupportEngine(entry.engine, reasons)

    def why_not_ready(self, spec: str, *, started: bool = True) -> str | None:
        """Explain why the engine could not be measured, or queried unless ``started``; None if it could."""
        entry = self._queried[spec]
        if entry.failure:
            return entry.failure
        if not self._is_unanswered(entry):
            return None if entry.is_ready or not started else "it had not started before the budget ended"
        if not entry.has_begun:
            return "it was not asked before the budget ended"
        return "the budget ended while it was asked which nodes it supports"

    # ------------------------------------------------------------------ the end

    def close(self, seconds: float) -> None:
        """Close the runners and wait for it, at most ``seconds`` and `PATIENCE`; one that is starting is closed once it has."""
        self._is_over = True
        self._may_query.set()
        self._notify()
        # At once: one after the other, the workers of a busy machine would take more than the reserve of the budget.
        runners = [entry.runner for entry in self._queried.values() if entry.is_ready and entry.runner is not None]
        wait([begin(runner.close, "xrt-end") for runner in runners], max(0.0, min(seconds, PATIENCE)))


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Truth:
    """The expected values by name, and the function that computes more of them."""

    values: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    """Computes expected results; None if that has failed, and results are then not compared."""
    remark: str = ""


@dataclass(eq=False)
class RegionProfiler:
    """Measures parts of the model, once each.

    Each compile and each measurement may take ``limit`` seconds, and sampling about ``sampling``. Results are compared with the
    reference until the clock shows ``end``, and for at most ``limit`` seconds if another engine has been measured; a cost without
    a comparison is dropped. A region that computes an output of the model allocates it; an inner region writes into existing
    memory.
    """

    request: PlacementRequest
    inquiry: Inquiry
    limit: float
    sampling: float
    clock: Clock
    end: float
    table: CostTable = CostTable()
    truth: Truth = Truth()
    count: int = 0
    """Number of parts measured, including failed ones."""
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why parts were not measured, by shape key and engine; another search tries them again."""
    cut_off: set[tuple[str, str]] = field(default_factory=set)
    """The parts that were not compiled within the limit; a search with a larger budget tries again."""
    disturbed: set[tuple[str, str]] = field(default_factory=set)
    """Shape keys and engines of the parts that were timed while another engine was starting."""
    _hung: set[str] = field(default_factory=set)
    """The engines that have not ended a measurement in time."""

    def is_known(self, subject: ProfilingRequest) -> bool:
        """Whether a part needs no further measurement."""
        piece = subject.key, subject.spec
        return piece in self.skipped or self.table.region(*piece) is not None

    def measure(self, subjects: Sequence[ProfilingRequest], until: float, report: Callable[[ProfilingRequest], object]) -> bool:
        """Measure the parts without a cost, in order, until the clock shows ``until``; return False if time ran out.

        ``report`` is called with each part before it is measured.
        """
        for subject in subjects:
            if self.is_known(subject):
                continue
            if self.clock() + LEAST > until:
                return False
            report(subject)
            if self.inquiry.pending:
                self.disturbed.add((subject.key, subject.spec))
            try:
                cost = self._measure(subject, until)
            except _NotMeasured as error:
                self.skipped[subject.key, subject.spec] = str(error)
                continue
            self.count += 1
            self.table = self.table.with_region(subject.key, subject.spec, cost)
            _log.debug("%s: %d nodes: %s", subject.spec, len(subject.function.nodes), cost)
        return True

    def _measure(self, subject: ProfilingRequest, until: float) -> RegionCost:
        """Measure a part and check its results; raises _NotMeasured if another search may succeed."""
        function = subject.function  # with its updates in place, as in a plan
        captured = self.truth.values
        if any(value.name not in captured for value in (*function.inputs, *function.outputs)):
            raise _NotMeasured("its values were not captured")
        inputs, expected = ([captured[value.name] for value in values] for values in (function.inputs, function.outputs))
        # Each hang costs the limit of a measurement.
        if subject.spec in self._hung:
            raise _NotMeasured("the engine did not end with another part of the model")
        runners = self.inquiry.runners
        costs = (self.table.region(subject.key, spec) for spec in runners)
        best = min((cost.seconds for cost in costs if isinstance(cost, MeasuredCost)), default=None)
        remaining = until - self.clock()
        limit = max(min(self.limit, remaining), LEAST)
        # A trial has three calls at least. An engine that needs more time for them than one that may still race is given up.
        running = limit if best is None else min(limit, PATIENCE + 3 * UNCERTAINTY**2 * best)
        returned = {value.name for value in self.request.function.outputs}
        # An inner region writes into memory of the plan; an output of the model is allocated for each call.
        inner = returned.isdisjoint(value.name for value in function.outputs)
        context = self.request.contexts.get(subject.spec, self.request.context)
        try:
            # Sampling is an eighth of the limit at most: the compile and the first call need the rest.
            limits = TrialLimits(min(self.sampling, limit / 8), limit, running, remaining, inner=inner)
            results, samples = runners[subject.spec].trial(function, context, inputs, limits)
        except (NotStarted, OutOfDeviceMemory) as error:
            raise _NotMeasured(str(error)) from error  # another search may have more free device memory
        except (EngineError, InputError) as error:
            text = " ".join(str(error).split())
            # Only a hang within the full limit says something about the engine; a shorter limit is the end of the budget.
            if isinstance(error.__cause__, TimeoutError):
                if limit < self.limit:
                    raise _NotMeasured(f"the budget ended before it was measured: {text}") from error
                self._hung.add(subject.spec)
                if isinstance(error, CompileFailed):
                    self.cut_off.add((subject.key, subject.spec))
            return f"{'refused' if isinstance(error, CompileRefused) else 'failed'}: {text}"
        reference = self.truth.reference
        if reference is not None and not find_first_random_node(function):
            # A comparison may need float64 runs of the reference, which are slow: another engine's time limits them.
            remaining = min(max(self.end - self.clock(), LEAST), threading.TIMEOUT_MAX)
            limit = remaining if best is None else min(remaining, self.limit)
            criteria = reference, self.request.context.options
            try:
                check = partial(check_against_reference, function, inputs, results, expected, *criteria)
                wrong, _ = within_or_stopped(limit, check)
            except OutOfTime as error:
                if limit < remaining:
                    raise _NotMeasured(f"comparing its results with the reference took longer than {limit:.3g} s") from error
                raise _NotMeasured("the budget ended before its results were compared with the reference") from error
            if wrong:
                return f"wrong: {wrong}"
        return MeasuredCost(*median_interval(samples))


class _NotMeasured(Exception):
    """Explains why a part has no cost in this search."""


def is_refuted(plan: Plan, table: CostTable) -> bool:
    """Whether a region of the plan is known to fail or to be wrong."""
    costs = (table.region(launch.function.shape_key, launch.engine) for launch in plan.launches)
    return any(isinstance(cost, str) for cost in costs)


def run_once(program: Program, values: Sequence[Any]) -> list[Any]:
    """Call a program with copies of the inputs; return copies of the outputs."""
    return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in values])]


def make_stand_in(request: PlacementRequest, implicit: str | None, engines: Sequence[GraphCompiler]) -> Reference:
    """Make the substitute for the reference: the plan by priority on ``engines``, compiled in this process."""
    loaded = {engine.spec: engine for engine in request.engines}

    def run(function: Function, inputs: Sequence[Any]) -> list[Any]:
        plan = partition(function, engines, implicit=implicit, device=request.device_map)
        used = {launch.engine: load_engine(loaded[launch.engine]) for launch in plan.launches}
        program = compile_plan(plan, used, request.context, CompileCache())
        if not isinstance(program, Program):
            raise RunFailed(program[0].reason)
        try:
            return run_once(program, inputs)
        finally:
            program.close()

    return run


def compute_truth(
    function: Function, inputs: Sequence[Any], reference: Reference, stand_in: Reference, name: str, seconds: float
) -> Truth:
    """Compute the expected values in about ``seconds``; if the reference fails, use the stand-in called ``name``.

    The reference has half of the time, and each of the two attempts of the stand-in a quarter.
    """
    try:
        arguments = function, inputs, reference
        values = within_or_stopped(seconds / 2, lambda is_stopped: capture_activations(*arguments, is_stopped=is_stopped))
        return Truth(values, reference)
    except (OutOfTime, XRTError) as error:
        why = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001  # whatever a kernel raises
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    # Agreement of engines with each other is weaker than with the reference, so the user is told.
    remark = f"not checked against the reference: {why}; results were held against"
    capture = partial(capture_activations, function, inputs, stand_in, stretch=len(function.nodes))
    for most in (MOST_BYTES, 0):  # the values of all nodes, else those of the outputs
        with suppress(Exception):
            return Truth(within(seconds / 4, partial(capture, most=most)), stand_in, f"{remark} those of {name}")
    return Truth({}, None, f"{remark} nothing")
