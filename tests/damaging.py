"""Damage to files of JSON, drawn by hypothesis: bytes turned over and cut off, values of other types at any place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

__all__ = ["FORMS", "WHOLE", "damaged", "mutants"]

Path = tuple[str | int, ...]

WHOLE = (
    b"",
    b"null",
    b"3",
    b'"a text"',
    b"[]",
    b"{}",
    b"[[]]",
    b'{"format": 99}',
    b"\xff\xfe\x00",
    b"\x00" * 100,
    b"[" * 100_000,
    b'{"format":' * 100_000,
    b"9" * 5000,
    b"NaN",
)
"""Contents of another version, of another type, or of nobody."""

FORMS = (
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"a text"',
    '"half of \\ud800"',
    "[null]",
    '{"format": 1}',
    "-1",
    "0",
    "0.5",
    "1e-320",
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    "9" * 400,
    "9" * 5000,
    "[" * 500 + "]" * 500,
    "[" * 50_000,
    '"' + "long " * 5000 + '"',
)
"""What stands in place of a value."""

_HERE = "what stands here is another value"


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where values stand, the whole first."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _paths(inner, (*path, key))


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    key, *rest = path
    items = dict(value) if isinstance(value, dict) else list(value)
    items[key] = _replaced(value[key], tuple(rest), new)
    return items


def _without(value: Any, path: Path) -> Any:
    key, *rest = path
    items = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        items[key] = _without(value[key], tuple(rest))
    else:
        del items[key]
    return items


@st.composite
def mutants(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw what has become of a file."""
    way = draw(st.sampled_from(["whole", "cut", "bytes", "value", "value", "value", "lacks", "exchange"]))
    match way:
        case "whole":
            return draw(st.sampled_from(WHOLE))
        case "cut":
            return data[: draw(st.integers(0, len(data)))]
        case "bytes":
            return _overwritten(data, draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)))
        case _:
            return damaged(draw, way, json.loads(data))


def _overwritten(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    result = bytearray(data)
    for place, byte in changes:
        result[place] = byte
    return bytes(result)


def damaged(draw: st.DrawFn, way: str, facts: Any) -> bytes:
    """Draw JSON with another value in one place, without one, or with one in the place of another."""
    places = list(_paths(facts))
    place = draw(st.sampled_from(places))
    if way == "lacks" and place:
        return json.dumps(_without(facts, place)).encode()
    if way == "exchange":
        other = draw(st.sampled_from(places))
        return json.dumps(_replaced(facts, place, _at(facts, other))).encode()
    text = json.dumps(_replaced(facts, place, _HERE))
    return text.replace(f'"{_HERE}"', draw(st.sampled_from(FORMS))).encode()


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value
