"""Executables that no cache keeps any longer: a thread of their own closes them, so that no call waits for it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

__all__ = ["close_in_background", "close_with", "wait_until_closed"]

Close: TypeAlias = Callable[[], object]

AT_EXIT = 10.0
"""Seconds that the end of the process waits for what is still to be closed."""

_log = logging.getLogger(__name__)


class _Closer:
    """The thread, started when it is first needed, and what it has to do."""

    def __init__(self) -> None:
        # Re-entrant: what is collected while a thread is in here may be handed in, too.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self.queue: SimpleQueue[Close | None] = SimpleQueue()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="xrt-close", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (close := self.queue.get()) is not None:
            try:
                close()
            except Exception:  # noqa: BLE001  # a library may raise anything: no call waits for the result
                _log.warning("an executable could not be closed", exc_info=True)
            del close  # the next one may be long in coming

    def finish(self) -> None:
        """Let the thread end: one inside of a native library must not be cut off by the end of the process."""
        if self._thread is not None:
            self.queue.put(None)
            self._thread.join(AT_EXIT)


_closer = _Closer()


def close_in_background(close: Close) -> None:
    """Have ``close`` called by the background thread, which logs what it raises."""
    _closer.start()
    _closer.queue.put(close)


def close_with(user: object, close: Close) -> None:
    """Have ``close`` called by the background thread once ``user`` is freed.

    A call under way holds what it runs: neither it nor the thread that frees ``user`` waits for the close.
    """
    _closer.start()  # not when it is freed: that may be at any moment, and then a thread must not be started
    weakref.finalize(user, _closer.queue.put, close).atexit = False


def wait_until_closed(seconds: float | None = None) -> bool:
    """Wait until all that was handed in so far is closed; return whether it is, after so many seconds at most."""
    done = threading.Event()
    close_in_background(done.set)
    return done.wait(seconds)


atexit.register(_closer.finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_closer.__init__)  # type: ignore[misc]  # a forked child has no such thread
