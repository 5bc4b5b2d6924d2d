"""Engines measured behind a wall: each compiles and runs in a worker of its own, where a hang or a crash costs its limit once."""

from __future__ import annotations

import logging
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from xrt.cache import CompileCache
from xrt.engines.contract.proxy import RecordedSupportEngine, load_engine
from xrt.errors import EngineError, OptionError, OutOfDeviceMemory, PlanError, RunFailed
from xrt.graph import DType, FrozenDict, Function, Node, TensorType, Value
from xrt.measure.statistics import take_turns
from xrt.measure.timing import (
    Clock,
    choose_calls_per_turn,
    median_interval,
    sample_call_times,
    seconds_per_call,
    seconds_per_turn,
)
from xrt.partition.device_map import DeviceMap
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.questions import QuestionKeys, with_names, without_names
from xrt.partition.support_matrix import SupportMatrix, ask_engine, number_questions
from xrt.placement.records import make_questions_key
from xrt.placement.result import NOT_MEASURED
from xrt.processes.background import OutOfTime, begin, within
from xrt.runtime import Program, adapt_to_host, compile_plan, make_timed_call
from xrt.verify.execution import copy_values
from xrt.worker.isolated_engine import IsolatedEngine, RemoteExecutable, WorkerLimits

if TYPE_CHECKING:
    from xrt.cache import Signature
    from xrt.cache.cost_store import CostStore
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.partition.cost_table import CostTable

__all__ = [
    "Calibration",
    "Inquiry",
    "LocalRunner",
    "NotStarted",
    "Runner",
    "TrialLimits",
    "TrialResult",
    "WorkerRunner",
    "choose_runner",
    "find_light_operator",
    "measure_launch_overhead",
    "measure_transfer",
]

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
        """Make the runner of an engine without the worker that isolates it."""
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


OPERATORS = ("Neg", "Abs", "Relu", "Sqrt", "Exp", "Identity")
"""Operators for an almost empty region: the first that an engine supports is used."""
SIZES = (16, 1 << 20)
"""Elements of float32: a value that costs its launch alone, and one that leaves the nearer caches."""
ROUNDS = 9
TURN = 0.003
OPSET = 20
LEAST = 0.1
"""Seconds of the samples of one launch."""


@dataclass(frozen=True)
class Calibration:
    """Measures launches and boundaries of engines that are ready."""

    engines: Mapping[str, GraphCompiler]
    runners: Mapping[str, Runner]
    contexts: Mapping[str, CompileContext]
    """By spec."""
    context: CompileContext
    """Where values come in and go out."""
    homes: DeviceMap
    limit: float
    """Seconds that each may take."""
    clock: Clock
    report: Callable[[str], object]
    """Hears of each before it is begun."""

    def measure_launches(self, table: CostTable, specs: Sequence[str], until: float) -> CostTable:
        """Return the table with the launches that it lacks of those engines, as far as time allows."""
        for spec in specs:
            if spec not in table.launches and self.clock() < until:
                self.report(f"measuring what a launch costs on {spec}")
                given = self.engines[spec], self.runners[spec], self.contexts[spec], LEAST, self.limit
                with suppress(EngineError, OutOfDeviceMemory):
                    if (seconds := measure_launch_overhead(*given)) is not None:
                        table = table.with_launch(spec, seconds)
        return table

    def measure_boundaries(self, table: CostTable, specs: Sequence[str], until: float) -> CostTable:
        """Return the table with the boundaries that it lacks between those engines, as far as time allows."""
        for source, target in permutations([spec for spec in specs if spec in table.launches], 2):
            if (source, target) not in table.boundaries and self.clock() < until:
                self.report(f"measuring what a boundary costs from {source} to {target}")
                if (found := self._crossing(source, target)) is not None:
                    table = table.with_boundary(source, target, *found)
        return table

    def _crossing(self, source: str, target: str) -> tuple[float, float] | None:
        fronts = self.runners[source].compiler, self.runners[target].compiler
        try:
            return within(self.limit, partial(measure_transfer, *fronts, self.context, self.clock, self.homes.by_engine))
        except OutOfTime:
            return None


def find_light_operator(engine: GraphCompiler, device: str = "cpu") -> str | None:
    """Return an operator that costs next to nothing and that the engine takes there; None where it takes none of these."""
    chains = ((op, _chain([op], 16)) for op in OPERATORS)
    return next((op for op, chain in chains if SupportMatrix.of(chain, [engine], device).reason(0, 0) is None), None)


def measure_launch_overhead(
    engine: GraphCompiler, runner: Runner, context: CompileContext, seconds: float, limit: float | None
) -> float | None:
    """Return the seconds of one launch with next to nothing in it; None where the engine takes nothing so light.

    Raises EngineError.
    """
    op = find_light_operator(engine, context.device)
    if op is None:
        return None
    trial = runner.trial(_chain([op], SIZES[0]), context, [_values(SIZES[0])], TrialLimits(seconds, limit, limit))
    return median_interval(trial.samples)[0]


def measure_transfer(
    source: GraphCompiler,
    target: GraphCompiler,
    context: CompileContext,
    clock: Clock,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[float, float] | None:
    """Return the seconds, and the seconds per byte, by which two regions in a row cost more than each alone.

    The three take turns, and what counts is the difference within a round. ``devices`` are as in `tune`: between two devices
    a copy is part of it. None where an engine takes nothing so light, or fails.
    """
    homes = DeviceMap(context.device, devices)
    ops = [find_light_operator(one, homes.of(one.spec)) for one in (source, target)]
    try:
        small, large = (
            _excess(source, target, [op for op in ops if op is not None], size, context, clock, homes) for size in SIZES
        )
    except (EngineError, PlanError, ValueError):
        return None
    return small, max(0.0, large - small) / (4 * (SIZES[1] - SIZES[0]))


def _excess(
    source: GraphCompiler,
    target: GraphCompiler,
    ops: Sequence[str],
    size: int,
    context: CompileContext,
    clock: Clock,
    homes: DeviceMap,
) -> float:
    first, second = ops
    engines = {engine.spec: engine for engine in (source, target)}
    cache = CompileCache()
    made = [
        _program(_chain([first, second], size), [source, target], engines, context, cache, homes),
        _program(_chain([first], size), [source], engines, context, cache, DeviceMap(homes.of(source.spec))),
        _program(_chain([second], size), [target], engines, context, cache, DeviceMap(homes.of(target.spec))),
    ]
    try:
        calls = [
            made[0].make_timed_call([_values(size)]),
            _before_another(made[1], size),
            made[2].make_timed_call([_values(size)]),
        ]
        both, one, other = _interleaved(calls, clock)
        excess = max(0.0, statistics.median(b - x - y for b, x, y in zip(both, one, other, strict=True)))
        is_across = homes.of(source.spec) != homes.of(target.spec)
        return excess / 2 if is_across else excess  # the way back, or the way there, was measured with it
    finally:
        for program in made:
            program.close()


def _program(
    function: Function,
    homes: Sequence[GraphCompiler],
    engines: Mapping[str, GraphCompiler],
    context: CompileContext,
    cache: CompileCache,
    where: DeviceMap,
) -> Program:
    placed = {node.name: engine.spec for node, engine in zip(function.nodes, homes, strict=True)}
    groups = {node.name: number for number, node in enumerate(function.nodes)}
    plan = plan_from_assignment(function, list(engines.values()), placed, groups=groups, device=where)
    made = compile_plan(plan, engines, context, cache)
    if not isinstance(made, Program):
        raise made[0].error
    return made


def _before_another(program: Program, size: int) -> Callable[[], object]:
    """Return the call of one launch as others read its result: in memory that is there, if the engine can compute into that."""
    if type(program) is Program and all(executable.supports_io_binding() for executable in program.executables):
        return program.bind([_values(size)], [np.empty(size, np.float32)])
    return program.make_timed_call([_values(size)])


def _interleaved(calls: Sequence[Callable[[], object]], clock: Clock) -> list[list[float]]:
    repeats = [choose_calls_per_turn(min(seconds_per_call(call, 1, clock) for _ in range(3)), TURN) for call in calls]
    pairs = zip(calls, repeats, strict=True)
    turns = {str(number): partial(seconds_per_turn, *pair, clock, idle=0.0) for number, pair in enumerate(pairs)}
    return list(take_turns(turns, ROUNDS).values())


def _chain(ops: Sequence[str], size: int) -> Function:
    """Return operators in a row on so many numbers."""
    type_ = TensorType(DType.FLOAT32, (size,))
    names = ["x", *(f"v{number}" for number in range(1, len(ops))), "y"]
    nodes = tuple(Node(op, (names[i],), (names[i + 1],), name=f"n{i}") for i, op in enumerate(ops))
    inner = dict.fromkeys(names[1:-1], type_)
    return Function((Value("x", type_),), (Value("y", type_),), nodes, opsets={"": OPSET}, types=inner, name="calibration")


def _values(size: int) -> Any:
    return np.full(size, 0.5, np.float32)


_log = logging.getLogger(__name__)
PATIENCE = 3.0
"""Seconds after which the next engine is begun although the one before has not answered: the slowest library, TVM, is imported in
2.3 s."""
END_PATIENCE = 0.2
"""Seconds for which the end of a search waits for a worker to end."""
LONGEST_REASON = 2000
"""Characters of a reason that is remembered."""


@dataclass(eq=False)
class _QueriedEngine:
    """One engine of a search, its answers and its runner."""

    engine: GraphCompiler
    home: str
    signature: Signature | None = None
    known: Mapping[str, str | None] = field(default_factory=dict)
    """Answers of earlier searches, by the keys of questions."""
    runner: Runner | None = None
    answers: dict[int, str | None] = field(default_factory=dict)
    """By the numbers of questions."""
    has_begun: bool = False
    has_answered: bool = False
    """Whether it has answered all questions, or failed."""
    is_ready: bool = False
    """Whether its runner has started too, or it failed."""
    failure: str = ""
    """Why it cannot take part."""


class Inquiry:
    """Queries the engines of a search for the nodes they support, and starts their runners, in threads that may be abandoned."""

    def __init__(
        self,
        function: Function,
        engines: Sequence[GraphCompiler],
        contexts: Mapping[str, CompileContext],
        open_runner: Callable[[GraphCompiler], Runner],
        store: CostStore | None = None,
    ) -> None:
        self.function = function
        self._open_runner = open_runner
        self._store = store
        self._is_over = False
        self._changed = threading.Condition()
        self._may_ask = threading.Event()
        self._may_ask.set()
        self._numbers, self._firsts = number_questions(function)
        self._keys = self._make_keys(function)
        self._queried = {one.spec: _QueriedEngine(one, contexts[one.spec].device) for one in engines}
        for spec, one in self._queried.items():
            if store is not None and (signature := make_questions_key(one.engine, contexts[spec])) is not None:
                one.signature, one.known = signature, store.answers(signature)

    def _make_keys(self, function: Function) -> list[str | None]:
        keys = QuestionKeys(function)
        by_node = [keys.key(node) for node in function.nodes]
        first = {number: place for place, number in reversed(list(enumerate(self._numbers)))}
        return [by_node[first[number]] for number in range(len(self._firsts))]

    # ------------------------------------------------------------------ waiting

    def start(self) -> None:
        """Begin to query the engines, those first of which most answers are stored.

        The next engine is begun when the one before has answered, or after `PATIENCE`: engines that import their libraries at
        once slow each other.
        """
        order = sorted(self._queried.values(), key=lambda one: sum(key not in one.known for key in self._keys))

        def start_all() -> None:
            for one in order:
                self._may_ask.wait()
                if self._is_over:
                    return
                one.has_begun = True
                begin(partial(self._make_ready, one), f"xrt-ask-{one.engine.name}")
                with self._changed:
                    self._changed.wait_for(lambda one=one: one.has_answered or self._is_over, PATIENCE)  # type: ignore[misc]

        begin(start_all, "xrt-ask")

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait for that many seconds at most until it is enough, which is asked whenever an engine has answered or is ready."""
        with self._changed:
            return self._changed.wait_for(is_enough, min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    @property
    def pending(self) -> list[str]:
        """The engines that are not ready yet."""
        return [spec for spec, one in self._queried.items() if not one.is_ready]

    @property
    def unanswered(self) -> list[str]:
        """The engines that have not answered all."""
        return [spec for spec, one in self._queried.items() if not one.has_answered]

    def list_answered(self) -> tuple[str, ...]:
        """The engines whose answers are final."""
        return tuple(spec for spec, one in self._queried.items() if one.has_answered)

    def list_ready(self) -> tuple[str, ...]:
        """The engines that can be measured, or have failed."""
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
            key = self._keys[number]
            if key is not None and key in one.known:
                reason = one.known[key]
                one.answers[number] = None if reason is None else with_names(reason, node)
            else:
                one.answers[number] = ask_engine(one.engine, one.home, node, self.function)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Ask nothing while something is measured. A question that has begun goes on."""
        self._may_ask.clear()
        try:
            yield
        finally:
            self._may_ask.set()

    # ------------------------------------------------------------------ what is known

    @property
    def runners(self) -> dict[str, Runner]:
        """The runners of the engines that are ready."""
        return {
            spec: one.runner for spec, one in self._queried.items() if one.is_ready and one.runner is not None and not one.failure
        }

    def engines(self, *, started: bool = False) -> list[GraphCompiler]:
        """Return all engines by what they have answered; one that has not supports nothing, nor where it must be ``started``."""
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
        """Return why the engine could not be measured; None where it could."""
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
        """Store the new answers and close the runners; one that is still starting is closed as soon as it has started."""
        self._is_over = True
        self._may_ask.set()
        with self._changed:
            self._changed.notify_all()
        for one in self._queried.values():
            self._store_answers(one)
            if one.is_ready and one.runner is not None:
                with suppress(OutOfTime):
                    within(END_PATIENCE, one.runner.close)

    def _store_answers(self, one: _QueriedEngine) -> None:
        if self._store is None or one.signature is None:
            return
        answers: dict[str, str | None] = {}
        for number, reason in list(one.answers.items()):
            key, node = self._keys[number], self._firsts[number]
            if key is not None and key not in one.known and (reason is None or len(reason) <= LONGEST_REASON):
                answers[key] = None if reason is None else without_names(reason, node)
        if answers:
            self._store.keep_answers(one.signature, answers)
