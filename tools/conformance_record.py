"""The record of `make conformance`, ``docs/conformance.json``: the result of every case in every configuration."""

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

REASON_WIDTH = 160
"""In characters: some libraries explain at length."""
LETTERS = {ResultWord.PASSED: "P", ResultWord.DECLINED: "D", ResultWord.FAILED: "F", ResultWord.GAP: "G"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Engines that run all the tests: in order of preference, or alternating from node to node."""

    engines: tuple[str, ...]
    alternate: bool = False

    @property
    def name(self) -> str:
        return "/".join(self.engines) + " alternating" if self.alternate else ",".join(self.engines)

    @property
    def arguments(self) -> list[str]:
        """Arguments of ``xrt conformance``."""
        return [",".join(self.engines), *["--alternate"] * self.alternate]


ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree", "torch")
CONFIGURATIONS = (
    *(Configuration((engine,)) for engine in ENGINES),
    Configuration(("ort", "toy")),
    Configuration(("tvm", "toy")),
    Configuration(("ort", "tvm", "toy")),
    Configuration(("ort", "toy"), alternate=True),
    Configuration(("tvm", "toy"), alternate=True),
    Configuration(("openvino", "toy"), alternate=True),
    Configuration(("xla", "toy"), alternate=True),
    Configuration(("torch", "toy"), alternate=True),
)
LIBRARIES = ("onnx", "numpy", "onnxruntime", "apache-tvm", "openvino", "jax", "iree-base-compiler", "torch")


@dataclass(frozen=True, slots=True)
class Entry:
    """The results of one case."""

    group: str
    case: str
    operators: tuple[str, ...]
    letters: str
    """One letter per configuration, in the order of CONFIGURATIONS."""

    def word(self, configuration: str) -> ResultWord:
        letter = self.letters[[c.name for c in CONFIGURATIONS].index(configuration)]
        return next(word for word, code in LETTERS.items() if code == letter)


@dataclass(frozen=True)
class Record:
    """The results of every case in every configuration, with the versions of the libraries."""

    versions: Mapping[str, str]
    mixed: Mapping[str, int]
    """The number of cases of each configuration that ran on more than one engine."""
    declined: Mapping[str, Mapping[str, str]]
    """For each engine the operators of which no case passes, with the reason of the first case."""
    entries: tuple[Entry, ...]

    @classmethod
    def from_reports(cls, reports: Mapping[str, ConformanceReport]) -> Record:
        """Combine one report per configuration; the cases are in the order of the first report."""
        outcomes = {name: {o.case: o for o in report.outcomes} for name, report in reports.items()}
        first = next(iter(reports.values()))
        entries = tuple(
            Entry(o.group, o.case, o.operators, "".join(LETTERS[outcomes[c.name][o.case].word] for c in CONFIGURATIONS))
            for o in first.outcomes
        )
        declined = {engine: dict(_list_declined(reports[engine])) for engine in ENGINES}
        return cls(get_versions(), {name: report.mixed for name, report in reports.items()}, declined, entries)

    def update(self, reports: Mapping[str, ConformanceReport]) -> Record:
        """Replace the results of some configurations; raises SystemExit if versions or cases differ from the record's."""
        letters_of = {name: {o.case: LETTERS[o.word] for o in report.outcomes} for name, report in reports.items()}
        cases = {entry.case for entry in self.entries}
        if self.versions != get_versions() or any(cases != set(letters) for letters in letters_of.values()):
            raise SystemExit("the record is of other versions or tests: run all configurations, without --only")
        entries = tuple(
            replace(
                entry,
                letters="".join(
                    letters_of.get(c.name, {}).get(entry.case, old) for c, old in zip(CONFIGURATIONS, entry.letters, strict=True)
                ),
            )
            for entry in self.entries
        )
        declined = {engine: dict(_list_declined(reports[engine])) for engine in ENGINES if engine in reports}
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
        """The text of the file: one line per case, so that a diff can be reviewed."""
        head = {
            "versions": self.versions,
            "configurations": [c.name for c in CONFIGURATIONS],
            "mixed": self.mixed,
            "declined": self.declined,
        }
        groups = ",\n".join(_format_group(group, self.list_group(group)) for group in self.groups)
        return f'{json.dumps(head, indent=1)[:-2]},\n "cases": {{\n{groups}\n }}\n}}\n'

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.group for entry in self.entries))

    def list_group(self, group: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.group == group)

    def get_cases(self, configuration: str, *words: ResultWord) -> set[str]:
        """The cases with one of these results."""
        return {entry.case for entry in self.entries if entry.word(configuration) in words}

    def count(self, configuration: str, word: ResultWord, entries: Iterable[Entry] | None = None) -> int:
        return sum(entry.word(configuration) is word for entry in (self.entries if entries is None else entries))

    def list_faults(self) -> list[str]:
        """List failures, cases that fail with toy as fallback, and cases that fail only when engines alternate."""
        return [fault for configuration in CONFIGURATIONS for fault in self._list_faults(configuration)]

    def _list_faults(self, configuration: Configuration) -> Iterator[str]:
        accepted = self.get_cases(configuration.name, ResultWord.PASSED, ResultWord.GAP)
        yield from (
            f"{configuration.name} fails {case}" for case in sorted(self.get_cases(configuration.name, ResultWord.FAILED))
        )
        if len(configuration.engines) > 1 and configuration.engines[-1] == "toy":
            yield from (
                f"{configuration.name} loses {case}, which toy passes" for case in sorted(self.get_passed_by("toy") - accepted)
            )
        if configuration.alternate:
            yield from (
                f"{configuration.name} loses {case}, which each passes"
                for case in sorted(self.get_passed_by(*configuration.engines) - accepted)
            )

    def get_passed_by(self, *engines: str) -> set[str]:
        """The cases that each of the engines passes alone."""
        return set.intersection(*(self.get_cases(engine, ResultWord.PASSED) for engine in engines))


def _list_declined(report: ConformanceReport) -> Iterator[tuple[str, str]]:
    """Yield each operator of which no case passes, with a reason that begins with its name, or else that of its first case."""
    declined = report.list_outcomes(ResultWord.DECLINED)
    for operator, counts in report.count_by_operator().items():
        cases = [outcome for outcome in declined if operator in outcome.operators]
        if cases and not counts[ResultWord.PASSED]:
            about = [outcome for outcome in cases if outcome.reason.startswith(f"{operator}: ")]
            yield operator, _shorten((about or cases)[0].reason.removeprefix(f"{operator}: "))


def _shorten(reason: str) -> str:
    return reason if len(reason) <= REASON_WIDTH else f"{reason[:REASON_WIDTH]}…"


def _format_group(group: str, entries: Iterable[Entry]) -> str:
    lines = ",\n".join(f"   {json.dumps(e.case)}: {json.dumps([' '.join(e.operators), e.letters])}" for e in entries)
    return f"  {json.dumps(group)}: {{\n{lines}\n  }}"


def get_versions() -> dict[str, str]:
    """The versions of Python and of the libraries."""
    python = {"python": platform.python_version(), "machine": platform.machine()}
    return python | {name: metadata.version(name) for name in LIBRARIES}
