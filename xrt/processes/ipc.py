"""Messages between two processes: JSON over a socket, with shared memory for large data.

Messages contain the positions of arrays and other blocks in the shared memory. Nothing is pickled. The memory is anonymous, so
killed processes leave no files behind.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Block: TypeAlias = tuple[int, int]
"""Offset and length in shared memory."""
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")


@dataclass(eq=False)
class SharedBuffer:
    """Memory to send: blocks get an offset when they are added and are copied when they are sent."""

    size: int = 0
    _blocks: list[tuple[int, memoryview]] = field(default_factory=list)

    def put(self, data: memoryview) -> Block:
        """Add bytes; return their offset and length."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self._blocks.append((offset, data))
        # Even an empty block gets a byte: memory of size 0 cannot be mapped.
        self.size = offset + max(data.nbytes, 1)
        return offset, data.nbytes

    def memory(self) -> int:
        """A file descriptor of memory with all blocks; the caller closes it."""
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
    """Write bytes without the GIL, so that other threads run while gigabytes are copied."""
    rest = data.cast("B") if data.nbytes else data
    while rest.nbytes:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


def read_block(memory: memoryview, block: Sequence[int]) -> memoryview:
    """The bytes of a block that `SharedBuffer.put` returned."""
    offset, length = block
    return memory[offset : offset + length]


def send(channel: socket.socket, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> None:
    """Send a message, with the memory of ``buffer`` if given; raises OSError if the other end is closed."""
    data = json.dumps(message).encode()
    memory = buffer.memory() if buffer is not None and buffer.size else None
    try:
        socket.send_fds(channel, [_LENGTH.pack(len(data))], [] if memory is None else [memory])
        channel.sendall(data)
    finally:
        if memory is not None:
            os.close(memory)


def receive(channel: socket.socket) -> tuple[Message, memoryview]:
    """Receive a message and its memory; raises EOFError at the end, TimeoutError, or another OSError."""
    # The descriptor arrives with the first bytes of a message.
    head, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1, socket.MSG_WAITALL)
    memory = _map_memory(handles[0]) if handles else memoryview(b"")
    if len(head) < _LENGTH.size:
        raise EOFError("the other process is gone")
    (length,) = _LENGTH.unpack(head)
    data = bytearray()
    while len(data) < length:
        part = channel.recv(min(length - len(data), 1 << 20))
        if not part:
            raise EOFError("the other process is gone")
        data += part
    return json.loads(data), memory


def _map_memory(handle: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(handle, os.fstat(handle).st_size))
    finally:
        os.close(handle)
