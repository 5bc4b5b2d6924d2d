"""Weights outside of a model's file and large ones inside: mapped, not copied, and no size believed unchecked."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from xrt.errors import ModelError
from xrt.formats.onnx import files, load, to_model
from xrt.formats.onnx.files import encode_varint, extract_weights
from xrt.graph import DType, Function
from xrt.graph.constants import ALIGNMENT

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def external(location: str, **entries: object) -> ModelProto:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }')
    tensor = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    model.graph.initializer.append(tensor)
    return model


def loaded(directory: Path, location: str, data: bytes | None = WEIGHTS.tobytes(), **entries: object) -> Function:
    if data is not None:
        (directory / "w.bin").write_bytes(data)
    (directory / "m.onnx").write_bytes(external(location, **entries).SerializeToString())
    return load(directory / "m.onnx")


def reason(directory: Path, location: str, data: bytes | None = WEIGHTS.tobytes(), **entries: object) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(directory, location, data, **entries)
    head = f"cannot load {str(directory / 'm.onnx')!r}: initialiser 'w' is "
    text = str(caught.value)
    assert text.startswith(head)
    return text.removeprefix(head)


def base_of(array: np.ndarray) -> object:
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


def test_the_data_is_mapped_and_read_only_and_its_file_may_go(tmp_path: Path) -> None:
    function = loaded(tmp_path, "w.bin")
    (tmp_path / "w.bin").unlink()
    array = function.constants["w"].array
    np.testing.assert_array_equal(array, WEIGHTS)
    assert isinstance(base_of(array), memoryview)
    assert isinstance(base_of(array).obj, mmap.mmap)  # type: ignore[attr-defined]  # a memoryview, as the line above says
    assert not array.flags.writeable and not array.flags.owndata
    assert load(to_model(function)) == function


def test_locations_and_places_in_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "w.bin").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "link").symlink_to("w.bin")
    for location in ("below/w.bin", "below\\w.bin", "./below/../below/w.bin", "link"):
        np.testing.assert_array_equal(loaded(tmp_path, location).constants["w"].array, WEIGHTS)
    function = loaded(tmp_path, "w.bin", b"\xff" * 7 + WEIGHTS.tobytes() + b"more", offset=7, length=24)
    np.testing.assert_array_equal(function.constants["w"].array, WEIGHTS)


def test_types_narrower_than_a_byte_are_unpacked(tmp_path: Path) -> None:
    model = external("w.bin")
    model.graph.initializer[0].data_type = DType.INT4.onnx
    model.ir_version = 10
    (tmp_path / "w.bin").write_bytes(bytes([0x21, 0x43, 0x65]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    array = load(tmp_path / "m.onnx").constants["w"].array
    assert array.dtype == ml_dtypes.int4
    assert array.astype(int).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_an_empty_file_serves_an_empty_tensor(tmp_path: Path) -> None:
    model = external("w.bin")
    model.graph.initializer[0].dims[:] = [0, 3]
    (tmp_path / "w.bin").touch()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load(tmp_path / "m.onnx").constants["w"].shape == (0, 3)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.formats.onnx.messages.map_file", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert reason(tmp_path, "w.bin") == "in external data file 'w.bin', which cannot be read: Permission denied"


def test_a_tensor_at_an_odd_address_is_copied_once_and_then_aligned(tmp_path: Path) -> None:
    array = loaded(tmp_path, "w.bin", b"\xff" + WEIGHTS.tobytes(), offset=1, length=24).constants["w"].array
    np.testing.assert_array_equal(array, WEIGHTS)
    assert array.flags.aligned
    assert not isinstance(base_of(array), memoryview)


def test_locations_that_are_refused(tmp_path: Path) -> None:
    inside, data = tmp_path / "inside", WEIGHTS.tobytes()
    for folder in (inside, inside / "dir", tmp_path / "inside2"):
        folder.mkdir()
    for file in (tmp_path / "w.bin", tmp_path / "inside2" / "w.bin"):
        file.write_bytes(data)
    for link, target in (("file", tmp_path / "w.bin"), ("up", tmp_path), ("a", "b"), ("b", "a")):
        (inside / link).symlink_to(target)
    outside = ("../w.bin", "..\\w.bin", str(tmp_path / "w.bin"), "../inside2/w.bin", "x/../../w.bin", "file", "up/w.bin")
    for location in outside:
        head = f"in external data file {location!r}, which "
        assert reason(inside, location, None) == f"{head}leads outside the model's directory {str(inside)!r}"
    for location in ("w.bin", "dir"):
        assert reason(inside, location, None) == f"in external data file {location!r}, which is missing from {str(inside)!r}"
    for location in ("a\0b", "x" * 5000, "a", "\0000"):  # a NUL marks the large tensors of the model's own file
        assert reason(inside, location, None).startswith(f"in external data file {location!r}, which is ")
    assert reason(inside, "") == "external data without a location"


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"offset": 4}, "float32[2,3], which takes 24 bytes, but its data is 20 bytes"),
        ({"length": 20}, "float32[2,3], which takes 24 bytes, but its data is 20 bytes"),
        ({"offset": 4, "length": 24}, "bytes 4 to 28 of external data file 'w.bin', which has only 24 bytes"),
        ({"offset": 100}, "bytes 100 to 100 of external data file 'w.bin', which has only 24 bytes"),
        ({"length": 10**15}, "bytes 0 to 1000000000000000 of external data file 'w.bin', which has only 24 bytes"),
        ({"offset": -4}, "external data with offset '-4', which is not a number of bytes"),
        ({"length": "many"}, "external data with length 'many', which is not a number of bytes"),
        ({"length": "9" * 5000}, f"external data with length '{'9' * 5000}', which is not a number of bytes"),
    ],
)
def test_a_place_that_is_not_in_the_file(tmp_path: Path, entries: dict[str, object], text: str) -> None:
    assert reason(tmp_path, "w.bin", **entries) == text


def test_a_model_that_is_no_file_has_no_files_next_to_it() -> None:
    for source, where in (
        (external("w.bin"), "the given ModelProto"),
        (external("w.bin").SerializeToString(), "the given bytes"),
    ):
        with pytest.raises(ModelError) as caught:
            load(source)
        assert str(caught.value) == (
            f"cannot load {where}: initialiser 'w' is in external data file 'w.bin', but the model did not come from a file; "
            "load it by its path"
        )


def test_what_onnx_saves_is_read(tmp_path: Path) -> None:
    model = to_model(loaded(tmp_path, "w.bin"))
    onnx.save(model, tmp_path / "other.onnx", save_as_external_data=True, location="other.data", size_threshold=0)
    np.testing.assert_array_equal(load(tmp_path / "other.onnx").constants["w"].array, WEIGHTS)


HEAD = '<ir_version: 10, opset_import: ["": 21]>'


@pytest.fixture
def everything_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MIN_LARGE_BYTES", 4)
        yield


def tensor(name: str, size: int, dtype: Any = np.float32, seed: int = 0) -> TensorProto:
    values = np.random.default_rng(seed).integers(0, 100, size).astype(dtype)
    return numpy_helper.from_array(values, name)


def with_everything(size: int = 8) -> ModelProto:
    """Return a model with tensors wherever a model can have them."""
    model = parser.parse_model(f"""{HEAD} g (float[{size}] x, bool c) => (float[{size}] y) {{
        k = Constant <value = float[2] {{1, 2}}> ()
        s = Add(x, w)
        y = If (c) <
            then_branch = t () => (float[{size}] a) {{ a = Add(s, inner) }},
            else_branch = e () => (float[{size}] b) {{ b = Sub(s, w) }}>
    }}""")
    model.graph.initializer.append(tensor("w", size, seed=1))
    model.graph.initializer.append(tensor("bytes", size + 1, np.int8))
    model.graph.initializer.append(helper.make_tensor("listed", TensorProto.FLOAT, [size], list(range(size))))
    model.graph.node[0].attribute[0].t.CopyFrom(tensor("", size, seed=2))
    model.graph.node[2].attribute[0].g.initializer.append(tensor("inner", size, seed=3))
    sparse = model.graph.sparse_initializer.add(dims=[size + 100])
    sparse.values.CopyFrom(tensor("sparse", size, seed=4))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(size), "indices"))
    return model


def plainly(data: bytes) -> Function:
    """Load what protobuf has parsed whole."""
    return load(ModelProto.FromString(data))


def test_every_tensor_is_found_where_it_is(tmp_path: Path, everything_is_large: None) -> None:
    data = with_everything().SerializeToString()
    result = extract_weights(data)
    assert len(result.spans) == 6  # five tensors and a sparse one's two, less the one that lists its elements
    assert all(value not in result.model.SerializeToString() for value in (data[a:b] for a, b in result.spans.values()))
    (tmp_path / "m.onnx").write_bytes(data)
    assert load(tmp_path / "m.onnx") == load(data) == plainly(data)


def test_small_tensors_stay_and_small_messages_are_not_looked_into() -> None:
    data = with_everything().SerializeToString()
    result = extract_weights(data)
    assert result.spans == {}
    assert result.model.SerializeToString() == data


def test_arrays_are_owned_aligned_and_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(with_everything(1 << 16).SerializeToString())
    function = load(path)
    array = function.constants["w"].array
    before = array.copy()
    assert array.ctypes.data % ALIGNMENT == 0
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(array, before)


def test_functions_of_the_model_are_inlined_next_to_large_weights(tmp_path: Path, everything_is_large: None) -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "own": 1]> g (float[8] x) => (float[8] y)
        { y = own.f(x, w) }
        <domain: "own", opset_import: ["": 21]> f (a, b) => (c) { k = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> ()
        d = Add(a, b) c = Add(d, k) }""")
    model.graph.initializer.append(tensor("w", 8))
    data = model.SerializeToString()
    assert load(data) == plainly(data)
    assert [node.op for node in load(data).nodes] == [node.op for node in plainly(data).nodes]


def bytes_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def in_parts(model: ModelProto) -> bytes:
    """Return the model with its graph in two parts, which protobuf joins."""
    first, second = ModelProto(), ModelProto()
    first.CopyFrom(model)
    del first.graph.initializer[:]
    second.graph.initializer.extend(model.graph.initializer)
    return bytes(first.SerializeToString() + second.SerializeToString())


def twice(model: ModelProto) -> bytes:
    """Return the model with raw data that stands twice in a tensor, of which the last counts."""
    first, last = tensor("extra", 8, seed=5), TensorProto(raw_data=bytes(32))
    graph = bytes_field(5, first.SerializeToString() + last.SerializeToString())
    return bytes(model.SerializeToString()) + bytes_field(7, graph)


def merged(model: ModelProto) -> bytes:
    """Return the model with a node more, in whose attribute the tensor stands twice; protobuf merges the two."""
    attribute = AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor("", 8, seed=9)).SerializeToString()
    again = bytes_field(AttributeProto.T_FIELD_NUMBER, TensorProto(raw_data=bytes(32)).SerializeToString())
    node = NodeProto(op_type="Constant", output=["k2"]).SerializeToString() + bytes_field(5, attribute + again)
    return bytes(model.SerializeToString()) + bytes_field(7, bytes_field(1, node))


def a_group(model: ModelProto) -> bytes:
    """Return the model with an unknown field of the old kind that has a beginning and an end."""
    return bytes(model.SerializeToString()) + encode_varint(1000 << 3 | 3) + encode_varint(1000 << 3 | 4)


@pytest.mark.parametrize("form", [in_parts, twice, merged, a_group])
def test_forms_that_protobuf_merges(form: Callable[[ModelProto], bytes], everything_is_large: None) -> None:
    model = with_everything()
    data = form(model)
    assert load(data) == plainly(data)


def test_external_data_next_to_raw_data_is_external(tmp_path: Path, everything_is_large: None) -> None:
    model = with_everything()
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(np.full(8, 5, np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load(tmp_path / "m.onnx").constants["w"].array.tolist() == [5] * 8


def outcome(read: Callable[[], Function]) -> Any:
    try:
        return read()
    except ModelError:
        return None


DATA = with_everything().SerializeToString()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, len(DATA))),
    inserted=st.tuples(st.integers(0, len(DATA)), st.binary(max_size=12)),
)
def test_damaged_bytes_are_read_as_protobuf_reads_them(
    edits: list[tuple[int, int]], cut: int | None, inserted: tuple[int, bytes]
) -> None:
    data = bytearray(DATA)
    for place, byte in edits:
        data[place] = byte
    place, more = inserted
    data[place:place] = more
    damaged = bytes(data[:cut])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MIN_LARGE_BYTES", 4)
        result = outcome(lambda: load(damaged))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MIN_LARGE_BYTES", 1 << 40)
        assert result == outcome(lambda: load(damaged))


def test_endless_fields_are_left_to_protobuf(monkeypatch: pytest.MonkeyPatch, everything_is_large: None) -> None:
    monkeypatch.setattr(files, "FieldReader", partial(files.FieldReader, remaining=5))
    with pytest.raises(files.MalformedMessage, match="too many fields"):
        extract_weights(DATA)
    assert load(DATA) == plainly(DATA)


def test_a_file_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """The file is sparse, and no byte of the weights is read: only where they lie is looked up."""
    path, size = tmp_path / "large.onnx", 3 << 30
    header = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    tensor_ = header + encode_varint(9 << 3 | 2) + encode_varint(size)
    graph = encode_varint(5 << 3 | 2) + encode_varint(len(tensor_) + size) + tensor_
    start = ModelProto(ir_version=10).SerializeToString() + encode_varint(7 << 3 | 2) + encode_varint(len(graph) + size) + graph
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        result = extract_weights(data)
    assert list(result.spans.values()) == [(len(start), len(start) + size)]
    assert result.model.graph.initializer[0].dims == [size // 4]
