"""What tuning gives: the plan that was chosen, who ran against whom, and how it was chosen, as values that print as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.graph import FrozenDict, Function
from xrt.partition import ClusteringOptions
from xrt.partition.cost_table import CostTable
from xrt.partition.device_map import DeviceMap
from xrt.partition.partitioner import MEASURED_REASON
from xrt.runtime import on_device
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.formats.placement_file import CandidateRecord, PrecisionRecord, SelectionOutcome
    from xrt.partition import Plan, Reason


Origin: TypeAlias = Literal["measured", "interrupted", "remembered", "locked", "priority"]
"""``measured`` to the end or to the end of the budget, ``interrupted`` by hand, ``remembered`` from an earlier process, or
``locked`` by a file; ``priority`` is the order of the list, for want of measurements."""
NOT_MEASURED = "not measured: "
"""How the reason of a node begins that is not on an engine of which nothing is known."""
VERDICTS = {"won": "chosen", "tie": "tie", "lost": "slower", "wrong": "wrong", "failed": "failed"}
"""The words that are shown for the outcomes, which files spell in their own way."""
LATE = "not measured in time:"
MANY = 5
"""Regions up to which a plan is called by the engines of all of them."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A plan that took part, or would have."""

    plan: Plan
    verdict: SelectionOutcome
    """``won``: the chosen plan; ``tie``: not distinguishable, within the noise, from the chosen plan or from the baseline;
    ``wrong``: differs from the reference; ``failed``: did not compile or run."""
    seconds: float | None = None
    """Of a call: the median over the rounds; of one that did not run, what its only region was measured to take alone."""
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    """Its time over the baseline's, the median of the rounds: less than one is quicker. None where it did not run."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""
    regions: tuple[float, ...] = ()
    """Seconds of each launch within calls of the whole, in the plan's order; empty where it was not profiled."""

    @property
    def title(self) -> str:
        """The plan by its engines, in the order in which they run."""
        return describe_plan(self.plan)

    @property
    def is_single(self) -> bool:
        """Whether one engine has all of it."""
        return len({launch.engine for launch in self.plan.launches}) <= 1

    def to_dict(self) -> dict[str, Any]:
        """Return the contender as plain data, the plan by its title and its regions' nodes."""
        regions = [{"name": x.name, "engine": x.engine, "nodes": list(x.nodes)} for x in self.plan.launches]
        own = {name: getattr(self, name) for name in _FIGURES}
        return {"title": self.title, **own, "seconds_of_regions": list(self.regions), "plan": regions}

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, is_baseline: bool = False) -> str:
        """Return the verdict, the plan, its time and its ratio; the baseline has no ratio to itself."""
        return describe_candidate(self, self.title, is_baseline=is_baseline)


def describe_candidate(one: CandidateResult | CandidateRecord, title: str, *, is_baseline: bool) -> str:
    """Return the result of a candidate, as `CandidateResult.describe` does."""
    parts = [f"{VERDICTS[one.verdict]}: {title}"]
    if one.seconds is not None:
        parts.append(_time(one.seconds))
    if is_baseline:
        parts.append("the best single engine")
    elif None not in (one.ratio, one.ratio_low, one.ratio_high):
        parts.append(f"{one.ratio:.3f} ({one.ratio_low:.3f} to {one.ratio_high:.3f}) of the best single engine")
    elif one.ratio is not None:
        parts.append(f"{one.ratio:.3f} of the best single engine, in too few rounds for an interval")
    return ", ".join([*parts, *([one.note] if one.note else [])])


_FIGURES = ("verdict", "seconds", "low", "high", "ratio", "ratio_low", "ratio_high", "note")


@dataclass(frozen=True, slots=True)
class CandidateComparison:
    """The contenders, best first; the chosen one is the first, if any ran."""

    contenders: tuple[CandidateResult, ...] = ()
    rounds: int = 0
    baseline: int | None = None
    """Index of the contender that others are compared with: the fastest plan of one engine, else the plan by priority."""

    @property
    def winner(self) -> CandidateResult | None:
        """The one that was chosen; None where nothing ran."""
        return next((one for one in self.contenders if one.verdict == "won"), None)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """A plan that was chosen by measurement. Prints as text."""

    plan: Plan
    table: CostTable = CostTable()
    """All that is known of regions by now."""
    race: CandidateComparison = CandidateComparison()
    how: Origin = "measured"
    budget: float = 0.0
    """Seconds that were asked for."""
    spent: float = 0.0
    measurements: int = 0
    """Regions that were measured, those that failed among them; not those that were known already."""
    notes: tuple[str, ...] = ()
    unmeasured: Mapping[str, str] = FrozenDict()
    """By spec why the whole model was not measured on an engine."""
    is_provisional: bool = False
    """Whether it was decided by too few rounds to tell plans apart."""
    is_explicit: bool = False
    """Whether the caller asked for the search: modules use its decision whatever their budget."""
    is_checked: bool = True
    """Whether the results of the plan were compared with the reference; if not, a module compares its first call."""
    asked: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """The engines with their answers; empty if none was queried."""
    precision: PrecisionRecord | None = None
    """What the plan is computed in, within an error budget; None where none was given."""
    lowered: tuple[GraphCompiler, ...] = field(default=(), compare=False, repr=False)
    """The engines of lower precision that the plan has."""

    @property
    def short_remarks(self) -> tuple[str, ...]:
        """Whether it is final, and which engines were not measured in time."""
        return tuple(one for one in self.remarks if one.startswith(("provisional", LATE)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks besides the comparison: whether it is final, which engines were not measured and why, and notes."""
        late = [spec for spec, reason in self.unmeasured.items() if "budget ended" in reason]
        missing = [f"{LATE} {', '.join(late)}"] if late else []
        missing += [f"not measured on {spec}: {reason}" for spec, reason in self.unmeasured.items() if spec not in late]
        missing += [] if self.is_checked else ["no result was compared with the reference by the search; the first call is"]
        rounds, more = format_count(self.race.rounds, "round"), f"give more time, such as budget={more_than(self.budget):g}"
        provisional = [f"provisional: {rounds} cannot tell plans apart; {more}"] if self.is_provisional else []
        return (*provisional, *missing, *self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return what was chosen as plain data."""
        names = ("how", "budget", "spent", "measurements", "notes", "is_provisional")
        facts = {name: getattr(self, name) for name in names} | {"unmeasured": dict(self.unmeasured)}
        race = {
            "rounds": self.race.rounds,
            "baseline": self.race.baseline,
            "contenders": [c.to_dict() for c in self.race.contenders],
        }
        own = {"precision": self.precision.to_dict()} if self.precision is not None else {}
        return {"chosen": describe_plan(self.plan), **facts, **race, **own}

    def _repr_html_(self) -> str:
        """Return the search as bars, and the plan as pictures for a notebook."""
        from xrt.placement.report import render_tuning_result  # for notebooks alone

        return render_tuning_result(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


_HOW = {
    "measured": "placed by measurement",
    "interrupted": "placed by measurement, which was interrupted",
    "remembered": "placed by an earlier measurement",
    "locked": "placed by a lock",
    "priority": "placed by the order of the list, without a measurement",
}


def _lines(tuned: TuningResult) -> Iterator[str]:
    yield f"{_HOW[tuned.how]}: {describe_plan(tuned.plan)}"
    if tuned.how in ("measured", "interrupted"):
        spent = f"{tuned.spent:.1f} of {tuned.budget:g} s"
        rounds = format_count(tuned.race.rounds, "round")
        yield f"  {format_count(tuned.measurements, 'measurement')} of regions, {rounds}, {spent}"
    for number, contender in enumerate(tuned.race.contenders):
        yield f"  {contender.describe(is_baseline=number == tuned.race.baseline)}"
    yield from (f"  {remark}" for remark in tuned.remarks)
    if tuned.precision is not None:
        from xrt.placement.report import describe_precision  # for those alone who allow an error

        yield from (f"  {line}" for line in describe_precision(tuned.precision))


def format_count(number: int, what: str) -> str:
    """Return a number of things.

    >>> format_count(1, "round"), format_count(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def more_than(budget: float) -> float:
    """Return a larger budget, to be advised: at least 20 seconds.

    >>> more_than(3.0), more_than(20.0), more_than(1000.0)
    (20.0, 60.0, 3000.0)
    """
    return max(20.0, 3.0 * budget) if budget >= 20.0 else max(20.0, float(f"{2 * budget:.1g}"))


def is_of_engine(reason: Reason) -> bool:
    """Whether a reason is of the engine rather than of the node: it was slower, or it was not measured."""
    return reason.text == MEASURED_REASON or reason.text.startswith(NOT_MEASURED)


def with_reasons(plan: Plan, unmeasured: Mapping[str, str]) -> Plan:
    """Return the plan with the reasons why nodes are not on engines that were not measured."""
    found = tuple(
        replace(reason, text=f"{NOT_MEASURED}{unmeasured[reason.engine]}")
        if is_of_engine(reason) and reason.engine in unmeasured
        else reason
        for reason in plan.reasons
    )
    return replace(plan, reasons=found) if found != plan.reasons else plan


def describe_plan(plan: Plan) -> str:
    """Return a plan by its engines, in the order in which they run: ``ort + xla + ort``, or how many regions each has."""
    specs = [launch.engine for launch in plan.launches]
    kinds = list(dict.fromkeys(specs))
    if not specs:
        return "nothing to run"
    if len(specs) <= MANY and len(kinds) > 1:
        runs = [(kind, len(list(alike))) for kind, alike in groupby(specs)]
        return " + ".join(kind if count == 1 else f"{kind} ({count} regions)" for kind, count in runs)
    return " + ".join(kind if specs.count(kind) == 1 else f"{kind} ({specs.count(kind)} regions)" for kind in kinds)


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far tuning is."""

    stage: str
    """In a few words: what is being done."""
    best: str
    """The best plan so far, by its title; empty before there is one."""
    seconds: float | None
    """What a call of that takes, where it is known."""
    elapsed: float
    budget: float

    @property
    def text(self) -> str:
        """The stage, and the best plan by now with its time."""
        best = f"; best so far: {self.best}, {_time(self.seconds)}" if self.seconds is not None else ""
        return f"{self.stage}{best}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class PlacementRequest:
    """A Function whose nodes are to be placed on engines, within a budget of seconds."""

    function: Function
    """Its extents must be known."""
    engines: tuple[GraphCompiler, ...]
    """By priority, the implicit one last."""
    context: CompileContext
    clustering: ClusteringOptions = ClusteringOptions()
    implicit: str | None = None
    """The spec of the implicit engine, which the list does not name."""
    devices: Mapping[str, str] = FrozenDict()
    """Specs of engines that run elsewhere than the context says, with their devices."""
    cuda_graph: bool = False
    """Whether calls on a device are captured, where they can be."""
    budget: float = 20.0
    """Seconds that the search may take."""
    spent: float = 0.0
    """Seconds of the budget that are already used; half of it always remains."""
    retune: bool = False
    """Whether to search even if a decision is stored. Later requests use what is found, whatever their budget."""

    @cached_property
    def device_map(self) -> DeviceMap:
        """Where nodes run."""
        return DeviceMap(self.context.device, self.devices)

    @cached_property
    def contexts(self) -> dict[str, CompileContext]:
        """By spec the context of each engine, on its device; raises DeviceError if one is unavailable."""
        return {engine.spec: on_device(self.device_map.of(engine.spec), self.context) for engine in self.engines}


def unwrap(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines for those that stand in front of a worker: what they cost is not the worker's."""
    return [engine.inner if isinstance(engine, IsolatedEngine) else engine for engine in engines]
