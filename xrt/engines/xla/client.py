"""JAX as this engine uses it: a client of its own per thread budget, forks that it survives, and settings for tracing."""

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
    """Keeps forks out of the time in which XLA starts threads.

    A thread of XLA registers its name when it begins, under a lock of the library. A child that is forked just then has the
    lock held for ever, and the threads of its own clients wait for it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside: list[int] = []
        """The threads in blocks that may start threads."""
        self._started: set[int] = set()
        """Threads that were started in these blocks, and have perhaps not begun."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no fork begin in this block, nor before each thread that it started has begun."""
        with self._condition:
            self._inside.append(threading.get_ident())
        before = _thread_ids()
        try:
            yield
        finally:
            with self._condition:
                self._started |= _thread_ids() - before
                if len(self._inside) == 1:  # nothing else compiles: the threads soon sleep
                    _await_sleep(self._started)
                    self._started.clear()
                self._inside.remove(threading.get_ident())
                self._condition.notify_all()

    def close(self) -> None:
        """Wait until no other thread is in a block, and let none begin one until `open` is called."""
        own = threading.get_ident()
        self._condition.acquire()
        self._condition.wait_for(lambda: all(thread == own for thread in self._inside))

    def open(self) -> None:
        self._condition.release()

    @staticmethod
    def enter() -> None:
        """What a fork does first."""
        fork_guard.close()

    @staticmethod
    def leave() -> None:
        """What a fork does last, in the parent."""
        fork_guard.open()


SETTLING = 1.0
"""Seconds to wait for threads to sleep. Other threads of the process, started meanwhile, may be busy for longer."""


def _await_sleep(threads: set[int]) -> None:
    """Wait until all of the threads sleep at once: then each has begun, since who waits for a lock waits for one that runs."""
    end, before = time.monotonic() + SETTLING, None
    while threads and time.monotonic() < end:
        states = {thread: state for thread in threads if (state := _read_state(thread))}
        asleep = all(state[0].startswith("S") for state in states.values())
        if asleep and states == before:
            return
        before = states
        time.sleep(1e-4)


def _thread_ids() -> set[int]:
    try:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    except OSError:  # not Linux
        return set()


def _read_state(thread: int) -> tuple[str, ...]:
    """Return the state of a thread, and how often it has left the processor; nothing if it has ended."""
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return tuple(fields.get(name, "") for name in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))


class Clients:
    """The clients of one process. A forked child has none of their threads, so it gets clients of its own."""

    def __init__(self, can_compile: bool = True) -> None:
        self.can_compile = can_compile
        """Whether XLA's compiler has all its threads: it has not in a child of a process in which it has run, and would abort."""
        self.has_compiled = False
        self.lock = threading.Lock()
        self.moving = threading.Lock()
        """Held while an executable moves here from another process's clients."""
        self.devices: dict[int, Any] = {}
        leave_to_parent(self)

    @classmethod
    def renew(cls) -> None:
        """Start with new clients in a forked child; the parent's are kept, since releasing a client waits for its threads."""
        globals()["clients"] = cls(can_compile=clients.can_compile and not clients.has_compiled)
        globals()["fork_guard"] = ForkGuard()


clients = Clients()
fork_guard = ForkGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=ForkGuard.enter, after_in_parent=ForkGuard.leave, after_in_child=Clients.renew)
_POOL = "PJRT_NPROC"
"""Where XLA reads how many threads a client's pool has; there is no other way to tell it."""


def get_client_device(threads: int) -> Any:
    """Return the CPU as a device of a client whose pool has that many threads; the calling one waits while they work.

    A client is made once per budget, and kept: its threads sleep when nothing runs. It computes while the caller waits, where
    JAX's own client returns at once and lets the result wait.
    """
    own = clients
    with own.lock:
        if threads not in own.devices:
            with fork_guard.hold(), _environment(_POOL, str(threads)):
                own.devices[threads] = xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
        return own.devices[threads]


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def configure_tracing(device: Any) -> Iterator[None]:
    """Hold, in this thread, what a user may have set otherwise: 64-bit types, float32 in full, on that device."""
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
    """Return the first telling line of what JAX or XLA raised."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    text = re.sub(r"^[A-Z_]+: ", "", re.sub(r"\s+", " ", text)).rstrip(" .:")
    return shorten(text, LONGEST) or type(cause).__name__
