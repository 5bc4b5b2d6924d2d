"""The container format: a file of named, checksummed sections that can be memory-mapped.

Cache entries, bundles and session files are containers. Layout, with little-endian numbers:

    64 bytes    head: magic, offset, size and checksum of the table, and a checksum of the head itself
    sections    each at a multiple of 64 bytes, padded with zeros
    table       JSON: the kind of the file, and name, offset, size and CRC-32 of each section

A reader compares every size with the size of the file before using it, and verifies a section's checksum before returning it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from xrt.errors import BundleError
from xrt.formats.output import map_file
from xrt.graph.constants import release_pages

Buffer: TypeAlias = bytes | bytearray | memoryview
# As in PNG: no text file begins like this, and a transfer in text mode is detected because it changes the line ends.
MAGIC = b"\x89XRT\r\n\x1a\n"
# Alignment in bytes for vector instructions.
ALIGNMENT = 64
# Smaller files are read instead of mapped: a mapping keeps the file open.
MIN_MAPPED_BYTES = 1 << 20
# Magic, offset of the table, size of the table, checksum of the table.
_HEAD = struct.Struct("<8sQQI")
_HEAD_CHECKSUM = struct.Struct("<I")


class CorruptFile(BundleError):
    """The file was truncated or changed after it was written."""


@dataclass(frozen=True, slots=True)
class Section:
    """Location and CRC-32 of a section; ``offset`` and ``size`` are in bytes."""

    name: str
    offset: int
    size: int
    checksum: int


class ContainerWriter:
    """Writes sections sequentially; the file is unreadable until `finish`."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        self._file = file
        self._kind = kind
        self._sections: dict[str, Section] = {}
        file.write(bytes(ALIGNMENT))
        self._end = ALIGNMENT

    def add(self, name: str, data: Buffer) -> None:
        """Write a section. The data is not copied."""
        if name in self._sections:
            raise BundleError(f"section {name!r} is already in the file")
        view = memoryview(data).cast("B")
        padding = -len(view) % ALIGNMENT
        self._sections[name] = Section(name, self._end, len(view), zlib.crc32(view))
        self._file.write(view)
        self._file.write(bytes(padding))
        self._end += len(view) + padding

    def finish(self) -> None:
        table = json.dumps({"kind": self._kind, "sections": [astuple(s) for s in self._sections.values()]}).encode()
        self._file.write(table)
        # The head is written last, so that an incomplete file is never valid.
        head = _HEAD.pack(MAGIC, self._end, len(table), zlib.crc32(table))
        self._file.seek(0)
        self._file.write(head + _HEAD_CHECKSUM.pack(zlib.crc32(head)))
        self._file.seek(0, os.SEEK_END)


class Container:
    """An open container. The table is verified when it is opened, a section when it is first read."""

    def __init__(self, data: memoryview, kind: str) -> None:
        """Read the table of ``data``. Raises CorruptFile for damaged data, and BundleError for a container of another kind."""
        self._data = data
        table_offset, table_size = _find_table(data)
        actual_kind, sections = read_table(bytes(data[table_offset : table_offset + table_size]))
        if actual_kind != kind:
            raise BundleError(f"it is a {actual_kind!r} file, not a {kind!r} file")
        # Sections lie between the head and the table.
        for section in sections:
            is_between = ALIGNMENT <= section.offset <= section.offset + section.size <= table_offset
            if section.offset % ALIGNMENT or not is_between:
                raise CorruptFile(f"its section {section.name!r} is outside the file")
        self._sections = {section.name: section for section in sections}
        self._checked: set[str] = set()

    @classmethod
    def open(cls, path: Path, kind: str) -> Container:
        """Open a file. A large file is memory-mapped, and stays open while one of its sections is referenced.

        Raises OSError if the file cannot be read, CorruptFile if it is damaged, and BundleError if it is of another kind.
        """
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise CorruptFile("it is a pipe or a device, not a regular file")  # opening it may block forever
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < MIN_MAPPED_BYTES:
                return cls(memoryview(file.read()), kind)
            return cls(map_file(file.fileno(), path.resolve()), kind)

    @property
    def sections(self) -> Mapping[str, Section]:
        return self._sections

    def section(self, name: str) -> memoryview:
        """Return the bytes of a section, read-only. Raises CorruptFile if the section is missing or its checksum differs."""
        entry = self._sections.get(name)
        if entry is None:
            raise CorruptFile(f"it has no section {name!r}")
        view = self._data[entry.offset : entry.offset + entry.size]
        # Verified once per container, so that later reads of the same weight cost nothing.
        if name not in self._checked:
            if zlib.crc32(view) != entry.checksum:
                raise CorruptFile(f"the checksum of its section {name!r} differs")
            self._checked.add(name)
        return view

    def check(self) -> None:
        """Verify all sections; raises CorruptFile. Pages of a mapped file are released afterwards, to keep memory use low."""
        for name in self._sections:
            if name not in self._checked:
                release_pages(np.frombuffer(self.section(name), np.uint8))


def read_table(data: bytes) -> tuple[str, list[Section]]:
    """Parse a table to the kind of the file and its sections; raises CorruptFile. The caller checks offsets and sizes."""
    try:
        match json.loads(data):
            case {"kind": str(kind), "sections": list(rows)}:
                return kind, [_read_row(row) for row in rows]
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"its table cannot be read: {error}") from error
    raise CorruptFile("its table has no kind, or no sections")


def _read_row(row: object) -> Section:
    match row:
        case [str(name), int(offset), int(size), int(checksum)]:
            return Section(name, offset, size, checksum)
    raise ValueError(f"{row!r:.200} is not a section")


def _find_table(data: memoryview) -> tuple[int, int]:
    """Read offset and size of the table from the head; raises CorruptFile if a checksum or a size is wrong."""
    if len(data) < ALIGNMENT:
        raise CorruptFile(f"it has only {len(data)} bytes")
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptFile("it does not begin like a file written by XRT")
    head = data[: _HEAD.size]
    _, start, size, checksum = _HEAD.unpack(head)
    if zlib.crc32(head) != _HEAD_CHECKSUM.unpack_from(data, _HEAD.size)[0]:
        raise CorruptFile("the checksum of its head differs")
    if start + size != len(data):
        raise CorruptFile(f"it should have {start + size} bytes, and has {len(data)}")
    if zlib.crc32(data[start:]) != checksum:
        raise CorruptFile("the checksum of its table differs")
    return start, size
