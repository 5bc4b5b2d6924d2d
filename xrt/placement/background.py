"""Work of a module while it serves calls: searches and compiles, one at a time, in a thread that ends when none is left."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

from xrt.placement.time_limit import begin

__all__ = ["BackgroundWork"]

_log = logging.getLogger(__name__)
_all: WeakSet[BackgroundWork] = WeakSet()


class BackgroundWork:
    """The jobs of one module; each has a name, and is not begun again while one of that name waits or runs."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[object, Callable[[], object]]] = deque()
        self._names: set[object] = set()
        self._lock = threading.Lock()
        self._thread: Future[None] | None = None
        self.is_closed = False
        _all.add(self)

    def add(self, name: object, job: Callable[[], object]) -> None:
        """Do the job after those that wait; what it raises is logged."""
        with self._lock:
            if self.is_closed or name in self._names:
                return
            self._names.add(name)
            self._jobs.append((name, job))
            if self._thread is None:
                self._thread = begin(self._work, "xrt-background")

    def _work(self) -> None:
        while (next_job := self._take()) is not None:
            name, job = next_job
            try:
                job()
            except Exception:  # noqa: BLE001  # whatever an engine raises: no call waits for the result
                if not self.is_closed:
                    _log.warning("work in the background failed", exc_info=True)
            with self._lock:
                self._names.discard(name)
            del job, next_job  # what it refers to may be all that keeps a module alive

    def _take(self) -> tuple[object, Callable[[], object]] | None:
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None

    def wait(self, seconds: float | None = None) -> None:
        """Wait until no job is left, so many seconds at most."""
        thread: Future[Any] | None = self._thread
        if thread is not None:
            thread.result(seconds)

    def close(self) -> None:
        """Begin no further job; one that runs may look at `is_closed`."""
        with self._lock:
            self.is_closed = True
            self._jobs.clear()

    def check_open(self, _: object = None) -> None:
        """Raise KeyboardInterrupt once it is closed: as the progress function of a search this ends the search."""
        if self.is_closed:
            raise KeyboardInterrupt


@atexit.register
def _close_all() -> None:
    """End searches before the interpreter waits for their thread."""
    for one in list(_all):
        one.close()
