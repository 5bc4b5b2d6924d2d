"""Hostile files for every reader, in a process that may die of them; what a reader must not do is a finding.

A reader returns, or raises an XRTError with a text. Another exception, a crash, a hang, and memory beyond a small multiple
of the file are findings. Cases go to one child after the other, one at a time.
"""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.malformed_inputs import child
from tests.malformed_inputs.readers import READERS
from xrt.processes.client import WorkerDied, WorkerProcess

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "XRT_CACHE": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Key = tuple[str, str]
"""A reader and the name of a case."""


@dataclass(slots=True)
class Report:
    """What came of many cases."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each reader read, refused, or failed."""
    findings: list[str] = field(default_factory=list)
    """Reader, case and fault of each case that was not read or refused as it should be."""
    memory: int = 0
    """Peak memory of a case, in bytes."""


def cases(readers: Sequence[str] = (), *, count: int, seed: int = 0) -> list[Key]:
    """List the crafted cases of the readers (all by default), then ``count`` mutants of each from ``seed`` on."""
    chosen = readers or tuple(READERS)
    crafted = [(reader, name) for reader in chosen for name in READERS[reader].crafted]
    damaged = [reader for reader in chosen if READERS[reader].damages]
    return crafted + [(reader, str(number)) for reader in damaged for number in range(seed, seed + count)]


def run(keys: Iterable[Key]) -> Report:
    """Pass each case to its reader, in a new child process after one that died."""
    report = Report()
    waiting = list(keys)
    completed = 0
    while completed < len(waiting):
        with tempfile.TemporaryDirectory(prefix="xrt-hostile-") as folder:
            for (reader, name), answer in _answers(waiting[completed:], folder):
                report.outcomes[reader, str(answer["outcome"])] += 1
                report.memory = max(report.memory, int(str(answer.get("memory", 0))))
                if answer["wrong"]:
                    report.findings.append(f"{reader}, case {name}: {answer['wrong']}")
                completed += 1
    return report


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
