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
from typing import TypeVar
from weakref import WeakSet

EXIT_WAIT_SECONDS = 1.0
"""Seconds that the process, at its exit, waits for abandoned work to finish."""
MAX_THREAD_WAIT_SECONDS = 60.0
"""Seconds that the process waits at its exit for each thread, on systems where it cannot exit before its threads."""
T = TypeVar("T")
_threads: WeakSet[threading.Thread] = WeakSet()
"""All threads that `start_in_background` started."""


class OutOfTime(Exception):
    """The work took longer than its time limit. Its thread continues, but the caller no longer waits for it."""


def start_in_background(work: Callable[[], T], name: str = "xrt-bounded") -> Future[T]:
    """Start ``work`` in a daemon thread called ``name``, with the caller's context variables; return the future of its result."""
    # No pool of concurrent.futures: the end of the process would wait for its threads.
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001  # raised by future.result()
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return future


def run_within(seconds: float, work: Callable[[], T], *, on_late: Callable[[T], object] | None = None) -> T:
    """Run ``work`` in another thread and return its result. Raises its exception, or OutOfTime if it takes over ``seconds``.

    After OutOfTime or Ctrl-C the work continues in its thread. If it returns a result later, ``on_late`` is called with
    the result, for example to close it.
    """
    future = start_in_background(work)
    try:
        return future.result(max(seconds, 0.0))
    except BaseException as error:
        # The exception may be that of the work itself, or the work may have finished just after the time limit.
        if future.done() and not isinstance(error, KeyboardInterrupt):
            return future.result()
        if on_late is not None:
            future.add_done_callback(lambda future: None if future.exception() else on_late(future.result()))
        if isinstance(error, TimeoutError):
            raise OutOfTime(f"it took longer than {seconds:.3g} s") from None
        raise


def run_stoppable(seconds: float, work: Callable[[Callable[[], bool]], T], *, on_late: Callable[[T], object] | None = None) -> T:
    """Like `run_within`, but call ``work`` with a function that returns True once the caller has stopped waiting."""
    stop = threading.Event()
    try:
        return run_within(seconds, partial(work, stop.is_set), on_late=on_late)
    finally:
        stop.set()


def _exit_without_abandoned_work() -> None:
    """Wait `EXIT_WAIT_SECONDS` for abandoned work, then let the process exit without it.

    A native thread that returns to a finalized interpreter, or reads static data that has been destroyed, crashes the process.
    Therefore exit right after the interpreter is finalized, before the destructors of native libraries run.
    """
    deadline = time.monotonic() + EXIT_WAIT_SECONDS
    for thread in list(_threads):
        thread.join(max(deadline - time.monotonic(), 0.0))
    if not any(thread.is_alive() for thread in _threads):
        return
    _skip_finalizers_of_partial_imports()
    c_library = ctypes.CDLL(None)
    try:
        register_at_exit, exit_now, pause = c_library.on_exit, c_library._exit, c_library.pause
    except AttributeError:  # not the GNU C library
        for thread in list(_threads):
            thread.join(MAX_THREAD_WAIT_SECONDS)
        return
    c_library.fflush(None)
    register_at_exit(exit_now, None)
    # The interpreter unwinds a returning thread through C++ frames, which calls std::terminate: let the thread sleep instead.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(pause)


def _skip_finalizers_of_partial_imports() -> None:
    """Disable the finalizers of packages that abandoned work is still importing: they use names that are not defined yet."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        if (target := finalizer.peek()) is None:
            continue
        package_name = getattr(target[1], "__module__", "").partition(".")[0]  # of the function to call
        spec = getattr(sys.modules.get(package_name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            finalizer.atexit = False


# Exit handlers run in reverse order. The first line makes weakref register its handler, which then runs last.
weakref.finalize(OutOfTime, int)
atexit.register(_exit_without_abandoned_work)
