"""XLA clients (one per thread count), protection of forks while XLA starts threads, and JAX's settings for tracing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
from jaxlib import xla_client

from xrt.forking import leak_in_child


class ForkGuard:
    """Delays forks while XLA starts threads.

    A new thread registers its name, and holds a lock of XLA meanwhile. In a child that is forked at that moment nobody would
    release the lock, and the threads of the child's clients would wait forever.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._holding_threads: list[int] = []
        """Ids of the threads that are in a `hold` block."""
        self._started_threads: set[int] = set()
        """Ids of threads that were started during `hold` blocks and may not have registered yet."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Delay forks during the ``with`` block, and until the threads that it started have registered."""
        # A thread that forks holds the condition, so this waits for the end of a fork.
        with self._condition:
            self._holding_threads.append(threading.get_ident())
        previous = _list_threads()
        try:
            yield
        finally:
            with self._condition:
                self._started_threads |= _list_threads() - previous
                # A thread that sleeps has registered. It may be busy while another thread compiles, so the last block waits.
                if len(self._holding_threads) == 1:
                    _wait_until_asleep(self._started_threads)
                    self._started_threads.clear()
                self._holding_threads.remove(threading.get_ident())
                self._condition.notify_all()

    def close(self) -> None:
        """Wait until no other thread is in a `hold` block. New blocks wait until `open` is called."""
        thread_id = threading.get_ident()
        self._condition.acquire()
        # The thread must not wait for its own block.
        self._condition.wait_for(lambda: all(thread == thread_id for thread in self._holding_threads))

    def open(self) -> None:
        self._condition.release()


MAX_SETTLE_SECONDS = 1.0
"""Maximum time to wait for threads to sleep. Threads of other libraries, which are included, may be busy for longer."""


def _wait_until_asleep(threads: set[int]) -> None:
    """Wait until all threads sleep at the same time. Then none of them holds the lock, because its holder does not sleep."""
    end = time.monotonic() + MAX_SETTLE_SECONDS
    previous_states = None
    while threads and time.monotonic() < end:
        states = [_read_thread_state(thread) for thread in sorted(threads)]
        are_asleep = all(state.startswith("S") for state, *_ in filter(None, states))  # threads that ended have no state
        # With the same counts of context switches as before, no thread ran between the two readings.
        if are_asleep and states == previous_states:
            return
        previous_states = states
        time.sleep(1e-4)


def _list_threads() -> set[int]:
    try:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    except OSError:  # not Linux
        return set()


def _read_thread_state(thread: int) -> tuple[str, ...]:
    """Read the state and the counts of context switches of a thread in this process; empty if the thread has ended."""
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return tuple(fields.get(name, "") for name in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))


class Clients:
    """The XLA clients of this process. A forked child creates new ones, because it does not have the threads of its parent."""

    def __init__(self, can_compile: bool = True) -> None:
        self.can_compile = can_compile
        """False in a process that was forked after XLA had compiled. It lacks XLA's threads, and a compile would abort it."""
        self.has_compiled = False
        self.lock = threading.Lock()
        self.reload_lock = threading.Lock()
        """Held while an executable of the parent process is loaded to a client of this process."""
        self.devices: dict[int, Any] = {}
        leak_in_child(self)

    @classmethod
    def renew(cls) -> None:
        """Replace the clients in a forked child. Those of the parent are not released: that would wait for missing threads."""
        globals()["clients"] = cls(can_compile=clients.can_compile and not clients.has_compiled)
        globals()["fork_guard"] = ForkGuard()


clients = Clients()
fork_guard = ForkGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: fork_guard.close(),  # noqa: PLW0108  # a forked child replaces the guard
        after_in_parent=lambda: fork_guard.open(),  # noqa: PLW0108
        after_in_child=Clients.renew,
    )
_POOL_SIZE_VARIABLE = "PJRT_NPROC"
"""The environment variable for the thread count of a new client. XLA has no other setting for it."""


def get_client_device(threads: int) -> Any:
    """Get the CPU device of the client with ``threads`` threads.

    Clients are never closed; their idle threads sleep. Calls wait for their results, unlike those of JAX's default client.
    """
    # Read the global only once, because a forked child replaces it.
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
    """Override the user's settings of JAX in this thread: 64-bit types, full float32 precision, standard promotion, etc."""
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
