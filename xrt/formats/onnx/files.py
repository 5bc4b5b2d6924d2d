"""Models in files: reading them from wherever they are, writing them so that nothing is ever half-written."""

from __future__ import annotations

import mmap
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto

from xrt.errors import ModelError
from xrt.formats.onnx.excerpt import Excerpt, Span, excerpt_of
from xrt.formats.onnx.external import ExternalData
from xrt.formats.onnx.reading import function_of
from xrt.formats.onnx.wire import Buffer, Overrun, Unsound, Walk
from xrt.graph import Function

__all__ = ["Source", "load"]

ALIGNMENT = 64
"""In bytes: what vector instructions like, and TVM."""

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"


def load(source: Source) -> Function:
    """Return the model as a Function. Weights are in memory once: large ones are read or viewed where they lie.

    External data is mapped from files in the model's directory, so it is not read before it is used, and whoever else
    maps it shares its pages. Weights inside of the model's own file are read into arrays of their own: they lie there at
    any address, and the file may be written anew. A file may be larger than 2 GB, where protobuf ends. Tensors inside of a
    ModelProto are copied.

    Raises ModelError that names the source: there is no such file, it is no model, it breaks a rule of ONNX's structure.
    """
    where = _called(source)
    try:
        if isinstance(source, ModelProto):
            return function_of(source, ExternalData())
        if isinstance(source, bytes | bytearray | memoryview):
            return _from_bytes(bytes(source))
        return _from_path(Path(source))
    except ModelError as error:
        raise ModelError(f"cannot load {where}: {error}") from error


def _called(source: Source) -> str:
    if isinstance(source, ModelProto):
        return "the given ModelProto"
    if isinstance(source, bytes | bytearray | memoryview):
        return "the given bytes"
    return f"{os.fspath(source)!r}"


def _from_bytes(data: bytes, directory: Path | None = None) -> Function:
    excerpt = _excerpt(data)
    view = memoryview(data)

    def within(location: str) -> memoryview | None:
        span = excerpt.spans.get(location)
        return None if span is None else view[span[0] : span[1]]

    return function_of(excerpt.model, ExternalData(directory, within))


def _from_path(path: Path) -> Function:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.onnx"))[:5])
        raise ModelError(f"it is a directory; name the file in it{f' ({inside})' if inside else ''}")
    try:
        with path.open("rb") as file:
            return _from_file(file, path.parent)
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except OSError as error:
        raise ModelError(f"it cannot be read: {error.strerror}") from error


def _from_file(file: BufferedReader, directory: Path) -> Function:
    status = os.fstat(file.fileno())
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise ModelError("it is a device, which may have no end")
    if not status.st_size:
        return _from_bytes(file.read(), directory)  # nothing, or a pipe, which has no size and cannot be mapped
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        excerpt = _excerpt(data)

    def within(location: str) -> memoryview | None:
        span = excerpt.spans.get(location)
        return None if span is None else _read(file, span)

    return function_of(excerpt.model, ExternalData(directory, within))


def _read(file: BufferedReader, span: Span) -> memoryview:
    """Return a part of the file in memory of its own, aligned."""
    length = span[1] - span[0]
    room = np.empty(length + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    part = room[start : start + length].data
    file.seek(span[0])
    if file.readinto(part) != length:
        raise ModelError("it became shorter while it was read")
    return part


def _excerpt(data: Buffer) -> Excerpt:
    """Return the model without its large data; raises ModelError, in the clearest words, where protobuf cannot parse it."""
    if not len(data):
        raise ModelError("it is empty")
    try:
        return excerpt_of(data)
    except (Unsound, DecodeError):
        pass  # what the walk does not understand is for protobuf to judge
    try:
        return Excerpt(ModelProto.FromString(data[:]), {})
    except DecodeError:
        raise ModelError(_truncation(data) or "it is not an ONNX model: it does not parse as one") from None


def _truncation(data: Buffer) -> str | None:
    """Return that the data ends inside one of the model's own fields, None where it is not like a model at all."""
    names = {field.number: field.name for field in ModelProto.DESCRIPTOR.fields}
    try:
        for found in Walk(data).fields(0, len(data)):
            if found.number not in names:
                return None
    except Overrun as cut:
        if name := names.get(cut.number):
            return f"it is truncated: its {name} should end at byte {cut.end}, but there are only {len(data)} bytes"
    except Unsound:
        pass
    return None
