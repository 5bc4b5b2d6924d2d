"""External data: mapped, not copied; nothing outside the model's directory; no size believed unchecked."""

from __future__ import annotations

import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, parser

from xrt.errors import ModelError
from xrt.formats.onnx import load, to_model
from xrt.graph import DType, Function

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


def test_the_data_is_mapped_and_read_only(tmp_path: Path) -> None:
    array = loaded(tmp_path, "w.bin").constants["w"].array
    np.testing.assert_array_equal(array, WEIGHTS)
    assert isinstance(base_of(array), memoryview)
    assert isinstance(base_of(array).obj, mmap.mmap)  # type: ignore[attr-defined]  # a memoryview, as the line above says
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_an_offset_and_a_length(tmp_path: Path) -> None:
    function = loaded(tmp_path, "w.bin", b"\xff" * 7 + WEIGHTS.tobytes() + b"more", offset=7, length=24)
    np.testing.assert_array_equal(function.constants["w"].array, WEIGHTS)


def test_a_directory_below_and_a_windows_path(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "w.bin").write_bytes(WEIGHTS.tobytes())
    for location in ("below/w.bin", "below\\w.bin", "./below/../below/w.bin"):
        np.testing.assert_array_equal(loaded(tmp_path, location).constants["w"].array, WEIGHTS)


def test_the_file_may_go_once_it_is_mapped(tmp_path: Path) -> None:
    function = loaded(tmp_path, "w.bin")
    (tmp_path / "w.bin").unlink()
    np.testing.assert_array_equal(function.constants["w"].array, WEIGHTS)
    assert load(to_model(function)) == function


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


# ---------------------------------------------------------------------------------------------- refused


def test_a_missing_file(tmp_path: Path) -> None:
    assert reason(tmp_path, "w.bin", None) == f"in external data file 'w.bin', which is missing from {str(tmp_path)!r}"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    assert reason(tmp_path, "dir") == f"in external data file 'dir', which is missing from {str(tmp_path)!r}"


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> memoryview:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("xrt.formats.onnx.messages.map_file", refuse)
    assert reason(tmp_path, "w.bin") == "in external data file 'w.bin', which cannot be read: Permission denied"


def test_a_tensor_at_an_odd_address_is_copied_once_and_then_aligned(tmp_path: Path) -> None:
    array = loaded(tmp_path, "w.bin", b"\xff" + WEIGHTS.tobytes(), offset=1, length=24).constants["w"].array
    np.testing.assert_array_equal(array, WEIGHTS)
    assert array.flags.aligned
    assert not isinstance(base_of(array), memoryview)


def outside(location: str, inside: Path) -> str:
    return f"in external data file {location!r}, which leads outside the model's directory {str(inside)!r}"


def test_locations_outside_of_the_directory(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "inside2").mkdir()
    (tmp_path / "inside2" / "w.bin").write_bytes(WEIGHTS.tobytes())
    for location in ("../w.bin", "..\\w.bin", str(tmp_path / "w.bin"), "../inside2/w.bin", "x/../../w.bin"):
        assert reason(inside, location, None) == outside(location, inside)


def test_links_out_of_the_directory(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    (inside / "file").symlink_to(tmp_path / "w.bin")
    (inside / "dir").symlink_to(tmp_path)
    for location in ("file", "dir/w.bin"):
        assert reason(inside, location, None) == outside(location, inside)


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("w.bin")
    np.testing.assert_array_equal(loaded(tmp_path, "link").constants["w"].array, WEIGHTS)


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000])
def test_what_is_no_path(tmp_path: Path, location: str) -> None:
    assert reason(tmp_path, location, None).startswith(f"in external data file {location!r}, which is ")


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert reason(tmp_path, "a", None).startswith("in external data file 'a', which is ")


def test_no_location(tmp_path: Path) -> None:
    assert reason(tmp_path, "") == "external data without a location"


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
