"""Work that may take too long: it is done in a thread of its own, and abandoned when its time is up."""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

__all__ = ["OutOfTime", "begin", "within", "within_or_stopped"]

AT_EXIT = 1.0
"""Seconds for which the end of the process waits for abandoned work."""
LONGEST = 60.0
"""The same for each thread where the process could not end without it."""

T = TypeVar("T")

_threads: WeakSet[threading.Thread] = WeakSet()


class OutOfTime(Exception):
    """Work was abandoned."""


def begin(work: Callable[[], T], name: str = "xrt-bounded") -> Future[T]:
    """Begin the work in a thread that does not keep the process alive; return its outcome-to-be."""
    outcome: Future[T] = Future()
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(_do, work, outcome), name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return outcome


def within(seconds: float, work: Callable[[], T], *, late: Callable[[T], object] | None = None) -> T:
    """Return the result of ``work``, or raise its exception; raises OutOfTime if it takes longer than ``seconds``.

    Abandoned work continues to its end without a waiting caller. ``late`` then gets its result, to release it.
    """
    outcome = begin(work)
    try:
        return outcome.result(max(seconds, 0.0))
    except BaseException as error:
        if outcome.done() and not isinstance(error, KeyboardInterrupt):
            return outcome.result()  # its own error, or it ended just now
        if late is not None:
            outcome.add_done_callback(lambda ended: None if ended.exception() else late(ended.result()))
        if isinstance(error, TimeoutError):
            raise OutOfTime(f"it took longer than {seconds:.3g} s") from None
        raise


def within_or_stopped(seconds: float, work: Callable[[Callable[[], bool]], T], *, late: Callable[[T], object] | None = None) -> T:
    """Do what `within` does. The work takes a function that says whether its result is no longer awaited, and then ends early."""
    stop = threading.Event()
    try:
        return within(seconds, partial(work, stop.is_set), late=late)
    finally:
        stop.set()


def _do(work: Callable[[], Any], outcome: Future[Any]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001  # raised where the outcome is read
        outcome.set_exception(error)


def _leave_abandoned() -> None:
    """Wait a moment for abandoned work, then let the process end without it.

    A library that comes back to an interpreter which is no more, or computes while its own data are freed, ends the process by a
    crash. So the C library's `exit` ends it as soon as the interpreter is finalized, before libraries are, with its status.
    """
    until = time.monotonic() + AT_EXIT
    for thread in list(_threads):
        thread.join(max(until - time.monotonic(), 0.0))
    if not any(thread.is_alive() for thread in _threads):
        return
    _spare_finalizers()
    library = ctypes.CDLL(None)
    try:
        on_exit, leave, pause = library.on_exit, library._exit, library.pause
    except AttributeError:  # not the GNU C library
        for thread in list(_threads):
            thread.join(LONGEST)
        return
    library.fflush(None)
    on_exit(leave, None)
    with suppress(OSError, AttributeError):  # a thread that comes back is ended by the interpreter, from inside of C++ code
        ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(pause)


def _spare_finalizers() -> None:
    """Leave out the finalizers of packages whose import goes on in abandoned work: they would fail on what is not there yet."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        package = sys.modules.get(getattr(found[1], "__module__", "").partition(".")[0]) if found else None
        if getattr(getattr(package, "__spec__", None), "_initializing", False):
            finalizer.atexit = False


weakref.finalize(OutOfTime, int)  # registers the function that runs finalizers, so that the next one comes before it
atexit.register(_leave_abandoned)
