"""Plans as messages of ``proto/xrt.proto``, and Functions as ONNX messages with large constants stored elsewhere.

A Plan is written from a dictionary keyed by field name and read as the same dictionary; an absent optional field is None.
`xrt.partition` defines its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from xrt.errors import BundleError, ModelError
from xrt.formats import xrt_pb2
from xrt.formats.onnx import to_model
from xrt.formats.onnx.messages import ExternalData, write_reference
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.writing import GraphWriter
from xrt.graph import Constant, Function

StoreConstant: TypeAlias = Callable[[Constant], str]
"""Stores a constant outside the message and returns its name."""
LoadConstant: TypeAlias = Callable[[str], memoryview | None]
"""Returns the bytes, in ONNX's encoding, of the constant with this name; None for an unknown name."""


def write_plan(values: Mapping[str, Any], store_constant: StoreConstant | None = None) -> bytes:
    """Serialize a Plan deterministically. ``values`` are its fields by name, with Functions for fields that are ONNX models.

    Large constants are stored by ``store_constant``, with their names in the message, or inline without it. Raises ModelError
    for a Function that ONNX cannot express, and BundleError if the message exceeds protobuf's limit of 2 GB.
    """
    return _serialize(xrt_pb2.Plan(**_to_message(values, store_constant)))


def read_plan(data: bytes, load_constant: LoadConstant = lambda name: None) -> dict[str, Any]:
    """Parse a Plan written by `write_plan` to its fields by name, with tuples for lists. Raises BundleError if it is invalid.

    ``load_constant`` returns the bytes of the constants that ``store_constant`` stored.
    """
    try:
        values: dict[str, Any] = _from_message(xrt_pb2.Plan.FromString(data), load_constant)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised Plan: {error}") from error
    return values


def write_model(function: Function, store_constant: StoreConstant) -> bytes:
    """Serialize a Function as an ONNX message, storing large constants with ``store_constant``."""
    return _serialize(_to_message(function, store_constant))


def read_model(data: bytes, load_constant: LoadConstant) -> Function:
    """Parse a Function written by `write_model`, whose large constants ``load_constant`` returns. Raises BundleError."""
    try:
        return read_function(ModelProto.FromString(data), ExternalData(None, load_constant))
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised model: {error}") from error


def _serialize(message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise BundleError(f"the plan or model exceeds protobuf's limit of 2 GB: {error}") from error


def _to_message(value: Any, store_constant: StoreConstant | None) -> Any:
    """Convert Functions inside the values to ONNX messages, and omit values that are None."""
    if isinstance(value, Mapping):
        return {name: _to_message(item, store_constant) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_to_message(item, store_constant) for item in value]
    if not isinstance(value, Function):
        return value
    if store_constant is None:
        return to_model(value)
    # Each constant has a section to itself, so the offset is 0.
    tensor = partial(write_reference, lambda constant: (store_constant(constant), 0))
    return to_model(value, GraphWriter(tensor, tensor))


def _from_message(value: Any, load_constant: LoadConstant) -> Any:
    if isinstance(value, ModelProto):
        return read_function(value, ExternalData(None, load_constant))
    if not hasattr(value, "DESCRIPTOR"):
        return value
    values: dict[str, Any] = {}
    for field in value.DESCRIPTOR.fields:
        item = getattr(value, field.name)
        if field.is_repeated:
            values[field.name] = tuple(_from_message(element, load_constant) for element in item)
        else:
            # proto3 has no null: a missing message or optional field was None when it was written.
            is_absent = field.has_presence and not value.HasField(field.name)
            values[field.name] = None if is_absent else _from_message(item, load_constant)
    return values
