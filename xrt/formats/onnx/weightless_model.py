"""Extract a model without the data of its large tensors, and the locations of that data.

Protobuf reads a whole file into one buffer, parses it, copies each tensor's bytes, and is limited to 2 GB. Therefore it only
gets an excerpt, in which each large tensor is external data in a file with an impossible name. A reader of the tensor looks up
its bytes in the original.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from xrt.formats.onnx.protobuf_wire import Buffer, Field, MalformedMessage, Walk, encode

__all__ = ["Span", "WeightlessModel", "extract_weights"]

# Raw data from this size on is left out; smaller messages are not searched.
LARGE_BYTES = 1 << 16

_DEEPEST = 100  # nesting limit of protobuf

# Fields that lead to tensors. Bodies of functions are not searched: onnx's inliner needs them whole.
_INSIDE = {
    ModelProto: ("graph",),
    GraphProto: ("node", "initializer", "sparse_initializer"),
    NodeProto: ("attribute",),
    AttributeProto: ("t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors"),
    SparseTensorProto: ("values", "indices"),
}

_MESSAGE_OF = {message.DESCRIPTOR.full_name: message for message in (*_INSIDE, TensorProto)}
_WAYS = {
    message: {f.number: f for name in names if (f := message.DESCRIPTOR.fields_by_name[name])}
    for message, names in _INSIDE.items()
}
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_ELSEWHERE = (TensorProto.EXTERNAL_DATA_FIELD_NUMBER, TensorProto.DATA_LOCATION_FIELD_NUMBER)

Span = tuple[int, int]
"""Start and end offset."""


@dataclass(frozen=True, slots=True)
class WeightlessModel:
    """A model without its large data."""

    model: ModelProto
    spans: dict[str, Span]
    """Location of each large tensor's data in the original, by the external data location in the model."""


def extract_weights(data: Buffer) -> WeightlessModel:
    """Extract a serialized model without large data.

    Raises MalformedMessage if the walk does not support the data, although protobuf may (it merges repeated messages of a
    singular field), and DecodeError if protobuf does not. No announced size is trusted.
    """
    if len(data) < LARGE_BYTES:
        return WeightlessModel(ModelProto.FromString(bytes(data)), {})
    cutter = _Cutter(Walk(data))
    model = b"".join(cutter.message(ModelProto, 0, len(data), 0))
    return WeightlessModel(ModelProto.FromString(model), cutter.spans)


@dataclass(slots=True)
class _Cutter:
    walk: Walk
    spans: dict[str, Span] = field(default_factory=dict)

    def message(self, kind: type, start: int, end: int, depth: int) -> list[bytes]:
        """The parts of the message between two offsets, without large data."""
        if kind is TensorProto:
            return self.tensor(start, end)
        if depth > _DEEPEST:
            raise MalformedMessage("messages are nested too deep")
        ways, seen = _WAYS[kind], set()
        parts: list[bytes] = []
        kept = start
        for number, holds_bytes, at, content, stop in self.walk.fields(start, end):
            way = ways.get(number) if holds_bytes else None
            if way is None:
                continue
            if number in seen and not way.is_repeated:
                raise MalformedMessage("a field stands twice where there is one")
            seen.add(number)
            if stop - content >= LARGE_BYTES:
                inner = self.message(_MESSAGE_OF[way.message_type.full_name], content, stop, depth + 1)
                parts += (self.walk.data[kept:at], encode(number << 3 | 2), encode(sum(map(len, inner))), *inner)
                kept = stop
        return [*parts, self.walk.data[kept:end]]

    def tensor(self, start: int, end: int) -> list[bytes]:
        """The parts of a tensor, with a location instead of large data."""
        data, raw = self.walk.data, None
        for found in self.walk.fields(start, end):
            if found.number in _ELSEWHERE or (found.number == _RAW_DATA and raw):
                return [data[start:end]]  # external or repeated data: leave it to protobuf
            if found.number == _RAW_DATA and found.holds_bytes:
                raw = found
        if raw is None or raw.end - raw.content < LARGE_BYTES:
            return [data[start:end]]
        return [data[start : raw.at], data[raw.end : end], self.reference(raw)]

    def reference(self, raw: Field) -> bytes:
        """The fields that replace a tensor's data."""
        location = f"\0{len(self.spans)}"
        self.spans[location] = raw.content, raw.end
        tensor = TensorProto(data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return bytes(tensor.SerializeToString())
