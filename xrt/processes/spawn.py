"""Start a program, or an entry point of XRT in another Python, which ends with this process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from xrt.processes.tree import kill, list_descendants

__all__ = ["NOTHING_ADDED", "SUPPORTED", "end", "hold", "release", "run", "start", "start_python", "tie"]

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]
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
_NOT_INHERITED = ("PYTHONINSPECT", "PYTHONSTARTUP")
"""Variables with which an interpreter turns to a person: a worker would wait for one, or run what is meant for one."""
NOTHING_ADDED: Mapping[str, str] = MappingProxyType({})
"""An environment like this process's."""


def start(command: Sequence[str], *, environment: Mapping[str, str] | None = None, **streams: Any) -> subprocess.Popen[Any]:
    """Start a program in a session of its own; it is killed, with its process group, when this process ends.

    ``environment`` replaces this process's, and ``streams`` are those of `subprocess.Popen`. The program must end by itself when
    its standard input closes before anything came, as it does where this process ends in the moment of the start. The caller
    ends it by `end`.
    """
    return _start(lambda reads: command, environment, (), streams)


def start_python(
    entry: str,
    *arguments: str,
    environment: Mapping[str, str] = NOTHING_ADDED,
    inherited: Sequence[int] = (),
    **streams: Any,
) -> subprocess.Popen[Any]:
    """Start another Python that calls ``entry``, such as ``xrt.worker.server:main``, with the arguments, and ends as it returns.

    It imports from the same places as this process, but not from the current directory, whatever is in it. ``environment`` is
    added to this process's, and ``inherited`` are file descriptors that it keeps. It ends as a process
    of `start` does.
    """
    module, _, function = entry.partition(":")
    call = f"import sys; from {module} import {function}; sys.exit({function}(*sys.argv[1:]))"
    options = ("-P", "-s") if sys.flags.no_user_site else ("-P",)

    def command(reads: int | None) -> list[str]:
        hold = "" if reads is None else f"from xrt.processes.spawn import hold; hold({reads}); "
        return [sys.executable, *options, "-c", hold + call, *arguments]

    return _start(command, _python_environment(environment), inherited, streams)


def _start(
    command: Callable[[int | None], Sequence[str]],
    environment: Mapping[str, str] | None,
    inherited: Sequence[int],
    streams: Mapping[str, Any],
) -> subprocess.Popen[Any]:
    """Start what ``command`` says, given the lifeline's number in the child; None where the system knows no such thing."""
    if not SUPPORTED:
        return subprocess.Popen(command(None), env=environment, pass_fds=inherited, start_new_session=True, **streams)
    reads, writes = os.pipe()
    try:
        process = subprocess.Popen(
            command(reads), env=environment, pass_fds=(*inherited, reads), start_new_session=True, **streams
        )
    except BaseException:
        os.close(writes)
        raise
    else:
        tie(process, reads, writes)
        return process
    finally:
        os.close(reads)


def run(command: Sequence[str], given: bytes, timeout: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program on an input, and return what it wrote and how it ended; ``options`` are those of `start`.

    Raises `subprocess.TimeoutExpired` after that many seconds. The process has ended in every case, with what it has started.
    """
    pipe = subprocess.PIPE
    process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
    try:
        out, said = process.communicate(given, timeout=timeout)
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process, with all that it has started, unless it has ended by itself; close its pipes, and wait until it is gone."""
    others = list_descendants(process.pid) if process.poll() is None else ()
    release(process)
    process.kill()
    process.wait()
    kill(others)  # those that have left its process group
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # what was not read any more is of no use to anyone
                pipe.close()


def _python_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python that imports from where this one does, as its own children do, and shows no progress."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    own = {"PYTHONPATH": os.pathsep.join(_search_path()), "PYTHONSAFEPATH": "1", "XRT_PROGRESS": "off"}
    return {**kept, **own, **more}


def _search_path() -> list[str]:
    """Return the absolute folders of ``sys.path``; the empty entry of an interactive session is the folder that it means.

    A folder whose name holds the separator cannot be named in the variable: its halves would be other folders.
    """
    found = []
    for entry in sys.path:
        with suppress(FileNotFoundError):  # the current directory is gone, and nothing is imported from it
            found.append(str(Path(entry).absolute()))
    return [folder for folder in found if os.pathsep not in folder]
