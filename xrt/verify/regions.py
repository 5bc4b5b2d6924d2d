"""Compare every region of a plan, and every value inside it, with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    op: str
    judgement: CheckVerdict


@dataclass(frozen=True, slots=True)
class RegionCheck:
    """A region, run on inputs that the reference computed."""

    name: str
    engine: str
    nodes: int
    judgement: CheckVerdict
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

        def mark(judgement: CheckVerdict) -> dict[str, str]:
            return {"text": judgement.verdict.value, "verdict": "wrong" if judgement.verdict is Verdict.DISAGREES else ""}

        columns = {"region": "", "engine": "", "nodes": "number", "verdict": "", "remark": ""}
        rows = [
            (r.name, r.engine, r.nodes, mark(r.judgement), "; ".join(filter(None, (r.judgement.message, r.note))))
            for r in self.regions
        ]
        whole = ("the whole", "", sum(r.nodes for r in self.regions), mark(self.whole), self.whole.message)
        inside = [(r.name, x.node, x.op, x.judgement.message) for r in self.regions for x in r.differing]
        tables = [
            ("Regions, each on what the reference says that its inputs are", columns, [*rows, whole]),
            ("Values inside that differ", {"region": "", "node": "", "operator": "", "difference": ""}, inside),
        ]
        return render_cell("summary.html", title="Verification", facts={}, tables=tables)

    def __str__(self) -> str:
        message = f": {self.whole.message}" if self.whole.message else ""
        end = f"the whole: {self.whole.verdict.value}{message}"
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
    expected = {name: constant.array for name, constant in plan.function.constants.items()}
    expected.update((value.name, array) for value, array in zip(plan.function.inputs, inputs, strict=True))
    actual, checks = dict(expected), []
    lowest: Precision = "fp32"
    for done, launch in enumerate(plan.launches):
        progress(done, len(plan.launches))
        engine, where = engines[launch.engine], on_device(plan.get_device(launch), context)
        region = _Region(launch, engine, where, reference, find_precision(engine, where))
        # The whole plan is as accurate as its least accurate region.
        lowest = region.precision if is_lowered(region.precision) else lowest
        checks.append(region.check(expected, actual, inner=inner))
    progress(len(plan.launches), len(plan.launches))
    results, expected_results = ([values[value.name] for value in function.outputs] for values in (actual, expected))
    return Verification(tuple(checks), judge_outputs(function, inputs, results, expected_results, reference, lowest))


@dataclass(frozen=True, slots=True)
class _Region:
    """A region under test, with the reference that its results are compared with."""

    launch: Launch
    engine: GraphCompiler
    context: CompileContext
    reference: Run
    precision: Precision = "fp32"

    def check(self, expected: dict[str, Any], actual: dict[str, Any], *, inner: bool) -> RegionCheck:
        """Check the region; add its outputs to the expected values, and to the actual ones, which earlier regions computed."""
        # Without aliases no engine may overwrite the inputs, which are used again.
        launch, function = self.launch, self.launch.function.replace(aliases=())
        inputs = [expected[value.name] for value in function.inputs]
        outputs = list(self.reference(function, copy_values(inputs)))
        try:
            # One compile, two runs: on the reference's inputs, and on the actual ones of earlier regions.
            alone, chained = self._run(function, [inputs, [actual[value.name] for value in function.inputs]])
        except RunFailed as error:
            raise to_run_failed(launch, error) from error.__cause__
        verdict = judge_outputs(function, inputs, alone, outputs, self.reference, self.precision)
        check = RegionCheck(launch.name, launch.engine, len(launch.nodes), verdict)
        # A region of one node has no inner values.
        if inner and len(function.nodes) > 1:
            whole = expose_all_values(function)
            try:
                (results,) = self._run(whole, [inputs])
            except EngineError as error:
                check = replace(check, note=f"the values inside cannot be looked at: {error}")
            else:  # an EngineError of the reference is not blamed on the engine
                check = replace(check, inner=tuple(self._check_inner(whole, inputs, results)))
        if check.differs and not check.note:
            values = [*inputs, *alone, *outputs]
            check = replace(check, note=name_likely_cause(self.engine.implementation, function, values))
        for value, reference, result in zip(function.outputs, outputs, chained, strict=True):
            expected[value.name], actual[value.name] = reference, result
        return check

    def _check_inner(self, function: Function, inputs: Sequence[Any], results: Sequence[Any]) -> Iterator[ValueCheck]:
        """Check all values of the region, which ``function`` returns."""
        expected = self.reference(function, copy_values(list(inputs)))
        for value, result, reference in zip(function.outputs, results, expected, strict=True):
            if (maker := function.producer(value.name)) is not None:
                alone = function.replace(outputs=(value,))
                verdict = judge_outputs(alone, inputs, [result], [reference], self.reference, self.precision)
                yield ValueCheck(value.name, maker.name, maker.op, verdict)

    def _run(self, function: Function, calls: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Compile, run once per list of inputs, and close."""
        executable = adapt_to_host(self.engine.compile(fit_inputs(function, calls[0], self.engine), self.context), self.context)
        try:
            executable.prepare()
            return [copy_values(list(executable.run(copy_values(list(inputs))))) for inputs in calls]
        finally:
            executable.close()
