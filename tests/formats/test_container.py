"""The container: what is read is what was written, and no size is believed before it is compared with the file."""

from __future__ import annotations

import io
import json
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from xrt.errors import BundleError
from xrt.formats.container import ALIGNMENT, MAGIC, MAPPED_FROM, Container, ContainerWriter, CorruptFile

PARTS = {"first": b"hello", "empty": b"", "large": bytes(range(256)) * 40}


def container(parts: dict[str, bytes] = PARTS, kind: str = "test") -> bytes:
    file = io.BytesIO()
    writer = ContainerWriter(file, kind)
    for name, data in parts.items():
        writer.add(name, data)
    writer.finish()
    return file.getvalue()


def forged(sections: list[dict[str, object]], body: bytes = bytes(64), **head: int) -> bytes:
    """A container whose checksums are right, and whose table says what we like."""
    table = json.dumps({"kind": "test", "sections": [[*section.values()] for section in sections]}).encode()
    start, size = head.get("start", ALIGNMENT + len(body)), head.get("size", len(table))
    packed = struct.pack("<8sQQI", MAGIC, start, size, zlib.crc32(table))
    front = packed + struct.pack("<I", zlib.crc32(packed))
    return front + bytes(ALIGNMENT - len(front)) + body + table


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=8), st.binary(max_size=300), max_size=6))
def test_what_is_written_is_read(parts: dict[str, bytes]) -> None:
    found = Container(memoryview(container(parts)), "test")
    assert {name: bytes(found.section(name)) for name in found.sections} == parts
    assert all(section.offset % ALIGNMENT == 0 for section in found.sections.values())
    found.check()


@pytest.mark.parametrize("size", [100, MAPPED_FROM + 1])
def test_files_are_read_or_mapped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(container({"data": b"x" * size}))
    section = Container.open(path, "test").section("data")
    path.unlink()
    assert bytes(section) == b"x" * size and section.readonly


def test_a_name_is_given_once() -> None:
    writer = ContainerWriter(io.BytesIO(), "test")
    writer.add("a", b"")
    with pytest.raises(BundleError, match="section 'a' stands in the file already"):
        writer.add("a", b"")


def test_an_unfinished_file_is_no_container() -> None:
    file = io.BytesIO()
    ContainerWriter(file, "test").add("a", b"data")
    with pytest.raises(CorruptFile, match="does not begin as a file of XRT does"):
        Container(memoryview(file.getvalue()), "test")


SECTION = {"name": "a", "offset": 64, "size": 64, "checksum": zlib.crc32(bytes(64))}
FORGED = {
    "beyond the file": forged([{**SECTION, "size": 2**60}]),
    "over the table": forged([{**SECTION, "size": 65}]),
    "in the head": forged([{**SECTION, "offset": 0}]),
    "not aligned": forged([{**SECTION, "offset": 65, "size": 1}]),
    "overflowing": forged([{**SECTION, "offset": 2**64 - 64, "size": 2**63}]),
    "a table beyond the file": forged([SECTION], size=2**62),
    "a table before the file": forged([SECTION], start=2**63),
    "another checksum": forged([{**SECTION, "checksum": 1}]),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_announced_sizes_are_not_believed(forgery: str) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptFile):
        Container(memoryview(FORGED[forgery]), "test").check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(BundleError, match="it is a 'test' file, not a 'bundle' file"):
        Container(memoryview(container()), "bundle")


@pytest.mark.slow
def test_random_damage_is_found_or_harmless() -> None:
    whole, rng = container(), random.Random(0)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        try:
            found = Container(memoryview(bytes(data)), "test")
            parts = {name: bytes(found.section(name)) for name in found.sections}
        except BundleError:
            continue
        assert parts == PARTS, "only padding was damaged"
