"""Messages between two processes: JSON over a socket, with memory that both have mapped.

Values and Functions are in the memory, and the message contains their positions. Nothing is pickled. Nothing has a name in the
file system, so nothing is left over when a process is killed.
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

import numpy as np

from xrt.formats.onnx.tensors import encode_data
from xrt.formats.protobuf import read_model, write_model
from xrt.graph import Constant, DType, Function

__all__ = ["Message", "SharedBuffer", "read_function", "read_value", "read_values", "receive", "send"]

Message: TypeAlias = dict[str, Any]
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")


def send(channel: socket.socket, message: Mapping[str, Any], room: SharedBuffer | None = None) -> None:
    """Send a message, with the memory of ``room`` if given; raises OSError if the other end is closed."""
    data = json.dumps(message).encode()
    memory = room.memory() if room is not None and room.size else None
    try:
        socket.send_fds(channel, [_LENGTH.pack(len(data))], [] if memory is None else [memory])
        channel.sendall(data)
    finally:
        if memory is not None:
            os.close(memory)


def receive(channel: socket.socket) -> tuple[Message, memoryview]:
    """Return the next message and its memory; raises EOFError where no more will come, TimeoutError, or another OSError."""
    head, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1, socket.MSG_WAITALL)
    memory = _mapped(handles[0]) if handles else memoryview(b"")
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


def _mapped(handle: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(handle, os.fstat(handle).st_size))
    finally:
        os.close(handle)


@dataclass(eq=False)
class SharedBuffer:
    """Memory to be sent: what is put there gets a place, and is copied when it is sent."""

    size: int = 0
    _blocks: list[tuple[int, memoryview]] = field(default_factory=list)

    def put(self, data: memoryview) -> tuple[int, int]:
        """Return offset and length of the place of these bytes."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self._blocks.append((offset, data))
        self.size = offset + max(data.nbytes, 1)
        return offset, data.nbytes

    def memory(self) -> int:
        """Return the handle of memory that holds everything; the caller closes it."""
        handle = os.memfd_create("xrt", os.MFD_CLOEXEC)
        try:
            os.truncate(handle, self.size)
            with mmap.mmap(handle, self.size) as mapped:
                for offset, data in self._blocks:
                    mapped[offset : offset + data.nbytes] = data
        except BaseException:
            os.close(handle)
            raise
        return handle

    # ------------------------------------------------------------------ values

    def put_value(self, value: Any) -> Any:
        """Return what `read_value` makes the value of: an array, a list of values, a map, or None."""
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return {"list": [self.put_value(item) for item in value]}
        if isinstance(value, dict):  # of Python's own numbers and texts, in pairs: keys of JSON's objects are texts
            return {"map": list(value.items())}
        array = np.asarray(value)
        if array.dtype.kind in "USO":
            return {"shape": array.shape, "strings": [str(text) for text in array.reshape(-1)]}
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return {"shape": array.shape, "dtype": DType.of(array).text, "at": self.put(flat.data.cast("B"))}

    # ------------------------------------------------------------------ Functions

    def put_function(self, function: Function) -> Any:
        """Return what `read_function` makes the Function of; its weights lie in the room once."""
        weights: dict[int, str] = {}
        places: dict[str, tuple[int, int]] = {}

        def keep(constant: Constant) -> str:
            name = weights.setdefault(id(constant.array), f"weights:{len(weights)}")
            if name not in places:
                places[name] = self.put(encode_data(constant).cast("B"))
            return name

        model = write_model(function, keep)
        return {"model": self.put(memoryview(model)), "weights": places}


def read_value(memory: memoryview, told: Any) -> Any:
    """Return a value from the memory; arrays are views of it."""
    if told is None:
        return None
    if "list" in told:
        return [read_value(memory, item) for item in told["list"]]
    if "map" in told:
        return dict(told["map"])
    if "strings" in told:
        return np.array(told["strings"], dtype=object).reshape(told["shape"])
    dtype = DType.parse(told["dtype"]).numpy
    return np.frombuffer(_part(memory, told["at"]), dtype).reshape(told["shape"])


def read_values(memory: memoryview, told: Sequence[Any]) -> list[Any]:
    """Return the values that lie in the memory."""
    return [read_value(memory, one) for one in told]


def read_function(memory: memoryview, told: Any) -> Function:
    """Return a Function from the memory; its weights are views of it."""
    weights = {name: _part(memory, place) for name, place in told["weights"].items()}
    return read_model(bytes(_part(memory, told["model"])), weights.get)


def _part(memory: memoryview, place: Sequence[int]) -> memoryview:
    offset, length = place
    return memory[offset : offset + length]
