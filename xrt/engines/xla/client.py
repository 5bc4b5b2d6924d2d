"""The JAX clients of this engine, one per number of threads; forks while clients exist; and JAX's settings for tracing."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
from jaxlib import xla_client

from xrt.engines.toolkit.libraries import shorten
from xrt.forking import leave_to_parent


class ForkGuard:
    """Delays forks while XLA starts threads. A starting XLA thread registers its name, for which it holds a lock of XLA.

    In a child forked at that moment the lock would be held forever, so the threads of the child's clients would wait for it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._holding_threads: list[int] = []
        """Ids of the threads inside `hold` blocks."""
        self._started_threads: set[int] = set()
        """Ids of threads that were started in `hold` blocks, and may not have registered yet."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within the ``with`` block, and until every thread that it started has registered, forks wait."""
        # If another thread is forking it holds the condition, so this waits for the end of the fork.
        with self._condition:
            self._holding_threads.append(threading.get_ident())
        previous = _list_threads()
        try:
            yield
        finally:
            with self._condition:
                self._started_threads |= _list_threads() - previous
                if len(self._holding_threads) == 1:  # no other thread is compiling, so the threads soon sleep
                    _wait_until_asleep(self._started_threads)
                    self._started_threads.clear()
                self._holding_threads.remove(threading.get_ident())
                self._condition.notify_all()

    def close(self) -> None:
        """Wait until no other thread is in a `hold` block, and let new blocks wait until `open` is called."""
        thread_id = threading.get_ident()
        self._condition.acquire()
        # The forking thread itself may be in a block, for whose end it must not wait.
        self._condition.wait_for(lambda: all(thread == thread_id for thread in self._holding_threads))

    def open(self) -> None:
        self._condition.release()

    @staticmethod
    def close_before_fork() -> None:
        """Handler before a fork."""
        fork_guard.close()

    @staticmethod
    def open_after_fork() -> None:
        """Handler after a fork, in the parent process."""
        fork_guard.open()


MAX_SETTLE_SECONDS = 1.0
"""How long to wait for threads to sleep. Unrelated threads that were started meanwhile may be busy for longer."""


def _wait_until_asleep(threads: set[int]) -> None:
    """Wait until all threads sleep at the same time. Then all have registered, because a thread that holds the lock runs."""
    end = time.monotonic() + MAX_SETTLE_SECONDS
    previous = None
    while threads and time.monotonic() < end:
        states = {thread: state for thread in threads if (state := _read_thread_state(thread))}
        # If the counts of context switches are equal too, no thread ran between the two readings.
        are_asleep = all(state[0].startswith("S") for state in states.values())
        if are_asleep and states == previous:
            return
        previous = states
        time.sleep(1e-4)


def _list_threads() -> set[int]:
    try:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    except OSError:  # not Linux
        return set()


def _read_thread_state(thread: int) -> tuple[str, ...]:
    """Read the state and the counts of context switches of a thread of this process; empty if it has ended."""
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return tuple(fields.get(name, "") for name in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))


class Clients:
    """The XLA clients of this process. A forked child does not have their threads, so it creates new clients."""

    def __init__(self, can_compile: bool = True) -> None:
        self.can_compile = can_compile
        """False in a process that was forked after XLA compiled: it lacks the compiler's threads, and compiling would abort
        it."""
        self.has_compiled = False
        self.lock = threading.Lock()
        self.reload_lock = threading.Lock()
        """Held while an executable from the parent process is loaded to a client of this process."""
        self.devices: dict[int, Any] = {}
        leave_to_parent(self)

    @classmethod
    def renew(cls) -> None:
        """Replace the clients in a forked child. The parent's are never released, because that would wait for their threads."""
        globals()["clients"] = cls(can_compile=clients.can_compile and not clients.has_compiled)
        globals()["fork_guard"] = ForkGuard()


clients = Clients()
fork_guard = ForkGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=ForkGuard.close_before_fork, after_in_parent=ForkGuard.open_after_fork, after_in_child=Clients.renew
    )
_POOL_SIZE_VARIABLE = "PJRT_NPROC"
"""The environment variable that determines the number of threads of a new client. XLA has no other setting for it."""


def get_client_device(threads: int) -> Any:
    """Get the CPU device of a client with a pool of ``threads`` threads.

    There is one client for each number of threads, and it is never closed; idle threads sleep. A call waits for its results,
    whereas JAX's default client returns before they are ready.
    """
    # Read once, because a forked child replaces the global.
    current = clients
    with current.lock:
        if threads not in current.devices:
            with fork_guard.hold(), _set_variable(_POOL_SIZE_VARIABLE, str(threads)):
                current.devices[threads] = xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
        return current.devices[threads]


@contextmanager
def _set_variable(name: str, value: str) -> Iterator[None]:
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


@contextmanager
def configure_tracing(device: Any) -> Iterator[None]:
    """Override the user's settings of JAX in this thread: 64-bit types, full float32 precision, standard promotion, device."""
    with ExitStack() as stack:
        for setting in (
            jax.enable_x64(True),
            jax.default_matmul_precision("highest"),
            jax.default_device(device),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.disable_jit(False),
            jax.debug_nans(False),
            jax.debug_infs(False),
        ):
            stack.enter_context(setting)
        yield


MAX_SUMMARY_LENGTH = 160


def summarize_error(cause: BaseException) -> str:
    """Shorten an error of JAX or XLA to its first nonempty line, without the status code."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    text = re.sub(r"^[A-Z_]+: ", "", re.sub(r"\s+", " ", text)).rstrip(" .:")
    return shorten(text, MAX_SUMMARY_LENGTH) or type(cause).__name__
