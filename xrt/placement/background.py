"""Work of a module while it serves calls: searches and compiles, one at a time, in a thread that ends when none is left.

The thread waits and loads. What takes long happens in a worker process of low priority, so that calls go on.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

from xrt.placement.time_limit import begin
from xrt.worker.background import BackgroundWorker

__all__ = ["BackgroundWork"]

REST = 10.0
"""Seconds without a job after which the worker process ends; another takes a second to start."""

_log = logging.getLogger(__name__)
_all: WeakSet[BackgroundWork] = WeakSet()


class BackgroundWork:
    """The jobs of one module; each has a name, and is not begun again while one of that name waits or runs."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[object, Callable[[], object]]] = deque()
        self._names: set[object] = set()
        self._changed = threading.Condition()
        self._has_thread = self._is_busy = False
        self.is_closed = False
        self.worker = BackgroundWorker("xrt.placement.search_server:main")
        """The process in which jobs compile and search."""
        _all.add(self)

    def add(self, name: object, job: Callable[[], object]) -> None:
        """Do the job after those that wait; what it raises is logged."""
        with self._changed:
            if self.is_closed or name in self._names:
                return
            self._names.add(name)
            self._jobs.append((name, job))
            self._is_busy = True
            self._changed.notify_all()
            if not self._has_thread:
                self._has_thread = True
                begin(self._work, "xrt-background")

    def _work(self) -> None:
        while (next_job := self._take()) is not None:
            name, job = next_job
            try:
                job()
            except (Exception, KeyboardInterrupt):  # noqa: BLE001  # whatever an engine raises: no call waits for the result
                if not self.is_closed:
                    _log.warning("work in the background failed", exc_info=True)
            with self._changed:
                self._names.discard(name)
            del job, next_job  # what it refers to may be all that keeps a module alive

    def _take(self) -> tuple[object, Callable[[], object]] | None:
        """Return the next job; None where none came while the worker waited for one, and it has ended."""
        with self._changed:
            if not self._jobs:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self.is_closed, REST if self.worker.is_running else 0.0)
            if self._jobs:
                return self._jobs.popleft()
            self._has_thread = False
        self.worker.rest()
        return None

    def wait(self, seconds: float | None = None) -> None:
        """Wait until no job is left; raises TimeoutError after so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_busy, seconds):
                raise TimeoutError(f"work in the background did not end within {seconds:g} s")

    def close(self) -> None:
        """Begin no further job, and end the worker; one that runs may look at `is_closed`."""
        with self._changed:
            self.is_closed = True
            self._jobs.clear()
            self._changed.notify_all()
        self.worker.close()

    def __call__(self, _: object = None) -> None:
        """Raise KeyboardInterrupt once it is closed: as the progress function of a search this ends the search."""
        if self.is_closed:
            raise KeyboardInterrupt


@atexit.register
def _close_all() -> None:
    """End searches before the interpreter waits for their thread."""
    for one in list(_all):
        one.close()
