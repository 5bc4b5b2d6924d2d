"""The messages of ``proto/xrt.proto``, as plain values: dictionaries, tuples, text, numbers, and Functions.

Who writes a message gives a dictionary by field name, and who reads one gets the same dictionary back; an absent optional
field is None. What a Plan or an option *is* stays with the rooms that own them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from xrt.errors import BundleError, ModelError
from xrt.formats import xrt_pb2
from xrt.formats.onnx import load, to_model
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.tensors import ExternalData, external_tensor, read_value, write_tensor, write_value
from xrt.formats.onnx.writing import Style, write_styled_model
from xrt.graph import Constant, DType, Function, Value

__all__ = ["Held", "Keep", "Kind", "field_names", "read", "read_model", "write", "write_model"]

Kind: TypeAlias = Literal["Plan", "Launch", "ClusteringOptions", "ExecutionOptions", "WeightsMemo", "Bundle"]
Keep: TypeAlias = Callable[[Constant], str]
"""Takes a constant away, and returns the name under which `Held` gives it back."""
Held: TypeAlias = Callable[[str], memoryview | None]
"""Gives the bytes of a constant back, as ONNX stores them; None for an unknown name."""

KEPT_BYTES = 1024
"""Constants of at least this size are taken away."""

_MODEL, _VALUE = "onnx.ModelProto", "onnx.ValueInfoProto"


def write(kind: Kind, values: Mapping[str, Any], keep: Keep | None = None) -> bytes:
    """Return the message with those values; the same values give the same bytes.

    Pass a Function where the message has a model, a Value where it has one. A Function's large constants are written as
    references to the place that ``keep`` returns for them, or in full without it. Raises ModelError for a Function that ONNX
    cannot express, and BundleError if the message would be larger than protobuf admits, 2 GB.
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
    """Return the values of a message that `write` wrote; lists are tuples. ``held`` gives the bytes that ``keep`` took.

    Raises BundleError when the bytes are not such a message, or hold a model that is none.
    """
    message = _new(kind)
    try:
        message.ParseFromString(data)
        return _values(message, held)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised {kind}: {error}") from error


def write_model(function: Function, keep: Keep) -> bytes:
    """Return a Function as a message of ONNX whose large constants ``keep`` takes."""
    return _serialised(_model_writer(keep)(function), "model")


def read_model(data: bytes, held: Held) -> Function:
    """Return the Function that `write_model` wrote; raises BundleError for anything else."""
    try:
        return read_function(ModelProto.FromString(data), ExternalData(None, held))
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised model: {error}") from error


def field_names(kind: Kind) -> tuple[str, ...]:
    """Return the fields of a message, in its order."""
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
