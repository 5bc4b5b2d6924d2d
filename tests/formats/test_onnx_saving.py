"""Saving: what is loaded again is equal, nothing is half-written, and no size of a container is believed unchecked."""

from __future__ import annotations

import io
import json
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError
from hypothesis import given, strategies as st

from tests.exact_errors import raises_exactly
from xrt.errors import BundleError, ModelError
from xrt.formats.container import ALIGNMENT, MAGIC, MIN_MAPPED_BYTES, Container, ContainerWriter, CorruptFile
from xrt.formats.onnx import load, save, writing
from xrt.graph import Constant, Function, Node, Value
from xrt.testing.corpus.entry import body, graph, node

WIDE = "float32[40,40]"


def example(seed: int = 0) -> Function:
    """Return a model with constants of many kinds, two of which are equal, and one in a body."""
    rng = np.random.default_rng(seed)
    shared, inner = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
    then = body({}, {"b": WIDE}, node("Add", "y k", "b"), constants={"k": inner}, opset=21)
    other = body({}, {"b": WIDE}, node("Neg", "y", "b"), opset=21).replace(name="other")
    constants = {
        "w": shared,
        "w2": shared.copy(),
        "small": np.arange(3),
        "packed": np.arange(4001).astype(ml_dtypes.int4),
        "text": np.array(["é"] * 2000, object),
        "strided": np.arange(10_000, dtype=np.float64)[::3],
    }
    branch = node("If", "c", "z", name="if", then_branch=then, else_branch=other)
    nodes = (node("Add", "x w", "s"), node("Mul", "s w2", "y"), branch)
    return graph({"x": WIDE, "c": "bool[]"}, {"z": WIDE}, *nodes, constants=constants, opset=21)


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def data_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.data"))


@pytest.mark.parametrize("external", [False, True])
def test_what_is_saved_is_loaded_equal(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "m.onnx"
    save(example(), path, external_data=external)
    assert load(path) == example()
    assert len(data_files(tmp_path)) == external
    onnx.checker.check_model(os.fspath(path))
    assert onnx.load(path).graph.name == "main"


def test_equal_constants_are_stored_once_and_each_starts_on_a_page(tmp_path: Path) -> None:
    save(example(), tmp_path / "m.onnx", external_data=True)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    places = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}
    assert set(places) == {"w", "w2", "packed", "strided"}
    assert places["w"] == places["w2"]
    assert all(int(place["offset"]) % 4096 == 0 for place in places.values())
    assert places["packed"]["length"] == "2001"
    assert (tmp_path / "m.onnx").stat().st_size < 30_000  # the strings stay inside, the 6,400 bytes of the body do not
    assert model.graph.node[2].attribute[1].g.initializer[0].data_location == onnx.TensorProto.EXTERNAL


def test_a_large_model_gets_a_data_file_unasked_for_weights_of_nodes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(example(), tmp_path / "small.onnx")
    assert not data_files(tmp_path)
    monkeypatch.setattr(writing, "MIN_DATA_FILE_BYTES", 1000)
    weight = Constant(np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32))
    value = Value("x", weight.type)
    nodes = Node("Constant", (), ("k",)).with_attributes(value=weight), Node("Add", ("x", "k"), ("y",))
    function = Function((value,), (Value("y", weight.type),), nodes, opsets={"": 21})
    path = tmp_path / "m.onnx"
    save(function, path)
    assert path.stat().st_size < 1000
    assert load(path) == function
    onnx.checker.check_model(path)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx.load(path).graph.node[0].attribute[0].t), weight.array)


def test_what_protobuf_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.ModelProto, "SerializeToString", Mock(side_effect=EncodeError("too large")))
    for external, hint in ((False, "save it with external_data=True"), (True, "it does even without its large constants")):
        with raises_exactly(ModelError, f"the model exceeds protobuf's limit of 2 GB per file (too large); {hint}"):
            save(example(), tmp_path / "m.onnx", external)
    assert not names(tmp_path)


def test_a_model_can_be_saved_over_the_files_that_it_is_mapped_from(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(example(), path, external_data=True)
    mapped = load(path)
    save(mapped, path, external_data=True)
    assert load(path) == example()
    save(mapped, path, external_data=False)
    assert names(tmp_path) == {"m.onnx"}
    assert mapped == example()  # its data file is gone from the directory, not from under it


def test_the_data_of_an_earlier_save_goes_and_that_of_other_models_stays(tmp_path: Path) -> None:
    save(example(), tmp_path / "m.onnx", external_data=True)
    save(example(), tmp_path / "other.onnx", external_data=True)
    (tmp_path / "m.onnx.data").touch()
    (tmp_path / "m.onnx.notahexdigest.data").touch()
    first = names(tmp_path)
    save(example(1), tmp_path / "m.onnx", external_data=True)
    assert len(names(tmp_path)) == len(first)
    assert names(tmp_path) > {"m.onnx", "other.onnx", "m.onnx.data", "m.onnx.notahexdigest.data"}
    assert load(tmp_path / "m.onnx") == example(1)
    assert load(tmp_path / "other.onnx") == example()


def test_a_save_that_fails_leaves_the_old_model_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save(example(), path, external_data=True)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    real = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    for external in (True, False):
        with raises_exactly(ModelError, f"cannot write {str(path)!r}: No space left on device"):
            save(example(1), path, external_data=external)
        assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    save(example(), tmp_path / "m.onnx", external_data=True)
    first = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    save(example(), tmp_path / "m.onnx", external_data=True)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == first


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
    result = Container(memoryview(container(parts)), "test")
    assert {name: bytes(result.section(name)) for name in result.sections} == parts
    assert all(section.offset % ALIGNMENT == 0 for section in result.sections.values())
    result.check()


@pytest.mark.parametrize("size", [100, MIN_MAPPED_BYTES + 1])
def test_files_are_read_or_mapped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(container({"data": b"x" * size}))
    section = Container.open(path, "test").section("data")
    path.unlink()
    assert bytes(section) == b"x" * size and section.readonly


def test_a_name_is_given_once() -> None:
    writer = ContainerWriter(io.BytesIO(), "test")
    writer.add("a", b"")
    with pytest.raises(BundleError, match="section 'a' is already in the file"):
        writer.add("a", b"")


def test_an_unfinished_file_is_no_container() -> None:
    file = io.BytesIO()
    ContainerWriter(file, "test").add("a", b"data")
    with pytest.raises(CorruptFile, match="does not begin like a file written by XRT"):
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
