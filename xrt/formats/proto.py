"""The messages of ``proto/xrt.proto``, as plain values: dictionaries, tuples, text, numbers, and Functions.

Who writes a message gives a dictionary by field name, and who reads one gets the same dictionary back; an absent optional
field is None. What a Plan or an option *is* stays with the rooms that own them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from google.protobuf.message import DecodeError, EncodeError

from xrt.errors import BundleError, ModelError
from xrt.formats import xrt_pb2
from xrt.formats.onnx import load, to_model
from xrt.graph import Function

__all__ = ["Kind", "field_names", "read", "write"]

Kind: TypeAlias = Literal[
    "Plan", "Launch", "ClusteringOptions", "ExecutionOptions", "Contents", "CacheEntry", "WeightsMemo", "Bundle"
]
_MODEL = "onnx.ModelProto"


def write(kind: Kind, values: Mapping[str, Any]) -> bytes:
    """Return the message with those values; the same values give the same bytes.

    A Function stands where the message has a model. Raises ModelError for a Function that ONNX cannot say, and
    BundleError where the message would be larger than protobuf admits, 2 GB.
    """
    message = _new(kind)
    _fill(message, values)
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise BundleError(f"the {kind} does not fit into one message, which holds at most 2 GB: {error}") from error


def read(kind: Kind, data: bytes) -> dict[str, Any]:
    """Return the values of a message that `write` wrote; lists are tuples.

    Raises BundleError when the bytes are not such a message, or hold a model that is none.
    """
    message = _new(kind)
    try:
        message.ParseFromString(data)
        return _values(message)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised {kind}: {error}") from error


def field_names(kind: Kind) -> tuple[str, ...]:
    """Return the fields of a message, in its order."""
    return tuple(field.name for field in _new(kind).DESCRIPTOR.fields)


def _new(kind: Kind) -> Any:
    return getattr(xrt_pb2, kind)()


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Function):
            getattr(message, name).CopyFrom(to_model(value))
        elif isinstance(value, Mapping):
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        elif isinstance(value, list | tuple):
            _extend(getattr(message, name), value)
        elif value is not None:
            setattr(message, name, value)


def _extend(repeated: Any, values: list[Any] | tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, Mapping):
            _fill(repeated.add(), value)
        else:
            repeated.append(value)


def _values(message: Any) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return tuple(_plain(item) for item in value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value)


def _plain(value: Any) -> Any:
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None:
        return value
    return load(value) if descriptor.full_name == _MODEL else _values(value)
