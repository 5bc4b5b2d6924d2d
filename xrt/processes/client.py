"""The client of a worker process: sends one request at a time, and raises crashes, timeouts and remote errors as exceptions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

import xrt.errors
from xrt.errors import XRTError
from xrt.forking import get_generation
from xrt.processes.ipc import Message, SharedBuffer, receive, send
from xrt.processes.spawn import end, name_signal, start_python

MAX_START_SECONDS = 120.0
"""Seconds that a worker may take to start, in which it imports its libraries."""
EXIT_SECONDS = 1.0
"""Seconds that a worker may take to exit after its socket was closed."""


class WorkerFailure(Exception):
    """A request to a worker failed; base class of the other errors."""


class WorkerLost(WorkerFailure):
    """The worker process has ended, and its state with it."""


class WorkerTimedOut(WorkerLost):
    """The worker did not respond in time and was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it gave no answer within {seconds:.3g} s, and its process was killed")


class WorkerDied(WorkerLost):
    """The worker exited without a response."""

    def __init__(self, code: int, output: str = "") -> None:
        self.code = code
        """Exit status, or the negative number of the signal that ended the process."""
        self.output = output
        # A crash of native code ends a process by a signal, and so does the kernel when memory runs out.
        self.ended_by = name_signal(-code) if code < 0 else f"exit status {code}"
        crash = f"its process was ended by {self.ended_by}: a crash, or the system had no memory left"
        text = crash if code < 0 else f"its process ended by itself, with status {code}"
        super().__init__(f"{text}; it last wrote: {self.last_line}" if output else text)

    @property
    def last_line(self) -> str:
        """The last line of the worker's output; empty if it printed nothing."""
        return (self.output.splitlines() or [""])[-1]


class RemoteError(WorkerFailure):
    """A request raised an exception in the worker. The worker is still alive."""

    def __init__(self, kind: str, text: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        """Name of the exception class, if possible one of `xrt.errors`."""
        self.text = text
        self.nodes = nodes
        """Names of the nodes that the error is about."""

    def restore(self) -> Exception:
        """Create the XRTError that was raised in the worker. If it was another exception, return this RemoteError."""
        cls = getattr(xrt.errors, self.kind, None)
        if not (isinstance(cls, type) and issubclass(cls, XRTError)):
            return self
        error = cls(self.text)
        if self.nodes:
            vars(error)["nodes"] = self.nodes
        return error


class WorkerProcess:
    """A Python process that serves one request at a time. The first request waits for the start of the process."""

    def __init__(
        self, entry: str, *arguments: str, environment: Mapping[str, str] | None = None, keeps_output: bool = True
    ) -> None:
        """Start ``entry``, which must call `xrt.processes.ipc.serve` with its first argument, a socket handle.

        With ``keeps_output`` the output is kept for `WorkerDied`, otherwise it goes to standard error.
        """
        # A socket, because libraries write to standard output.
        channel, child_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # In memory, because a full pipe would block the worker: the output is only read after its end.
        output = os.fdopen(os.memfd_create("xrt-output"), "w+", errors="replace") if keeps_output else None
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        with child_channel:
            handle = child_channel.fileno()
            self._process = start_python(entry, str(handle), *arguments, environment=environment, inherited=[handle], **streams)
        self._channel, self._output = channel, output
        self._is_ready = False
        self._generation = get_generation()
        self.end = weakref.finalize(self, _end, self._generation, self._process, channel, output)
        """Kill the process with all its descendants, such as compilers, and close the socket.

        In a forked child, the process belongs to the parent. The child only closes its copy of the socket."""

    def ask(
        self, message: Mapping[str, Any], buffer: SharedBuffer | None = None, seconds: float | None = None
    ) -> tuple[Message, memoryview]:
        """Send a request with the blocks of ``buffer``; return the response and the shared memory that it refers to.

        ``seconds`` limits the time from the sending to the response. Raises RemoteError if the request raised an exception in the
        worker, WorkerLost if the process died or exceeded the limit.
        """
        try:
            if not self._is_ready:
                # The start, which imports libraries, has a time limit of its own.
                with self._limit_time(MAX_START_SECONDS):
                    receive(self._channel)
                self._is_ready = True
            with self._limit_time(seconds) as set_timeout:
                send(self._channel, message, buffer)
                set_timeout()  # sending a large message has taken time
                reply, memory = receive(self._channel)
        except WorkerLost:
            raise
        except BaseException:
            # Also after Ctrl-C: the late answer would be read as that of the next request.
            self.end()
            raise
        if "error" in reply:
            failure = reply["error"]
            raise RemoteError(failure["kind"], failure["text"], tuple(failure["nodes"]))
        return reply["answer"], memory

    @contextmanager
    def _limit_time(self, seconds: float | None) -> Iterator[Callable[[], None]]:
        """Convert a timeout or the end of the process to WorkerLost. Yields a function that sets the timeout to the time left."""
        deadline = None if seconds is None else time.monotonic() + seconds

        def set_timeout() -> None:
            self._channel.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))

        try:
            set_timeout()
            yield set_timeout
        except TimeoutError as error:
            self.end()
            raise WorkerTimedOut(seconds or 0.0) from error
        except (OSError, EOFError) as error:
            death = self._explain_death()
            # When memory runs out, Linux sends SIGKILL.
            cause = MemoryError(str(death)) if death.code == -signal.SIGKILL else error
            raise death from cause

    def _explain_death(self) -> WorkerDied:
        """End a process that has closed its socket; return its exit status and output as an error."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:  # it still runs
            code = 0
        output = ""
        if self._output is not None and not self._output.closed:
            self._output.seek(0)
            output = self._output.read().strip()
        self.end()
        return WorkerDied(code, output)

    @property
    def is_open(self) -> bool:
        """Whether this process, not the parent of a fork, started the worker and has not ended it. It may have crashed."""
        return self.end.alive and self._generation == get_generation()

    def kill(self) -> None:
        """Kill the process. A request that another thread has made then raises WorkerDied."""
        if self.is_open:
            self._process.kill()

    def close(self) -> None:
        """Let the process exit cleanly; kill it if it does not within `EXIT_SECONDS`."""
        self._channel.close()  # the worker then ends its loop
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        self.end()


def _end(generation: int, process: subprocess.Popen[bytes], channel: socket.socket, output: IO[str] | None) -> None:
    """Kill the process and close the resources. Not a method, because a finalizer must not refer to its object."""
    # In a forked child the process belongs to the parent.
    if generation == get_generation():
        end(process)
    channel.close()
    if output is not None:
        output.close()
