"""Known failures: which cases an engine fails for a known reason, checked in both directions.

A failure that an entry covers is a gap and no failure. An entry whose case does not fail any more is a failure itself,
until it is deleted; so a list of them never says more than is true.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from xrt.testing.report import ConformanceReport, Outcome, ResultWord

__all__ = ["GapWord", "KnownFailure", "settle"]

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
