"""Damage to protobuf messages that knows their fields: what it makes still parses, up to the place that is wrong.

A message is read as a tree by the wire format alone: what looks like a message inside of one is taken for one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TypeAlias

from tests.malformed_inputs.mutators import NUMBERS, WORDS
from xrt.formats.onnx.files import Field, FieldReader, MalformedMessage, encode_varint

_VARINT, _BYTES = 0, 2
_DEEPEST = 24
_LONGEST = 1 << 15
"""Bytes from which a field is taken for data."""


@dataclass(slots=True)
class _Part:
    """One field of a message: its tag, and its number, its bytes, or the fields inside of it."""

    tag: int
    content: int | bytes | Fields


Fields: TypeAlias = "list[_Part]"


def write_field(number: int, content: int | bytes) -> bytes:
    """Return one field as it is written: a number as a varint, bytes as they are.

    >>> write_field(1, 300).hex(), write_field(2, b"ab").hex()
    ('08ac02', '12026162')
    """
    return _written(_Part(number << 3 | (_VARINT if isinstance(content, int) else _BYTES), content))


def nest(inner: bytes, numbers: tuple[int, ...], times: int) -> bytes:
    """Return a message around a message, and so on: in the fields of those numbers, the outermost first, so many times."""
    for _ in range(times):
        for number in reversed(numbers):
            inner = write_field(number, inner)
    return inner


def alter_field(data: bytes, chance: Random) -> bytes:
    """Alter one field of a message, or of one inside of it; what is no message comes back as it is."""
    read = _tree(data)
    if not read:
        return data
    tree = copy.deepcopy(read)
    holders = [tree, *_messages(tree)]
    holder = chance.choice(holders)
    place = chance.randrange(len(holder))
    chance.choice(_ALTERATIONS)(holder, place, holders, chance)
    return b"".join(map(_written, tree))


@lru_cache(maxsize=64)
def _tree(data: bytes, depth: int = 0) -> Fields | None:
    """Return the fields of what may be a message, None where it is none."""
    if not data or depth > _DEEPEST:
        return None
    try:
        return [_part(data, item, depth) for item in FieldReader(data).iter_fields(0, len(data))]
    except MalformedMessage:
        return None


def _part(data: bytes, actual: Field, depth: int) -> _Part:
    number, holds_bytes, _, content, end = actual
    raw = data[content:end]
    if holds_bytes:
        return _Part(number << 3 | _BYTES, (_tree(raw, depth + 1) if len(raw) < _LONGEST else None) or raw)
    width = {8: 1, 4: 5}.get(end - content)
    if width and raw[-1] & 0x80:  # no varint ends so
        return _Part(number << 3 | width, raw)
    return _Part(number << 3, FieldReader(raw).read_varint(0, len(raw), 10)[0])


def _written(part: _Part) -> bytes:
    content = part.content
    if isinstance(content, int):
        return encode_varint(part.tag) + encode_varint(content)
    raw = content if isinstance(content, bytes) else b"".join(map(_written, content))
    return encode_varint(part.tag) + (encode_varint(len(raw)) if part.tag & 7 == _BYTES else b"") + raw


def _messages(fields: Fields) -> Iterator[Fields]:
    for part in fields:
        if isinstance(part.content, list):
            yield part.content
            yield from _messages(part.content)


# ---------------------------------------------------------------------- what may become of a field


def _leave_out(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    del holder[place]


def _repeat(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    holder[place:place] = [holder[place]] * chance.choice((1, 2, 300))


def _retag(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    part = holder[place]
    holder[place] = _Part(chance.randint(1, 32) << 3 | part.tag & 7, part.content)


def _extreme(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    part = holder[place]
    is_number = isinstance(part.content, int)
    holder[place] = _Part(part.tag & ~7 | (0 if is_number else 2), chance.choice(NUMBERS) if is_number else chance.choice(WORDS))


def _other_kind(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    part = holder[place]
    swapped: int | bytes = chance.choice(WORDS) if isinstance(part.content, int) else chance.choice(NUMBERS)
    holder[place] = _Part(part.tag & ~7 | (0 if isinstance(swapped, int) else 2), swapped)


def _from_elsewhere(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    other = chance.choice(holders)
    if other:
        selected = copy.deepcopy(chance.choice(other))
        holder[place] = _Part(holder[place].tag & ~7 | selected.tag & 7, selected.content) if chance.random() < 0.7 else selected


def _inside_itself(holder: Fields, place: int, holders: list[Fields], chance: Random) -> None:
    """Put a message into a field of its own, as deep as a reader may be expected to follow, and deeper."""
    part = holder[place]
    if isinstance(part.content, list):
        inner = b"".join(map(_written, part.content))
        number = chance.choice(part.content).tag >> 3 if part.content else 1
        part.content = nest(inner, (number,), chance.choice((2, 40, 110, 1500)))


_ALTERATIONS = (
    _leave_out,
    _repeat,
    _retag,
    _extreme,
    _extreme,
    _extreme,
    _other_kind,
    _from_elsewhere,
    _from_elsewhere,
    _inside_itself,
)
