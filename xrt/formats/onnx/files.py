"""Load models from files, bytes or ModelProtos."""

from __future__ import annotations

import mmap
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf.message import DecodeError
from onnx import ModelProto

from xrt.errors import ModelError
from xrt.formats.onnx.protobuf_wire import Buffer, MalformedMessage, TruncatedMessage, Walk
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.tensors import ExternalData
from xrt.formats.onnx.weight_places import read_file_part
from xrt.formats.onnx.weightless_model import WeightlessModel, extract_weights

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["Source", "load", "load_file"]

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"


def load(source: Source) -> Function:
    """Load a model as a Function. Weights are in memory only once: large ones are read or viewed in place.

    External data is mapped from files in the model's directory: it is read on first use, and processes share its pages. Weights
    in the model file are copied, because they may be unaligned there and the file may be overwritten. Files larger than
    protobuf's limit of 2 GB are supported. Tensors in a ModelProto are copied.

    Raises ModelError with the source if the file does not exist, is not a model, or violates ONNX's structure.
    """
    if isinstance(source, str | os.PathLike):
        return load_file(source)[0]
    where = "the given ModelProto" if isinstance(source, ModelProto) else "the given bytes"
    try:
        if isinstance(source, ModelProto):
            return read_function(source, ExternalData())
        return _from_bytes(bytes(source))[0]
    except ModelError as error:
        raise ModelError(f"cannot load {where}: {error}") from error


def load_file(path: str | os.PathLike[str]) -> tuple[Function, tuple[str, ...]]:
    """Load a model from a file like `load`; also return the locations of its external data files."""
    try:
        return _from_path(Path(path))
    except ModelError as error:
        raise ModelError(f"cannot load {os.fspath(path)!r}: {error}") from error


def _from_bytes(data: bytes, directory: Path | None = None) -> tuple[Function, tuple[str, ...]]:
    excerpt = _excerpt(data)
    view = memoryview(data)

    def within(location: str) -> memoryview | None:
        span = excerpt.spans.get(location)
        return None if span is None else view[span[0] : span[1]]

    external = ExternalData(directory, within)
    return read_function(excerpt.model, external), external.locations


def _from_path(path: Path) -> tuple[Function, tuple[str, ...]]:
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


def _from_file(file: BufferedReader, directory: Path) -> tuple[Function, tuple[str, ...]]:
    status = os.fstat(file.fileno())
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise ModelError("it is a device, which may have no end")
    if not status.st_size:
        return _from_bytes(file.read(), directory)  # an empty file, or a pipe, which has no size and cannot be mapped
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        excerpt = _excerpt(data)

    def within(location: str) -> memoryview | None:
        span = excerpt.spans.get(location)
        return None if span is None else read_file_part(file, *span)

    external = ExternalData(directory, within)
    return read_function(excerpt.model, external), external.locations


def _excerpt(data: Buffer) -> WeightlessModel:
    """Parse the model without its large data; raises ModelError with the most specific reason if it is malformed."""
    if not len(data):
        raise ModelError("it is empty")
    try:
        return extract_weights(data)
    except (MalformedMessage, DecodeError):
        pass  # protobuf accepts more forms than the walk, so it decides
    try:
        return WeightlessModel(ModelProto.FromString(data[:]), {})
    except DecodeError:
        raise ModelError(_truncation(data) or "it is not an ONNX model: it does not parse as one") from None


def _truncation(data: Buffer) -> str | None:
    """Describe where the data is cut off inside a top-level field; None if it does not look like a model."""
    names = {field.number: field.name for field in ModelProto.DESCRIPTOR.fields}
    try:
        for found in Walk(data).fields(0, len(data)):
            if found.number not in names:
                return None
    except TruncatedMessage as cut:
        if name := names.get(cut.number):
            return f"it is truncated: its {name} should end at byte {cut.end}, but there are only {len(data)} bytes"
    except MalformedMessage:
        pass
    return None
