"""Messages between two processes, as JSON over a socket with shared memory for large data, and the loop of a worker.

A message refers to blocks of the shared memory by offset and length. Nothing is pickled, so a message cannot run code. The
memory has no name, so a killed process leaves no files behind.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xrt.errors

Message: TypeAlias = dict[str, Any]
Block: TypeAlias = tuple[int, int]
"""Offset and length in shared memory, in bytes."""
_ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector register of x86."""
_LENGTH = struct.Struct("<Q")
"""The header of a message: the length in bytes of the JSON text that follows."""


@dataclass(eq=False)
class SharedBuffer:
    """Collects blocks of bytes to send with a message. `put` assigns their offsets; `send` copies them to shared memory."""

    size: int = 0
    """Total size in bytes, with the gaps for alignment."""
    _blocks: list[tuple[int, memoryview]] = field(default_factory=list)

    def put(self, data: memoryview) -> Block:
        """Add bytes, which must not change until they are sent. Return their offset and length, to put into the message."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self._blocks.append((offset, data))
        # An empty block gets a byte, because memory of size 0 cannot be mapped.
        self.size = offset + max(data.nbytes, 1)
        return offset, data.nbytes

    def copy_to_memory(self) -> int:
        """Copy all blocks to new shared memory; return its file descriptor, which the caller closes."""
        handle = os.memfd_create("xrt", os.MFD_CLOEXEC)
        try:
            os.truncate(handle, self.size)
            for offset, data in self._blocks:
                _write(handle, data, offset)
        except BaseException:
            os.close(handle)
            raise
        return handle


def _write(handle: int, data: memoryview, offset: int) -> None:
    remaining = data.cast("B") if data.nbytes else data
    while remaining.nbytes:
        # Releases the GIL, so that other threads run while gigabytes are copied.
        written = os.pwrite(handle, remaining, offset)
        remaining, offset = remaining[written:], offset + written


def read_block(memory: memoryview, block: Sequence[int]) -> memoryview:
    """View the bytes of a block, an offset and a length as `SharedBuffer.put` returns them."""
    offset, length = block
    return memory[offset : offset + length]


def send(channel: socket.socket, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> None:
    """Send a message with the blocks of ``buffer``; raises OSError if the other end is closed."""
    # First what the message may cause to fail: after the first byte, the whole message must follow.
    data = json.dumps(message).encode()
    memory = buffer.copy_to_memory() if buffer is not None and buffer.size else None
    try:
        socket.send_fds(channel, [_LENGTH.pack(len(data))], [] if memory is None else [memory])
        channel.sendall(data)
    finally:
        if memory is not None:  # the receiver gets its own descriptor
            os.close(memory)


def receive(channel: socket.socket) -> tuple[Message, memoryview]:
    """Receive a message and its shared memory, which is empty if the message has no blocks.

    Raises EOFError if the other end is closed, TimeoutError, or another OSError.
    """
    # The descriptor arrives with the header.
    header, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1, socket.MSG_WAITALL)
    memory = _map_memory(handles[0]) if handles else memoryview(b"")
    if len(header) < _LENGTH.size:
        raise EOFError("the other process is gone")
    (length,) = _LENGTH.unpack(header)
    # In pieces of at most 1 MB, so that a wrong length does not allocate memory.
    data = bytearray()
    while len(data) < length:
        received = channel.recv(min(length - len(data), 1 << 20))
        if not received:
            raise EOFError("the other process is gone")
        data += received
    return json.loads(data), memory


def _map_memory(handle: int) -> memoryview:
    """Map shared memory and close its descriptor. The memory is freed with its last view."""
    try:
        return memoryview(mmap.mmap(handle, os.fstat(handle).st_size))
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Request:
    """A message that a worker has received."""

    message: Message
    memory: memoryview
    """Shared memory that the message refers to."""
    buffer: SharedBuffer
    """Sent back with the answer."""


Answer: TypeAlias = Callable[[Request], Message]


def serve(handle: str, answer: Answer) -> None:
    """Receive messages on the socket with this handle until it closes; send back what ``answer`` returns or raises.

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
    """Receive a message and send the response. In a function of its own, so that the message's memory is freed afterwards."""
    try:
        message, memory = receive(channel)
    except MemoryError as error:
        return send(channel, {"error": _describe_error(error)})
    buffer = SharedBuffer()
    try:
        result = answer(Request(message, memory, buffer))
    except Exception as error:  # noqa: BLE001  # re-raised by the client
        return send(channel, {"error": _describe_error(error)})
    try:
        return send(channel, {"answer": result}, buffer)
    except (MemoryError, TypeError, ValueError) as error:
        # Out of memory, or the result is not JSON. Nothing was sent yet.
        return send(channel, {"error": _describe_error(error)})


def _describe_error(error: Exception) -> Message:
    """Convert an error to the fields of `RemoteError`. ``kind`` is its nearest class in `xrt.errors`, else its own class."""
    names = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == xrt.errors.__name__)
    return {"kind": next(names, type(error).__name__), "text": str(error), "nodes": list(getattr(error, "nodes", ()))}
