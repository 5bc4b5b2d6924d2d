"""Hostile files for every reader, in a process that may die of them; what a reader must not do is a finding.

A reader returns, or raises an XRTError with a text. Another exception, a crash, a hang, and memory beyond a small multiple
of the file are findings. Cases go to one child after the other, one at a time.
"""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.malformed_inputs import child
from tests.malformed_inputs.files import create_files
from tests.malformed_inputs.readers import READERS
from xrt.errors import OptionError, did_you_mean
from xrt.processes.client import WorkerDied, WorkerProcess

__all__ = ["HostileFinding", "Report", "cases", "keep", "run"]

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "XRT_CACHE": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Key = tuple[str, str]
"""A reader and the name of a case."""


@dataclass(frozen=True, slots=True)
class HostileFinding:
    """A case that a reader does not take as it should."""

    reader: str
    name: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.reader}, case {self.name}: {self.wrong}"


@dataclass(slots=True)
class Report:
    """What came of many cases."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each reader read, refused, or failed."""
    findings: list[HostileFinding] = field(default_factory=list)
    memory: int = 0
    """The most bytes that a case took."""
    seconds: float = 0.0
    """The most processor time that a case took."""


def cases(readers: Sequence[str] = (), *, count: int, seed: int = 0) -> list[Key]:
    """Return the crafted cases of the readers (all, if none is named) and so many mutants of each, from a seed on.

    Raises OptionError for a reader that is none.
    """
    for name in readers:
        if name not in READERS:
            known = ", ".join(READERS)
            raise OptionError(f"there is no reader {name!r}.{did_you_mean(name, READERS)} There is: {known}")
    chosen = readers or tuple(READERS)
    crafted = [(reader, name) for reader in chosen for name in READERS[reader].crafted]
    damaged = [reader for reader in chosen if READERS[reader].damages]
    return crafted + [(reader, str(number)) for reader in damaged for number in range(seed, seed + count)]


def run(keys: Iterable[Key], progress: Callable[[int, HostileFinding | None], None] = lambda done, found: None) -> Report:
    """Give each case to its reader; ``progress`` is told how many are done, and of each finding as it comes."""
    report = Report()
    waiting = list(keys)
    done = 0
    while done < len(waiting):
        with tempfile.TemporaryDirectory(prefix="xrt-hostile-") as folder:
            for key, answer in _answers(waiting[done:], folder):
                found = _noted(report, key, answer)
                done += 1
                progress(done, found)
    return report


def _noted(report: Report, key: Key, answer: dict[str, object]) -> HostileFinding | None:
    report.outcomes[key[0], str(answer["outcome"])] += 1
    report.memory = max(report.memory, int(str(answer.get("memory", 0))))
    report.seconds = max(report.seconds, float(str(answer.get("seconds", 0))))
    if not answer["wrong"]:
        return None
    report.findings.append(HostileFinding(*key, str(answer["wrong"])))
    return report.findings[-1]


def _answers(keys: Sequence[Key], folder: str) -> Iterator[tuple[Key, dict[str, object]]]:
    """Yield each case with what a child says of it, up to the one that it dies of."""
    worker = WorkerProcess(f"{child.__name__}:main", folder, environment=_ENVIRONMENT)
    warm: set[str] = set()
    try:
        for key in keys:
            reader, case = key
            if reader not in warm:
                warm.add(reader)
                worker.ask({"reader": reader})
            try:
                answer, _ = worker.ask({"reader": reader, "case": case})
            except WorkerDied as error:
                yield key, {"outcome": "failed", "wrong": describe_death(error.code)}
                return
            yield key, answer
    finally:
        worker.end()


def describe_death(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"it was not done after {child.CPU_SECONDS:g} seconds of computing"
    if status == -signal.SIGALRM:
        return f"it was not done after {child.WALL_SECONDS:g} seconds"
    if status < 0:
        return f"it ended the process: {signal.strsignal(-status)} (signal {-status})"
    return f"it ended the process, with exit code {status}"


def keep(found: HostileFinding, folder: Path) -> Path:
    """Write the files of a finding, and what is wrong with it, to a folder of its own; return that."""
    place = folder / f"{found.reader}-{found.name.replace(' ', '-')}"
    (place / "model").mkdir(parents=True)
    (place / "finding.txt").write_text(f"{found}\n", encoding="utf-8")
    create_files(READERS[found.reader].case(found.name).files, place / "model")
    return place
