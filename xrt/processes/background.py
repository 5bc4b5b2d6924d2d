"""Work in background threads that their caller can abandon, after a time limit or on Ctrl-C.

Native code cannot be interrupted. The thread of abandoned work continues, but neither its caller nor the end of the process waits
for it.
"""

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

AT_EXIT = 1.0
"""Seconds that process exit waits for abandoned work."""
LONGEST = 60.0
"""Seconds that process exit waits per thread on systems where it cannot skip them."""
T = TypeVar("T")
_threads: WeakSet[threading.Thread] = WeakSet()
"""All threads that `begin` started."""


class OutOfTime(Exception):
    """The work took longer than its time limit; nobody waits for it any more, but its thread continues."""


def begin(work: Callable[[], T], name: str = "xrt-bounded") -> Future[T]:
    """Start ``work`` in a daemon thread called ``name``, with the caller's context variables; return the future of its result."""
    outcome: Future[T] = Future()
    # No pool of concurrent.futures: the end of the process would wait for its threads.
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(_run, work, outcome), name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return outcome


def within(seconds: float, work: Callable[[], T], *, late: Callable[[T], object] | None = None) -> T:
    """Run ``work`` in another thread and return its result. Raises its exception, or OutOfTime if it takes over ``seconds``.

    After OutOfTime or Ctrl-C the work continues in its thread. ``late`` is called with its result, which it can release.
    """
    outcome = begin(work)
    try:
        return outcome.result(max(seconds, 0.0))
    except BaseException as error:
        # The exception may be that of the work itself, or the work may have finished just after the time limit.
        if outcome.done() and not isinstance(error, KeyboardInterrupt):
            return outcome.result()
        if late is not None:
            outcome.add_done_callback(lambda ended: None if ended.exception() else late(ended.result()))
        if isinstance(error, TimeoutError):
            raise OutOfTime(f"it took longer than {seconds:.3g} s") from None
        raise


def within_or_stopped(seconds: float, work: Callable[[Callable[[], bool]], T], *, late: Callable[[T], object] | None = None) -> T:
    """Like `within`, but pass a function to ``work`` that returns True once nobody waits for the result, so that it can stop."""
    stop = threading.Event()
    try:
        return within(seconds, partial(work, stop.is_set), late=late)
    finally:
        stop.set()


def _run(work: Callable[[], Any], outcome: Future[Any]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001  # raised by outcome.result()
        outcome.set_exception(error)


def _skip_abandoned() -> None:
    """Wait `AT_EXIT` seconds for abandoned work, then let the process exit without it.

    A native thread that returns to a finalized interpreter, or reads static data that has been destroyed, crashes the process.
    Therefore exit right after the interpreter is finalized, before the destructors of native libraries run.
    """
    deadline = time.monotonic() + AT_EXIT
    for thread in list(_threads):
        thread.join(max(deadline - time.monotonic(), 0.0))
    if not any(thread.is_alive() for thread in _threads):
        return
    _skip_finalizers_of_partial_imports()
    library = ctypes.CDLL(None)
    try:
        on_exit, leave, pause = library.on_exit, library._exit, library.pause
    except AttributeError:  # not the GNU C library
        for thread in list(_threads):
            thread.join(LONGEST)
        return
    library.fflush(None)
    on_exit(leave, None)
    # The interpreter unwinds a returning thread through C++ frames, which calls std::terminate: let the thread sleep instead.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(pause)


def _skip_finalizers_of_partial_imports() -> None:
    """Disable the finalizers of packages that abandoned work is still importing: they use names that are not defined yet."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        target = finalizer.peek()
        package = sys.modules.get(getattr(target[1], "__module__", "").partition(".")[0]) if target else None
        if getattr(getattr(package, "__spec__", None), "_initializing", False):
            finalizer.atexit = False


# Exit handlers run in reverse order. This registers weakref's handler first, so that it runs after _skip_abandoned.
weakref.finalize(OutOfTime, int)
atexit.register(_skip_abandoned)
