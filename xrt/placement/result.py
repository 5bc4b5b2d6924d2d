"""Tuning results: the chosen plan, the other candidates, and how the plan was chosen, as values that print as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
"""Displayed word for each verdict; files have the key."""
LATE_PREFIX = "not measured in time:"
MAX_LISTED_REGIONS = 5
"""Maximum regions of a plan whose title lists the engine of each; longer titles count regions by engine."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A candidate plan and its result."""

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
        """The plan's name in tables and messages: its engines in execution order."""
        return describe_plan(self.plan)

    @property
    def ratio_interval(self) -> RatioInterval | None:
        """The ratio with its interval; None if the plan did not run, or ran in too few rounds for an interval."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return RatioInterval(self.ratio, self.ratio_low, self.ratio_high)

    @property
    def is_single(self) -> bool:
        """Whether the plan uses at most one engine."""
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
    return ", ".join([*parts, *([candidate.note] if candidate.note else [])])


FIGURES = ("verdict", "seconds", "low", "high", "ratio", "ratio_low", "ratio_high", "note")
"""The fields that a CandidateResult and its record in a file have in common."""


@dataclass(frozen=True, slots=True)
class CandidateComparison:
    """The candidates, best first. The first one is the chosen plan, if any ran."""

    contenders: tuple[CandidateResult, ...] = ()
    rounds: int = 0
    baseline: int | None = None
    """Index in `contenders` of the plan that ratios refer to: the fastest single-engine plan, else the plan by priority."""

    @property
    def winner(self) -> CandidateResult | None:
        """The chosen candidate; None if none ran."""
        return next((contender for contender in self.contenders if contender.verdict == "won"), None)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The plan that a search, a lockfile or the priority order has chosen, with all candidates. Prints as text."""

    plan: Plan
    table: CostTable = CostTable()
    """All measured costs."""
    race: CandidateComparison = CandidateComparison()
    how: Origin = "measured"
    budget: float = 0.0
    """Seconds allowed for the search."""
    spent: float = 0.0
    """Seconds that the search took."""
    measurements: int = 0
    """Number of regions measured in this search, including failed ones."""
    notes: tuple[str, ...] = ()
    unmeasured: Mapping[str, str] = FrozenDict()
    """By engine spec, why the whole model was not measured on it."""
    is_provisional: bool = False
    """Whether too few rounds ran to tell plans apart."""
    is_explicit: bool = False
    """Whether the user requested the search. Its decision is then used by modules with a larger budget too."""
    is_checked: bool = True
    """Whether the plan's results were compared with the reference. If not, a module compares the results of its first call."""
    queried: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """The engines as proxies that repeat the recorded support; empty if no engine was queried."""
    precision: PrecisionRecord | None = None
    """The precision and the measured error of the plan; None without an error budget."""
    lowered: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """Engines that only a plan of lower precision uses."""

    @property
    def short_remarks(self) -> tuple[str, ...]:
        """The most important of `remarks`: that the result is provisional, and which engines were not measured in time."""
        return tuple(remark for remark in self.remarks if remark.startswith(("provisional", LATE_PREFIX)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines below the candidates: whether the result is provisional, which engines were not measured and why, and notes."""
        from xrt.html.views import format_count  # a plain call has no search, and loads no views

        # One line for all engines that a larger budget would measure; the others have a reason each.
        late = [spec for spec, reason in self.unmeasured.items() if "budget ended" in reason]
        missing = [f"{LATE_PREFIX} {', '.join(late)}"] if late else []
        missing += [f"not measured on {spec}: {reason}" for spec, reason in self.unmeasured.items() if spec not in late]
        missing += [] if self.is_checked else ["no result was compared with the reference by the search; the first call is"]
        rounds, more = format_count(self.race.rounds, "round"), suggest_budget(self.budget)
        more = "the search was interrupted" if self.how == "interrupted" else more
        provisional = [f"provisional: {rounds} cannot tell plans apart; {more}"] if self.is_provisional else []
        return (*provisional, *missing, *self.notes)

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
    """Suggest a longer search in words: about two or three times ``budget``, at least 20 seconds.

    >>> suggest_budget(3.0), suggest_budget(20.0)
    ('give more time, such as a budget of 20 s', 'give more time, such as a budget of 60 s')
    """
    more = max(20.0, 3.0 * budget) if budget >= 20.0 else max(20.0, float(f"{2 * budget:.1g}"))
    return f"give more time, such as a budget of {more:g} s"


def is_of_engine(reason: Reason) -> bool:
    """Whether a reason is about the engine rather than the node: it was slower, or it was not measured."""
    return reason.text == MEASURED_REASON or reason.text.startswith(NOT_MEASURED)


def update_reasons(plan: Plan, unmeasured: Mapping[str, str]) -> Plan:
    """Update a plan's reasons: for a node that is not on an engine of ``unmeasured``, why that engine was not measured."""
    reasons = tuple(
        replace(reason, text=f"{NOT_MEASURED}{unmeasured[reason.engine]}")
        if is_of_engine(reason) and reason.engine in unmeasured
        else reason
        for reason in plan.reasons
    )
    return replace(plan, reasons=reasons) if reasons != plan.reasons else plan


def describe_plan(plan: Plan) -> str:
    """Make a plan's title: ``ort + xla + ort`` in execution order or, if that is long, engines with numbers of regions."""
    specs = [launch.engine for launch in plan.launches]
    kinds = list(dict.fromkeys(specs))
    if not specs:
        return "nothing to run"
    if len(specs) <= MAX_LISTED_REGIONS and len(kinds) > 1:
        # In execution order as long as that is short enough to read.
        counts = [(kind, len(list(run))) for kind, run in groupby(specs)]
    else:
        counts = [(kind, specs.count(kind)) for kind in kinds]
    return " + ".join(kind if count == 1 else f"{kind} ({count} regions)" for kind, count in counts)


def _format_time(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a search."""

    stage: str
    """What the search does now, in a few words."""
    best: str
    """The title of the best plan so far; empty if there is none."""
    seconds: float | None
    """Seconds per call of the best plan, if known."""
    elapsed: float
    """Seconds since the search began."""
    budget: float
    """Seconds allowed for the search."""

    @property
    def text(self) -> str:
        """One line: the stage, and the best plan so far with its time."""
        best = f"; best so far: {self.best}, {_format_time(self.seconds)}" if self.seconds is not None else ""
        return f"{self.stage}{best}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    """The spec of the implicit engine, which the caller did not list."""
    devices: Mapping[str, str] = FrozenDict()
    """Devices by spec, for engines on another device than the context's."""
    cuda_graph: bool = False
    budget: float = 20.0
    spent: float = 0.0
    """Seconds of the budget already spent; at least half of it always remains."""
    retune: bool = False
    """Whether to search even if a decision is stored. Later requests then use the result, even if their budget is larger."""

    @cached_property
    def device_map(self) -> DeviceMap:
        """The device of each engine."""
        return DeviceMap(self.context.device, self.devices)

    @cached_property
    def contexts(self) -> dict[str, CompileContext]:
        """The context of each engine on its device, by spec; raises DeviceError if a device is unavailable."""
        return {engine.spec: on_device(self.device_map.of(engine.spec), self.context) for engine in self.engines}


def unwrap(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Replace each isolated engine by the engine that it wraps: costs are stored under the latter."""
    return [engine.inner if isinstance(engine, IsolatedEngine) else engine for engine in engines]
