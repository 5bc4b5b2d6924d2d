"""Models to files, so that nothing is ever half-written."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from xrt.errors import ModelError
from xrt.formats.onnx.tensors import encode_bytes, encode_data, external_tensor, write_tensor
from xrt.formats.onnx.writing import Style, to_model, write_styled_model
from xrt.formats.output import replace_file
from xrt.graph import Constant, DType, Function

__all__ = ["save"]

EXTERNAL_BYTES = 1024
"""Constants of at least this size go to the data file, where there is one."""

AUTOMATIC_BYTES = 1 << 30
"""A model whose constants take more than this gets a data file unasked: protobuf ends at 2 GB."""

_PAGE = 4096
"""Offsets are multiples of a page, so that any reader can map a tensor by itself."""


def save(function: Function, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write the Function as an ONNX file, whole or not at all; an existing file is replaced.

    With ``external_data`` the large constants, those of bodies and attributes too, go to a file in the same directory,
    ``NAME.DIGEST.data``; by default they do so in a model of more than 1 GB. The digest is of their content, so a crash between
    the two files leaves the old model with its old data. Data files of earlier saves under the same name are removed at the end.
    Raises ModelError if the file cannot be written, or would take more than 2 GB.
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
        if is_new:
            data.unlink(missing_ok=True)
        raise
    _remove_old_data(path, keep=data.name)


class _Layout:
    """The place of each large constant in the data file; equal ones are stored once."""

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
        """Return the constant's message: a reference into the data file, unless it is small."""
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
    """Remove the data files that earlier saves under the same name have left."""
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    for entry in path.parent.iterdir():
        if ours.fullmatch(entry.name) and entry.name != keep:
            entry.unlink(missing_ok=True)
