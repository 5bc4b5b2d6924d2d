"""The profiler: measure parts of a model on engines, one after the other, into a cost table."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.cache import CompileCache
from xrt.engines.contract.proxy import load_engine
from xrt.errors import CompileRefused, EngineError, InputError, OutOfDeviceMemory, RunFailed, XRTError
from xrt.graph import Function, TensorType, Value
from xrt.measure.timing import Clock, median_interval
from xrt.operators import is_deterministic
from xrt.partition import partition
from xrt.partition.cost_table import CostTable, MeasuredCost, RegionCost
from xrt.partition.fold import extract_subgraph
from xrt.placement.runners import NotStarted, Runner, TrialLimits
from xrt.processes.background import OutOfTime, within, within_or_stopped
from xrt.runtime import Program, compile_plan, to_host
from xrt.runtime.inputs import copy_values
from xrt.verify.comparison import OutputJudge, Verdict, compare_at_precision, is_lowered
from xrt.verify.execution import Stopped

if TYPE_CHECKING:
    from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
    from xrt.partition import Plan
    from xrt.placement.race import Candidates
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
    found = OutputJudge(function.replace(aliases=()), inputs, reference, is_stopped).judge(results, expected)
    return found.message if found.verdict is Verdict.DISAGREES else "", ""


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
    whole, count = function.replace(aliases=()), len(function.nodes)
    names = {value.name for value in function.outputs}
    taken = 0
    for name in (name for node in function.nodes for name in node.outputs if name):
        type_ = function.get_type(name)
        taken += (type_.nbytes or 0) if isinstance(type_, TensorType) else 0
        names |= {name} if taken <= most else set()
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    last = {name: at for at, node in enumerate(function.nodes) for name in node.uses}
    kept = names | set(values)
    for start in range(0, count, stretch):
        if is_stopped():
            raise Stopped(f"after {start} of {count} nodes")
        end = min(start + stretch, count)
        part = extract_subgraph(whole, range(start, end))
        made = [name for node in part.nodes for name in node.outputs if name and (name in names or last.get(name, -1) >= end)]
        exposed = part.replace(outputs=tuple(Value(name, function.get_type(name)) for name in made))
        results = reference(exposed, [values[value.name] for value in part.inputs]) if made else ()
        values.update(zip(made, results, strict=True))
        for name in [name for name in values if name not in kept and last.get(name, -1) < end]:
            del values[name]
    return values


def select_values(names: Sequence[str], values: Mapping[str, Any]) -> list[Any] | None:
    """Look up values in order; None if one was not captured."""
    return [values[name] for name in names] if all(name in values for name in names) else None


def find_first_random_node(function: Function) -> str:
    """Describe the first nondeterministic node; empty if there is none."""
    drawn = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {drawn.name!r} ({drawn.op}) does not give the same twice" if drawn is not None else ""


_log = logging.getLogger(__name__)
MOST_HANGS = 2
"""Number of timeouts after which an engine is not measured again in this search."""
FAR = 10.0
"""A region's runs are cut off after this many times the seconds of the fastest engine so far ..."""
GRACE = 2.0
"""... plus this many seconds, since a first call may have to initialize."""
LEAST = 0.05
"""No measurement starts with fewer seconds of the budget left."""
LONGER = 8.0
"""A compile that timed out is retried by a search whose limit is this many times as long."""
_TIMED_OUT = re.compile(r"failed to compile .*: it gave no answer within (\d+(?:\.\d+)?(?:e[+-]\d+)?) s")


@dataclass(frozen=True)
class Truth:
    """The expected values by name, and the function that computes more of them."""

    values: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    """None if the expected results could not be computed; results are then not compared."""
    remark: str = ""
    """A remark if results are not checked against the reference."""


@dataclass(eq=False)
class RegionProfiler:
    """Measures parts of the model, once each.

    Each compile and each measurement may take ``limit`` seconds, and sampling about ``sampling``. Results are compared with the
    reference until the clock shows ``end``, and for at most ``limit`` seconds if another engine has been measured; a cost without
    a comparison is dropped. A region that computes an output of the model allocates it; an inner region writes into existing
    memory.
    """

    request: PlacementRequest
    limit: float
    sampling: float
    clock: Clock
    end: float
    table: CostTable = CostTable()
    truth: Truth = Truth()
    runners: Mapping[str, Runner] = field(default_factory=dict)
    """Runners of the ready engines, by spec."""
    count: int = 0
    """Number of measurements."""
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why this search has no cost of a part, by shape key and engine; another search may."""
    _tried: set[tuple[str, str]] = field(default_factory=set)
    _hung: dict[str, list[int]] = field(default_factory=dict)
    """Node counts of the parts that timed out, by engine."""

    def is_known(self, subject: ProfilingRequest) -> bool:
        """Whether a part needs no further measurement."""
        piece = subject.key, subject.spec
        cost = self.table.region(*piece)
        match = _TIMED_OUT.search(cost) if isinstance(cost, str) and piece not in self._tried else None
        return piece in self.skipped or (cost is not None and not (match and self.limit >= LONGER * float(match[1])))

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
        inputs = select_values([value.name for value in function.inputs], self.truth.values)
        expected = select_values([value.name for value in function.outputs], self.truth.values)
        if inputs is None or expected is None:
            raise _NotMeasured("its values were not captured")
        hung = self._hung.get(subject.spec, [])
        if len(hung) >= MOST_HANGS or any(size <= len(function.nodes) for size in hung):
            raise _NotMeasured("the engine did not end with what is no larger")
        self._tried.add((subject.key, subject.spec))
        costs = (self.table.region(subject.key, spec) for spec in self.runners)
        best = min((cost.seconds for cost in costs if isinstance(cost, MeasuredCost)), default=None)
        left = until - self.clock()
        limit = max(min(self.limit, left), LEAST)
        # Stop runs of an engine that is far slower than another.
        running = limit if best is None else min(limit, GRACE + FAR * best)
        returned = {value.name for value in self.request.function.outputs}
        inner = returned.isdisjoint(value.name for value in function.outputs)
        context = self.request.contexts.get(subject.spec, self.request.context)
        try:
            limits = TrialLimits(min(self.sampling, limit / 4), limit, running, left, inner=inner)
            trial = self.runners[subject.spec].trial(function, context, inputs, limits)
        except (NotStarted, OutOfDeviceMemory) as error:
            raise _NotMeasured(str(error)) from error  # another search may have more free device memory
        except (EngineError, InputError) as error:
            text = " ".join(str(error).split())
            if isinstance(error.__cause__, TimeoutError):
                if limit < self.limit:
                    raise _NotMeasured(f"the budget ended before it was measured: {text}") from error
                self._hung.setdefault(subject.spec, []).append(len(function.nodes))
            return f"{'refused' if isinstance(error, CompileRefused) else 'failed'}: {text}"
        reference = self.truth.reference
        if reference is not None and not find_first_random_node(function):
            left = min(max(self.end - self.clock(), LEAST), threading.TIMEOUT_MAX)
            limit = left if best is None else min(left, self.limit)
            terms = reference, self.request.context.options
            try:
                check = partial(check_against_reference, function, inputs, trial.results, expected, *terms)
                wrong, _ = within_or_stopped(limit, check)
            except OutOfTime as error:
                if limit < left:
                    raise _NotMeasured(f"comparing its results with the reference took longer than {limit:.3g} s") from error
                raise _NotMeasured("the budget ended before its results were compared with the reference") from error
            if wrong:
                return f"wrong: {wrong}"
        return MeasuredCost(*median_interval(trial.samples))


class _NotMeasured(Exception):
    """Explains why a part has no cost in this search."""


def find_first_viable(plans: Sequence[Plan], table: CostTable) -> Plan:
    """The first plan without a region known to fail or to be wrong; the first plan if there is none."""
    return next((plan for plan in plans if not is_refuted(plan, table)), plans[0])


def is_refuted(plan: Plan, table: CostTable) -> bool:
    """Whether a region of the plan is known to fail or to be wrong."""
    costs = (table.region(launch.function.shape_key, launch.engine) for launch in plan.launches)
    return any(isinstance(cost, str) for cost in costs)


SHARE = 0.7
"""Share of the time for the reference; the rest is for the stand-in."""


def make_stand_in(candidates: Candidates, engines: Mapping[str, GraphCompiler], context: CompileContext) -> Reference:
    """Make the substitute for the reference: the plan by priority, compiled in this process."""

    def run(function: Function, inputs: Sequence[Any]) -> list[Any]:
        where = candidates.homes
        plan = partition(
            *(function, candidates.engines),
            implicit=candidates.implicit,
            device=where.device,
            devices=where.by_engine,
        )
        used = {launch.engine: load_engine(engines[launch.engine]) for launch in plan.launches}
        program = compile_plan(plan, used, context, CompileCache())
        if not isinstance(program, Program):
            raise RunFailed(program[0].reason)
        try:
            return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in inputs])]
        finally:
            program.close()

    return run


def compute_truth(
    function: Function, inputs: Sequence[Any], reference: Reference, stand_in: Reference, name: str, seconds: float
) -> Truth:
    """Compute the expected values in about ``seconds``; if the reference fails, use the stand-in called ``name``."""
    try:
        given = function, inputs, reference
        values = within_or_stopped(seconds * SHARE, lambda is_stopped: capture_activations(*given, is_stopped=is_stopped))
        return Truth(values, reference)
    except (OutOfTime, XRTError) as error:
        why = _line(error)
    except Exception as error:  # noqa: BLE001  # whatever a kernel raises
        why = f"{type(error).__name__}: {_line(error)}"
    found = _stood_in(function, inputs, stand_in, seconds * (1 - SHARE))
    held = f"results were held against those of {name}" if found else "results were held against nothing"
    remark = f"not checked against the reference: {why}; {held}"
    return Truth(found, stand_in, remark) if found else Truth({}, None, remark)


def _stood_in(function: Function, inputs: Sequence[Any], stand_in: Reference, seconds: float) -> dict[str, Any]:
    """Compute values with the stand-in: of all nodes, else of the outputs only; empty if both fail."""
    for most in (MOST_BYTES, 0):
        with suppress(Exception):  # then with fewer values, or none
            return within(
                seconds / 2, partial(capture_activations, function, inputs, stand_in, most, stretch=len(function.nodes))
            )
    return {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
