"""A lifeline: a pipe whose last writer is this process, so that the kernel kills a child's process group when it closes.

The child inherits the reading end, and the kernel signals its process group when the pipe's last writer is gone: no thread
of the child has to run, and a foreign program needs to know nothing of it. ``PR_SET_PDEATHSIG`` would fire when the *thread*
ends that started the child, and reaches no grandchildren.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import weakref
from typing import Any

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]

__all__ = ["SUPPORTED", "hold", "release", "tie"]

SUPPORTED = hasattr(fcntl, "F_SETSIG")
"""Whether the system can send a signal of choice when a pipe closes: Linux can."""

_lifelines: weakref.WeakKeyDictionary[subprocess.Popen[Any], weakref.finalize[[int], subprocess.Popen[Any]]] = (
    weakref.WeakKeyDictionary()
)
"""What closes the writing end, by the process that depends on it."""


def tie(process: subprocess.Popen[Any], reads: int, writes: int) -> None:
    """Kill the process and its group when ``writes`` closes: by `release`, or when this process ends.

    The process must lead a group of its own and have inherited ``reads``. From here on ``writes`` is closed by this module.
    """
    _lifelines[process] = weakref.finalize(process, os.close, writes)
    _signal_group(reads, process.pid)


def hold(reads: int) -> None:
    """Do in a child what `tie` does in its parent, which may have ended before it could; the child leads its group."""
    _signal_group(reads, os.getpid())
    ended = select.poll()
    ended.register(reads, select.POLLHUP)
    if ended.poll(0):
        os.killpg(os.getpid(), signal.SIGKILL)


def _signal_group(reads: int, group: int) -> None:
    """Make the kernel kill a process group when the pipe has no writer left."""
    fcntl.fcntl(reads, fcntl.F_SETOWN, -group)
    fcntl.fcntl(reads, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reads, fcntl.F_SETFL, fcntl.fcntl(reads, fcntl.F_GETFL) | os.O_ASYNC)


def release(process: subprocess.Popen[Any]) -> None:
    """Close the lifeline of a process: what still runs of its group is killed."""
    if (lifeline := _lifelines.pop(process, None)) is not None:
        lifeline()


def _release_all() -> None:
    for process in list(_lifelines):
        release(process)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)  # a fork that outlives this process must not hold the pipes open
