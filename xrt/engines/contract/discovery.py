"""The state of every registered engine, each probed in a process of its own: an import that crashes or hangs does no harm."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from xrt.engines.contract.registry import EngineStatus, list_registered, names, probe
from xrt.processes.client import WorkerDied, WorkerFailure, WorkerProcess, WorkerTimedOut
from xrt.processes.server import serve

__all__ = ["probe_all"]


def probe_all(engines: Sequence[str] | None = None, timeout: float = 60) -> tuple[EngineStatus, ...]:
    """Return the state of those engines, of all registered ones by default, in the order of their names.

    The processes run side by side, one per core. One that crashes, or does not answer in that many seconds, is a
    broken engine. Raises UnknownEngine.
    """
    known = [list_registered(name) for name in (names() if engines is None else engines)]
    running: list[WorkerProcess] = []
    interrupted = threading.Event()

    def probe_one(status: EngineStatus) -> EngineStatus:
        worker = WorkerProcess("xrt.engines.contract.discovery:main")
        running.append(worker)
        if interrupted.is_set():
            worker.end()
        return _probe_in(worker, status, timeout)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return tuple(pool.map(probe_one, known))
        except BaseException:  # an interrupt does not wait until all have answered
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in running:
                worker.end()
            raise


def _probe_in(worker: WorkerProcess, unknown: EngineStatus, timeout: float) -> EngineStatus:
    try:
        answer, _ = worker.ask({"engine": unknown.name}, seconds=timeout)
    except WorkerTimedOut:
        return replace(unknown, cause=f"its import did not end within {timeout:g} s")
    except WorkerDied as error:
        return replace(unknown, cause=f"its import ended the process ({error.how}): {error.last_line or 'it said nothing'}")
    except WorkerFailure as error:
        return replace(unknown, cause=f"its import failed: {error}")
    finally:
        worker.end()
    return EngineStatus(**{**answer, "devices": tuple(answer["devices"])})


def main(handle: str) -> None:
    """Serve the socket of that number: the state of the engine that is named."""
    serve(handle, lambda request: dataclasses.asdict(probe(request.message["engine"])))
