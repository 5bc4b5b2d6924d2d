"""Load models from files, bytes or ModelProtos, with their weights in memory only once.

Protobuf needs the whole file in one buffer, copies the bytes of each tensor, and is limited to 2 GB. Therefore it only parses an
excerpt, in which large tensors are replaced by references to external data with names that no file can have. The bytes behind
such a name are then read from the original.
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

# Protobuf's wire types; numbers of fixed size take 8 or 4 bytes.
_VARINT, _BYTES = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
# Protobuf encodes a tag or a length in at most 5 bytes, and an integer in at most 10.
_MAX_LENGTH_BYTES, _MAX_VALUE_BYTES = 5, 10
# Give up after this many fields: protobuf is faster at messages of many small ones.
MAX_FIELDS = 1 << 22


class Field(NamedTuple):
    """The location of a field in a message. The tag begins at ``offset``; the content is from ``content`` to ``end``."""

    number: int
    holds_bytes: bool
    """Whether the content is bytes, text or a message rather than a number."""
    offset: int
    content: int
    end: int


class MalformedMessage(ValueError):
    """The data is not a message, or has more than `MAX_FIELDS` fields."""


class TruncatedMessage(MalformedMessage):
    """Field ``number`` should end at byte ``end``, which is beyond the end of its message."""

    def __init__(self, number: int, end: int) -> None:
        super().__init__(f"field {number} should end at byte {end}")
        self.number = number
        self.end = end


@dataclass(slots=True)
class FieldReader:
    """Finds the fields of protobuf messages; raises MalformedMessage after `MAX_FIELDS` fields in total."""

    data: Buffer
    remaining: int = MAX_FIELDS

    def iter_fields(self, offset: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets.

        Raises TruncatedMessage for a field longer than the message, and MalformedMessage for invalid data or too many fields.
        """
        data = self.data
        while offset < end:
            # Nearly all tags have one byte.
            if data[offset] < 0x80:
                tag, content = data[offset], offset + 1
            else:
                tag, content = self.read_varint(offset, end)
            # The low 3 bits of a tag are the wire type.
            number, wire_type = tag >> 3, tag & 7
            if wire_type == _BYTES:
                length, content = self.read_varint(content, end)
            elif wire_type == _VARINT:
                _, value_end = self.read_varint(content, end, _MAX_VALUE_BYTES)
                length = value_end - content
            else:
                length = _FIXED_BYTES.get(wire_type, 0)  # 0 for a type that ONNX does not use
            self.remaining -= 1
            if self.remaining < 0 or not number or not (length or wire_type == _BYTES):
                raise MalformedMessage("a field without a number or of a type that ONNX does not use, or too many fields")
            if content + length > end:
                raise TruncatedMessage(number, content + length)
            yield Field(number, wire_type == _BYTES, offset, content, content + length)
            offset = content + length

    def read_varint(self, offset: int, end: int, max_bytes: int = _MAX_LENGTH_BYTES) -> tuple[int, int]:
        """Decode a variable-length integer of up to ``max_bytes`` bytes; return its value and the offset after it."""
        value = 0
        for count, byte in enumerate(self.data[offset : min(offset + max_bytes, end)]):
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return value, offset + count + 1
        raise MalformedMessage("an integer does not end")


def encode_varint(value: int) -> bytes:
    high, low = divmod(value, 0x80)
    if not high:
        return bytes([low])
    return bytes([low | 0x80]) + encode_varint(high)


# Raw data of at least this size is left out of the excerpt; smaller messages are not searched.
MIN_LARGE_BYTES = 1 << 16

_MAX_DEPTH = 100  # protobuf's limit of nested messages

# Fields of each message that contain tensors. Model-local functions are not searched: onnx's inliner needs them complete.
_TENSOR_FIELDS = {
    ModelProto: ("graph",),
    GraphProto: ("node", "initializer", "sparse_initializer"),
    NodeProto: ("attribute",),
    AttributeProto: ("t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors"),
    SparseTensorProto: ("values", "indices"),
}

_MESSAGE_TYPES = {message.DESCRIPTOR.full_name: message for message in (*_TENSOR_FIELDS, TensorProto)}
# For each message type: field number to field descriptor, of the fields in _TENSOR_FIELDS.
_SUBMESSAGES = {
    message: {message.DESCRIPTOR.fields_by_name[name].number: message.DESCRIPTOR.fields_by_name[name] for name in names}
    for message, names in _TENSOR_FIELDS.items()
}
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
# A tensor with one of these fields has its data in another file.
_EXTERNAL_DATA_FIELDS = (TensorProto.EXTERNAL_DATA_FIELD_NUMBER, TensorProto.DATA_LOCATION_FIELD_NUMBER)

Span = tuple[int, int]
"""Start and end offset in the original."""


class ModelExcerpt(NamedTuple):
    """A model without its large data, which stays in the original."""

    model: ModelProto
    spans: dict[str, Span]
    """Location in the model's external data to the span of the data in the original."""

    def to_function(self, read: Callable[[int, int], memoryview], directory: Path | None) -> tuple[Function, tuple[str, ...]]:
        """Convert the model to a Function; also return the names of its external data files, which are in ``directory``.

        ``read`` returns the bytes of the original between two offsets.
        """

        def read_embedded(location: str) -> memoryview | None:
            return read(*self.spans[location]) if location in self.spans else None

        external = ExternalData(directory, read_embedded)
        return read_function(self.model, external), external.locations


def extract_weights(data: Buffer) -> ModelExcerpt:
    """Parse a serialized model without its large data.

    Raises MalformedMessage if the data is invalid, or uses a feature that only protobuf supports (it merges two messages of a
    singular field). Raises DecodeError if protobuf cannot parse the excerpt.
    """
    if len(data) < MIN_LARGE_BYTES:
        return ModelExcerpt(ModelProto.FromString(bytes(data)), {})
    writer = _ExcerptWriter(FieldReader(data))
    model = b"".join(writer.copy_message(ModelProto, 0, len(data), 0))
    return ModelExcerpt(ModelProto.FromString(model), writer.spans)


@dataclass(slots=True)
class _ExcerptWriter:
    """Copies messages without large raw data, and records the location of that data in `spans`."""

    reader: FieldReader
    spans: dict[str, Span] = field(default_factory=dict)

    def copy_message(self, kind: type, start: int, end: int, depth: int) -> list[bytes]:
        """Copy the message between two offsets, of type ``kind``, without large data; return pieces of bytes to join."""
        if kind is TensorProto:
            return self.copy_tensor(start, end)
        if depth > _MAX_DEPTH:
            raise MalformedMessage("messages are nested too deep")
        submessages = _SUBMESSAGES[kind]
        seen_numbers: set[int] = set()
        pieces: list[bytes] = []
        # Bytes before this offset are already in `pieces`.
        copied_end = start
        for number, holds_bytes, offset, content, stop in self.reader.iter_fields(start, end):
            submessage = submessages.get(number) if holds_bytes else None
            if submessage is None:
                continue
            # Protobuf would merge the two messages, which is not supported here.
            if number in seen_numbers and not submessage.is_repeated:
                raise MalformedMessage("a field that may occur once occurs twice")
            seen_numbers.add(number)
            if stop - content >= MIN_LARGE_BYTES:
                inner = self.copy_message(_MESSAGE_TYPES[submessage.message_type.full_name], content, stop, depth + 1)
                tag = encode_varint(number << 3 | _BYTES)
                length = encode_varint(sum(map(len, inner)))
                pieces += (self.reader.data[copied_end:offset], tag, length, *inner)
                copied_end = stop
        return [*pieces, self.reader.data[copied_end:end]]

    def copy_tensor(self, start: int, end: int) -> list[bytes]:
        """Copy a tensor with a reference instead of large data; return pieces of bytes to join."""
        data = self.reader.data
        raw: Field | None = None
        for wire_field in self.reader.iter_fields(start, end):
            is_repeated = wire_field.number == _RAW_DATA and raw is not None
            if wire_field.number in _EXTERNAL_DATA_FIELDS or is_repeated:
                return [data[start:end]]  # external or repeated data is left to protobuf
            if wire_field.number == _RAW_DATA and wire_field.holds_bytes:
                raw = wire_field
        if raw is None or raw.end - raw.content < MIN_LARGE_BYTES:
            return [data[start:end]]
        return [data[start : raw.offset], data[raw.end : end], self.make_reference(raw)]

    def make_reference(self, raw: Field) -> bytes:
        """Record the span of a tensor's data; return the serialized fields that refer to it as external data."""
        location = f"\0{len(self.spans)}"  # a path cannot contain NUL
        self.spans[location] = raw.content, raw.end
        tensor = TensorProto(data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return bytes(tensor.SerializeToString())


Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"


def load(source: Source) -> Function:
    """Load a model as a Function, with its weights in memory only once.

    External data is memory-mapped: it is read on first use, and processes share the pages. Weights in the model file are copied,
    because they may be unaligned in the file, and the file may be overwritten later. Tensors in a ModelProto are copied. Files
    larger than protobuf's limit of 2 GB are supported.

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
    return _read_excerpt(data).to_function(lambda start, end: view[start:end], directory)


def _from_path(path: Path) -> tuple[Function, tuple[str, ...]]:
    if path.is_dir():
        model_names = ", ".join(sorted(p.name for p in path.glob("*.onnx"))[:5])
        hint = f" ({model_names})" if model_names else ""
        raise ModelError(f"it is a directory; name the file in it{hint}")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise ModelError("it is a device, which may have no end")
            if not status.st_size:  # an empty file, or a pipe, which has no size and cannot be mapped
                return _from_bytes(file.read(), path.parent)
            # Mapped only to find the tensors. `read_file_part` copies weights, since the file may be overwritten later.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                excerpt = _read_excerpt(data)
            return excerpt.to_function(partial(read_file_part, file), path.parent)
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except OSError as error:
        raise ModelError(f"it cannot be read: {error.strerror}") from error


def _read_excerpt(data: Buffer) -> ModelExcerpt:
    """Parse a model without its large data if possible; raises ModelError with the reason if the data is malformed."""
    if not len(data):
        raise ModelError("it is empty")
    try:
        return extract_weights(data)
    except (MalformedMessage, DecodeError):
        pass  # protobuf may still be able to parse the data
    try:
        return ModelExcerpt(ModelProto.FromString(data[:]), {})
    except DecodeError:
        if data[:1] == b"{":
            raise ModelError("it is a lockfile or other JSON, not an ONNX model") from None
        raise ModelError(_describe_truncation(data) or "it is not an ONNX model: it does not parse as one") from None


def _describe_truncation(data: Buffer) -> str | None:
    """Describe the top-level field inside which the data is cut off; None if the data does not look like a model."""
    names = {field.number: field.name for field in ModelProto.DESCRIPTOR.fields}
    try:
        for wire_field in FieldReader(data).iter_fields(0, len(data)):
            if wire_field.number not in names:
                return None
    except TruncatedMessage as error:
        if name := names.get(error.number):
            return f"it is truncated: its {name} should end at byte {error.end}, but there are only {len(data)} bytes"
    except MalformedMessage:
        pass
    return None
