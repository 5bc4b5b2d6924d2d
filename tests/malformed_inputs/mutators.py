"""Damage to bytes and to text: what torn downloads, bad disks and people of ill will make of a file.

Each damage is a function of the content and of a source of chance, so a seed says what a mutant is.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeAlias

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


BLIND: tuple[Damage, ...] = (flip_bits, cut, remove, repeat, move, announce, put)
TEXTUAL: tuple[Damage, ...] = (*BLIND, renumber, renumber, exchange, exchange, bracket, bracket)
JSON: tuple[Damage, ...] = (flip_bits, cut, replace_content, *[alter_value] * 4)
