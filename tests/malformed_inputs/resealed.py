"""Damage below the checksums: containers whose sections or table are altered, and sealed again as if nothing had happened."""

from __future__ import annotations

import io
import struct
import zlib
from random import Random

from tests.malformed_inputs.messages import alter_field
from tests.malformed_inputs.mutators import BLIND, mutate, renumber
from xrt.errors import XRTError
from xrt.formats.container import ALIGNMENT, ContainerWriter, read_table

_HEAD = struct.Struct("<8sQQI")
_INSIDE = (alter_field, alter_field, renumber, *BLIND)
_TABLE = (renumber, renumber, renumber, *BLIND)


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
