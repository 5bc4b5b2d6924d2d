"""Tuning results: the chosen plan, the other candidates, and how the plan was chosen, as values that print as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.graph import FrozenDict, Function
from xrt.measure.statistics import RatioInterval
from xrt.partition import ClusteringOptions
from xrt.partition.cost_table import CostTable
from xrt.partition.partitioner import MEASURED_REASON
from xrt.partition.support_matrix import DeviceMap
from xrt.runtime import on_device
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.formats.placement_file import CandidateRecord, PrecisionRecord, SelectionOutcome
    from xrt.partition import Plan, Reason

Origin: TypeAlias = Literal["measured", "interrupted", "remembered", "locked", "priority"]
"""How a plan was chosen. ``measured``: by a search that was not interrupted; ``interrupted``: by one that the user ended;
``remembered``: in an earlier process; ``locked``: by a lockfile; ``priority``: by list order, without measurements."""
NOT_MEASURED = "not measured: "
"""Prefix of the reason why a node is not on an engine that was not measured."""
VERDICTS = {
    "won": "chosen",
    "tie": "tie",
    "lost": "slower",
    "late": "not compared",
    "wrong": "wrong",
    "failed": "failed",
}
LATE_PREFIX = "not measured in time:"
MAX_LISTED_REGIONS = 5
"""If a plan has more regions, its title counts the regions by engine instead of listing them in execution order."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    plan: Plan
    verdict: SelectionOutcome
    """``won``: the chosen plan; ``tie``: not distinguishable, within the noise, from the chosen plan or from the baseline;
    ``late``: not compared in time; ``wrong``: differs from the reference; ``failed``: did not compile or run."""
    seconds: float | None = None
    """Median seconds per call over the rounds; for a plan that did not run, the measured seconds of its only region."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval of ``seconds``."""
    ratio: float | None = None
    """Median ratio of its time to the baseline's; below 1 is faster. None if it did not run."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""
    regions: tuple[float, ...] = ()
    """Seconds of each launch during a call, in the plan's order; empty if not profiled."""

    @property
    def title(self) -> str:
        return describe_plan(self.plan)

    @property
    def ratio_interval(self) -> RatioInterval | None:
        """The ratio with its interval; None if the plan did not run, or ran in too few rounds for an interval."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return RatioInterval(self.ratio, self.ratio_low, self.ratio_high)

    @property
    def is_single(self) -> bool:
        return len({launch.engine for launch in self.plan.launches}) <= 1

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data. The plan is described by its title, and by the name, engine and nodes of each region."""
        regions = [{"name": x.name, "engine": x.engine, "nodes": list(x.nodes)} for x in self.plan.launches]
        figures = {name: getattr(self, name) for name in FIGURES}
        return {"title": self.title, **figures, "seconds_of_regions": list(self.regions), "plan": regions}

    def __str__(self) -> str:
        return describe_candidate(self, self.title)


def describe_candidate(candidate: CandidateResult | CandidateRecord, title: str, *, is_baseline: bool = False) -> str:
    """Format a candidate as one line: verdict, ``title``, time, and the ratio to the baseline unless it is the baseline."""
    parts = [f"{VERDICTS[candidate.verdict]}: {title}"]
    if candidate.seconds is not None:
        parts.append(_format_time(candidate.seconds))
    if is_baseline:
        parts.append("the best single engine")
    elif None not in (candidate.ratio, candidate.ratio_low, candidate.ratio_high):
        parts.append(f"{candidate.ratio:.3f} ({candidate.ratio_low:.3f} to {candidate.ratio_high:.3f}) of the best single engine")
    elif candidate.ratio is not None:
        parts.append(f"{candidate.ratio:.3f} of the best single engine, in too few rounds for an interval")
    if candidate.note:
        parts.append(candidate.note)
    return ", ".join(parts)


FIGURES = ("verdict", "seconds", "low", "high", "ratio", "ratio_low", "ratio_high", "note")
"""The fields that a CandidateResult and its record in a file have in common."""


@dataclass(frozen=True, slots=True)
class CandidateComparison:
    """The candidates, best first."""

    contenders: tuple[CandidateResult, ...] = ()
    rounds: int = 0
    baseline: int | None = None
    """Index in `contenders` of the plan that ratios refer to: the fastest single-engine plan, else the plan by priority."""

    @property
    def winner(self) -> CandidateResult | None:
        return next((contender for contender in self.contenders if contender.verdict == "won"), None)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The plan that a search, a lockfile or the priority order has chosen, with all candidates. Prints as text."""

    plan: Plan
    table: CostTable = CostTable()
    race: CandidateComparison = CandidateComparison()
    how: Origin = "measured"
    budget: float = 0.0
    """Seconds allowed for the search."""
    spent: float = 0.0
    measurements: int = 0
    notes: tuple[str, ...] = ()
    unmeasured: Mapping[str, str] = FrozenDict()
    """Why the whole model was not measured on an engine, by spec of the engine."""
    is_provisional: bool = False
    is_explicit: bool = False
    """Whether the user requested the search. Its decision is then used by modules with a larger budget too."""
    is_checked: bool = True
    """Whether the plan's results were compared with the reference. If not, a module compares the results of its first call."""
    queried: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """The engines as proxies that repeat the recorded support; empty if no engine was queried."""
    precision: PrecisionRecord | None = None
    reduced_engines: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)

    @property
    def short_remarks(self) -> tuple[str, ...]:
        """The most important of `remarks`: that the result is provisional, and which engines were not measured in time."""
        return tuple(remark for remark in self.remarks if remark.startswith(("provisional", LATE_PREFIX)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines below the candidates: whether the result is provisional, which engines were not measured and why, and notes."""
        from xrt.html.views import format_count  # a plain call has no search, and loads no views

        remarks = []
        if self.is_provisional:
            remedy = "the search was interrupted" if self.how == "interrupted" else suggest_budget(self.budget)
            remarks.append(f"provisional: {format_count(self.race.rounds, 'round')} cannot tell plans apart; {remedy}")
        # Engines that a larger budget would measure share a line.
        late = [spec for spec, reason in self.unmeasured.items() if "budget ended" in reason]
        if late:
            remarks.append(f"{LATE_PREFIX} {', '.join(late)}")
        remarks += [f"not measured on {spec}: {reason}" for spec, reason in self.unmeasured.items() if spec not in late]
        if not self.is_checked:
            remarks.append("no result was compared with the reference by the search; the first call is")
        return (*remarks, *self.notes)

    def to_dict(self) -> dict[str, Any]:
        names = ("how", "budget", "spent", "measurements", "notes", "is_provisional")
        facts = {name: getattr(self, name) for name in names} | {"unmeasured": dict(self.unmeasured)}
        race = {
            "rounds": self.race.rounds,
            "baseline": self.race.baseline,
            "contenders": [c.to_dict() for c in self.race.contenders],
        }
        precision = {"precision": self.precision.to_dict()} if self.precision is not None else {}
        return {"chosen": describe_plan(self.plan), **facts, **race, **precision}

    def _repr_html_(self) -> str:
        from xrt.placement.report import render_tuning_result  # only for notebooks

        return render_tuning_result(self)

    def __str__(self) -> str:
        return "\n".join(_format_lines(self))


_ORIGIN_TEXTS = {
    "measured": "placed by measurement",
    "interrupted": "placed by measurement, which was interrupted",
    "remembered": "placed by an earlier measurement",
    "locked": "placed by a lock",
    "priority": "placed by the order of the list, without a measurement",
}


def _format_lines(tuned: TuningResult) -> Iterator[str]:
    from xrt.html.views import format_count

    yield f"{_ORIGIN_TEXTS[tuned.how]}: {describe_plan(tuned.plan)}"
    if tuned.how in ("measured", "interrupted"):
        spent = f"{tuned.spent:.1f} of {tuned.budget:g} s"
        rounds = format_count(tuned.race.rounds, "round")
        yield f"  {format_count(tuned.measurements, 'measurement')} of regions, {rounds}, {spent}"
    for index, contender in enumerate(tuned.race.contenders):
        yield f"  {describe_candidate(contender, contender.title, is_baseline=index == tuned.race.baseline)}"
    yield from (f"  {remark}" for remark in tuned.remarks)
    if tuned.precision is not None:
        from xrt.placement.report import describe_precision  # only with an error budget

        yield from (f"  {line}" for line in describe_precision(tuned.precision))


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


def _format_time(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


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
        best = f"; best so far: {self.best}, {_format_time(self.seconds)}" if self.seconds is not None else ""
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
