"""Plans of lower precision, made ready and run on examples."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from xrt.cache import CompileCache
from xrt.errors import CompileRefused, LockError
from xrt.formats.placement_file import LoweredOutcome, LoweredPlanRecord, TriedForm
from xrt.measure.timing import time_call
from xrt.partition import partition
from xrt.partition.partitioner import plan_from_assignment
from xrt.placement.report import format_error
from xrt.placement.result import describe_plan
from xrt.precision.budget import ErrorBudget, Measure, MeasuredError, find_fault, read_examples
from xrt.runtime import Program, compile_plan, to_host
from xrt.verify.execution import copy_values

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.graph import Function, Value
    from xrt.partition import Plan
    from xrt.passes.quantize.form import QuantizedForm
    from xrt.placement.regression_check import RegressionSetup
    from xrt.placement.result import PlacementRequest
    from xrt.precision.budget import Examples

__all__ = ["Attempt", "Workbench", "check_error", "run_once"]


MOST_NAMED = 32
"""Nodes in float32 that the record of a plan names."""


@dataclass(eq=False)
class Attempt:
    """A plan of lower precision, or the exact one."""

    plan: Plan
    precision: str
    engines: tuple[GraphCompiler, ...] = ()
    """The engines that only plans of lower precision have."""
    form: QuantizedForm | None = None
    """How the model is quantized; None where it is not."""
    program: Program | None = None
    found: MeasuredError = field(default_factory=lambda: MeasuredError(0.0))
    outcome: LoweredOutcome = "lost"
    note: str = ""
    seconds: float | None = None
    first_calls: float = 0.0
    """Seconds of the fastest call on an example of validation."""
    kept: tuple[str, ...] = ()
    """The nodes that stay in float32 for the sake of the budget, worst first."""

    @property
    def bound(self) -> float:
        """What must be within the budget."""
        return self.found.bound

    @property
    def is_in_budget(self) -> bool:
        """Whether it may race."""
        return self.program is not None and self.outcome not in ("over", "wrong", "failed")

    @property
    def title(self) -> str:
        """The plan by its engines."""
        return describe_plan(self.plan)

    def close(self) -> None:
        """Let go of the program."""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def to_form(self) -> TriedForm | None:
        """Return its quantized form, where its error was in the budget."""
        if self.form is None or self.outcome not in ("won", "tie", "lost"):
            return None
        kept, form = tuple(sorted(self.form.kept)), self.form
        return TriedForm(self.precision, self.engines[0].spec, kept, self.found.bound, form.kind, bool(form.balance))

    def to_record(self) -> LoweredPlanRecord:
        """Return what is kept of it."""
        return LoweredPlanRecord(
            self.title,
            self.precision,
            self.outcome,
            error=_finite(self.found.error),
            high=_finite(self.found.high),
            worst=_finite(self.found.worst),
            seconds=self.seconds,
            kept=len(self.kept),
            nodes=tuple(name[:400] for name in self.kept[:MOST_NAMED]),
            note=self.note[:1000],
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass
class Workbench:
    """What plans are compiled with."""

    request: PlacementRequest
    cache: CompileCache
    """For plans that may be chosen."""
    engines: Sequence[GraphCompiler]
    """The exact ones, the fastest first, the implicit one last."""
    scratch: CompileCache = field(default_factory=CompileCache)
    """For models that only measure something."""

    def plan_exact(self, function: Function) -> Plan:
        """Return the plan of one exact engine that takes the whole Function, the fastest; else the plan by priority."""
        for engine in self.engines:
            if all(engine.why_not(node, function) is None for node in function.nodes):
                return self._partition(function, [engine])
        return self._partition(function, self.engines)

    def plan_on(self, function: Function, engine: GraphCompiler, kept: Collection[str] = ()) -> Plan:
        """Return the plan with all nodes on an engine that takes them, but for those to be kept; the others are on exact ones."""
        if not kept and all(engine.why_not(node, function) is None for node in function.nodes):
            return self._partition(function, [engine])
        others = [one for one in self.engines if one.spec != engine.spec]
        if not kept:
            return self._partition(function, [engine, *others])
        by_priority = self._partition(function, others)
        homes = {name: launch.engine for launch in by_priority.launches for name in launch.nodes}
        takes = {node.name for node in function.nodes if engine.why_not(node, function) is None}
        chosen = {name: engine.spec if name in takes and name not in kept else home for name, home in homes.items()}
        return plan_from_assignment(
            function, [engine, *others], chosen, implicit=self._implicit(others), device=self.request.device_map
        )

    def _partition(self, function: Function, engines: Sequence[GraphCompiler]) -> Plan:
        request = self.request
        options = replace(request.clustering, minimum_nodes=1, maximum_nodes=None, pins=())
        return partition(
            function,
            engines,
            options,
            implicit=self._implicit(engines),
            device=request.device_map.device,
            devices={spec: home for spec, home in request.devices.items() if any(one.spec == spec for one in engines)},
        )

    def _implicit(self, engines: Sequence[GraphCompiler]) -> str | None:
        implicit = self.request.implicit
        return implicit if any(one.spec == implicit for one in engines) and len(engines) > 1 else None

    def compile(self, plan: Plan, extra: Sequence[GraphCompiler] = (), *, is_kept: bool = True) -> Program:
        """Return the plan's program; raises CompileRefused for what an engine refuses."""
        engines = {one.spec: one for one in (*self.engines, *extra)}
        made = compile_plan(plan, engines, self.request.context, self.cache if is_kept else self.scratch)
        if not isinstance(made, Program):
            raise CompileRefused("; ".join(dict.fromkeys(one.reason for one in made)))
        return made

    def run(self, program: Program, examples: Examples) -> tuple[list[list[Any]], float]:
        """Return the outputs for each example, as arrays of their own, and the seconds of the fastest call."""
        timed = [time_call(partial(run_once, program, item.values)) for item in examples.items]
        return [outputs for outputs, _ in timed], min((seconds for _, seconds in timed), default=0.0)


def run_once(program: Program, values: Sequence[Any]) -> list[Any]:
    """Return the outputs of one call on copies of the inputs."""
    return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in values])]


def check_error(
    setup: RegressionSetup,
    plan: Plan,
    record: PrecisionRecord,
    validate: Sequence[Any] | None,
    inputs: Sequence[Value],
) -> None:
    """Raise LockError where the error of a plan on the examples of its lock is over the budget of the lock.

    The reference engine computes what is expected. Raises LockError too for other examples than those of the lock, and where
    there are none.
    """
    if record.measure not in get_args(Measure):
        raise LockError(
            f"the lock's error was measured by the metric {record.measure!r}, which only its own code can measure again"
        )
    if validate is None:
        raise LockError(
            f"the lock has a plan in {record.precision}, whose error must be measured again, and the examples of validation are "
            "not to be found; pass --validate"
        )
    examples = read_examples(validate, "validate", inputs)
    if record.validation and examples.digest != record.validation:
        raise LockError("the examples of validation are others than those of the lock; write the lock again with `xrt lock`")
    budget = ErrorBudget(record.limit, record.measure)  # type: ignore[arg-type]  # it was compared with the names above
    request = setup.request
    fitted = examples.fit(request.function, inputs)
    program = Workbench(request, setup.cache, request.engines).compile(plan)
    try:
        found, _ = Workbench(request, setup.cache, request.engines).run(program, fitted)
    finally:
        program.close()
    plain = request.function.replace(aliases=())
    expected = [list(setup.reference(plain, list(item.values))) for item in fitted.items]
    if fault := find_fault(expected, found):
        raise LockError(f"the plan in {record.precision} computes wrongly: {fault}")
    error = budget.measure_error(expected, found, [item.given for item in fitted.items])
    if error.bound > record.limit:
        now, limit, was = (format_error(one, record.measure) for one in (error.bound, record.limit, record.error))
        raise LockError(
            f"the error of the plan in {record.precision} is over the budget: up to {now}, and {limit} is allowed; it was {was} "
            "when it was locked"
        )
