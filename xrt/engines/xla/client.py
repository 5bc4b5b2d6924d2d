"""JAX as this engine uses it: a client of its own per thread budget, and settings that hold while it traces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
from jaxlib import xla_client

__all__ = ["clients", "configure_tracing", "get_client_device"]


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

    @classmethod
    def renew(cls) -> None:
        """Start with new clients in a forked child; the parent's are kept, since releasing a client waits for its threads."""
        _left_behind.append(clients)
        globals()["clients"] = cls(can_compile=clients.can_compile and not clients.has_compiled)


clients = Clients()
_left_behind: list[Clients] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Clients.renew)

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
            with _environment(_POOL, str(threads)):
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
