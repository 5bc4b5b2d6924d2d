"""Damage to bytes, text, JSON, protobuf messages and containers: what torn downloads, bad disks and people of ill will do.

Each damage is a function of the content and of a source of chance, so a seed says what a mutant is. A message is read as a tree
by the wire format alone: what looks like a message inside of one is taken for one.
"""

from __future__ import annotations

import copy
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeAlias

from xrt.errors import XRTError
from xrt.formats.container import ALIGNMENT, ContainerWriter, read_table
from xrt.formats.onnx.files import Field, FieldReader, MalformedMessage, encode_varint

Damage: TypeAlias = Callable[[bytes, Random], bytes]

MOST = 4
"""How often one mutant is damaged at most."""

NUMBERS = (0, 1, 2, 7, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""Where counters, sizes and signs end."""

WORDS = (
    b"",
    b"\0",
    b"a\0b",
    b"\xff\xfe\xfd",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"../../../etc/passwd",
    b"/etc/passwd",
    b"/dev/zero",
    b"..",
    b".",
    b"x" * 5000,
    "\u202e\ufeff\u0000é".encode(),
    b"%s%n{}\\N{x}",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"[" * 3000,
)
"""What stands where a name, a path or a number should."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TOKEN = re.compile(rb"[A-Za-z_]\w*|-?\d+(?:\.\d+)?|\"[^\"\n]*\"|[^\s\w]")
_BRACKETS = (b"(", b")", b"[", b"]", b"{", b"}", b'"', b"'", b"\\", b"=", b",", b":", b" ", b"*", b"|", b"\n", b"#", b"\0")


def mutate(data: bytes, damages: Sequence[Damage], chance: Random) -> bytes:
    """Return the content after one to `MOST` of the damages."""
    for _ in range(chance.choice((1, 1, 1, 2, MOST))):
        data = chance.choice(damages)(data, chance)
    return data


# ---------------------------------------------------------------------- bytes


def _place(data: bytes, chance: Random) -> tuple[int, int]:
    """Return a part, mostly a short one."""
    start = chance.randrange(len(data) + 1)
    longest = chance.choice((1, 4, 16, 256, len(data)))
    return start, min(start + chance.randint(1, max(longest, 1)), len(data))


def flip_bits(data: bytes, chance: Random) -> bytes:
    """Turn over a few bits."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8)) if out else 0):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def cut(data: bytes, chance: Random) -> bytes:
    """Leave the end out."""
    return data[: chance.randrange(len(data) + 1)]


def remove(data: bytes, chance: Random) -> bytes:
    """Leave a part out."""
    start, end = _place(data, chance)
    return data[:start] + data[end:]


def repeat(data: bytes, chance: Random) -> bytes:
    """Write a part several times."""
    start, end = _place(data, chance)
    return data[:end] + data[start:end] * min(chance.choice((1, 2, 1000)), 1 + 20_000 // max(end - start, 1)) + data[end:]


def move(data: bytes, chance: Random) -> bytes:
    """Write a part over another place."""
    start, end = _place(data, chance)
    to = chance.randrange(len(data) + 1)
    return data[:to] + data[start:end] + data[to + end - start :]


def announce(data: bytes, chance: Random) -> bytes:
    """Write an extreme number over a place, as formats write their sizes."""
    start, _ = _place(data, chance)
    width = chance.choice((1, 2, 4, 8))
    number = (chance.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, chance.choice(("little", "big")))
    number = chance.choice((number, b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f"))
    return data[:start] + number + data[start + len(number) :]


def put(data: bytes, chance: Random) -> bytes:
    """Put a word into a place."""
    start, end = _place(data, chance)
    return data[:start] + chance.choice(WORDS) + data[chance.choice((start, end)) :]


# ---------------------------------------------------------------------- text


def renumber(data: bytes, chance: Random) -> bytes:
    """Write another number in place of one."""
    results = list(_NUMBER.finditer(data))
    if not results:
        return data
    where = chance.choice(results)
    number = chance.choice(
        (b"%d" % chance.choice(NUMBERS), b"-%d" % chance.choice(NUMBERS), b"1e400", b"9" * 5000, b"nan", b"-0")
    )
    return data[: where.start()] + number + data[where.end() :]


def exchange(data: bytes, chance: Random) -> bytes:
    """Write one of the text's own words in place of another."""
    results = list(_TOKEN.finditer(data))
    if not results:
        return data
    where, other = chance.choice(results), chance.choice(results)
    return data[: where.start()] + other[0] + data[where.end() :]


def bracket(data: bytes, chance: Random) -> bytes:
    """Put in marks of punctuation, perhaps very many."""
    start, _ = _place(data, chance)
    return data[:start] + chance.choice(_BRACKETS) * chance.choice((1, 1, 1, 2, 100, 20_000)) + data[start:]


# ---------------------------------------------------------------------- JSON

CONTENTS = (
    *(b"", b"null", b"3", b'"a text"', b"[]", b"{}", b"[[]]", b'{"format": 99}', b"NaN", b"9" * 5000),
    *(b"\xff\xfe\x00", b"\x00" * 100, b"[" * 100_000, b'{"format":' * 100_000),
)
"""Contents of another version, of another type, or of nobody."""

VALUES = (
    *("null", "true", "[]", "{}", '""', '"a text"', '"half of \\ud800"', "[null]", '{"format": 1}'),
    *("-1", "0", "0.5", "1e-320", "1e400", "-1e400", "NaN", "Infinity", "9" * 400, "9" * 5000),
    *("[" * 500 + "]" * 500, "[" * 50_000, '"' + "long " * 5000 + '"'),
)
"""What stands in place of a value."""

_HERE = "what stands here is another value"


def replace_content(data: bytes, chance: Random) -> bytes:
    """Write another file."""
    return chance.choice(CONTENTS)


def alter_value(data: bytes, chance: Random) -> bytes:
    """Leave one value of a document out, or write another in its place; what is no document comes back as it is."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_list_places(document))
    if not places:
        return chance.choice(VALUES).encode()
    (holder, key), (other, at) = chance.choice(places), chance.choice(places)
    how = chance.choice(("lacks", "exchange", "value", "value", "value"))
    if how == "lacks":
        del holder[key]
    else:
        holder[key] = copy.deepcopy(other[at]) if how == "exchange" else _HERE
    return json.dumps(document).replace(f'"{_HERE}"', chance.choice(VALUES)).encode()


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where values stand: what holds each, and its key or number."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _list_places(value[key])


# ---------------------------------------------------------------------- protobuf messages

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


# ---------------------------------------------------------------------- containers, sealed again below the checksums

_HEAD = struct.Struct("<8sQQI")


def alter_section(data: bytes, chance: Random) -> bytes:
    """Damage the content of one section, and write a container of it; what is no container comes back as it is."""
    table = _table(data)
    if table is None:
        return data
    try:
        kind, sections_read = read_table(table)
    except XRTError:  # an earlier damage was to the table
        return data
    sections = {s.name: data[max(s.offset, 0) : max(s.offset + s.size, 0)] for s in sections_read}
    if not sections:
        return data
    chosen = chance.choice(sorted(sections))
    sections[chosen] = mutate(sections[chosen], _INSIDE, chance)
    return reseal(kind, sections)


def alter_table(data: bytes, chance: Random) -> bytes:
    """Damage the table, and let the head tell of the new one; what is no container comes back as it is."""
    table = _table(data)
    if table is None:
        return data
    magic, start, _, _ = _HEAD.unpack(data[: _HEAD.size])
    table = mutate(table, _TABLE, chance)
    head = _HEAD.pack(magic, start, len(table), zlib.crc32(table))
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(ALIGNMENT, b"\0") + data[ALIGNMENT:start] + table


def reseal(kind: str, sections: dict[str, bytes]) -> bytes:
    """Return a container of those sections."""
    file = io.BytesIO()
    writer = ContainerWriter(file, kind)
    for name, content in sections.items():
        writer.add(name, content)
    writer.finish()
    return file.getvalue()


def _table(data: bytes) -> bytes | None:
    """Return the table of a container, None where the head was damaged before."""
    if len(data) < ALIGNMENT:
        return None
    head = data[: _HEAD.size]
    _, start, size, checksum = _HEAD.unpack(head)
    table = data[start : start + size]
    return (
        table
        if struct.pack("<I", zlib.crc32(head)) == data[_HEAD.size : _HEAD.size + 4] and zlib.crc32(table) == checksum
        else None
    )


BLIND: tuple[Damage, ...] = (flip_bits, cut, remove, repeat, move, announce, put)
TEXTUAL: tuple[Damage, ...] = (*BLIND, renumber, renumber, exchange, exchange, bracket, bracket)
JSON: tuple[Damage, ...] = (flip_bits, cut, replace_content, *[alter_value] * 4)
_INSIDE = (alter_field, alter_field, renumber, *BLIND)
_TABLE = (renumber, renumber, renumber, *BLIND)
