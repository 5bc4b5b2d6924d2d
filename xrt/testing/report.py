"""What came of a conformance run: one outcome per case, and the counts."""

from __future__ import annotations

import enum
import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeAlias


class ResultWord(enum.StrEnum):
    """What came of one case."""

    PASSED = "passed"
    DECLINED = "declined"
    """The engine said so before the first run: `why_not` answered, or the compile was refused."""
    FAILED = "failed"
    """Any other error, a wrong type or shape, a wrong value, an input written to."""
    GAP = "gap"
    """Failed, as a known failure or a deviation that the engine declares says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case, and why."""

    case: str
    word: ResultWord
    reason: str = ""
    """Empty for what passed."""
    operators: tuple[str, ...] = ()
    seconds: float = 0.0
    group: str = "node"
    """The group of tests that the case belongs to."""
    placed: tuple[tuple[str, str], ...] = ()
    """Which engines the operators ran on, as (operator, engine) pairs; empty for what did not run."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that it ran on, sorted."""
        return tuple(sorted({engine for _, engine in self.placed}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        placed = tuple((operator, engine) for operator, engine in data["placed"])
        lists = {"word": ResultWord(data["word"]), "operators": tuple(data["operators"]), "placed": placed}
        return cls(**{**data, **lists})


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The outcomes of one run, in the order of the cases; `to_dict` gives plain data and `from_dict` reads it."""

    engine: str
    """The engine's spec; several with commas between them, and ``, alternating`` behind where neighbours are kept apart."""
    outcomes: tuple[Outcome, ...]
    stale: tuple[str, ...] = ()
    """Known failures that no longer fail: each is a failure too."""

    @property
    def counts(self) -> dict[ResultWord, int]:
        """How many cases came to each word."""
        found = Counter(outcome.word for outcome in self.outcomes)
        return {word: found[word] for word in ResultWord}

    @property
    def ok(self) -> bool:
        """Whether nothing failed but known failures, and none of these passed."""
        return not self.counts[ResultWord.FAILED] and not self.stale

    def of(self, word: ResultWord) -> tuple[Outcome, ...]:
        """Return the outcomes of one word."""
        return tuple(outcome for outcome in self.outcomes if outcome.word == word)

    @property
    def mixed(self) -> int:
        """How many cases ran on more than one engine."""
        return sum(len(outcome.engines) > 1 for outcome in self.outcomes)

    def by_group(self) -> dict[str, dict[ResultWord, int]]:
        """Return the counts per group of tests, in the order of the cases."""
        return _counted((outcome.group, outcome.word) for outcome in self.outcomes)

    def by_operator(self) -> dict[str, dict[ResultWord, int]]:
        """Return the counts per operator, sorted; a case counts for every operator of its main graph."""
        counts = _counted((operator, outcome.word) for outcome in self.outcomes for operator in outcome.operators)
        return dict(sorted(counts.items()))

    def placements(self) -> dict[str, dict[str, int]]:
        """Return for each operator that ran, bodies left out, the engines that it ran on, and in how many cases."""
        found: dict[str, Counter[str]] = {}
        for operator, engine in (pair for outcome in self.outcomes for pair in outcome.placed):
            found.setdefault(operator, Counter())[engine] += 1
        return {operator: dict(found[operator].most_common()) for operator in sorted(found)}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, numbers and strings; counts are next to what they count."""
        return {**asdict(self), "counts": self.counts, "groups": self.by_group(), "operators": self.by_operator()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` gave."""
        return cls(data["engine"], tuple(map(Outcome.from_dict, data["outcomes"])), tuple(data["stale"]))

    def __str__(self) -> str:
        shown = ", ".join(f"{count} {word}" for word, count in self.counts.items())
        lines = [f"{self.engine}: {shown} of {len(self.outcomes)}" + f"; {self.mixed} ran on several engines" * bool(self.mixed)]
        lines += [f"  failed {outcome.case}: {outcome.reason}" for outcome in self.of(ResultWord.FAILED)]
        return "\n".join([*lines, *(f"  stale: {entry}" for entry in self.stale)])


def _counted(pairs: Iterable[tuple[str, ResultWord]]) -> dict[str, dict[ResultWord, int]]:
    found: dict[str, Counter[ResultWord]] = {}
    for name, word in pairs:
        found.setdefault(name, Counter())[word] += 1
    return {name: {word: counts[word] for word in ResultWord} for name, counts in found.items()}


GapWord: TypeAlias = Literal["not implemented", "not upstream", "never"]


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Cases that an engine fails, and why."""

    cases: str
    """A glob over case names; every case that it matches must fail."""
    word: GapWord
    """``not implemented``: the engine author can fix it; ``not upstream``: the library can; ``never``: it is permanent."""
    reason: str
    link: str
    """Where the library or the standard says so, or where it was reported."""
    everywhere: bool = True
    """Whether it fails on every processor. Numbers at the edge of a tolerance do not, so such an entry is never stale."""

    def covers(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.cases)

    def __str__(self) -> str:
        return f"{self.cases} ({self.word}: {self.reason})"


def settle(
    report: ConformanceReport, gaps: Sequence[KnownFailure], *, complete: bool = True, alone: bool = True
) -> ConformanceReport:
    """Return the report with the failures that an entry covers as gaps, and the entries that do not hold as stale.

    ``complete`` says that the run held every case, so that an entry that matches none is stale as well. ``alone`` says
    that one engine ran alone; in a list, another may have taken the node, so nothing is called stale.
    """
    outcomes = tuple(_settled(outcome, gaps) for outcome in report.outcomes)
    if not alone:
        return replace(report, outcomes=outcomes)
    stale = tuple(text for gap in gaps for text in _faults(gap, outcomes, complete))
    return replace(report, outcomes=outcomes, stale=report.stale + stale)


def _settled(outcome: Outcome, gaps: Sequence[KnownFailure]) -> Outcome:
    if outcome.word is not ResultWord.FAILED:
        return outcome
    gap = next((gap for gap in gaps if gap.covers(outcome.case)), None)
    return (
        outcome if gap is None else replace(outcome, word=ResultWord.GAP, reason=f"{gap.word}: {gap.reason} [{outcome.reason}]")
    )


def _faults(gap: KnownFailure, outcomes: Sequence[Outcome], complete: bool) -> list[str]:
    covered = [outcome for outcome in outcomes if gap.covers(outcome.case)]
    if not covered:
        return [f"{gap} matches no case; delete the entry"] if complete else []
    if not gap.everywhere:
        return []
    return [f"{gap}: {o.case} {o.word}; narrow or delete the entry" for o in covered if o.word is not ResultWord.GAP]
