"""The wire format of protobuf, as far as it takes to find one's way in a message without parsing it.

A message is a line of fields, each a tag and a content. What is skipped here is not read: a file may be mapped, and then
only the pages on which fields begin come into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import NamedTuple, TypeAlias

__all__ = ["Buffer", "Field", "MalformedMessage", "TruncatedMessage", "Walk", "encode"]

Buffer: TypeAlias = bytes | mmap
"""Bytes by place; a slice of it is a copy."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}

_LONGEST = 5
"""Bytes that protobuf admits for a tag or a length."""
_LONGEST_VALUE = 10

MOST_FIELDS = 1 << 22
"""Fields after which a walk is given up: protobuf is quicker on what consists of nothing but small ones."""


class Field(NamedTuple):
    """The position of a field."""

    number: int
    holds_bytes: bool
    """Whether its content is bytes, text or a message, and not a number."""
    at: int
    """Where its tag begins."""
    content: int
    end: int


class MalformedMessage(ValueError):
    """These bytes are no message, or one that is too long to walk through."""


class TruncatedMessage(MalformedMessage):
    """A field ends after the message that holds it."""

    def __init__(self, number: int, end: int) -> None:
        super().__init__(f"field {number} should end at byte {end}")
        self.number = number
        self.end = end


@dataclass(slots=True)
class Walk:
    """A walk over messages in a buffer, which takes at most `MOST_FIELDS` steps."""

    data: Buffer
    left: int = MOST_FIELDS

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two places.

        Raises Overrun for a field that is longer than the message, and Unsound for what is no message, or too long a walk.
        """
        data = self.data
        while at < end:
            tag, content = (data[at], at + 1) if data[at] < 0x80 else self.varint(at, end)  # nearly all are of one byte
            holds_bytes = tag & 7 == _BYTES
            length, content = self.varint(content, end) if holds_bytes else (self._length(tag & 7, content, end), content)
            if content + length > end:
                raise TruncatedMessage(tag >> 3, content + length)
            yield Field(tag >> 3, holds_bytes, at, content, content + length)
            at = content + length
            self.left -= 1
            if self.left < 0 or tag < 8:
                raise MalformedMessage("a field without a number, or too many fields")

    def _length(self, kind: int, at: int, end: int) -> int:
        if kind == _VARINT:
            return self.varint(at, end, _LONGEST_VALUE)[1] - at
        if kind in _FIXED:
            return _FIXED[kind]
        raise MalformedMessage(f"wire type {kind} is none of ONNX's")

    def varint(self, at: int, end: int, longest: int = _LONGEST) -> tuple[int, int]:
        """Return the integer at a place, and the place after it."""
        value = shift = 0
        for place in range(at, min(at + longest, end)):
            byte = self.data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place + 1
            shift += 7
        raise MalformedMessage("an integer without an end")


def encode(value: int) -> bytes:
    """Return an integer as protobuf writes it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
