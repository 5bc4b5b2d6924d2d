"""Small messages of ``proto/xrt.proto``, read without the protobuf library, whose import takes longer than such a message.

Bytes come in, and the values that `xrt.formats.protobuf.read` gives for them go out. Numbers, text and messages of these are
read; a message with anything else is for that function.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from xrt.errors import BundleError
from xrt.formats.onnx.protobuf_wire import Field, MalformedMessage, Walk

__all__ = ["has_field", "read_cache_entry", "read_contents"]

Schema: TypeAlias = dict[int, tuple[str, Any]]
"""By field number its name and its kind: `int`, `str`, or for repeated messages their schema."""

_SECTION: Schema = {1: ("name", str), 2: ("offset", int), 3: ("size", int), 4: ("checksum", int)}
_CONTENTS: Schema = {1: ("kind", str), 2: ("sections", _SECTION)}
_INGREDIENT: Schema = {1: ("name", str), 2: ("value", str)}
_ENTRY: Schema = {1: ("format", int), 2: ("ingredients", _INGREDIENT)}
_FAILURE = 3
_LONGEST_NUMBER = 10
_LARGEST = (1 << 64) - 1


def read_contents(data: bytes) -> dict[str, Any]:
    """Return the values of a message ``Contents``; raises BundleError for bytes that are none."""
    return _read("Contents", data, _CONTENTS)


def read_cache_entry(data: bytes) -> dict[str, Any]:
    """Return the values of a message ``CacheEntry``; raises BundleError for bytes that are none."""
    if has_field(data, _FAILURE):
        from xrt.formats.protobuf import read

        return read("CacheEntry", data)
    return {**_read("CacheEntry", data, _ENTRY), "failure": None}


def has_field(data: bytes, number: int) -> bool:
    """Whether a message has a field of that number; False for what is no message."""
    try:
        return any(found.number == number for found in Walk(data).fields(0, len(data)))
    except MalformedMessage:
        return False


def _read(kind: str, data: bytes, schema: Schema) -> dict[str, Any]:
    try:
        return _message(Walk(data), 0, len(data), schema)
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised {kind}: {error}") from error


def _message(walk: Walk, at: int, end: int, schema: Schema) -> dict[str, Any]:
    values: dict[str, Any] = {name: () if isinstance(kind, dict) else kind() for name, kind in schema.values()}
    repeated: dict[str, list[Any]] = {}
    for found in walk.fields(at, end):
        if found.number not in schema:
            continue
        name, kind = schema[found.number]
        if found.holds_bytes is (kind is int):
            raise MalformedMessage(f"field {found.number} is of another kind")
        if isinstance(kind, dict):
            repeated.setdefault(name, []).append(_message(walk, found.content, found.end, kind))
        else:
            values[name] = _number(walk, found) if kind is int else bytes(walk.data[found.content : found.end]).decode("utf-8")
    return {**values, **{name: tuple(many) for name, many in repeated.items()}}


def _number(walk: Walk, found: Field) -> int:
    value, end = walk.varint(found.content, found.end, _LONGEST_NUMBER)
    if end != found.end:
        raise MalformedMessage(f"field {found.number} is no integer")
    return value & _LARGEST
