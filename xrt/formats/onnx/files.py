"""Load models from files, bytes or ModelProtos, with their weights in memory only once.

Protobuf reads a whole file into one buffer, parses it, copies each tensor's bytes, and is limited to 2 GB. Therefore it only
gets an excerpt, in which each large tensor is external data in a file with an impossible name. A reader of the tensor looks up
its bytes in the original.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from xrt.errors import ModelError
from xrt.formats.onnx.messages import ExternalData
from xrt.formats.onnx.reading import read_function
from xrt.formats.output import read_file_part

if TYPE_CHECKING:
    from xrt.graph import Function


Buffer: TypeAlias = bytes | mmap.mmap
"""Random-access bytes; slicing copies."""

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
# Protobuf encodes a tag or a length in at most 5 bytes, and an integer in at most 10.
_MAX_LENGTH_BYTES, _MAX_VALUE_BYTES = 5, 10
# Give up after this many fields: protobuf is faster at messages of many small ones.
MAX_FIELDS = 1 << 22


class Field(NamedTuple):
    """The location of a field."""

    number: int
    holds_bytes: bool
    """Whether the content is bytes, text or a message rather than a number."""
    offset: int
    """Offset of the field's tag in the data. ``content`` and ``end`` are offsets of its content's begin and end."""
    content: int
    end: int


class MalformedMessage(ValueError):
    """The data is not a message, or has too many fields."""


class TruncatedMessage(MalformedMessage):
    """Field ``number`` extends to ``end``, beyond the end of its message."""

    def __init__(self, number: int, end: int) -> None:
        super().__init__(f"field {number} should end at byte {end}")
        self.number = number
        self.end = end


@dataclass(slots=True)
class Walk:
    """Iterates over the fields of protobuf messages; raises MalformedMessage after `MAX_FIELDS` fields in total."""

    data: Buffer
    remaining: int = MAX_FIELDS

    def fields(self, offset: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets.

        Raises TruncatedMessage for a field longer than the message, and MalformedMessage for invalid data or too many fields.
        """
        data = self.data
        while offset < end:
            tag, content = (
                (data[offset], offset + 1) if data[offset] < 0x80 else self.varint(offset, end)
            )  # nearly all tags have one byte
            number, kind = tag >> 3, tag & 7
            if kind == _BYTES:
                length, content = self.varint(content, end)
            elif kind == _VARINT:
                length = self.varint(content, end, _MAX_VALUE_BYTES)[1] - content
            else:
                length = _FIXED.get(kind, 0)
            self.remaining -= 1
            if self.remaining < 0 or not number or not (length or kind == _BYTES):
                raise MalformedMessage("a field without a number or of a type that ONNX does not use, or too many fields")
            if content + length > end:
                raise TruncatedMessage(number, content + length)
            yield Field(number, kind == _BYTES, offset, content, content + length)
            offset = content + length

    def varint(self, offset: int, end: int, longest: int = _MAX_LENGTH_BYTES) -> tuple[int, int]:
        """Decode a variable-length integer of up to ``longest`` bytes; return its value and the offset after it."""
        value = 0
        for count, byte in enumerate(self.data[offset : min(offset + longest, end)]):
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return value, offset + count + 1
        raise MalformedMessage("an integer does not end")


def encode_varint(value: int) -> bytes:
    """Encode a variable-length integer."""
    high, low = divmod(value, 0x80)
    return bytes([low | 0x80]) + encode_varint(high) if high else bytes([low])


# Raw data from this size on is left out; smaller messages are not searched.
LARGE_BYTES = 1 << 16

_MAX_DEPTH = 100  # nesting limit of protobuf

# Fields of each message that contain tensors. Bodies of functions are not searched: onnx's inliner needs them whole.
_TENSOR_CARRIERS = {
    ModelProto: ("graph",),
    GraphProto: ("node", "initializer", "sparse_initializer"),
    NodeProto: ("attribute",),
    AttributeProto: ("t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors"),
    SparseTensorProto: ("values", "indices"),
}

_MESSAGE_OF = {message.DESCRIPTOR.full_name: message for message in (*_TENSOR_CARRIERS, TensorProto)}
_SUBMESSAGES = {
    message: {message.DESCRIPTOR.fields_by_name[name].number: message.DESCRIPTOR.fields_by_name[name] for name in names}
    for message, names in _TENSOR_CARRIERS.items()
}
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
# Fields of a tensor whose data is in another file.
_EXTERNAL_DATA_FIELDS = (TensorProto.EXTERNAL_DATA_FIELD_NUMBER, TensorProto.DATA_LOCATION_FIELD_NUMBER)

Span = tuple[int, int]
"""Start and end offset."""


class WeightlessModel(NamedTuple):
    """A model without its large data."""

    model: ModelProto
    spans: dict[str, Span]
    """Location of each large tensor's data in the original, by the external data location in the model."""

    def read(self, read_part: Callable[[int, int], memoryview], directory: Path | None) -> tuple[Function, tuple[str, ...]]:
        """Convert the model; return it with the names of its external data files.

        ``read_part`` reads large data of the model file between two offsets; ``directory`` contains external data.
        """

        def read_embedded(location: str) -> memoryview | None:
            return read_part(*self.spans[location]) if location in self.spans else None

        external = ExternalData(directory, read_embedded)
        return read_function(self.model, external), external.locations


def extract_weights(data: Buffer) -> WeightlessModel:
    """Extract a serialized model without large data.

    Raises MalformedMessage for data that is invalid, or that only protobuf reads (it merges repeated messages of a singular
    field), and DecodeError if protobuf cannot parse the excerpt. Announced sizes are compared with the data.
    """
    if len(data) < LARGE_BYTES:
        return WeightlessModel(ModelProto.FromString(bytes(data)), {})
    extractor = _WeightExtractor(Walk(data))
    model = b"".join(extractor.message(ModelProto, 0, len(data), 0))
    return WeightlessModel(ModelProto.FromString(model), extractor.spans)


@dataclass(slots=True)
class _WeightExtractor:
    """Copies a message without large raw data, whose locations it adds to `spans`."""

    walk: Walk
    spans: dict[str, Span] = field(default_factory=dict)

    def message(self, kind: type, start: int, end: int, depth: int) -> list[bytes]:
        """List the bytes to join for the message between two offsets, without large data."""
        if kind is TensorProto:
            return self.tensor(start, end)
        if depth > _MAX_DEPTH:
            raise MalformedMessage("messages are nested too deep")
        submessages, seen_numbers = _SUBMESSAGES[kind], set()
        parts: list[bytes] = []
        copy_start = start
        for number, holds_bytes, offset, content, stop in self.walk.fields(start, end):
            submessage = submessages.get(number) if holds_bytes else None
            if submessage is None:
                continue
            # Protobuf would merge the two messages, which this walk does not support.
            if number in seen_numbers and not submessage.is_repeated:
                raise MalformedMessage("a field that may occur once occurs twice")
            seen_numbers.add(number)
            if stop - content >= LARGE_BYTES:
                inner = self.message(_MESSAGE_OF[submessage.message_type.full_name], content, stop, depth + 1)
                parts += (
                    self.walk.data[copy_start:offset],
                    encode_varint(number << 3 | 2),
                    encode_varint(sum(map(len, inner))),
                    *inner,
                )
                copy_start = stop
        return [*parts, self.walk.data[copy_start:end]]

    def tensor(self, start: int, end: int) -> list[bytes]:
        """List the bytes to join for a tensor, with a reference instead of large data."""
        data, raw = self.walk.data, None
        for wire_field in self.walk.fields(start, end):
            if wire_field.number in _EXTERNAL_DATA_FIELDS or (wire_field.number == _RAW_DATA and raw):
                return [data[start:end]]  # external or repeated data: leave it to protobuf
            if wire_field.number == _RAW_DATA and wire_field.holds_bytes:
                raw = wire_field
        if raw is None or raw.end - raw.content < LARGE_BYTES:
            return [data[start:end]]
        return [data[start : raw.offset], data[raw.end : end], self.reference(raw)]

    def reference(self, raw: Field) -> bytes:
        """Serialize the fields that replace a tensor's data, a reference to external data, and record its location."""
        location = f"\0{len(self.spans)}"  # no path contains NUL, so no file of the model's can be meant
        self.spans[location] = raw.content, raw.end
        tensor = TensorProto(data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return bytes(tensor.SerializeToString())


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
    view = memoryview(data)
    return _read_excerpt(data).read(lambda start, end: view[start:end], directory)


def _from_path(path: Path) -> tuple[Function, tuple[str, ...]]:
    if path.is_dir():
        model_names = ", ".join(sorted(p.name for p in path.glob("*.onnx"))[:5])
        raise ModelError(f"it is a directory; name the file in it{f' ({model_names})' if model_names else ''}")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise ModelError("it is a device, which may have no end")
            if not status.st_size:  # an empty file, or a pipe, which has no size and cannot be mapped
                return _from_bytes(file.read(), path.parent)
            # Mapped only to find the tensors: weights are copied below, since the file may be overwritten while they are in use.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                excerpt = _read_excerpt(data)
            return excerpt.read(partial(read_file_part, file), path.parent)
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except OSError as error:
        raise ModelError(f"it cannot be read: {error.strerror}") from error


def _read_excerpt(data: Buffer) -> WeightlessModel:
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
        if data[:1] == b"{":
            raise ModelError("it is a lockfile or other JSON, not an ONNX model") from None
        raise ModelError(_describe_truncation(data) or "it is not an ONNX model: it does not parse as one") from None


def _describe_truncation(data: Buffer) -> str | None:
    """Describe where the data is cut off inside a top-level field; None if it does not look like a model."""
    names = {field.number: field.name for field in ModelProto.DESCRIPTOR.fields}
    try:
        for wire_field in Walk(data).fields(0, len(data)):
            if wire_field.number not in names:
                return None
    except TruncatedMessage as cut:
        if name := names.get(cut.number):
            return f"it is truncated: its {name} should end at byte {cut.end}, but there are only {len(data)} bytes"
    except MalformedMessage:
        pass
    return None
