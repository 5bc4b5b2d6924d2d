"""What tuning gives: the plan that was chosen, who ran against whom, and how it was chosen, as values that print as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from xrt.partition import Plan
from xrt.partition.costs import CostTable

__all__ = ["Contender", "How", "Progress", "Race", "Tuned", "Verdict", "title_of"]

Verdict: TypeAlias = Literal["won", "tie", "lost", "wrong", "failed"]

How: TypeAlias = Literal["measured", "interrupted", "remembered", "locked", "priority"]
"""``measured`` to the end or to the end of the budget, ``interrupted`` by hand, ``remembered`` from an earlier process, or
``locked`` by a file; ``priority`` is the order of the list, for want of measurements."""

MANY = 5
"""Regions up to which a plan is called by the engines of all of them."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A plan that took part, or would have."""

    plan: Plan
    verdict: Verdict
    """``won`` is the one that was chosen; ``tie`` cannot be told from it, or from the baseline, beyond the noise; ``wrong``
    differs from the reference; ``failed`` did not compile or run."""
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
        return title_of(self.plan)

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
        parts = [f"{self.verdict}: {self.title}"]
        if self.seconds is not None:
            parts.append(_time(self.seconds))
        if None not in (self.ratio, self.ratio_low, self.ratio_high):
            parts.append(f"{self.ratio:.3f} ({self.ratio_low:.3f} to {self.ratio_high:.3f}) of the baseline")
        return ", ".join([*parts, *([self.note] if self.note else [])])


_FIGURES = ("verdict", "seconds", "low", "high", "ratio", "ratio_low", "ratio_high", "note")


@dataclass(frozen=True, slots=True)
class Race:
    """The contenders, best first; the chosen one is the first, if any ran."""

    contenders: tuple[Contender, ...] = ()
    rounds: int = 0
    baseline: int | None = None
    """Which contender the others are held against: the quickest plan of one engine, or the one by priority if none is."""

    @property
    def winner(self) -> Contender | None:
        """The one that was chosen; None where nothing ran."""
        return next((one for one in self.contenders if one.verdict == "won"), None)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A plan that was chosen by measurement. Prints as text."""

    plan: Plan
    table: CostTable = CostTable()
    """All that is known of regions by now."""
    race: Race = Race()
    how: How = "measured"
    budget: float = 0.0
    """Seconds that were asked for."""
    spent: float = 0.0
    measurements: int = 0
    """Regions that were measured, those that failed among them; not those that were known already."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what was chosen as plain data."""
        facts = {name: getattr(self, name) for name in ("how", "budget", "spent", "measurements", "notes")}
        race = {
            "rounds": self.race.rounds,
            "baseline": self.race.baseline,
            "contenders": [c.to_dict() for c in self.race.contenders],
        }
        return {"chosen": title_of(self.plan), **facts, **race}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


_HOW = {
    "measured": "placed by measurement",
    "interrupted": "placed by measurement, which was interrupted",
    "remembered": "placed by an earlier measurement",
    "locked": "placed by a lock",
    "priority": "placed by the order of the list, without a measurement",
}


def _lines(tuned: Tuned) -> Iterator[str]:
    yield f"{_HOW[tuned.how]}: {title_of(tuned.plan)}"
    if tuned.how in ("measured", "interrupted"):
        spent = f"{tuned.spent:.1f} of {tuned.budget:g} s"
        yield f"  {tuned.measurements} measurements of regions, {tuned.race.rounds} rounds, {spent}"
    for number, contender in enumerate(tuned.race.contenders):
        yield f"  {contender}{' (the baseline)' if number == tuned.race.baseline else ''}"
    yield from (f"  {note}" for note in tuned.notes)


def title_of(plan: Plan) -> str:
    """Return a plan by its engines, in the order in which they run: ``ort + xla + ort``, or how many regions each has."""
    specs = [launch.engine for launch in plan.launches]
    kinds = list(dict.fromkeys(specs))
    if not specs:
        return "nothing to run"
    if len(specs) <= MANY and len(kinds) > 1:
        return " + ".join(specs)
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)
