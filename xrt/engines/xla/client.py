"""JAX as this engine uses it: a client of its own per thread budget, and settings that hold while it traces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import jax
from jaxlib import xla_client

__all__ = ["device_of", "tracing"]

_creating = threading.Lock()

_POOL = "PJRT_NPROC"
"""Where XLA reads how many threads a client's pool has; there is no other way to tell it."""


@lru_cache(maxsize=8)
def device_of(threads: int) -> Any:
    """Return the CPU as a device of a client whose computations use that many threads, the calling one included.

    A client is made once per budget, and kept: its threads sleep when nothing runs. It begins on the calling thread, where
    JAX's own client hands all but the smallest computations over to another thread.
    """
    with _creating, _environment(_POOL, str(threads)):
        return xla_client.make_cpu_client(asynchronous=False).local_devices()[0]


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
def tracing(device: Any) -> Iterator[None]:
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
