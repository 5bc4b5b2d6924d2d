"""Hostile files for every reader, in a process that may die of them; what a reader must not do is a finding.

A reader returns, or raises an XRTError with a text. Another exception, a crash, a hang, and memory beyond a small multiple
of the file are findings. Cases go to one child after the other, one at a time; `main` answers a reader's name by reading what is
valid, and reader and name of a case by what came of that.
"""

from __future__ import annotations

import resource
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.malformed_inputs.case import Case, create_files
from tests.malformed_inputs.readers import READERS
from xrt.errors import XRTError
from xrt.processes.client import WorkerDied, WorkerProcess
from xrt.processes.ipc import Message, Request, serve

CHILD = f"{__name__}:main"
CPU_SECONDS = 10.0
"""Of computing for one case; a file here has some thousand bytes."""
WALL_SECONDS = 60.0
"""For one case, so that one who waits for ever is found; other processes may have the cores."""
ADDRESSES = 3 << 30
"""Bytes of addresses that a case may ask for beyond what the process has; mapping a file takes some and no memory."""
MEMORY = 48 << 20
"""Bytes of memory that a case may take whatever its size, so that an interpreter's habits are no finding."""
PER_BYTE = 16
"""Bytes of memory that a case may take for each byte of its files."""
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
    worker = WorkerProcess(CHILD, folder, environment=_ENVIRONMENT)
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
        return f"it was not done after {CPU_SECONDS:g} seconds of computing"
    if status == -signal.SIGALRM:
        return f"it was not done after {WALL_SECONDS:g} seconds"
    if status < 0:
        return f"it ended the process: {signal.strsignal(-status)} (signal {-status})"
    return f"it ended the process, with exit code {status}"


# ---------------------------------------------------------------------- in the child


def main(handle: str, folder: str) -> None:
    """Serve the socket of that number, in a folder of the caller's."""
    warnings.simplefilter("ignore")
    _bounded()

    def answer(request: Request) -> Message:
        reader, case = request.message["reader"], request.message.get("case")
        if case is None:
            _warm(reader, Path(folder))
            return {}
        return _judged(reader, READERS[reader].case(case), Path(folder) / "case")

    serve(handle, answer)


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _warm(reader: str, folder: Path) -> None:
    """Read what is valid: it must go well, and what is loaded once is not laid to a case."""
    for sample in READERS[reader].samples:
        with _laid(Case(sample), folder / "sample") as (path, _):
            READERS[reader].read(path)


def _judged(reader: str, case: Case, folder: Path) -> dict[str, Any]:
    """Return what came of a case: nothing to say, or what is wrong."""
    with _laid(case, folder) as (path, size), _addresses():
        before = _begin_peak()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        outcome, wrong = _outcome(reader, case, path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = max(_status("VmHWM") - before, 0)
    if not wrong and took > MEMORY + PER_BYTE * size:
        wrong = f"it took {took >> 20} MiB of memory for {size} bytes of files"
    return {"outcome": outcome, "wrong": wrong, "memory": took}


def _outcome(reader: str, case: Case, path: Path) -> tuple[str, str]:
    """Return how it ended, and what is wrong with that."""
    try:
        READERS[reader].read(path)
    except XRTError as error:
        text = str(error)
        return "refused", "" if text.strip() else f"it raised {type(error).__name__} without a text"
    except BaseException as error:  # noqa: BLE001  # whatever else it raises is what is looked for
        return "failed", f"it raised {type(error).__name__}: {str(error)[:300]}"
    return "read", "it was read, and must be refused" if case.refused else ""


@contextmanager
def _laid(case: Case, folder: Path) -> Iterator[tuple[Path, int]]:
    """Lay the files of a case, and take them away in the end; give the path of the first, and the size of all."""
    inner = folder / "model"
    inner.mkdir(parents=True)
    try:
        size = create_files(case.files, inner)
        yield inner / case.main, size
    finally:
        shutil.rmtree(folder)


@contextmanager
def _addresses() -> Iterator[None]:
    """Bound the addresses that the process may have by what it has now, and some more."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + ADDRESSES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _begin_peak() -> int:
    """Let the peak of memory begin anew, and return where it begins."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _status("VmHWM")  # the system cannot: what goes beyond the old peak is seen all the same
    return _status("VmRSS")


def _status(word: str) -> int:
    """Return a number of bytes of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(word + ":"):
            return int(line.split()[1]) << 10
    return 0
