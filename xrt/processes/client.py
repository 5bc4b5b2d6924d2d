"""The client of a worker process: sends one request at a time, and raises crashes, timeouts and remote errors as exceptions.

Requests and answers are messages of `ipc`, whose `serve` the worker runs.
"""

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
from xrt.processes.spawn import NOTHING_ADDED, end, name_signal, start_python

START = 120.0
"""Maximum seconds for a worker to start."""
PATIENCE = 1.0
"""Seconds for a worker to exit voluntarily."""


class WorkerFailure(Exception):
    """A request to a worker failed; the base of the errors below."""


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
        """Exit status; negative signal number if a signal ended it."""
        self.output = output
        # A native crash, and the kernel that runs out of memory, end a process by a signal.
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
        """Create the XRTError that was raised in the worker; if it was another exception, return this RemoteError."""
        cls = getattr(xrt.errors, self.kind, None)
        if not (isinstance(cls, type) and issubclass(cls, XRTError)):
            return self
        error = cls(self.text)
        if self.nodes:
            vars(error)["nodes"] = self.nodes
        return error


class WorkerProcess:
    """A Python process that serves one request at a time. The constructor does not wait for its start; the first request does."""

    def __init__(
        self,
        entry: str,
        *arguments: str,
        environment: Mapping[str, str] = NOTHING_ADDED,
        keeps_output: bool = True,
    ) -> None:
        """Start ``entry``, which must call `xrt.processes.ipc.serve` with its first argument, a socket handle.

        With ``keeps_output`` the output is kept for `WorkerDied`, otherwise it goes to standard error.
        """
        # Not standard input and output: libraries write to these.
        channel, child_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # In memory, not a pipe: nobody reads it while the process runs, and a full pipe would block its writer.
        output = os.fdopen(os.memfd_create("xrt-output"), "w+", errors="replace") if keeps_output else None
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        with child_channel:
            handle = child_channel.fileno()
            self._process = start_python(entry, str(handle), *arguments, environment=environment, inherited=[handle], **streams)
        self._channel, self._output = channel, output
        self._is_ready = False
        self._generation = get_generation()
        self.end = weakref.finalize(self, _end, self._generation, self._process, channel, output)
        """Kill the process with all its descendants, such as compilers, and release its resources.

        In a forked child, only close the child's copies: the process belongs to the parent."""

    def ask(
        self, message: Mapping[str, Any], buffer: SharedBuffer | None = None, seconds: float | None = None
    ) -> tuple[Message, memoryview]:
        """Send a request with the blocks of ``buffer``; return the response and the shared memory that it refers to.

        ``seconds`` limits the time until the response, without the start of the process. Raises RemoteError if the worker
        reports an exception, WorkerLost if the process died or exceeded the limit.
        """
        try:
            if not self._is_ready:
                # The time limit of a request is not spent on the start, which imports libraries.
                with self._limit_time(START):
                    receive(self._channel)
                self._is_ready = True
            with self._limit_time(seconds) as set_timeout:
                send(self._channel, message, buffer)
                set_timeout()  # a large message has used a part of the time
                reply, memory = receive(self._channel)
        except WorkerLost:
            raise
        except BaseException:  # also for an interrupt: its late answer would be read as that of the next request
            self.end()
            raise
        if "error" in reply:
            failure = reply["error"]
            raise RemoteError(failure["kind"], failure["text"], tuple(failure["nodes"]))
        return reply["answer"], memory

    @contextmanager
    def _limit_time(self, seconds: float | None) -> Iterator[Callable[[], None]]:
        """Convert a timeout or the end of the process to WorkerLost. Yields a function that sets the socket's timeout again."""
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
            # Linux sends SIGKILL when memory runs out.
            raise death from MemoryError(str(death)) if death.code == -signal.SIGKILL else error

    def _explain_death(self) -> WorkerDied:
        """End a process that has closed its channel; return its exit status and output as an error."""
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # it has closed the channel and runs on
            code = 0
        output = ""
        if self._output is not None and not self._output.closed:
            self._output.seek(0)
            output = self._output.read().strip()
        self.end()
        return WorkerDied(code, output)

    @property
    def is_alive(self) -> bool:
        """Whether this process (not its parent) started the worker and has not ended it. The worker may have died since."""
        return self.end.alive and self._generation == get_generation()

    def kill(self) -> None:
        """Kill the process, even during a request in another thread, which then raises WorkerDied and cleans up."""
        if self.is_alive:
            self._process.kill()

    def close(self) -> None:
        """Let the process exit cleanly; kill it if it does not within `PATIENCE` seconds."""
        self._channel.close()  # the worker then ends its loop
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.end()


def _end(generation: int, process: subprocess.Popen[bytes], channel: socket.socket, output: IO[str] | None) -> None:
    """Kill the process and close the resources. This is not a method because a finalizer must not refer to its object."""
    # In a forked child the process belongs to the parent.
    if generation == get_generation():
        end(process)
    channel.close()
    if output is not None:
        output.close()
