"""Messages between two processes, as JSON over a socket and shared memory for large data, and the worker that answers them.

A message has the offsets and lengths of its blocks in the shared memory. Nothing is pickled, so that a message cannot run code.
The memory has no name, so that processes that are killed leave no files behind.
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
"""Offset and length in shared memory."""
_ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector registers of x86."""
_LENGTH = struct.Struct("<Q")
"""The head of a message: the length of the JSON that follows."""


@dataclass(eq=False)
class SharedBuffer:
    """Collects blocks of bytes to send with a message. `put` assigns their offsets, and `send` copies them to shared memory."""

    size: int = 0
    """Total size in bytes, with the gaps for alignment."""
    _blocks: list[tuple[int, memoryview]] = field(default_factory=list)

    def put(self, data: memoryview) -> Block:
        """Add bytes, which must not change until they are sent. Return their offset and length; these belong in the message."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self._blocks.append((offset, data))
        # Even an empty block gets a byte: memory of size 0 cannot be mapped.
        self.size = offset + max(data.nbytes, 1)
        return offset, data.nbytes

    def memory(self) -> int:
        """Copy all blocks into shared memory; return its file descriptor, which the caller closes."""
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
    """Write bytes at an offset of a file. The GIL is released, so that other threads run while gigabytes are copied."""
    rest = data.cast("B") if data.nbytes else data
    while rest.nbytes:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


def read_block(memory: memoryview, block: Sequence[int]) -> memoryview:
    """View the bytes of a block, which is an offset and a length as `SharedBuffer.put` returns them."""
    offset, length = block
    return memory[offset : offset + length]


def send(channel: socket.socket, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> None:
    """Send a message with the blocks of ``buffer``; raises OSError if the other end is closed."""
    # Everything that can fail by the message comes first: once a byte is sent, the rest must follow.
    data = json.dumps(message).encode()
    memory = buffer.memory() if buffer is not None and buffer.size else None
    try:
        socket.send_fds(channel, [_LENGTH.pack(len(data))], [] if memory is None else [memory])
        channel.sendall(data)
    finally:
        if memory is not None:  # the receiver has a descriptor of its own
            os.close(memory)


def receive(channel: socket.socket) -> tuple[Message, memoryview]:
    """Receive a message and its shared memory, which is empty if it has no blocks.

    Raises EOFError if the other end is closed, TimeoutError, or another OSError.
    """
    # The descriptor arrives with the first bytes of a message.
    head, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1, socket.MSG_WAITALL)
    memory = _map_memory(handles[0]) if handles else memoryview(b"")
    if len(head) < _LENGTH.size:
        raise EOFError("the other process is gone")
    (length,) = _LENGTH.unpack(head)
    # In pieces, so that no memory is allocated for a length whose data never arrive.
    data = bytearray()
    while len(data) < length:
        part = channel.recv(min(length - len(data), 1 << 20))
        if not part:
            raise EOFError("the other process is gone")
        data += part
    return json.loads(data), memory


def _map_memory(handle: int) -> memoryview:
    """Map shared memory and close its descriptor. The memory is freed when the last view of it is gone."""
    try:
        return memoryview(mmap.mmap(handle, os.fstat(handle).st_size))
    finally:
        os.close(handle)


# ---------------------------------------------------------------------- in the worker


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
    """Receive a message and send the response. On return no reference to the message's memory is left, so it can be freed."""
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
    """Convert an error to the fields of `RemoteError`. ``kind`` is its nearest base class in `xrt.errors`, else its own class."""
    names = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == xrt.errors.__name__)
    return {"kind": next(names, type(error).__name__), "text": str(error), "nodes": list(getattr(error, "nodes", ()))}
