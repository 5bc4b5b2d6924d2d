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
    """Compare the results of a Function with the expected ones.

    Returns two strings: an error message, which is empty if the results are right, and a remark. The remark states the measured
    error if the options allow a lower precision, whose tolerance then applies; otherwise it is empty. Raises Stopped if
    ``is_stopped()`` becomes true before the comparison has ended.
    """
    if is_lowered(options.precision) or len(results) != len(expected):
        return compare_at_precision(function, results, expected, options.precision)
    judgment = OutputJudge(function.replace(aliases=()), inputs, reference, is_stopped).judge(results, expected)
    return judgment.message if judgment.verdict is Verdict.DISAGREES else "", ""


Reference: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Computes the correct outputs of a Function from its inputs."""
NODES_PER_RUN = 32
"""Nodes that the reference runs at a time; it can be stopped between two such runs."""
MAX_CAPTURED_BYTES = 1 << 30
"""Limit on the bytes of captured values. Inner values beyond it are dropped, so regions that need them are not measured."""


def capture_activations(
    function: Function,
    inputs: Sequence[Any],
    reference: Reference,
    max_bytes: int = MAX_CAPTURED_BYTES,
    *,
    nodes_per_run: int = NODES_PER_RUN,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Compute the values of a Function on the reference; returns inputs, constants and node outputs by name.

    Outputs are always captured; inner values are captured in node order until they exceed ``max_bytes``. The reference runs
    ``nodes_per_run`` nodes at a time; Stopped is raised between two runs once ``is_stopped()`` is true.
    """
    names = dict.fromkeys(value.name for value in function.outputs)  # whatever their size: each plan is compared with them
    nbytes = completed = 0
    for name in (name for node in function.nodes for name in node.outputs if name):
        type_ = function.get_type(name)
        nbytes += (type_.nbytes or 0) if isinstance(type_, TensorType) else 0
        names.update({name: None} if nbytes <= max_bytes else {})

    def run(part: Function, arguments: Sequence[Any]) -> Sequence[Any]:
        nonlocal completed
        if is_stopped():
            raise Stopped(f"after {completed} of {len(function.nodes)} nodes")
        completed += len(part.nodes)
        return reference(part, arguments) if part.outputs else ()

    exposed = expose_inner_values(function, list(names))
    # Values that no later part reads are released: all inner values of a large model do not fit into memory.
    parts = split_regions(exposed, [index // nodes_per_run for index in range(len(function.nodes))])
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, array) for value, array in zip(function.inputs, inputs, strict=True))
    return {**values, **dict(zip(names, run_pieces(exposed, parts, inputs, run), strict=True))}


def find_first_random_node(function: Function) -> str:
    """Find the first nondeterministic node, such as a random generator; returns a phrase that names it, empty if none."""
    node = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {node.name!r} ({node.op}) is not deterministic" if node is not None else ""


MIN_STEP_SECONDS = 0.1
"""Minimum seconds for a step that has begun, even if the budget ends earlier."""
SLOW_COMPILE_SECONDS = 0.25
"""If a compile took longer, the worker keeps the executable, so that the race need not compile again."""


Trial: TypeAlias = tuple[Sequence[Any], Sequence[float]]
"""The results of a Function on an engine, and samples of its seconds per call."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """Time limits for one trial: compile a Function on an engine, call it once, and time it."""

    seconds: float
    """Seconds of sampling."""
    compiling: float = math.inf
    """Seconds for the compile."""
    running: float = math.inf
    """Seconds for the first call and the sampling."""
    total: float = math.inf
    """Seconds for the trial, including a restart of the worker."""
    inner: bool = False
    """Whether the Function is timed as a region inside a plan: it then writes its results into existing memory."""


class NotStarted(EngineError):
    """A killed worker did not restart in time."""


class WorkerRunner(IsolatedEngine):
    """Measures an engine in a worker process. For the race its executables are loaded into this process, or compiled again."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        """Raise OptionError if another process cannot import the engine's class."""
        super().__init__(engine, limits, runs=False)
        # Never run in the worker: an executable that cannot be saved is compiled here, after it has done no harm in the worker.
        self.runs = False
        self.devices = engine.devices  # type: ignore[misc]  # the worker opens the device itself
        self._executables: dict[str, RemoteExecutable] = {}

    @property
    def compiler(self) -> GraphCompiler:
        """The engine whose executables the race runs in this process."""
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        """Compile, run and time a Function in the worker, which is restarted if it has ended. Raises EngineError on failure."""
        end = perf_counter() + limits.total
        # An engine that hung or crashed lost its worker; the next part of the model may still work.
        if not self._home.has_worker:
            self.limit_requests(limits.compiling)
            try:
                within(min(limits.compiling, threading.TIMEOUT_MAX), self.start)
            except OutOfTime as error:
                raise NotStarted(f"engine {self.spec!r} was not started again within {limits.compiling:.3g} s") from error
        began = perf_counter()
        self.limit_requests(max(min(limits.compiling, end - began), MIN_STEP_SECONDS))
        remote = RemoteExecutable(self._home, function, context)
        compile_seconds = perf_counter() - began
        self.limit_requests(max(min(limits.running, end - perf_counter()), MIN_STEP_SECONDS))
        try:
            results, samples = remote.measure(inputs, limits.seconds, inner=limits.inner)
        except BaseException:
            remote.close()
            raise
        # A long compile is not repeated for the race: the executable is fetched from the worker.
        if compile_seconds > SLOW_COMPILE_SECONDS and function.fingerprint not in self._executables:
            self._executables[function.fingerprint] = remote
        else:
            remote.close()
        return results, samples

    def limit_requests(self, seconds: float) -> None:
        """Limit each later request to the worker to ``seconds``."""
        self._home.seconds = seconds if math.isfinite(seconds) else None

    def compile_in_worker(self, function: Function, context: CompileContext) -> RemoteExecutable:
        remote = self._executables.pop(function.fingerprint, None)
        return remote if remote is not None and remote.is_in_worker else super().compile_in_worker(function, context)


class LocalRunner:
    """Measures an engine in this process, if a worker cannot import it. A crash ends the process; a hang is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.compiler = engine

    def start(self) -> None:
        """Do nothing; `WorkerRunner.start` starts a worker."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        # A thread cannot be stopped between compile and run, so that both limits are one.
        allowed = min(limits.compiling + limits.running, threading.TIMEOUT_MAX)
        try:
            return within(allowed, partial(self._compile_and_time, function, context, inputs, limits))
        except OutOfTime as error:
            message = f"engine {self.compiler.spec!r} gave no answer within {allowed:.3g} s"
            raise RunFailed(message) from TimeoutError(str(error))

    def _compile_and_time(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        """Compile, run and time a Function in this process. Raises EngineError for any exception of the engine."""
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
        """Do nothing; `WorkerRunner.close` ends its worker."""


Runner: TypeAlias = WorkerRunner | LocalRunner


def choose_runner(engine: GraphCompiler, limits: WorkerLimits) -> Runner:
    """Create the runner of an engine (of the inner one if isolated): in a worker if possible, else in this process."""
    inner = load_engine(engine.inner if isinstance(engine, IsolatedEngine) else engine)
    try:
        return WorkerRunner(inner, limits)
    except OptionError:
        return LocalRunner(inner)


STARTUP_SECONDS = 3.0
"""Seconds allowed for work that an engine does only once: to import its library before the next engine is started (the slowest,
TVM, takes 2.3 s), and to initialize in its first call before it is considered too slow."""


@dataclass(eq=False)
class _QueriedEngine:
    """An engine of a search, with its supported nodes and its runner."""

    engine: GraphCompiler
    device: str
    runner: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """By index of a class of alike nodes: None if the engine supports these nodes, else the reason."""
    has_begun: bool = False
    """Whether the engine is being queried or has been."""
    is_ready: bool = False
    """Whether there is nothing to wait for: its support is known and its runner has started, or the engine failed."""
    failure: str = ""
    """The error that excludes the engine from the search; empty if there was none."""


class Inquiry:
    """Queries which nodes each engine supports and starts the runners, in threads that the search need not wait for."""

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

        The next engine is started when the support of the previous one is known, or after `STARTUP_SECONDS`, because engines that
        import their libraries at the same time slow each other down.
        """

        def start_all() -> None:
            for entry in self._queried.values():
                self._may_query.wait()
                if self._is_over:
                    return
                entry.has_begun = True
                begin(partial(self._make_ready, entry), f"xrt-query-{entry.engine.name}")
                self.wait(lambda entry=entry: self._is_over or not self._has_unknown_support(entry), STARTUP_SECONDS)  # type: ignore[misc]

        begin(start_all, "xrt-query")

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait at most ``seconds`` until ``is_enough()``, called whenever an engine becomes ready; return its last result."""
        with self._changed:
            return self._changed.wait_for(is_enough, min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    @property
    def pending(self) -> list[str]:
        """Specs of the engines that are not ready to be measured."""
        return [spec for spec, entry in self._queried.items() if not entry.is_ready]

    @property
    def unanswered(self) -> list[str]:
        """Specs of the engines whose support is not known for all nodes, and which have not failed."""
        return [spec for spec, entry in self._queried.items() if self._has_unknown_support(entry)]

    def _has_unknown_support(self, entry: _QueriedEngine) -> bool:
        return not entry.failure and len(entry.answers) < len(self._examples)

    def _make_ready(self, entry: _QueriedEngine) -> None:
        """Start the engine's worker and query the engine meanwhile; runs in a thread."""
        try:
            entry.runner = self._open_runner(entry.engine)
            # The worker imports the library while this process does, so that the two imports overlap.
            starting = begin(entry.runner.start, f"xrt-start-{entry.engine.name}")
            self._query(entry)
            # A plan can be made once the supported nodes are known, before the worker is ready.
            self._notify()
            starting.result()
        except EngineError as error:
            entry.failure = " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            entry.failure = f"{type(error).__name__}: {error}"
        entry.is_ready = True
        self._notify()
        # If the search has ended in the meantime, it did not close this runner.
        if self._is_over and entry.runner is not None:
            entry.runner.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _query(self, entry: _QueriedEngine) -> None:
        for class_index, node in enumerate(self._examples):
            self._may_query.wait()
            if self._is_over:
                return
            (entry.answers[class_index],) = query_engine(entry.engine, entry.device, [node], self.function)

    @contextmanager
    def pause_queries(self) -> Iterator[None]:
        """Pause queries while a plan is compiled or measured. A query in progress continues."""
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

    def list_engines(self, *, started: bool = False) -> list[GraphCompiler]:
        """List all engines as proxies that repeat the recorded support.

        An engine supports nothing while its support is unknown or, with ``started``, while its runner is not ready.
        """
        return [self._record_answers(entry, started=started) for entry in self._queried.values()]

    def _record_answers(self, entry: _QueriedEngine, *, started: bool) -> GraphCompiler:
        if (reason := self.why_not_ready(entry.engine.spec, started=started)) is not None:
            reasons = dict.fromkeys((node.name for node in self.function.nodes), f"{NOT_MEASURED}{reason}")
        else:
            pairs = zip(self.function.nodes, self._class_of, strict=True)
            reasons = {node.name: answer for node, class_index in pairs if (answer := entry.answers[class_index]) is not None}
        return RecordedSupportEngine(entry.engine, reasons)

    def why_not_ready(self, spec: str, *, started: bool = True) -> str | None:
        """Explain why an engine is not ready to be measured; ``started=False`` asks only for its support. None if it is ready."""
        entry = self._queried[spec]
        if entry.failure:
            return entry.failure
        if not self._has_unknown_support(entry):
            return None if entry.is_ready or not started else "it had not started before the budget ended"
        if not entry.has_begun:
            return "it was not asked before the budget ended"
        return "the budget ended while it was asked which nodes it supports"

    # ------------------------------------------------------------------ the end

    def close(self, seconds: float) -> None:
        """Close all runners, waiting at most ``seconds`` and `STARTUP_SECONDS`. One that is still starting is closed later."""
        self._is_over = True
        self._may_query.set()
        self._notify()
        # All in parallel: in sequence, the workers of a busy machine would take more than the reserve of the budget.
        runners = [entry.runner for entry in self._queried.values() if entry.is_ready and entry.runner is not None]
        wait([begin(runner.close, "xrt-end") for runner in runners], max(0.0, min(seconds, STARTUP_SECONDS)))


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Truth:
    """The expected values of a model for its inputs."""

    values: dict[str, Any] = field(default_factory=dict)
    """Captured values by name."""
    reference: Reference | None = None
    """Computes further expected results; None if no results can be compared, because the reference and its substitute failed."""
    remark: str = ""
    """A note for the user if the values are not those of the reference."""


@dataclass(eq=False)
class RegionProfiler:
    """Measures regions of the model, each once, into a cost table.

    Each compile and each measurement may take ``limit`` seconds, of which sampling takes about ``sampling``. Results are compared
    with the reference until the clock shows ``end``, or for ``limit`` seconds if another engine has been measured on the region.
    A cost is recorded only if the comparison has ended.
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
    """Number of regions measured, including failed ones."""
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why regions were not measured, by shape key and engine. The reason is not stored, so another search tries again."""
    cut_off: set[tuple[str, str]] = field(default_factory=set)
    """Shape keys and engines of regions not compiled within the limit. Not stored, so that a longer search tries again."""
    disturbed: set[tuple[str, str]] = field(default_factory=set)
    """Shape keys and engines of regions timed while another engine was starting, so that their times may be too long."""
    _hung_engines: set[str] = field(default_factory=set)
    """Specs of the engines that exceeded the limit of a measurement; they are not measured again."""

    def is_known(self, region: ProfilingRequest) -> bool:
        """Whether a region was measured or skipped."""
        key = region.key, region.spec
        return key in self.skipped or self.table.region(*key) is not None

    def measure(self, regions: Sequence[ProfilingRequest], until: float, report: Callable[[ProfilingRequest], object]) -> bool:
        """Measure the regions whose cost is not known, in order; return False if the clock showed ``until`` before the last one.

        ``report`` is called with each region before it is measured.
        """
        for region in regions:
            if self.is_known(region):
                continue
            if self.clock() + MIN_STEP_SECONDS > until:
                return False
            report(region)
            # Another engine is still starting and competes for the CPU, so this time may be too long; it is not stored.
            if self.inquiry.pending:
                self.disturbed.add((region.key, region.spec))
            try:
                cost = self._measure(region, until)
            except _NotMeasured as error:
                self.skipped[region.key, region.spec] = str(error)
                continue
            self.count += 1
            self.table = self.table.with_region(region.key, region.spec, cost)
            _log.debug("%s: %d nodes: %s", region.spec, len(region.function.nodes), cost)
        return True

    def _measure(self, region: ProfilingRequest, until: float) -> RegionCost:
        """Measure a region and check its results; return its cost, or why it fails. Raises _NotMeasured if this search cannot."""
        function = region.function  # with its updates in place, as in a plan
        captured = self.truth.values
        if any(value.name not in captured for value in (*function.inputs, *function.outputs)):
            raise _NotMeasured("its values were not captured")
        inputs, expected = ([captured[value.name] for value in values] for values in (function.inputs, function.outputs))
        # Each hang costs the limit of a measurement.
        if region.spec in self._hung_engines:
            raise _NotMeasured("the engine did not end with another part of the model")
        runners = self.inquiry.runners
        costs = (self.table.region(region.key, spec) for spec in runners)
        best = min((cost.seconds for cost in costs if isinstance(cost, MeasuredCost)), default=None)
        remaining = until - self.clock()
        limit = max(min(self.limit, remaining), MIN_STEP_SECONDS)
        # A trial has three calls at least. An engine that needs more time for them than one that may still race is given up.
        running = limit if best is None else min(limit, STARTUP_SECONDS + 3 * UNCERTAINTY**2 * best)
        returned = {value.name for value in self.request.function.outputs}
        # An inner region writes into memory of the plan; an output of the model is allocated for each call.
        inner = returned.isdisjoint(value.name for value in function.outputs)
        context = self.request.contexts.get(region.spec, self.request.context)
        try:
            # Sampling is an eighth of the limit at most: the compile and the first call need the rest.
            limits = TrialLimits(min(self.sampling, limit / 8), limit, running, remaining, inner=inner)
            results, samples = runners[region.spec].trial(function, context, inputs, limits)
        except (NotStarted, OutOfDeviceMemory) as error:
            raise _NotMeasured(str(error)) from error  # another search may have more free device memory
        except (EngineError, InputError) as error:
            text = " ".join(str(error).split())
            # Only a hang within the full limit says something about the engine; a shorter limit is the end of the budget.
            if isinstance(error.__cause__, TimeoutError):
                if limit < self.limit:
                    raise _NotMeasured(f"the budget ended before it was measured: {text}") from error
                self._hung_engines.add(region.spec)
                if isinstance(error, CompileFailed):
                    self.cut_off.add((region.key, region.spec))
            return f"{'refused' if isinstance(error, CompileRefused) else 'failed'}: {text}"
        reference = self.truth.reference
        if reference is not None and not find_first_random_node(function):
            # A comparison may need float64 runs of the reference, which are slow: another engine's time limits them.
            remaining = min(max(self.end - self.clock(), MIN_STEP_SECONDS), threading.TIMEOUT_MAX)
            limit = remaining if best is None else min(remaining, self.limit)
            criteria = reference, self.request.context.options
            try:
                check = partial(check_against_reference, function, inputs, results, expected, *criteria)
                error_text, _ = within_or_stopped(limit, check)
            except OutOfTime as error:
                if limit < remaining:
                    raise _NotMeasured(f"comparing its results with the reference took longer than {limit:.3g} s") from error
                raise _NotMeasured("the budget ended before its results were compared with the reference") from error
            if error_text:
                return f"wrong: {error_text}"
        return MeasuredCost(*median_interval(samples))


class _NotMeasured(Exception):
    """A region could not be measured in this search; the message says why."""


def is_refuted(plan: Plan, table: CostTable) -> bool:
    """Whether a region of the plan was measured to fail or to compute wrong results."""
    costs = (table.region(launch.function.shape_key, launch.engine) for launch in plan.launches)
    return any(isinstance(cost, str) for cost in costs)


def run_once(program: Program, values: Sequence[Any]) -> list[Any]:
    """Call a program on copies of the inputs, which it may update; return copies of the outputs."""
    return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in values])]


def make_stand_in(request: PlacementRequest, implicit: str | None, engines: Sequence[GraphCompiler]) -> Reference:
    """Make a substitute for a reference that failed: it runs a Function in this process, placed on ``engines`` by priority."""
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
    """Compute the expected values on the reference; if it fails or is too slow, on ``stand_in``, which messages call ``name``.

    Half of the ``seconds`` are for the reference. A quarter is for the stand-in to compute the values of all nodes; if this fails
    too, another quarter is for the outputs only.
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
    capture = partial(capture_activations, function, inputs, stand_in, nodes_per_run=len(function.nodes))
    for max_bytes in (MAX_CAPTURED_BYTES, 0):  # the values of all nodes, else those of the outputs
        with suppress(Exception):
            return Truth(within(seconds / 4, partial(capture, max_bytes=max_bytes)), stand_in, f"{remark} those of {name}")
    return Truth({}, None, f"{remark} nothing")
