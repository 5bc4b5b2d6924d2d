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
from xrt.measure.timing import Clock, MeasuredCost, compute_median_interval, sample_call_times
from xrt.operators import is_deterministic
from xrt.partition import partition
from xrt.partition.cost_table import CostTable, RegionCost, WrongResult
from xrt.partition.support_matrix import classify_nodes, query_engine
from xrt.placement.result import NOT_MEASURED
from xrt.placement.search import UNCERTAINTY
from xrt.processes.background import OutOfTime, run_stoppable, run_within, start_in_background
from xrt.runtime import Program, adapt_to_host, compile_plan, make_timed_call, to_host
from xrt.runtime.inputs import copy_values
from xrt.verify.comparison import OutputJudge, Verdict, compare_at_precision, is_reduced_precision
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
    """Compare the results of a Function with the expected ones; return a message and a remark.

    The message describes the difference; it is empty if the results are right. If the options allow a reduced precision, the
    tolerance of that precision applies, and the remark states the measured error; otherwise the remark is empty. Raises Stopped
    if ``is_stopped()`` becomes true before the comparison has ended.
    """
    if is_reduced_precision(options.precision) or len(results) != len(expected):
        return compare_at_precision(function, results, expected, options.precision)
    judgment = OutputJudge(function.replace(aliases=()), inputs, reference, is_stopped).judge(results, expected)
    message = judgment.message if judgment.verdict is Verdict.DISAGREES else ""
    return message, ""


Reference: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Computes the correct outputs of a Function from its inputs."""
NODES_PER_RUN = 32
"""Nodes that the reference runs at a time; the reference can be stopped between two runs."""
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
    # Outputs count as captured whatever their size, since each plan is compared with them.
    captured_names = dict.fromkeys(value.name for value in function.outputs)
    nbytes = 0
    node_outputs = [name for node in function.nodes for name in node.outputs if name]  # unused outputs have no name
    for name in node_outputs:
        type_ = function.get_type(name)
        if isinstance(type_, TensorType):
            nbytes += type_.nbytes or 0
        if nbytes <= max_bytes:
            captured_names[name] = None
    completed = 0

    def run(part: Function, arguments: Sequence[Any]) -> Sequence[Any]:
        nonlocal completed
        if is_stopped():
            raise Stopped(f"after {completed} of {len(function.nodes)} nodes")
        completed += len(part.nodes)
        return reference(part, arguments) if part.outputs else ()

    exposed = expose_inner_values(function, list(captured_names))
    # Run in parts, each of which releases the values that no later part reads: all inner values may not fit into memory.
    parts = split_regions(exposed, [index // nodes_per_run for index in range(len(function.nodes))])
    computed = dict(zip(captured_names, run_pieces(exposed, parts, inputs, run), strict=True))
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, array) for value, array in zip(function.inputs, inputs, strict=True))
    return values | computed


def describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, XRTError | OutOfTime) else f"{type(error).__name__}: {text}"


def find_first_random_node(function: Function) -> str:
    """Find the first nondeterministic node, such as a random generator; return a phrase that names it, or an empty string."""
    node = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {node.name!r} ({node.op}) is not deterministic" if node is not None else ""


MIN_STEP_SECONDS = 0.1
"""Minimum time limit of a step of the search, even if the budget ends earlier."""
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
    running: float = math.inf
    """Limit on the seconds of the first call and the sampling."""
    total: float = math.inf
    """Limit on the seconds of the trial, including a restart of the worker."""
    inner: bool = False
    """Whether the Function is timed as a region inside a plan, which writes its results into existing memory."""


class NotStarted(EngineError):
    """A killed worker did not restart in time."""


class WorkerRunner(IsolatedEngine):
    """Measures an engine in a worker process. For the race its executables are loaded into this process, or compiled again."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        """Raise OptionError if another process cannot import the engine's class."""
        super().__init__(engine, limits, runs=False)
        # The race runs in this process. An executable that cannot be saved is compiled here, once it has passed in the worker.
        self.runs = False
        self.devices = engine.devices  # type: ignore[misc]  # the worker opens the device itself
        self._executables: dict[str, RemoteExecutable] = {}

    @property
    def compiler(self) -> GraphCompiler:
        return self

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        """Compile, run and time a Function in the worker, which is restarted if it has ended. Raises EngineError on failure."""
        end = perf_counter() + limits.total
        # After a hang or a crash there is no worker. Another part of the model may still work, so start a new one.
        if not self._worker.has_worker:
            self.limit_requests(limits.compiling)
            try:
                run_within(min(limits.compiling, threading.TIMEOUT_MAX), self.start)
            except OutOfTime as error:
                raise NotStarted(f"engine {self.spec!r} was not started again within {limits.compiling:.3g} s") from error
        began = perf_counter()
        self.limit_requests(max(min(limits.compiling, end - began), MIN_STEP_SECONDS))
        remote = RemoteExecutable(self._worker, function, context)
        compile_seconds = perf_counter() - began
        self.limit_requests(max(min(limits.running, end - perf_counter()), MIN_STEP_SECONDS))
        try:
            results, samples = remote.measure(inputs, limits.seconds, inner=limits.inner)
        except BaseException:
            remote.close()
            raise
        if compile_seconds > SLOW_COMPILE_SECONDS and function.fingerprint not in self._executables:
            self._executables[function.fingerprint] = remote
        else:
            remote.close()
        return results, samples

    def limit_requests(self, seconds: float) -> None:
        self._worker.seconds = seconds if math.isfinite(seconds) else None

    def compile_in_worker(self, function: Function, context: CompileContext) -> RemoteExecutable:
        remote = self._executables.pop(function.fingerprint, None)
        return remote if remote is not None and remote.is_in_worker else super().compile_in_worker(function, context)


class LocalRunner:
    """Measures an engine in this process, if a worker cannot import it. A crash ends the process; a hanging call is abandoned."""

    def __init__(self, engine: GraphCompiler) -> None:
        self.compiler = engine

    def start(self) -> None:
        """Do nothing; `WorkerRunner.start` starts a worker."""

    def trial(self, function: Function, context: CompileContext, inputs: Sequence[Any], limits: TrialLimits) -> Trial:
        """Compile, run and time a Function in a thread. Raises RunFailed if that takes longer than both limits together."""
        seconds = min(limits.compiling + limits.running, threading.TIMEOUT_MAX)
        try:
            return run_within(seconds, partial(self._compile_and_time, function, context, inputs, limits))
        except OutOfTime as error:
            message = f"engine {self.compiler.spec!r} gave no answer within {seconds:.3g} s"
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
    loaded = load_engine(engine.inner if isinstance(engine, IsolatedEngine) else engine)
    try:
        return WorkerRunner(loaded, limits)
    except OptionError:
        return LocalRunner(loaded)


STARTUP_SECONDS = 3.0
"""Seconds allowed for work that an engine does only once. Its import: the next engine is started after this time (the slowest
import, of TVM, takes 2.3 s). The initialization in its first call: this time does not count as slow."""


@dataclass(eq=False)
class _QueriedEngine:
    engine: GraphCompiler
    device: str
    runner: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """The engine's answer about each class of equal nodes, by class index: None if it supports the nodes, else the reason."""
    has_begun: bool = False
    is_ready: bool = False
    """Whether there is nothing to wait for: its support is known and its runner has started, or the engine failed."""
    failure: str = ""


class EngineQueries:
    """Queries the engines for the nodes that they support, and starts their runners, in background threads."""

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
                start_in_background(partial(self._make_ready, entry), f"xrt-query-{entry.engine.name}")
                self.wait(lambda entry=entry: self._is_over or not self._has_unknown_support(entry), STARTUP_SECONDS)  # type: ignore[misc]

        start_in_background(start_all, "xrt-query")

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait at most ``seconds`` until ``is_enough()``, called after each change of an engine; return its last result."""
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
            starting = start_in_background(entry.runner.start, f"xrt-start-{entry.engine.name}")
            self._query(entry)
            self._notify()  # a plan can be made once the supported nodes are known
            starting.result()
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            entry.failure = describe_error(error)
        entry.is_ready = True
        self._notify()
        # `close` skips runners that are not ready. If it was called in the meantime, this one must be closed here.
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
        self._may_query.clear()
        try:
            yield
        finally:
            self._may_query.set()

    @property
    def runners(self) -> dict[str, Runner]:
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
            node_answers = [entry.answers[class_index] for class_index in self._class_of]
            pairs = zip(self.function.nodes, node_answers, strict=True)
            reasons = {node.name: answer for node, answer in pairs if answer is not None}
        return RecordedSupportEngine(entry.engine, reasons)

    def why_not_ready(self, spec: str, *, started: bool = True) -> str | None:
        """Explain why an engine is not ready to be measured or, with ``started=False``, to be planned with; None if it is."""
        entry = self._queried[spec]
        if entry.failure:
            return entry.failure
        if not self._has_unknown_support(entry):
            return None if entry.is_ready or not started else "it had not started before the budget ended"
        if not entry.has_begun:
            return "it was not queried before the budget ended"
        return "the budget ended while it was asked which nodes it supports"

    def close(self, seconds: float) -> None:
        """Close all runners that are ready, waiting at most ``seconds``. A runner that is still starting is closed later."""
        self._is_over = True
        self._may_query.set()
        self._notify()
        # All in parallel: in sequence, the workers of a busy machine would take more than the reserve of the budget.
        runners = [entry.runner for entry in self._queried.values() if entry.is_ready and entry.runner is not None]
        wait([start_in_background(runner.close, "xrt-end") for runner in runners], max(0.0, min(seconds, STARTUP_SECONDS)))


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExpectedValues:
    values: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    """Computes the expected results of other Functions; None if both the reference and its substitute failed."""
    remark: str = ""
    """A note for the user if the values were not computed by the reference."""


@dataclass(eq=False)
class RegionProfiler:
    """Measures regions of the model, each once, into a cost table."""

    request: PlacementRequest
    queries: EngineQueries
    limit: float
    """Limit on the seconds of each compile and of each measurement. If a region was measured on another engine, also of the
    comparison of its results."""
    sampling: float
    clock: Clock
    end: float
    """The time on the clock until which results are compared. A cost is recorded only if the comparison has ended."""
    table: CostTable = CostTable()
    expected: ExpectedValues = ExpectedValues()
    count: int = 0
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why regions were not measured, by shape key and engine. The reason is not stored, so another search tries again."""
    unreliable: set[tuple[str, str]] = field(default_factory=set)
    """Shape key and engine of each cost that another search must measure again. Its time may be too long, because another engine
    was starting, or the region was not compiled within the limit of this search."""
    _hung_engines: set[str] = field(default_factory=set)
    """Specs of the engines that exceeded the limit of a measurement; they are not measured again."""

    def select_reliable_costs(self) -> CostTable:
        """Select the costs that other searches may reuse."""
        return CostTable({subject: cost for subject, cost in self.table.regions.items() if subject not in self.unreliable})

    def is_known(self, region: ProfilingRequest) -> bool:
        key = region.key, region.spec
        return key in self.skipped or self.table.region(*key) is not None

    def measure(self, regions: Sequence[ProfilingRequest], until: float, report: Callable[[ProfilingRequest], object]) -> bool:
        """Measure the regions whose cost is not known, in order; return False if the time was over before all had their turn.

        ``report`` is called with each region before it is measured. Afterwards each region has a cost in `table`, also a failure,
        or a reason in `skipped`. A time is `unreliable` if an engine was starting meanwhile.
        """
        for region in regions:
            if self.is_known(region):
                continue
            if self.clock() + MIN_STEP_SECONDS > until:
                return False
            report(region)
            is_disturbed = bool(self.queries.pending)  # an engine that is still starting competes for the CPU
            try:
                cost = self._measure(region, until)
            except _NotMeasured as error:
                self.skipped[region.key, region.spec] = str(error)
                continue
            if is_disturbed and isinstance(cost, MeasuredCost):
                self.unreliable.add((region.key, region.spec))
            self.count += 1
            self.table = self.table.with_region(region.key, region.spec, cost)
            _log.debug("%s: %d nodes: %s", region.spec, len(region.function.nodes), cost)
        return True

    def _measure(self, region: ProfilingRequest, until: float) -> RegionCost:
        """Measure a region and check its results; return its cost, or why it fails. Raises _NotMeasured if this search cannot."""
        function = region.function
        try:
            inputs = [self.expected.values[value.name] for value in function.inputs]
            expected = [self.expected.values[value.name] for value in function.outputs]
        except KeyError:
            raise _NotMeasured("its values were not captured") from None
        # Each hang costs the limit of a measurement.
        if region.spec in self._hung_engines:
            raise _NotMeasured("the engine did not end with another part of the model")
        runners = self.queries.runners
        costs = (self.table.region(region.key, spec) for spec in runners)
        best = min((cost.seconds for cost in costs if isinstance(cost, MeasuredCost)), default=None)
        remaining = until - self.clock()
        # Three limits in seconds: `limit` for the compile, `running` for the calls, and `remaining` for all together.
        limit = max(min(self.limit, remaining), MIN_STEP_SECONDS)
        # A trial has three calls at least. Beyond this time the engine is too slow to race with the best one.
        running = limit if best is None else min(limit, STARTUP_SECONDS + 3 * UNCERTAINTY**2 * best)
        # An inner region writes into memory of the plan; an output of the model is allocated for each call.
        model_outputs = {value.name for value in self.request.function.outputs}
        is_inner = model_outputs.isdisjoint(value.name for value in function.outputs)
        context = self.request.contexts.get(region.spec, self.request.context)
        # Sampling takes an eighth of the limit at most: the compile and the first call need most of the time.
        limits = TrialLimits(min(self.sampling, limit / 8), limit, running, remaining, inner=is_inner)
        try:
            results, samples = runners[region.spec].trial(function, context, inputs, limits)
        except (NotStarted, OutOfDeviceMemory) as error:
            raise _NotMeasured(str(error)) from error  # another search may have more free device memory
        except (EngineError, InputError) as error:
            text = describe_error(error)
            if isinstance(error.__cause__, TimeoutError):
                # A limit shortened by the end of the budget proves nothing about the engine.
                if limit < self.limit:
                    raise _NotMeasured(f"the budget ended before it was measured: {text}") from error
                self._hung_engines.add(region.spec)
                if isinstance(error, CompileFailed):
                    self.unreliable.add((region.key, region.spec))
            return f"{'refused' if isinstance(error, CompileRefused) else 'failed'}: {text}"
        reference, options = self.expected.reference, self.request.context.options
        if reference is not None and not find_first_random_node(function):
            check = partial(check_against_reference, function, inputs, results, expected, reference, options)
            if difference := self._find_difference(check, is_first=best is None):
                return WrongResult(f"wrong: {difference}")
        return MeasuredCost(*compute_median_interval(samples))

    def _find_difference(self, check: Callable[..., tuple[str, str]], *, is_first: bool) -> str:
        """Run the comparison of a region's results within its time limit. Raises _NotMeasured if time runs out."""
        # A comparison may need slow float64 runs of the reference. It is worth a long time only for the first engine.
        remaining = min(max(self.end - self.clock(), MIN_STEP_SECONDS), threading.TIMEOUT_MAX)
        limit = remaining if is_first else min(remaining, self.limit)
        try:
            difference, _ = run_stoppable(limit, check)
        except OutOfTime as error:
            if limit < remaining:
                raise _NotMeasured(f"comparing its results with the reference took longer than {limit:.3g} s") from error
            raise _NotMeasured("the budget ended before its results were compared with the reference") from error
        return difference


class _NotMeasured(Exception):
    """A region could not be measured in this search; the message says why."""


def has_failed_region(plan: Plan, table: CostTable) -> bool:
    costs = (table.region(launch.function.shape_key, launch.engine) for launch in plan.launches)
    return any(isinstance(cost, str) for cost in costs)


def run_once(program: Program, values: Sequence[Any]) -> list[Any]:
    """Call a program on copies of the inputs, which it may update; return copies of the outputs."""
    return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in values])]


def make_substitute_reference(request: PlacementRequest, implicit: str | None, engines: Sequence[GraphCompiler]) -> Reference:
    """Make a substitute for a reference that failed: it runs a Function in this process, placed on ``engines`` by priority."""
    by_spec = {engine.spec: engine for engine in request.engines}

    def run(function: Function, inputs: Sequence[Any]) -> list[Any]:
        plan = partition(function, engines, implicit=implicit, device_map=request.device_map)
        used = {launch.engine: load_engine(by_spec[launch.engine]) for launch in plan.launches}
        program = compile_plan(plan, used, request.context, CompileCache())
        if not isinstance(program, Program):
            raise RunFailed(program[0].reason)
        try:
            return run_once(program, inputs)
        finally:
            program.close()

    return run


def compute_expected_values(
    function: Function, inputs: Sequence[Any], reference: Reference, substitute: Reference, name: str, seconds: float
) -> ExpectedValues:
    """Compute the expected values on the reference; if it fails or is too slow, on ``substitute``, which messages call ``name``.

    Half of the ``seconds`` are for the reference. A quarter is for the substitute to compute the values of all nodes; if this
    fails too, the last quarter is for the outputs only.
    """
    try:
        capture = partial(capture_activations, function, inputs, reference)
        values = run_stoppable(seconds / 2, lambda is_stopped: capture(is_stopped=is_stopped))
        return ExpectedValues(values, reference)
    except Exception as error:  # noqa: BLE001  # whatever a kernel raises
        # The user is told, because agreement of engines with each other proves less than agreement with the reference.
        remark = f"not checked against the reference: {describe_error(error)}; results were compared with"
    capture = partial(capture_activations, function, inputs, substitute, nodes_per_run=len(function.nodes))
    for max_bytes in (MAX_CAPTURED_BYTES, 0):  # the values of all nodes, else only of the outputs
        with suppress(OutOfTime, XRTError, MemoryError):
            values = run_within(seconds / 4, partial(capture, max_bytes=max_bytes))
            return ExpectedValues(values, substitute, f"{remark} those of {name}")
    return ExpectedValues({}, None, f"{remark} nothing")
