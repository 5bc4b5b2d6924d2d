"""The state of every registered engine, each probed in a process of its own: an import that crashes or hangs does no harm."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from xrt.engines.contract.registry import EngineStatus, list_registered, names, probe
from xrt.processes import run_python

__all__ = ["probe_all"]


def probe_all(engines: Sequence[str] | None = None, timeout: float = 60) -> tuple[EngineStatus, ...]:
    """Return the state of those engines, of all registered ones by default, in the order of their names.

    The processes run side by side, one per core. One that crashes, or does not answer in that many seconds, is a
    broken engine. Raises UnknownEngine.
    """
    known = [list_registered(name) for name in (names() if engines is None else engines)]
    running: list[subprocess.Popen[str]] = []
    interrupted = threading.Event()

    def note(process: subprocess.Popen[str]) -> None:
        running.append(process)
        if interrupted.is_set():
            process.kill()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return tuple(pool.map(lambda status: _probe_apart(status, timeout, note), known))
        except BaseException:  # an interrupt does not wait until all have answered
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            raise


def _probe_apart(unknown: EngineStatus, timeout: float, started: Callable[[subprocess.Popen[str]], object]) -> EngineStatus:
    try:
        done = run_python("xrt.engines.contract.discovery:answer", unknown.name, timeout=timeout, started=started)
    except subprocess.TimeoutExpired:
        return replace(unknown, cause=f"its import did not end within {timeout:g} s")
    if done.stdout:
        told = json.loads(done.stdout)
        return EngineStatus(**{**told, "devices": tuple(told["devices"])})
    return replace(unknown, cause=f"its import ended the process ({_ending(done.returncode)}): {_last_line(done.stderr)}")


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def answer(name: str) -> None:
    """Write the state of an engine to standard output, as JSON, and nothing else there.

    Whatever the import says, in Python or below it, goes to standard error.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    status = probe(name)
    with os.fdopen(answers, "w") as out:
        json.dump(dataclasses.asdict(status), out)
