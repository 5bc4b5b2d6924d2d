"""JAX clients of this engine: one per thread budget, safe across forks, with fixed settings for tracing."""

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
    """Delays forks while XLA starts threads.

    A starting XLA thread registers its name under a lock of the library. In a child forked at that moment the lock would stay
    locked forever, and the threads of the child's clients would wait for it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside: list[int] = []
        """Threads inside `hold` blocks, which may start other threads."""
        self._started: set[int] = set()
        """Threads started in these blocks that may not have registered yet."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Block forks inside this context, and until every thread that it started has registered."""
        # Waits for the end of a fork in another thread, which holds the condition.
        with self._condition:
            self._inside.append(threading.get_ident())
        previous = _list_threads()
        try:
            yield
        finally:
            with self._condition:
                self._started |= _list_threads() - previous
                if len(self._inside) == 1:  # no other thread is compiling, so the threads soon sleep
                    _wait_until_asleep(self._started)
                    self._started.clear()
                self._inside.remove(threading.get_ident())
                self._condition.notify_all()

    def close(self) -> None:
        """Wait until no other thread is in a `hold` block, and block new ones until `open` is called."""
        thread_id = threading.get_ident()
        self._condition.acquire()
        # The forking thread itself may be in a block: it cannot wait for its own end.
        self._condition.wait_for(lambda: all(thread == thread_id for thread in self._inside))

    def open(self) -> None:
        self._condition.release()

    @staticmethod
    def enter() -> None:
        """Fork handler, before the fork."""
        fork_guard.close()

    @staticmethod
    def leave() -> None:
        """Fork handler, after the fork in the parent."""
        fork_guard.open()


SETTLE_SECONDS = 1.0
"""Seconds to wait for threads to sleep. Unrelated threads started meanwhile may be busy for longer."""


def _wait_until_asleep(threads: set[int]) -> None:
    """Wait until all threads sleep at once. Then all have registered: a thread that holds the lock would be running."""
    end, previous = time.monotonic() + SETTLE_SECONDS, None
    while threads and time.monotonic() < end:
        states = {thread: state for thread in threads if (state := _read_state(thread))}
        # Equal counts of context switches: no thread ran between the two looks.
        asleep = all(state[0].startswith("S") for state in states.values())
        if asleep and states == previous:
            return
        previous = states
        time.sleep(1e-4)


def _list_threads() -> set[int]:
    try:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    except OSError:  # not Linux
        return set()


def _read_state(thread: int) -> tuple[str, ...]:
    """State and context-switch counts of a thread of this process; empty if it has ended."""
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return tuple(fields.get(name, "") for name in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))


class Clients:
    """The XLA clients of one process. A forked child inherits no threads, so it creates new clients."""

    def __init__(self, can_compile: bool = True) -> None:
        self.can_compile = can_compile
        """Whether XLA's compiler can run: a process forked after it ran lacks its threads, and compiling would abort."""
        self.has_compiled = False
        self.lock = threading.Lock()
        self.moving = threading.Lock()
        """Held while an executable is transferred from the clients of the parent process."""
        self.devices: dict[int, Any] = {}
        leave_to_parent(self)

    @classmethod
    def renew(cls) -> None:
        """Replace the clients in a forked child; the parent's are never released, since that would wait for their threads."""
        globals()["clients"] = cls(can_compile=clients.can_compile and not clients.has_compiled)
        globals()["fork_guard"] = ForkGuard()


clients = Clients()
fork_guard = ForkGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=ForkGuard.enter, after_in_parent=ForkGuard.leave, after_in_child=Clients.renew)
_POOL = "PJRT_NPROC"
"""The environment variable from which XLA reads a client's thread count; there is no other way to set it."""


def get_client_device(threads: int) -> Any:
    """The CPU device of a client with a pool of ``threads`` threads; the calling thread waits while they work.

    One client per budget is created and kept: its threads sleep when idle. It computes synchronously, whereas JAX's default
    client returns before results are ready.
    """
    # Read once: in a forked child the global is another object.
    current = clients
    with current.lock:
        if threads not in current.devices:
            with fork_guard.hold(), _set_variable(_POOL, str(threads)):
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
    """Override user settings in this thread: 64-bit types, full float32 precision, standard promotion, this device."""
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


LONGEST = 160


def summarize_error(cause: BaseException) -> str:
    """The first non-empty line of an error of JAX or XLA, without its status code."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    text = re.sub(r"^[A-Z_]+: ", "", re.sub(r"\s+", " ", text)).rstrip(" .:")
    return shorten(text, LONGEST) or type(cause).__name__
