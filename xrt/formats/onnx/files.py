"""Models in files: reading them from wherever they are, writing them so that nothing is ever half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError
from onnx import ModelProto

from xrt.errors import ModelError
from xrt.formats.onnx.external import ExternalData
from xrt.formats.onnx.reading import function_of
from xrt.graph import Function

__all__ = ["Source", "load"]

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"


def load(source: Source) -> Function:
    """Return the model in a file, in bytes, or in a message, as a Function.

    A file's external data is memory-mapped read-only: the Function's constants are views of it, so the file must not
    be changed in place while they are in use. Raises ModelError naming the source, for whatever is wrong with it.
    """
    where = _called(source)
    try:
        if isinstance(source, ModelProto):
            return function_of(source, ExternalData())
        if isinstance(source, bytes | bytearray | memoryview):
            return function_of(_parsed(bytes(source)), ExternalData())
        path = Path(source)
        return function_of(_parsed(_read(path)), ExternalData(path.parent))
    except ModelError as error:
        raise ModelError(f"cannot load {where}: {error}") from error


def _called(source: Source) -> str:
    if isinstance(source, ModelProto):
        return "the given ModelProto"
    if isinstance(source, bytes | bytearray | memoryview):
        return "the given bytes"
    return f"{os.fspath(source)!r}"


def _read(path: Path) -> bytes:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.onnx"))[:5])
        raise ModelError(f"it is a directory; name the file in it{f' ({inside})' if inside else ''}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except OSError as error:
        raise ModelError(f"it cannot be read: {error.strerror}") from error


def _parsed(data: bytes) -> ModelProto:
    if not data:
        raise ModelError("it is empty")
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        raise ModelError(_truncation(data) or "it is not an ONNX model: it does not parse as one") from None


def _truncation(data: bytes) -> str | None:
    """Return that the data ends inside one of the model's own fields, None where it is not like a model at all."""
    names = {field.number: field.name for field in ModelProto.DESCRIPTOR.fields}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        name, kind = names.get(tag >> 3), tag & 7
        if name is None or kind not in (0, 2):
            return None
        size, at = _varint(data, at)
        if kind == 2:
            at += size
        if at > len(data):
            return f"it is truncated: its {name} should end at byte {at}, but there are only {len(data)} bytes"
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the protobuf integer at a place, and the place after it; the end of the data ends it too."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at
