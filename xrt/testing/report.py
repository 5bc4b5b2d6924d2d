"""What came of a conformance run: one outcome per case, and the counts."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

__all__ = ["Outcome", "Report", "Word"]


class Word(enum.StrEnum):
    """What came of one case."""

    PASSED = "passed"
    DECLINED = "declined"
    """The engine said so before the first run: `why_not` answered, or the compile was refused."""
    FAILED = "failed"
    """Any other error, a wrong type or shape, a wrong value, an input written to."""
    GAP = "gap"
    """Failed, and the engine's ledger says so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case, and why."""

    case: str
    word: Word
    reason: str = ""
    """Empty for what passed."""
    operators: tuple[str, ...] = ()
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["case"], Word(data["word"]), data["reason"], tuple(data["operators"]), data["seconds"])


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of one run, in the order of the cases; `to_dict` gives plain data and `from_dict` reads it."""

    engine: str
    """The engine's spec; several with commas between them."""
    outcomes: tuple[Outcome, ...]
    reference: tuple[Outcome, ...] = ()
    """What ``onnx.reference.ReferenceEvaluator`` made of the same cases in the same run; empty when it was not asked."""
    stale: tuple[str, ...] = ()
    """Entries of the ledger that no longer hold: each is a failure too."""

    @property
    def counts(self) -> dict[Word, int]:
        """How many cases came to each word."""
        found = Counter(outcome.word for outcome in self.outcomes)
        return {word: found[word] for word in Word}

    @property
    def ok(self) -> bool:
        """Whether nothing failed that the ledger does not know, and the ledger knows nothing that passes."""
        return not self.counts[Word.FAILED] and not self.stale

    def of(self, word: Word) -> tuple[Outcome, ...]:
        """Return the outcomes of one word."""
        return tuple(outcome for outcome in self.outcomes if outcome.word == word)

    def lost(self, other: Iterable[Outcome]) -> tuple[str, ...]:
        """Return the cases that pass in the other outcomes and not in this run."""
        mine = {outcome.case for outcome in self.of(Word.PASSED)}
        return tuple(o.case for o in other if o.word == Word.PASSED and o.case not in mine)

    def by_operator(self) -> dict[str, dict[Word, int]]:
        """Return the counts per operator, sorted; a case counts for every operator of its main graph."""
        found: dict[str, Counter[Word]] = {}
        for outcome in self.outcomes:
            for operator in outcome.operators:
                found.setdefault(operator, Counter())[outcome.word] += 1
        return {operator: {word: found[operator][word] for word in Word} for operator in sorted(found)}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` gave."""
        outcomes, reference = (tuple(map(Outcome.from_dict, data[key])) for key in ("outcomes", "reference"))
        return cls(data["engine"], outcomes, reference, tuple(data["stale"]))

    @classmethod
    def joined(cls, shares: Iterable[Report]) -> Self:
        """Return one report for the shares of several processes, its cases sorted by name."""
        parts = list(shares)
        outcomes = sorted((o for part in parts for o in part.outcomes), key=lambda o: o.case)
        reference = sorted((o for part in parts for o in part.reference), key=lambda o: o.case)
        return cls(parts[0].engine, tuple(outcomes), tuple(reference), tuple(s for part in parts for s in part.stale))

    def __str__(self) -> str:
        shown = ", ".join(f"{count} {word}" for word, count in self.counts.items())
        lines = [f"{self.engine}: {shown} of {len(self.outcomes)}"]
        if self.reference:
            passed = sum(outcome.word is Word.PASSED for outcome in self.reference)
            lines.append(f"onnx.reference: {passed} passed; lost by {self.engine}: {len(self.lost(self.reference))}")
        lines += [f"  failed {outcome.case}: {outcome.reason}" for outcome in self.of(Word.FAILED)]
        return "\n".join([*lines, *(f"  stale: {entry}" for entry in self.stale)])
