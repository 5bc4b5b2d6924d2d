"""Start a program, or an entry point of XRT in another Python, and kill it with its descendants when this process ends.

Each child has a lifeline: a pipe whose writing end this process holds. However this process ends, the pipe closes, and the kernel
then kills the child's process group.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not available on this system
    fcntl = None  # type: ignore[assignment]
SUPPORTS_LIFELINES = hasattr(fcntl, "F_SETSIG")
"""Whether the system can send a chosen signal when a pipe closes, as Linux can."""
_lifelines: weakref.WeakKeyDictionary[subprocess.Popen[Any], weakref.finalize[[int], subprocess.Popen[Any]]] = (
    weakref.WeakKeyDictionary()
)
"""Maps each process to the finalizer that closes the writing end of its lifeline."""


def attach_lifeline(process: subprocess.Popen[Any], read_fd: int, write_fd: int) -> None:
    """Kill the process and its group when ``write_fd`` closes: by `cut_lifeline`, or when this process ends.

    The process must lead its own group and have inherited ``read_fd``. The caller must not close ``write_fd``.
    """
    _lifelines[process] = weakref.finalize(process, os.close, write_fd)
    _signal_group(read_fd, process.pid)


def hold_lifeline(read_fd: int) -> None:
    """Make the kernel kill this child and its group when the parent ends. The parent may end before `attach_lifeline`."""
    _signal_group(read_fd, os.getpid())
    # If the pipe closed before the line above, no signal comes.
    ended = select.poll()
    ended.register(read_fd, select.POLLHUP)
    if ended.poll(0):
        os.killpg(os.getpid(), signal.SIGKILL)


def _signal_group(read_fd: int, group: int) -> None:
    """Make the kernel send SIGKILL to a process group when the pipe of ``read_fd`` has no writer left."""
    fcntl.fcntl(read_fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(read_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read_fd, fcntl.F_SETFL, fcntl.fcntl(read_fd, fcntl.F_GETFL) | os.O_ASYNC)


def cut_lifeline(process: subprocess.Popen[Any]) -> None:
    """Close the lifeline of a process, so that the kernel kills all processes in its group."""
    if (lifeline := _lifelines.pop(process, None)) is not None:
        lifeline()


def _close_copies() -> None:
    """Close the copies of all lifelines in a forked child, which may outlive this process and would keep the pipes open."""
    for process in list(_lifelines):
        cut_lifeline(process)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
_NOT_INHERITED = ("PYTHONINSPECT", "PYTHONSTARTUP")
"""Variables that make an interpreter interactive or run a user's startup file."""


def start(command: Sequence[str], *, environment: Mapping[str, str] | None = None, **streams: Any) -> subprocess.Popen[Any]:
    """Start a program in a new session; it is killed with its process group when this process ends.

    ``environment`` replaces that of this process; ``streams`` are those of `subprocess.Popen`. The program must exit if its
    standard input closes before any data arrives, as happens if this process ends during the start. Call `end` to end it.
    """
    return _start(lambda read_fd: command, environment, (), streams)


def start_python(
    entry: str, *arguments: str, environment: Mapping[str, str] | None = None, inherited: Sequence[int] = (), **streams: Any
) -> subprocess.Popen[Any]:
    """Start another Python that calls ``entry``, such as ``xrt.worker.server:main``, with the arguments, and exits.

    It has the import path of this process, but never imports from the current directory. ``environment`` is added to the
    environment of this process. ``inherited`` lists file descriptors to pass. ``streams`` are as in `start`.
    """
    # Not by multiprocessing, which would import the user's main module, which may start this process again.
    module, _, function = entry.partition(":")
    call = f"import sys; from {module} import {function}; sys.exit({function}(*sys.argv[1:]))"
    # -P: the current directory may have a file named like a library.
    options = ("-P", "-s") if sys.flags.no_user_site else ("-P",)

    def command(read_fd: int | None) -> list[str]:
        hold = "" if read_fd is None else f"from xrt.processes.spawn import hold_lifeline; hold_lifeline({read_fd}); "
        return [sys.executable, *options, "-c", hold + call, *arguments]

    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    variables |= {"PYTHONPATH": os.pathsep.join(_list_import_path()), "PYTHONSAFEPATH": "1", "XRT_PROGRESS": "off"}
    return _start(command, {**variables, **(environment or {})}, inherited, streams)


def _start(
    command: Callable[[int | None], Sequence[str]],
    environment: Mapping[str, str] | None,
    inherited: Sequence[int],
    streams: Mapping[str, Any],
) -> subprocess.Popen[Any]:
    """Start the program ``command(fd)``. ``fd`` is the child's end of its lifeline, or None on systems without lifelines."""
    if not SUPPORTS_LIFELINES:
        return subprocess.Popen(command(None), env=environment, pass_fds=inherited, start_new_session=True, **streams)
    read_fd, write_fd = os.pipe()
    try:
        process = subprocess.Popen(
            command(read_fd), env=environment, pass_fds=(*inherited, read_fd), start_new_session=True, **streams
        )
    except BaseException:
        os.close(write_fd)
        raise
    else:
        attach_lifeline(process, read_fd, write_fd)
        return process
    finally:
        os.close(read_fd)  # the child has a copy


def run(command: Sequence[str], data: bytes, timeout: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program with input; return its output and exit status. ``options`` are those of `start`.

    Raises `subprocess.TimeoutExpired` after ``timeout`` seconds. The process and its descendants have ended in every case.
    """
    pipe = subprocess.PIPE
    process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
    try:
        out, errors = process.communicate(data, timeout=timeout)
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its descendants unless it has exited; close its pipes and wait for it."""
    # A descendant, such as a compiler, may run for minutes after the kill. List the descendants before the kill, after which they
    # belong to init.
    descendants = list_descendants(process.pid) if process.poll() is None else ()
    cut_lifeline(process)
    process.kill()
    process.wait()
    kill(descendants)  # for those outside the process group
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # unread data is discarded
                pipe.close()


def list_descendants(process: int) -> list[int]:
    """List the ids of all descendants of a process; empty if the system does not list them."""
    descendants: list[int] = []
    with suppress(OSError):
        for listing in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, listing.read_text("ascii").split()):
                descendants += [child, *list_descendants(child)]
    return descendants


def kill(processes: Iterable[int]) -> None:
    """Kill processes by id; ignore those that have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def name_signal(number: int) -> str:
    """Name a signal. Python has no names for most real-time signals, which are named by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _list_import_path() -> list[str]:
    """List the absolute folders of ``sys.path``, without those whose names PYTHONPATH cannot express."""
    folders = []
    for entry in sys.path:
        with suppress(FileNotFoundError):  # the current directory was deleted
            folders.append(str(Path(entry).absolute()))  # the empty entry of an interactive session is the current directory
    # os.pathsep separates the folders in PYTHONPATH.
    return [folder for folder in folders if os.pathsep not in folder]
