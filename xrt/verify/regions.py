"""Compare every region of a plan, and every value inside it, with the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.engines.contract.graph_compiler import name_likely_cause
from xrt.errors import EngineError, RunFailed
from xrt.runtime import adapt_to_host, on_device
from xrt.runtime.call_frame import to_run_failed
from xrt.runtime.inputs import copy_values
from xrt.verify.comparison import CheckVerdict, Verdict, find_precision, is_lowered, judge_outputs
from xrt.verify.execution import Run, expose_all_values, fit_inputs

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.engines.contract.options import Precision
    from xrt.graph import Function
    from xrt.partition import Launch, Plan


Progress: TypeAlias = Callable[[int, int], None]
"""Called with two numbers; their meaning is documented by the caller."""


def ignore_progress(first: int, second: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A value inside a region, compared with the reference."""

    name: str
    node: str
    """The node that computes it."""
    op: str
    judgement: CheckVerdict


@dataclass(frozen=True, slots=True)
class RegionCheck:
    """A region, run on inputs that the reference computed."""

    name: str
    engine: str
    nodes: int
    judgement: CheckVerdict
    """Verdict on its outputs."""
    inner: tuple[ValueCheck, ...] = ()
    """Every value inside, computed by the same engine with all values as outputs, which reduces fusion."""
    note: str = ""
    """Why inner values were not checked, or the likely cause of a difference."""

    @property
    def differs(self) -> bool:
        return self.judgement.verdict is Verdict.DISAGREES or any(self.differing)

    @property
    def differing(self) -> tuple[ValueCheck, ...]:
        """The inner values that differ, in order of computation."""
        return tuple(check for check in self.inner if check.judgement.verdict is Verdict.DISAGREES)

    def __str__(self) -> str:
        head = f"{self.name} ({self.engine}, {self.nodes} node{'s' * (self.nodes != 1)}): {self.judgement.verdict.value}"
        lines = [head + (f": {self.judgement.message}" if self.judgement.message else "")]
        if self.differing:
            first = self.differing[0]
            more = f", and {len(self.differing) - 1} more" if len(self.differing) > 1 else ""
            lines.append(f"  inside, first at node {first.node!r} ({first.op}){more}: {first.judgement.message}")
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a plan. Prints as text."""

    regions: tuple[RegionCheck, ...]
    whole: CheckVerdict
    """Verdict on the plan's outputs if each region gets the actual results of earlier regions."""

    def __bool__(self) -> bool:
        """Whether everything agrees."""
        return self.whole.verdict is not Verdict.DISAGREES and not self.differing

    @property
    def differing(self) -> tuple[RegionCheck, ...]:
        """Regions that differ in an output or in an inner value."""
        return tuple(region for region in self.regions if region.differs)

    def to_dict(self) -> dict[str, Any]:
        """The verification as dicts, lists and strings."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """A table for a notebook."""
        from xrt.html.views import render_cell  # needed only in notebooks

        def mark(found: CheckVerdict) -> dict[str, str]:
            return {"text": found.verdict.value, "verdict": "wrong" if found.verdict is Verdict.DISAGREES else ""}

        columns = {"region": "", "engine": "", "nodes": "number", "verdict": "", "remark": ""}
        rows = [
            (one.name, one.engine, one.nodes, mark(one.judgement), "; ".join(filter(None, (one.judgement.message, one.note))))
            for one in self.regions
        ]
        whole = ("the whole", "", sum(one.nodes for one in self.regions), mark(self.whole), self.whole.message)
        inside = [(r.name, x.node, x.op, x.judgement.message) for r in self.regions for x in r.differing]
        tables = [
            ("Regions, each on what the reference says that its inputs are", columns, [*rows, whole]),
            ("Values inside that differ", {"region": "", "node": "", "operator": "", "difference": ""}, inside),
        ]
        return render_cell("summary.html", title="Verification", facts={}, tables=tables)

    def __str__(self) -> str:
        said = f": {self.whole.message}" if self.whole.message else ""
        end = f"the whole: {self.whole.verdict.value}{said}"
        return "\n".join([*map(str, self.regions), end])


def verify(
    function: Function,
    plan: Plan,
    engines: Mapping[str, GraphCompiler],
    inputs: Sequence[Any],
    reference: Run,
    context: CompileContext,
    *,
    inner: bool = True,
    progress: Progress = ignore_progress,
) -> Verification:
    """Compare the results of each region, and of the whole plan, with the reference.

    ``plan`` is the plan of ``function``, and its regions run on their devices; ``inputs`` are on the host. ``engines`` maps each
    spec to its engine. Every region gets inputs that the reference computed, so that an error shows only in the region that
    causes it. With ``inner``, each region is compiled again with all its values as outputs. ``progress`` is called with the
    number of finished regions and their total. An engine that computes in a lower precision is compared at the tolerance of that
    precision.

    Raises EngineError if a region does not compile or run, and DeviceError if a device is unavailable.
    """
    right = _inputs(plan, inputs)
    actual = dict(right)
    checks = []
    lowest: Precision = "fp32"
    for done, launch in enumerate(plan.launches):
        progress(done, len(plan.launches))
        where = on_device(plan.get_device(launch), context)
        precision = find_precision(engines[launch.engine], where)
        # The whole plan is as accurate as its least accurate region.
        lowest = precision if is_lowered(precision) else lowest
        asked = _Asked(engines[launch.engine], where, reference, precision)
        checks.append(_region(launch, asked, right, actual, inner=inner))
    progress(len(plan.launches), len(plan.launches))
    names = [value.name for value in function.outputs]
    ends = [actual[name] for name in names], [right[name] for name in names]
    whole = judge_outputs(function, inputs, *ends, reference, lowest)
    return Verification(tuple(checks), whole)


def _inputs(plan: Plan, inputs: Sequence[Any]) -> dict[str, Any]:
    values = {name: constant.array for name, constant in plan.function.constants.items()}
    values.update((value.name, given) for value, given in zip(plan.function.inputs, inputs, strict=True))
    return values


@dataclass(frozen=True, slots=True)
class _Asked:
    """An engine under test, with the reference that its results are compared with."""

    engine: GraphCompiler
    context: CompileContext
    reference: Run
    precision: Precision = "fp32"
    """The precision in which the engine computes float32."""

    def judge(self, function: Function, given: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        return judge_outputs(function, given, results, expected, self.reference, self.precision)

    def runs(self, function: Function, calls: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Compile, run once per list of inputs, and close."""
        executable = adapt_to_host(self.engine.compile(fit_inputs(function, calls[0], self.engine), self.context), self.context)
        try:
            executable.prepare()
            return [_copies(executable.run(_copies(inputs))) for inputs in calls]
        finally:
            executable.close()


def _region(launch: Launch, asked: _Asked, right: dict[str, Any], actual: dict[str, Any], *, inner: bool) -> RegionCheck:
    """Check a region; add its expected outputs to ``right`` and the actual ones to ``actual``."""
    # Without aliases no engine may overwrite the inputs, which are used again.
    function = launch.function.replace(aliases=())
    given = [right[value.name] for value in function.inputs]
    expected = list(asked.reference(function, _copies(given)))
    try:
        # One compile, two runs: on the reference's inputs, and on the actual ones of earlier regions.
        own, passed_on = asked.runs(function, [given, [actual[value.name] for value in function.inputs]])
    except RunFailed as error:
        raise to_run_failed(launch, error) from error.__cause__
    check = RegionCheck(launch.name, launch.engine, len(launch.nodes), asked.judge(function, given, own, expected))
    # A region of one node has no inner values.
    if inner and len(function.nodes) > 1:
        check = _with_inner(check, function, asked, given)
    if check.differs and not check.note:
        check = replace(check, note=name_likely_cause(asked.engine.implementation, function, [*given, *own, *expected]))
    for value, theirs, mine in zip(function.outputs, expected, passed_on, strict=True):
        right[value.name], actual[value.name] = theirs, mine
    return check


def _copies(values: Sequence[Any]) -> list[Any]:
    return [copy_values(value) for value in values]


def _with_inner(check: RegionCheck, function: Function, asked: _Asked, given: Sequence[Any]) -> RegionCheck:
    """Check the inner values; if the engine cannot return them, note that without a verdict."""
    open_ = expose_all_values(function)
    try:
        (results,) = asked.runs(open_, [given])
    except EngineError as error:
        return replace(check, note=f"the values inside cannot be looked at: {error}")
    return replace(check, inner=_inner(open_, asked, given, results))


def _inner(open_: Function, asked: _Asked, given: Sequence[Any], results: Sequence[Any]) -> tuple[ValueCheck, ...]:
    expected = list(asked.reference(open_, _copies(given)))
    inner = []
    for value, mine, theirs in zip(open_.outputs, results, expected, strict=True):
        maker = open_.producer(value.name)
        if maker is not None:
            alone = open_.replace(outputs=(value,))
            found = judge_outputs(alone, given, [mine], [theirs], asked.reference, asked.precision)
            inner.append(ValueCheck(value.name, maker.name, maker.op, found))
    return tuple(inner)
