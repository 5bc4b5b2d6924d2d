"""Navigate protobuf messages without parsing them.

A message is a sequence of fields, each a tag and its content. Skipped content is not read: in a mapped file, only the pages
with field headers are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import NamedTuple, TypeAlias

__all__ = ["Buffer", "Field", "MalformedMessage", "TruncatedMessage", "Walk", "encode"]

Buffer: TypeAlias = bytes | mmap
"""Random-access bytes; slicing copies."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}

_LONGEST = 5  # bytes of a tag or length that protobuf allows
_LONGEST_VALUE = 10

# Give up after this many fields: protobuf is faster at messages of many small ones.
MOST_FIELDS = 1 << 22


class Field(NamedTuple):
    """The location of a field."""

    number: int
    holds_bytes: bool
    """Whether the content is bytes, text or a message rather than a number."""
    at: int
    """Offset of its tag."""
    content: int
    end: int


class MalformedMessage(ValueError):
    """The data is not a message, or has too many fields."""


class TruncatedMessage(MalformedMessage):
    """A field extends beyond the end of its message."""

    def __init__(self, number: int, end: int) -> None:
        super().__init__(f"field {number} should end at byte {end}")
        self.number = number
        self.end = end


@dataclass(slots=True)
class Walk:
    """Iterates over fields, at most `MOST_FIELDS` in total."""

    data: Buffer
    left: int = MOST_FIELDS

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets.

        Raises TruncatedMessage for a field longer than the message, and MalformedMessage for invalid data or too many fields.
        """
        data = self.data
        while at < end:
            tag, content = (data[at], at + 1) if data[at] < 0x80 else self.varint(at, end)  # nearly all tags have one byte
            holds_bytes = tag & 7 == _BYTES
            length, content = self.varint(content, end) if holds_bytes else (self._length(tag & 7, content, end), content)
            if content + length > end:
                raise TruncatedMessage(tag >> 3, content + length)
            yield Field(tag >> 3, holds_bytes, at, content, content + length)
            at = content + length
            self.left -= 1
            # A tag below 8 has the field number 0, which is invalid.
            if self.left < 0 or tag < 8:
                raise MalformedMessage("a field without a number, or too many fields")

    def _length(self, kind: int, at: int, end: int) -> int:
        if kind == _VARINT:
            return self.varint(at, end, _LONGEST_VALUE)[1] - at
        if kind in _FIXED:
            return _FIXED[kind]
        raise MalformedMessage(f"wire type {kind} is none of ONNX's")

    def varint(self, at: int, end: int, longest: int = _LONGEST) -> tuple[int, int]:
        """Decode a variable-length integer; also return the offset after it."""
        value = shift = 0
        for place in range(at, min(at + longest, end)):
            byte = self.data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place + 1
            shift += 7
        raise MalformedMessage("an integer without an end")


def encode(value: int) -> bytes:
    """Encode a variable-length integer."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
