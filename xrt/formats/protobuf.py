"""Messages of ``proto/xrt.proto`` as plain values: dictionaries, tuples, texts, numbers and Functions.

A message is written from a dictionary keyed by field name and read as the same dictionary; an absent optional field is None.
The packages that use a message define its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from xrt.errors import BundleError, ModelError
from xrt.formats import xrt_pb2
from xrt.formats.onnx import load, to_model
from xrt.formats.onnx.messages import ExternalData, external_tensor, read_value, write_tensor, write_value
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.writing import Style, write_styled_model
from xrt.graph import Constant, DType, Function, Value

__all__ = ["Held", "Keep", "Kind", "field_names", "read", "read_model", "write", "write_model"]

Kind: TypeAlias = Literal["Plan", "Launch", "ClusteringOptions"]
Keep: TypeAlias = Callable[[Constant], str]
"""Stores a constant elsewhere and returns a name for `Held`."""
Held: TypeAlias = Callable[[str], memoryview | None]
"""Returns the bytes of a stored constant in ONNX's encoding; None for an unknown name."""

KEPT_BYTES = 1024  # larger constants are stored separately

_MODEL, _VALUE = "onnx.ModelProto", "onnx.ValueInfoProto"


def write(kind: Kind, values: Mapping[str, Any], keep: Keep | None = None) -> bytes:
    """Serialize a message deterministically.

    Pass a Function for a model field and a Value for a value field. Large constants are written as references to the names that
    ``keep`` returns, or inline without it. Raises ModelError for a Function that ONNX cannot express, and BundleError if the
    message exceeds protobuf's limit of 2 GB.
    """
    message = _new(kind)
    _fill(message, values, _model_writer(keep))
    return _serialised(message, kind)


def _serialised(message: Any, kind: str) -> bytes:
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise BundleError(f"the {kind} does not fit into one message, which holds at most 2 GB: {error}") from error


def read(kind: Kind, data: bytes, held: Held | None = None) -> dict[str, Any]:
    """Parse a message written by `write`; lists become tuples. ``held`` returns the constants stored by ``keep``.

    Raises BundleError if the data is not such a message, or contains an invalid model.
    """
    message = _new(kind)
    try:
        message.ParseFromString(data)
        return _values(message, held)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised {kind}: {error}") from error


def write_model(function: Function, keep: Keep) -> bytes:
    """Serialize a Function as an ONNX message, storing large constants with ``keep``."""
    return _serialised(_model_writer(keep)(function), "model")


def read_model(data: bytes, held: Held) -> Function:
    """Parse a Function written by `write_model`; raises BundleError for anything else."""
    try:
        return read_function(ModelProto.FromString(data), ExternalData(None, held))
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised model: {error}") from error


def field_names(kind: Kind) -> tuple[str, ...]:
    """Names of the fields of a message, in order."""
    return tuple(field.name for field in _new(kind).DESCRIPTOR.fields)


def _new(kind: Kind) -> Any:
    return getattr(xrt_pb2, kind)()


def _model_writer(keep: Keep | None) -> Callable[[Function], Any]:
    if keep is None:
        return to_model

    def tensor(constant: Constant, name: str) -> Any:
        large = name and constant.dtype is not DType.STRING and constant.nbytes >= KEPT_BYTES
        return external_tensor(constant, name, keep(constant), 0) if large else write_tensor(constant, name)

    return lambda function: write_styled_model(function, Style(constants=tensor, inner=tensor))


def _fill(message: Any, values: Mapping[str, Any], model: Callable[[Function], Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Function):
            getattr(message, name).CopyFrom(model(value))
        elif isinstance(value, Mapping):
            # Mark the message as present even if all its fields have default values.
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value, model)
        elif isinstance(value, list | tuple):
            _extend(getattr(message, name), value, model)
        elif value is not None:
            setattr(message, name, value)


def _extend(repeated: Any, values: list[Any] | tuple[Any, ...], model: Callable[[Function], Any]) -> None:
    for value in values:
        if isinstance(value, Mapping):
            _fill(repeated.add(), value, model)
        elif isinstance(value, Value):
            write_value(value.name, value.type, repeated.add())
        else:
            repeated.append(value)


def _values(message: Any, held: Held | None) -> dict[str, Any]:
    return {field.name: _value(message, field, held) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any, held: Held | None) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return tuple(_plain(item, held) for item in value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, held)


def _plain(value: Any, held: Held | None) -> Any:
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None:
        return value
    if descriptor.full_name == _VALUE:
        return read_value(value)
    if descriptor.full_name != _MODEL:
        return _values(value, held)
    return load(value) if held is None else read_function(value, ExternalData(None, held))
