"""The worker's side: answer messages from a socket, one at a time, until it closes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import xrt.errors
from xrt.processes.ipc import Message, SharedBuffer, receive, send


@dataclass(frozen=True, slots=True)
class Request:
    """A message to answer."""

    message: Message
    memory: memoryview
    """Shared memory that the message refers to."""
    buffer: SharedBuffer
    """Sent back with the answer."""


Answer: TypeAlias = Callable[[Request], Message]


def serve(handle: str, answer: Answer) -> None:
    """Answer messages on the socket with this handle until it closes; exceptions of ``answer`` are sent back.

    Output of libraries goes to standard error, and child processes do not inherit the socket.
    """
    with suppress(OSError):  # standard error is closed
        os.dup2(2, 1)
    with socket.socket(fileno=int(handle)) as channel:
        # A child with the socket would keep the client from seeing that this process died.
        channel.set_inheritable(False)
        with suppress(EOFError, ConnectionError):  # the client exited or closed the socket
            send(channel, {"ready": os.getpid()})
            while True:
                _serve_one(channel, answer)


def _serve_one(channel: socket.socket, answer: Answer) -> None:
    """Answer one message and drop all references to its memory."""
    try:
        message, memory = receive(channel)
    except MemoryError as error:
        return send(channel, {"error": _describe(error)})
    buffer = SharedBuffer()
    try:
        result = answer(Request(message, memory, buffer))
    except Exception as error:  # noqa: BLE001  # re-raised by the client
        return send(channel, {"error": _describe(error)})
    try:
        return send(channel, {"answer": result}, buffer)
    except (MemoryError, TypeError, ValueError) as error:  # nothing was sent yet: out of memory, or not JSON
        return send(channel, {"error": _describe(error)})


def _describe(error: Exception) -> Message:
    """The fields of `RemoteError`: the nearest class in `xrt.errors` or the class itself, the text, and nodes if any."""
    names = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == xrt.errors.__name__)
    return {"kind": next(names, type(error).__name__), "text": str(error), "nodes": list(getattr(error, "nodes", ()))}
