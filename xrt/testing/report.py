"""The report of a conformance run: one outcome per case, and counts."""

from __future__ import annotations

import enum
import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeAlias


class ResultWord(enum.StrEnum):
    """The result of one case."""

    PASSED = "passed"
    DECLINED = "declined"
    """Refused before the first run, by `why_not` or `compile`."""
    FAILED = "failed"
    """Any other error, a wrong type, shape or value, or an input that was written to."""
    GAP = "gap"
    """Failed as expected: a known failure, or a deviation that the engine declares."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case, with the reason."""

    case: str
    word: ResultWord
    reason: str = ""
    """Empty if the case passed."""
    operators: tuple[str, ...] = ()
    seconds: float = 0.0
    group: str = "node"
    """A key of `xrt.testing.cases.GROUPS`."""
    placed: tuple[tuple[str, str], ...] = ()
    """Sorted (operator, engine) pairs: the engines to which nodes were assigned; empty if the case was not compiled."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The sorted names of the engines in `placed`."""
        return tuple(sorted({engine for _, engine in self.placed}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        placed = tuple((operator, engine) for operator, engine in data["placed"])
        lists = {"word": ResultWord(data["word"]), "operators": tuple(data["operators"]), "placed": placed}
        return cls(**{**data, **lists})


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The outcomes of one run, in the order of the cases. `to_dict` and `from_dict` convert it to and from plain data."""

    engine: str
    """The spec of the engine, or several separated by commas, followed by ``, alternating`` if nodes alternated."""
    outcomes: tuple[Outcome, ...]
    stale: tuple[str, ...] = ()
    """Messages about known failures that did not fail or match no case; each makes the run fail."""

    @property
    def counts(self) -> dict[ResultWord, int]:
        """The number of cases per result, with 0 for results that do not occur."""
        counts = Counter(outcome.word for outcome in self.outcomes)
        return {word: counts[word] for word in ResultWord}

    @property
    def ok(self) -> bool:
        """Whether all failures are known and no known failure is stale."""
        return not self.counts[ResultWord.FAILED] and not self.stale

    def of(self, word: ResultWord) -> tuple[Outcome, ...]:
        """Filter the outcomes by result."""
        return tuple(outcome for outcome in self.outcomes if outcome.word == word)

    @property
    def mixed(self) -> int:
        """The number of cases that ran on more than one engine."""
        return sum(len(outcome.engines) > 1 for outcome in self.outcomes)

    def by_group(self) -> dict[str, dict[ResultWord, int]]:
        """Count results per group, in the order of the cases."""
        return _count_words((outcome.group, outcome.word) for outcome in self.outcomes)

    def by_operator(self) -> dict[str, dict[ResultWord, int]]:
        """Count results per operator, sorted by operator; a case counts for every operator of its main graph."""
        counts = _count_words((operator, outcome.word) for outcome in self.outcomes for operator in outcome.operators)
        return dict(sorted(counts.items()))

    def placements(self) -> dict[str, dict[str, int]]:
        """Count cases per operator and engine that it ran on, most frequent engine first; operators in bodies are not counted."""
        counts: dict[str, Counter[str]] = {}
        for operator, engine in (pair for outcome in self.outcomes for pair in outcome.placed):
            counts.setdefault(operator, Counter())[engine] += 1
        return {operator: dict(counts[operator].most_common()) for operator in sorted(counts)}

    def to_dict(self) -> dict[str, Any]:
        """Convert to dictionaries, lists, numbers and strings; adds the counts in total, per group and per operator."""
        return {**asdict(self), "counts": self.counts, "groups": self.by_group(), "operators": self.by_operator()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; the added counts are ignored."""
        return cls(data["engine"], tuple(map(Outcome.from_dict, data["outcomes"])), tuple(data["stale"]))

    def __str__(self) -> str:
        shown = ", ".join(f"{count} {word}" for word, count in self.counts.items())
        lines = [f"{self.engine}: {shown} of {len(self.outcomes)}" + f"; {self.mixed} ran on several engines" * bool(self.mixed)]
        lines += [f"  failed {outcome.case}: {outcome.reason}" for outcome in self.of(ResultWord.FAILED)]
        return "\n".join([*lines, *(f"  stale: {entry}" for entry in self.stale)])


def _count_words(pairs: Iterable[tuple[str, ResultWord]]) -> dict[str, dict[ResultWord, int]]:
    totals: dict[str, Counter[ResultWord]] = {}
    for name, word in pairs:
        totals.setdefault(name, Counter())[word] += 1
    return {name: {word: counts[word] for word in ResultWord} for name, counts in totals.items()}


GapWord: TypeAlias = Literal["not implemented", "not upstream", "never"]


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Cases that an engine is known to fail, with the reason."""

    cases: str
    """A glob over case names; every case that it matches must fail."""
    word: GapWord
    """Who can fix it: the engine author (``not implemented``), the library (``not upstream``) or nobody (``never``)."""
    reason: str
    link: str
    """Where the library or the standard documents it, or the bug report."""
    everywhere: bool = True
    """Whether it fails on every processor. False for numbers close to a tolerance: such an entry may pass without being stale."""

    def covers(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.cases)

    def __str__(self) -> str:
        return f"{self.cases} ({self.word}: {self.reason})"


def settle(
    report: ConformanceReport, gaps: Sequence[KnownFailure], *, complete: bool = True, alone: bool = True
) -> ConformanceReport:
    """Turn failures that a known failure covers into gaps, and list known failures that do not hold as stale.

    ``complete``: the run included all cases, so an entry that matches no case is stale too. ``alone``: the run had one engine;
    with several, another engine may have run the node, so no entry is reported as stale.
    """
    outcomes = tuple(_settle_outcome(outcome, gaps) for outcome in report.outcomes)
    if not alone:
        return replace(report, outcomes=outcomes)
    stale = tuple(text for gap in gaps for text in _list_faults(gap, outcomes, complete))
    return replace(report, outcomes=outcomes, stale=report.stale + stale)


def _settle_outcome(outcome: Outcome, gaps: Sequence[KnownFailure]) -> Outcome:
    if outcome.word is not ResultWord.FAILED:
        return outcome
    gap = next((gap for gap in gaps if gap.covers(outcome.case)), None)
    return (
        outcome if gap is None else replace(outcome, word=ResultWord.GAP, reason=f"{gap.word}: {gap.reason} [{outcome.reason}]")
    )


def _list_faults(gap: KnownFailure, outcomes: Sequence[Outcome], complete: bool) -> list[str]:
    covered = [outcome for outcome in outcomes if gap.covers(outcome.case)]
    if not covered:
        return [f"{gap} matches no case; delete the entry"] if complete else []
    if not gap.everywhere:
        return []
    return [f"{gap}: {o.case} {o.word}; narrow or delete the entry" for o in covered if o.word is not ResultWord.GAP]
