"""Tuning results: the chosen plan, the other candidates, and how the plan was chosen, as values that print as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.graph import FrozenDict, Function
from xrt.partition import ClusteringOptions
from xrt.partition.cost_table import CostTable
from xrt.partition.partitioner import MEASURED_REASON
from xrt.partition.support_matrix import DeviceMap
from xrt.runtime import on_device
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.formats.placement_file import CandidateRecord, PrecisionRecord, SearchRecord
    from xrt.partition import Plan, Reason

Origin: TypeAlias = Literal["measured", "interrupted", "remembered", "locked", "priority"]
"""How a plan was chosen. ``measured``: by a search that was not interrupted; ``interrupted``: by one that the user ended;
``remembered``: in an earlier process; ``locked``: by a lockfile; ``priority``: by list order, without measurements."""
NOT_MEASURED = "not measured: "
"""Prefix of the reason why a node is not on an engine that was not measured."""
LATE_PREFIX = "not measured in time:"
MAX_LISTED_REGIONS = 5
"""If a plan has more regions, its title counts the regions by engine instead of listing them in execution order."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The plan that a search, a lockfile or the priority order has chosen, with all candidates. Prints as text."""

    plan: Plan
    record: SearchRecord[Plan]
    """The facts of the search, which a stored decision and a lockfile hold too."""
    how: Origin = "measured"
    measurements: int = 0
    """Number of regions that were measured for this result; 0 if it was stored."""
    table: CostTable = CostTable()
    queried: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """The engines as proxies that repeat the recorded support; empty if no engine was queried."""
    reduced_engines: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.record.notes

    @property
    def unmeasured(self) -> Mapping[str, str]:
        return self.record.unmeasured

    @property
    def precision(self) -> PrecisionRecord | None:
        return self.record.precision

    def with_record(self, **changes: Any) -> TuningResult:
        return replace(self, record=self.record.replace(**changes))

    @property
    def short_remarks(self) -> tuple[str, ...]:
        """The most important of `remarks`: that the result is provisional, and which engines were not measured in time."""
        return tuple(remark for remark in self.remarks if remark.startswith(("provisional", LATE_PREFIX)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines below the candidates: whether the result is provisional, which engines were not measured and why, and notes."""
        from xrt.html.views import format_count  # a plain call has no search, and loads no views

        record, remarks = self.record, []
        if record.is_provisional:
            remedies = {"interrupted": "the search was interrupted", "locked": "search with more time, and lock the result"}
            remedy = remedies.get(self.how) or suggest_budget(record.budget)
            remarks.append(f"provisional: {format_count(record.rounds, 'round')} cannot tell plans apart; {remedy}")
        # Engines that a larger budget would measure share a line.
        late = [spec for spec, reason in record.unmeasured.items() if "budget ended" in reason]
        if late:
            remarks.append(f"{LATE_PREFIX} {', '.join(late)}")
        remarks += [f"not measured on {spec}: {reason}" for spec, reason in record.unmeasured.items() if spec not in late]
        if not record.is_checked:
            remarks.append("no result was compared with the reference by the search; the first call is")
        return (*remarks, *record.notes)

    def to_dict(self) -> dict[str, Any]:
        record = self.record
        facts = {name: getattr(record, name) for name in ("budget", "spent", "rounds", "notes", "is_provisional")}
        baseline = next((index for index, candidate in enumerate(record.candidates) if candidate.is_baseline), None)
        return {
            "chosen": describe_plan(self.plan),
            "how": self.how,
            "measurements": self.measurements,
            **facts,
            "unmeasured": dict(record.unmeasured),
            "baseline": baseline,
            "contenders": [_list_candidate_facts(candidate) for candidate in record.candidates],
            **({"precision": record.precision.to_dict()} if record.precision is not None else {}),
        }

    def _repr_html_(self) -> str:
        from xrt.placement.report import render_tuning_result  # only for notebooks

        return render_tuning_result(self)

    def __str__(self) -> str:
        return "\n".join(_format_lines(self))


def _list_candidate_facts(candidate: CandidateRecord[Plan]) -> dict[str, Any]:
    """Convert to plain data. The plan becomes the name, engine and nodes of each region."""
    regions = [{"name": x.name, "engine": x.engine, "nodes": list(x.nodes)} for x in candidate.plan.launches]
    facts = candidate.replace(plan=regions).to_dict()
    facts["seconds_of_regions"] = facts.pop("regions")
    return facts


_ORIGIN_TEXTS = {
    "measured": "placed by measurement",
    "interrupted": "placed by measurement, which was interrupted",
    "remembered": "placed by an earlier measurement",
    "locked": "placed by a lock",
    "priority": "placed by the order of the list, without a measurement",
}


def _format_lines(tuned: TuningResult) -> Iterator[str]:
    from xrt.html.views import format_count

    record = tuned.record
    yield f"{_ORIGIN_TEXTS[tuned.how]}: {describe_plan(tuned.plan)}"
    if tuned.how in ("measured", "interrupted"):
        spent = f"{record.spent:.1f} of {record.budget:g} s"
        rounds = format_count(record.rounds, "round")
        yield f"  {format_count(tuned.measurements, 'measurement')} of regions, {rounds}, {spent}"
    yield from (f"  {candidate}" for candidate in record.candidates)
    yield from (f"  {remark}" for remark in tuned.remarks)
    if record.precision is not None:
        from xrt.placement.report import describe_precision  # only with an error budget

        yield from (f"  {line}" for line in describe_precision(record.precision))


def suggest_budget(budget: float) -> str:
    """Suggest a longer search: two to three times ``budget``, and at least 20 seconds.

    >>> suggest_budget(3.0), suggest_budget(20.0)
    ('give more time, such as a budget of 20 s', 'give more time, such as a budget of 60 s')
    """
    # Twice a small budget is rounded to one digit.
    more = 3.0 * budget if budget >= 20.0 else max(20.0, float(f"{2 * budget:.1g}"))
    return f"give more time, such as a budget of {more:g} s"


def is_about_engine(reason: Reason) -> bool:
    """Whether a reason is about the engine rather than the node: the engine was slower, or was not measured."""
    return reason.text == MEASURED_REASON or reason.text.startswith(NOT_MEASURED)


def update_reasons(plan: Plan, unmeasured: Mapping[str, str]) -> Plan:
    """Update a plan's reasons: if a node is not on an engine of ``unmeasured``, say why that engine was not measured."""
    reasons = list(plan.reasons)
    for index, reason in enumerate(reasons):
        if is_about_engine(reason) and reason.engine in unmeasured:
            reasons[index] = replace(reason, text=f"{NOT_MEASURED}{unmeasured[reason.engine]}")
    return replace(plan, reasons=tuple(reasons)) if tuple(reasons) != plan.reasons else plan


def describe_plan(plan: Plan) -> str:
    """Make a plan's title: ``ort + xla + ort`` in execution order or, for many regions, ``ort (5 regions) + xla (4 regions)``."""
    specs = [launch.engine for launch in plan.launches]
    if not specs:
        return "nothing to run"
    distinct = list(dict.fromkeys(specs))
    if len(specs) <= MAX_LISTED_REGIONS and len(distinct) > 1:
        counts = [(spec, len(list(group))) for spec, group in groupby(specs)]
    else:
        counts = [(spec, specs.count(spec)) for spec in distinct]
    return " + ".join(spec if count == 1 else f"{spec} ({count} regions)" for spec, count in counts)


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    best: str
    seconds: float | None
    elapsed: float
    budget: float
    """Seconds allowed for the search."""

    @property
    def text(self) -> str:
        best = f"; best so far: {self.best}, {1e3 * self.seconds:.4g} ms" if self.seconds is not None else ""
        return f"{self.stage}{best}"


@dataclass(frozen=True)
class PlacementRequest:
    """A Function whose nodes are to be placed on engines, within a budget of seconds."""

    function: Function
    """The Function to place; its shapes must be static."""
    engines: tuple[GraphCompiler, ...]
    """The engines by priority, the implicit one last."""
    context: CompileContext
    clustering: ClusteringOptions = ClusteringOptions()
    implicit: str | None = None
    """The spec of the implicit engine, which was added to the caller's list; None if no engine was added."""
    devices: Mapping[str, str] = FrozenDict()
    """Devices by spec, for engines on another device than the context's."""
    cuda_graph: bool = False
    budget: float = 20.0
    spent: float = 0.0
    """Seconds spent before the search. They count against the budget, up to half of it."""
    retune: bool = False
    """Whether to search even if a decision is stored. Later requests then use the result, even if their budget is larger."""

    @cached_property
    def device_map(self) -> DeviceMap:
        return DeviceMap(self.context.device, self.devices)

    @cached_property
    def contexts(self) -> dict[str, CompileContext]:
        """The context of each engine on its device, by spec; raises DeviceError if a device is unavailable."""
        return {engine.spec: on_device(self.device_map.get_device(engine.spec), self.context) for engine in self.engines}


def unwrap(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Replace each isolated engine by the engine that it wraps: costs are stored under the latter."""
    return [engine.inner if isinstance(engine, IsolatedEngine) else engine for engine in engines]
