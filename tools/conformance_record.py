"""What `make conformance` found, as a file that can be compared case by case: ``docs/conformance.json``."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from xrt.testing import ConformanceReport, ResultWord

TOP = Path(__file__).parents[1]
RECORD = TOP / "docs" / "conformance.json"

LONGEST = 160
"""Characters of a reason that are kept: some libraries tell much."""
LETTERS = {ResultWord.PASSED: "P", ResultWord.DECLINED: "D", ResultWord.FAILED: "F", ResultWord.GAP: "G"}


@dataclass(frozen=True, slots=True)
class Way:
    """One run over all the tests."""

    engines: tuple[str, ...]
    alternate: bool = False

    @property
    def name(self) -> str:
        return "/".join(self.engines) + " alternating" if self.alternate else ",".join(self.engines)

    @property
    def arguments(self) -> list[str]:
        """What stands behind ``xrt conformance``."""
        return [",".join(self.engines), *["--alternate"] * self.alternate]


ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree", "torch")
WAYS = (
    *(Way((engine,)) for engine in ENGINES),
    Way(("ort", "toy")),
    Way(("tvm", "toy")),
    Way(("ort", "tvm", "toy")),
    Way(("ort", "toy"), alternate=True),
    Way(("tvm", "toy"), alternate=True),
    Way(("openvino", "toy"), alternate=True),
    Way(("xla", "toy"), alternate=True),
    Way(("torch", "toy"), alternate=True),
)
LIBRARIES = ("onnx", "numpy", "onnxruntime", "apache-tvm", "openvino", "jax", "iree-base-compiler", "torch")


@dataclass(frozen=True, slots=True)
class Entry:
    """One case, and what came of it in each way."""

    group: str
    case: str
    operators: tuple[str, ...]
    letters: str
    """One letter per way, in their order."""

    def word(self, way: str) -> ResultWord:
        letter = self.letters[[w.name for w in WAYS].index(way)]
        return next(word for word, own in LETTERS.items() if own == letter)


@dataclass(frozen=True)
class Record:
    """What came of every case in every way, and of what versions that is true."""

    versions: Mapping[str, str]
    mixed: Mapping[str, int]
    """How many cases of each way ran on more than one engine."""
    declined: Mapping[str, Mapping[str, str]]
    """For each engine the operators of which no case passes, and the reason that was given for the first."""
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, reports: Mapping[str, ConformanceReport]) -> Record:
        """Return the record of one report per way; the cases are in the order of the first."""
        found = {name: {o.case: o for o in report.outcomes} for name, report in reports.items()}
        first = next(iter(reports.values()))
        entries = tuple(
            Entry(o.group, o.case, o.operators, "".join(LETTERS[found[way.name][o.case].word] for way in WAYS))
            for o in first.outcomes
        )
        declined = {engine: dict(_declined(reports[engine])) for engine in ENGINES}
        return cls(versions(), {name: report.mixed for name, report in reports.items()}, declined, entries)

    def renewed(self, reports: Mapping[str, ConformanceReport]) -> Record:
        """Return the record in which some ways are those of reports. Raises SystemExit where versions or cases are others."""
        found = {name: {o.case: LETTERS[o.word] for o in report.outcomes} for name, report in reports.items()}
        cases = {entry.case for entry in self.entries}
        if self.versions != versions() or any(cases != set(letters) for letters in found.values()):
            raise SystemExit("the record is of other versions or tests: run every way anew, without --only")
        entries = tuple(
            replace(
                entry,
                letters="".join(found.get(w.name, {}).get(entry.case, old) for w, old in zip(WAYS, entry.letters, strict=True)),
            )
            for entry in self.entries
        )
        declined = {engine: dict(_declined(reports[engine])) for engine in ENGINES if engine in reports}
        mixed = {name: report.mixed for name, report in reports.items()}
        return Record(self.versions, {**self.mixed, **mixed}, {**self.declined, **declined}, entries)

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        data = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(
            Entry(group, case, tuple(operators.split()), letters)
            for group, cases in data["cases"].items()
            for case, (operators, letters) in cases.items()
        )
        return cls(data["versions"], data["mixed"], data["declined"], entries)

    def __str__(self) -> str:
        """Return the file's text: a line for each case, so that a change can be reviewed."""
        head = {"versions": self.versions, "ways": [way.name for way in WAYS], "mixed": self.mixed, "declined": self.declined}
        groups = ",\n".join(_group_text(group, self.of_group(group)) for group in self.groups)
        return f'{json.dumps(head, indent=1)[:-2]},\n "cases": {{\n{groups}\n }}\n}}\n'

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.group for entry in self.entries))

    def of_group(self, group: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.group == group)

    def cases(self, way: str, *words: ResultWord) -> set[str]:
        """Return the cases that came to one of those words."""
        return {entry.case for entry in self.entries if entry.word(way) in words}

    def count(self, way: str, word: ResultWord, entries: Iterable[Entry] | None = None) -> int:
        return sum(entry.word(way) is word for entry in (self.entries if entries is None else entries))

    def faults(self) -> list[str]:
        """Return what breaks a law: a failure, a case lost with toy behind, a case lost by alternating."""
        return [fault for way in WAYS for fault in self._faults(way)]

    def _faults(self, way: Way) -> Iterator[str]:
        known = self.cases(way.name, ResultWord.PASSED, ResultWord.GAP)
        yield from (f"{way.name} fails {case}" for case in sorted(self.cases(way.name, ResultWord.FAILED)))
        if len(way.engines) > 1 and way.engines[-1] == "toy":
            yield from (f"{way.name} loses {case}, which toy passes" for case in sorted(self.passed_by("toy") - known))
        if way.alternate:
            yield from (f"{way.name} loses {case}, which each passes" for case in sorted(self.passed_by(*way.engines) - known))

    def passed_by(self, *engines: str) -> set[str]:
        """Return the cases that each of the engines passes alone."""
        return set.intersection(*(self.cases(engine, ResultWord.PASSED) for engine in engines))


def _declined(report: ConformanceReport) -> Iterator[tuple[str, str]]:
    """Yield each operator of which no case passes, with the first reason given for it, or else for a case that has it."""
    declined = report.of(ResultWord.DECLINED)
    for operator, counts in report.by_operator().items():
        with_it = [outcome for outcome in declined if operator in outcome.operators]
        if with_it and not counts[ResultWord.PASSED]:
            own = [outcome for outcome in with_it if outcome.reason.startswith(f"{operator}: ")]
            yield operator, _short((own or with_it)[0].reason.removeprefix(f"{operator}: "))


def _short(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"


def _group_text(group: str, entries: Iterable[Entry]) -> str:
    lines = ",\n".join(f"   {json.dumps(e.case)}: {json.dumps([' '.join(e.operators), e.letters])}" for e in entries)
    return f"  {json.dumps(group)}: {{\n{lines}\n  }}"


def versions() -> dict[str, str]:
    """Return the versions that the figures belong to."""
    python = {"python": platform.python_version(), "machine": platform.machine()}
    return python | {name: metadata.version(name) for name in LIBRARIES}
