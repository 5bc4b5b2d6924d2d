"""Compare each region of a plan, and each value inside it, with the reference; find the smallest part that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import CompileRefused, EngineError, RunFailed
from xrt.graph import DType, Function, Node, TensorType, Type, Value
from xrt.runtime import adapt_to_host, count_available_cores, on_device
from xrt.runtime.inputs import copy_values
from xrt.runtime.program import to_run_failed
from xrt.verify.comparison import COARSEST_FIRST, CheckVerdict, Verdict, find_precision, judge_outputs
from xrt.verify.deviations import name_likely_cause
from xrt.verify.execution import Run, expose_all_values, find_region, fit_inputs, run_alone

if TYPE_CHECKING:
    from xrt.engines.contract.options import Precision
    from xrt.partition import Launch, Plan

Progress: TypeAlias = Callable[[int, int], None]
"""A callback with two counts. Each function with a parameter ``progress`` documents what they count."""


def ignore_progress(first: int, second: int) -> None:
    """Ignore the progress."""


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
    """Checks of all values inside the region. The engine computed them with all values as outputs, which reduces fusion."""
    note: str = ""
    """The reason if inner values were not checked, or the likely cause of a difference."""

    @property
    def differs(self) -> bool:
        """Whether an output or an inner value differs from the reference."""
        return self.judgement.verdict is Verdict.DISAGREES or bool(self.differing)

    @property
    def differing(self) -> tuple[ValueCheck, ...]:
        return tuple(check for check in self.inner if check.judgement.verdict is Verdict.DISAGREES)

    def __str__(self) -> str:
        message = f": {self.judgement.message}" if self.judgement.message else ""
        noun = "node" if self.nodes == 1 else "nodes"
        lines = [f"{self.name} ({self.engine}, {self.nodes} {noun}): {self.judgement.verdict.value}{message}"]
        if self.differing:
            first = self.differing[0]
            more = f", and {len(self.differing) - 1} more" if len(self.differing) > 1 else ""
            lines.append(f"  inside, first at node {first.node!r} ({first.op}){more}: {first.judgement.message}")
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of comparing a plan with the reference. Prints as text."""

    regions: tuple[RegionCheck, ...]
    whole: CheckVerdict
    """Verdict on the plan's outputs. For these, each region reads the results of earlier regions, not of the reference."""

    def __bool__(self) -> bool:
        """Whether the outputs and all regions agree with the reference."""
        return self.whole.verdict is not Verdict.DISAGREES and not self.differing

    @property
    def differing(self) -> tuple[RegionCheck, ...]:
        return tuple(region for region in self.regions if region.differs)

    def to_dict(self) -> dict[str, Any]:
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
            ("Regions, each on the reference's inputs", columns, [*rows, whole]),
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

    ``plan`` is the plan of ``function``. Its regions run on their devices; ``inputs`` are on the host. ``engines`` maps each spec
    to its engine. Each region reads inputs that the reference computed, so an error shows only in the region that causes it.
    With ``inner``, each region is compiled once more with all its values as outputs. ``progress`` is called with the number of
    finished regions and the number of all regions. Results in reduced precision are compared with its tolerance.

    Raises EngineError if a region does not compile or run, DeviceError if a device is unavailable.
    """
    expected = {name: constant.array for name, constant in plan.function.constants.items()}
    expected.update((value.name, array) for value, array in zip(plan.function.inputs, inputs, strict=True))
    actual, checks = dict(expected), []
    for done, launch in enumerate(plan.launches):
        progress(done, len(plan.launches))
        engine, region_context = engines[launch.engine], on_device(plan.get_device(launch), context)
        region = _Region(launch, engine, region_context, reference, find_precision(engine, region_context))
        checks.append(region.check(expected, actual, inner=inner))  # adds the region's outputs to both dicts
    progress(len(plan.launches), len(plan.launches))
    results = [actual[value.name] for value in function.outputs]
    expected_results = [expected[value.name] for value in function.outputs]
    precision = find_plan_precision(plan, engines, context)
    return Verification(tuple(checks), judge_outputs(function, inputs, results, expected_results, reference, precision))


def find_plan_precision(plan: Plan, engines: Mapping[str, GraphCompiler], context: CompileContext) -> Precision:
    """Find the coarsest precision of the plan's regions, which limits the accuracy of its outputs."""
    precisions = {find_precision(engines[launch.engine], on_device(plan.get_device(launch), context)) for launch in plan.launches}
    return next((precision for precision in COARSEST_FIRST if precision in precisions), "fp32")


@dataclass(frozen=True, slots=True)
class _Region:
    """A region under test, with the reference that its results are compared with."""

    launch: Launch
    engine: GraphCompiler
    context: CompileContext
    reference: Run
    precision: Precision = "fp32"

    def check(self, expected: dict[str, Any], actual: dict[str, Any], *, inner: bool) -> RegionCheck:
        """Check the region. Add its outputs: by the reference to ``expected``, by the engine on actual inputs to ``actual``."""
        launch = self.launch
        # Without aliases, because the inputs are used again, and an engine may overwrite an aliased one.
        function = launch.function.replace(aliases=())
        inputs = [expected[value.name] for value in function.inputs]
        outputs = list(self.reference(function, copy_values(inputs)))
        try:
            # One compile for two runs: on the reference's inputs, and on the results of earlier regions.
            actual_inputs = [actual[value.name] for value in function.inputs]
            alone, chained = self._run(function, [inputs, actual_inputs])
        except RunFailed as error:
            raise to_run_failed(launch, error) from error.__cause__
        verdict = judge_outputs(function, inputs, alone, outputs, self.reference, self.precision)
        check = RegionCheck(launch.name, launch.engine, len(launch.nodes), verdict)
        # A region of one node has no inner values.
        if inner and len(function.nodes) > 1:
            exposed = expose_all_values(function)
            try:
                (results,) = self._run(exposed, [inputs])
            except EngineError as error:
                check = replace(check, note=f"the values inside cannot be looked at: {error}")
            else:
                # Outside of the try block, since an EngineError of the reference is not the engine's.
                check = replace(check, inner=tuple(self._check_inner(exposed, inputs, results)))
        if check.differs and not check.note:
            values = [*inputs, *alone, *outputs]
            check = replace(check, note=name_likely_cause(self.engine.implementation, function, values))
        for value, reference, result in zip(function.outputs, outputs, chained, strict=True):
            expected[value.name], actual[value.name] = reference, result
        return check

    def _check_inner(self, function: Function, inputs: Sequence[Any], results: Sequence[Any]) -> Iterator[ValueCheck]:
        """Check all values inside the region. ``function`` is the region with these values as outputs."""
        expected = self.reference(function, copy_values(list(inputs)))
        for value, result, reference in zip(function.outputs, results, expected, strict=True):
            if (producer := function.producer(value.name)) is not None:
                alone = function.replace(outputs=(value,))
                verdict = judge_outputs(alone, inputs, [result], [reference], self.reference, self.precision)
                yield ValueCheck(value.name, producer.name, producer.op, verdict)

    def _run(self, function: Function, calls: Sequence[Sequence[Any]]) -> list[list[Any]]:
        executable = adapt_to_host(self.engine.compile(fit_inputs(function, calls[0], self.engine), self.context), self.context)
        try:
            executable.prepare()
            return [copy_values(list(executable.run(copy_values(list(inputs))))) for inputs in calls]
        finally:
            executable.close()


Difference: TypeAlias = Callable[[Function, Sequence[Any], Sequence[Any]], str | None]
"""Runs a part on inputs and describes how its results differ from the reference's, the third argument; None if they agree."""


@dataclass(frozen=True, eq=False)
class FailingSubgraph:
    """A minimal Function on which an engine differs from the reference."""

    engine: str
    """The engine's spec, or the name of another tested implementation."""
    function: Function
    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]
    message: str
    runs: int

    def __str__(self) -> str:
        nodes = self.function.nodes
        noun = "node" if len(nodes) == 1 else "nodes"
        node_list = ", ".join(f"{node.name!r} ({node.op})" for node in nodes)
        return f"{self.engine} differs on {len(nodes)} {noun}: {node_list}: {self.message}"


def bisect(
    function: Function,
    engine: GraphCompiler,
    inputs: Sequence[Any],
    reference: Run,
    context: CompileContext | None = None,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Find a smallest part of the Function on which the engine differs from the reference or raises; None if it agrees.

    The part agrees if any of its nodes is removed. Parts that the engine declines count as correct. ``progress`` is called after
    each run with the number of runs and the node count of the smallest differing part so far. Of n nodes, this takes about
    ``log2(n)`` compiles if one node is wrong, and up to ``n * n`` if many nodes are wrong only together.
    """
    precision = find_precision(engine, context or CompileContext())

    def differ(part: Function, arguments: Sequence[Any], expected: Sequence[Any]) -> str | None:
        try:
            results = run_alone(engine, part, copy_values(list(arguments)), context)
        except CompileRefused:
            return None
        except Exception as error:  # noqa: BLE001  # any other error counts as a difference
            return f"{type(error).__name__}: {error}"
        judgement = judge_outputs(part, arguments, results, expected, reference, precision)
        return judgement.message if judgement.verdict is Verdict.DISAGREES else None

    return bisect_difference(engine.spec, function, inputs, reference, differ, progress=progress)


def bisect_difference(
    name: str,
    function: Function,
    inputs: Sequence[Any],
    reference: Run,
    differ: Difference,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Find the smallest part of the Function for which ``differ`` returns a message, as `bisect` does for an engine.

    ``name`` describes the tested implementation, in place of an engine's spec.
    """
    plain = function.replace(aliases=())
    everything = expose_all_values(plain)
    values = {name: constant.array for name, constant in plain.constants.items()}
    values.update((value.name, array) for value, array in zip(plain.inputs, inputs, strict=True))
    values.update(zip((v.name for v in everything.outputs), reference(everything, list(inputs)), strict=True))
    search = _Search(name, plain, differ, values, progress)
    if search.describe_difference(plain) is None:
        # An error inside may not reach the outputs.
        search.exposes_values = True
        if search.describe_difference(everything) is None:
            return None
    return search.describe(search.select_output(search.make_part(search.minimize(plain.nodes))))


def bisect_plan(
    plan: Plan,
    engines: Mapping[str, GraphCompiler],
    inputs: Sequence[Any],
    reference: Run,
    context: CompileContext | None = None,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Bisect the first region of a plan that differs from the reference; return None if all regions agree.

    Each region reads inputs that the reference computed. ``engines`` maps specs to engines. ``progress`` is as in `bisect`.
    """
    values = {name: constant.array for name, constant in plan.function.constants.items()}
    values.update((value.name, array) for value, array in zip(plan.function.inputs, inputs, strict=True))
    for launch in plan.launches:
        arguments = [values[name] for name in launch.inputs]
        region_context = on_device(plan.get_device(launch), context or CompileContext(threads=count_available_cores()))
        engine = engines[launch.engine]
        failure = bisect(launch.function, engine, arguments, reference, region_context, progress=progress)
        if failure is not None:
            return failure
        # The region is correct. The next region reads the reference's results.
        results = reference(launch.function.replace(aliases=()), copy_values(list(arguments)))
        values.update(zip(launch.outputs, results, strict=True))
    return None


@dataclass
class _Search:
    """A bisection: the reference's values, and which of the parts tried so far differ."""

    name: str
    function: Function
    differ: Difference
    values: Mapping[str, Any]
    progress: Progress
    exposes_values: bool = False
    """Whether all values of a part are its outputs, and not only the values that are read outside of the part."""
    runs: int = 0
    differing: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Maps the names of a part's nodes to whether the part differs."""

    def make_part(self, nodes: Sequence[Node]) -> Function:
        part = find_region(self.function, nodes)
        part = expose_all_values(part) if self.exposes_values else part
        return part.replace(inputs=tuple(Value(v.name, _infer_type(self.values[v.name], v.type)) for v in part.inputs))

    def differs(self, nodes: Sequence[Node]) -> bool:
        """Whether the engine differs on these nodes, given the reference's inputs. Report progress."""
        # Delta debugging often tries the same nodes again.
        key = tuple(node.name for node in nodes)
        if key not in self.differing:
            self.differing[key] = self.describe_difference(self.make_part(nodes)) is not None
            sizes = [len(names) for names, differs in self.differing.items() if differs]
            self.progress(self.runs, min(sizes, default=len(self.function.nodes)))
        return self.differing[key]

    def describe_difference(self, part: Function) -> str | None:
        """Run a part on the reference's values and describe the difference; None if it agrees or is declined."""
        self.runs += 1
        arguments = [self.values[value.name] for value in part.inputs]
        expected = [self.values[value.name] for value in part.outputs]
        return self.differ(part, arguments, expected)

    def minimize(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Find a subset of the nodes that differs, and agrees if any node is removed (delta debugging)."""
        count = 2  # of pieces
        while len(nodes) > 1:
            edges = [len(nodes) * i // count for i in range(count + 1)]
            pieces = [nodes[start:end] for start, end in pairwise(edges)]
            differing_piece = next((piece for piece in pieces if self.differs(piece)), None)
            # One piece differs: continue with it in two halves.
            if differing_piece is not None:
                nodes, count = differing_piece, 2
                continue
            # All but one piece. With two pieces these are the pieces themselves.
            complements = ([node for piece in pieces if piece is not left_out for node in piece] for left_out in pieces)
            differing_complement = next((rest for rest in complements if count > 2 and self.differs(rest)), None)
            if differing_complement is not None:
                nodes, count = differing_complement, count - 1
            elif count == len(nodes):
                break
            else:
                count = min(2 * count, len(nodes))
        return nodes

    def select_output(self, part: Function) -> Function:
        """Return the part with only the first output that differs. Return it unchanged if no single output differs."""
        for value in part.outputs:
            alone = part.replace(outputs=(value,))
            if self.describe_difference(alone) is not None:
                return alone
        return part

    def describe(self, part: Function) -> FailingSubgraph:
        arguments = tuple(self.values[value.name] for value in part.inputs)
        expected = tuple(self.values[value.name] for value in part.outputs)
        return FailingSubgraph(self.name, part, arguments, expected, self.describe_difference(part) or "", self.runs)


def _infer_type(value: Any, declared: Type | None) -> Type | None:
    return TensorType(DType.from_array(value), value.shape) if isinstance(value, np.ndarray) else declared
