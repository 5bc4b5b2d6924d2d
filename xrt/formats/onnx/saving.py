"""Save models to ONNX files atomically, with optional external data, and ONNX test cases."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import EncodeError
from onnx import MapProto, ModelProto, SequenceProto, TensorProto

from xrt.errors import ModelError
from xrt.formats.onnx.tensors import encode_bytes, encode_data, external_tensor, write_tensor
from xrt.formats.onnx.writing import Style, to_model, write_styled_model
from xrt.formats.output import replace_file
from xrt.graph import Constant, DType, Function, Value

__all__ = ["save", "save_case"]

EXTERNAL_BYTES = 1024  # constants from this size on are stored in the data file, if there is one
# Protobuf is limited to 2 GB, so models with more constants than this get a data file by default.
AUTOMATIC_BYTES = 1 << 30
_PAGE = 4096  # aligned offsets let readers map each tensor separately


def save(function: Function, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write a Function as an ONNX file atomically, replacing an existing one.

    With ``external_data``, large constants, including those of bodies and attributes, are stored in ``NAME.DIGEST.data`` in the
    same directory; this is the default for models over 1 GB. The digest depends on their content, so that a crash between writing
    the two files leaves the old model with its old data. Data files of earlier saves under the same name are removed at the end.
    Raises ModelError if the file cannot be written or would exceed 2 GB.
    """
    path = Path(path)
    if external_data is None:
        external_data = sum(map(_size, _large_constants(function))) > AUTOMATIC_BYTES
    try:
        if external_data:
            _save_in_two(function, path)
        else:
            data = _serialised(to_model(function), "save it with external_data=True")
            replace_file(path, lambda file: file.write(data))
            _remove_old_data(path, keep="")
    except OSError as error:
        raise ModelError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def _save_in_two(function: Function, path: Path) -> None:
    layout = _Layout(function)
    data = path.with_name(f"{path.name}.{layout.digest}.data")
    is_new = not data.exists()
    tensor = partial(layout.tensor, data.name)
    model = _serialised(
        write_styled_model(function, Style(constants=tensor, inner=tensor)), "it does so even without its large constants"
    )
    try:
        replace_file(data, layout.write)
        replace_file(path, lambda file: file.write(model))
    except BaseException:
        # Remove only a new data file: an existing one belongs to the model that is still there.
        if is_new:
            data.unlink(missing_ok=True)
        raise
    _remove_old_data(path, keep=data.name)


class _Layout:
    """The offset of each large constant in the data file; equal constants are stored once."""

    def __init__(self, function: Function) -> None:
        self._placed: dict[bytes, tuple[Constant, int]] = {}
        end = 0
        for constant in _large_constants(function):
            if constant.digest not in self._placed:
                offset = -(-end // _PAGE) * _PAGE
                self._placed[constant.digest] = (constant, offset)
                end = offset + _size(constant)
        self.digest = hashlib.sha256(b"".join(self._placed)).hexdigest()[:12]

    def tensor(self, location: str, constant: Constant, name: str) -> TensorProto:
        """The message of a constant: a reference to the data file, unless it is small."""
        if not _is_large(constant):
            return write_tensor(constant, name)
        return external_tensor(constant, name, location, self._placed[constant.digest][1])

    def write(self, file: BinaryIO) -> None:
        """Write the data file."""
        for constant, offset in self._placed.values():
            file.write(b"\0" * (offset - file.tell()))
            file.write(encode_data(constant))


def _size(constant: Constant) -> int:
    return encode_bytes(constant.dtype, constant.array.size)


def _is_large(constant: Constant) -> bool:
    return constant.dtype is not DType.STRING and _size(constant) >= EXTERNAL_BYTES


def _large_constants(function: Function) -> Iterator[Constant]:
    yield from filter(_is_large, function.constants.values())
    for node in function.nodes:
        for attribute in node.attributes:
            values = attribute.value if attribute.kind.is_list else (attribute.value,)
            yield from (value for value in values if isinstance(value, Constant) and _is_large(value))
        for body in node.bodies:
            yield from _large_constants(body)


def _serialised(model: ModelProto, hint: str) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"the model takes more than 2 GB in one file, where protobuf ends ({error}); {hint}") from error
    return data


def _remove_old_data(path: Path, keep: str) -> None:
    """Remove data files of earlier saves under the same name."""
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    for entry in path.parent.iterdir():
        if ours.fullmatch(entry.name) and entry.name != keep:
            entry.unlink(missing_ok=True)


def save_case(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Write an ONNX test case: ``model.onnx``, and ``test_data_set_0`` with one file per input and output.

    ONNX's test runner and those of the engines read this layout. Creates the directory. Raises ModelError if it cannot be
    written, or for a value that is not a tensor, a map of numbers, or a list of these.
    """
    folder = Path(folder)
    data = folder / "test_data_set_0"
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {os.fspath(data)!r}: {error.strerror}") from error
    save(function, folder / "model.onnx")
    for what, values, given in (("input", function.inputs, inputs), ("output", function.outputs, outputs)):
        for index, (value, content) in enumerate(zip(values, given, strict=True)):
            (data / f"{what}_{index}.pb").write_bytes(_message(value, content).SerializeToString())


def _message(value: Value, content: Any) -> TensorProto | SequenceProto | MapProto:
    if isinstance(content, np.ndarray):
        return write_tensor(Constant(content), value.name)
    if isinstance(content, list) and all(isinstance(item, np.ndarray) for item in content):
        return _tensors(value.name, content)
    if isinstance(content, dict):
        return _map(value.name, content)
    if isinstance(content, list) and all(isinstance(item, dict) for item in content):
        return SequenceProto(name=value.name, elem_type=SequenceProto.MAP, map_values=[_map("", item) for item in content])
    raise ModelError(f"{value.name!r} is a {type(content).__name__}; a case holds tensors, maps, and lists of one of these")


def _tensors(name: str, content: Sequence[Any]) -> SequenceProto:
    tensors = [write_tensor(Constant(item)) for item in content]
    return SequenceProto(name=name, elem_type=SequenceProto.TENSOR, tensor_values=tensors)


def _map(name: str, content: Mapping[Any, Any]) -> MapProto:
    """Convert a map; Python floats become float32, as in ONNX's operators."""
    values = [np.array(x, np.float32 if isinstance(x, float) else None) for x in content.values()]
    values = [x.astype(object) if x.dtype.kind == "U" else x for x in values]
    if any(isinstance(key, str) for key in content):
        texts = [str(key).encode() for key in content]
        return MapProto(name=name, key_type=TensorProto.STRING, string_keys=texts, values=_tensors("", values))
    return MapProto(name=name, key_type=TensorProto.INT64, keys=list(content), values=_tensors("", values))
