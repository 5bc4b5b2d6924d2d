"""The process in which readers are given hostile files: it has limits, and whatever ends it is laid to the case at hand.

`main` answers a reader's name by reading what is valid, and reader and name of a case by what came of that.
"""

from __future__ import annotations

import resource
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.malformed_inputs.case import HostileCase, create_files
from tests.malformed_inputs.readers import READERS
from xrt.errors import XRTError
from xrt.processes.ipc import Message, Request, serve

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


def main(handle: str, folder: str) -> None:
    """Serve the socket of that number, in a folder of the caller's."""
    warnings.simplefilter("ignore")
    _bounded()

    def answer(request: Request) -> Message:
        reader, case = request.message["reader"], request.message.get("case")
        if case is None:
            _warm(reader, Path(folder))
            return {}
        return _judged(READERS[reader].case(case), Path(folder) / "case")

    serve(handle, answer)


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _warm(reader: str, folder: Path) -> None:
    """Read what is valid: it must go well, and what is loaded once is not laid to a case."""
    for place, sample in enumerate(READERS[reader].samples):
        with _laid(HostileCase(reader, f"sample {place}", sample), folder / "sample") as (path, _):
            READERS[reader].read(path)


def _judged(case: HostileCase, folder: Path) -> dict[str, Any]:
    """Return what came of a case: nothing to say, or what is wrong."""
    with _laid(case, folder) as (path, size), _addresses():
        before = _begin_peak()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        outcome, wrong = _outcome(case, path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = max(_status("VmHWM") - before, 0)
    if not wrong and took > MEMORY + PER_BYTE * size:
        wrong = f"it took {took >> 20} MiB of memory for {size} bytes of files"
    return {"outcome": outcome, "wrong": wrong, "memory": took}


def _outcome(case: HostileCase, path: Path) -> tuple[str, str]:
    """Return how it ended, and what is wrong with that."""
    try:
        READERS[case.reader].read(path)
    except XRTError as error:
        text = str(error)
        return "refused", "" if text.strip() else f"it raised {type(error).__name__} without a text"
    except BaseException as error:  # noqa: BLE001  # whatever else it raises is what is looked for
        return "failed", f"it raised {type(error).__name__}: {str(error)[:300]}"
    return "read", "it was read, and must be refused" if case.refused else ""


@contextmanager
def _laid(case: HostileCase, folder: Path) -> Iterator[tuple[Path, int]]:
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
