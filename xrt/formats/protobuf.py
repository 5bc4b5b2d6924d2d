"""Serialize Plans as messages of ``proto/xrt.proto``, and Functions as ONNX messages.

Large constants can be stored outside the message, for example in sections of a bundle. A Plan is passed as a dictionary from
field names to values, which `xrt.partition` defines; an absent optional field is None.
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
"""Stores a constant outside the message, and returns the name under which `LoadConstant` finds it."""
LoadConstant: TypeAlias = Callable[[str], memoryview | None]
"""Returns the bytes of a constant, in ONNX's encoding, by the name that `StoreConstant` returned; None for an unknown name."""


def write_plan(values: Mapping[str, Any], store_constant: StoreConstant | None = None) -> bytes:
    """Serialize a Plan deterministically. ``values`` are its fields by name, with Functions for fields that are ONNX models.

    Large constants are stored by ``store_constant``; without it, they are part of the message. Raises ModelError for a Function
    that ONNX cannot express, and BundleError if the message exceeds protobuf's limit of 2 GB.
    """
    return _serialize(xrt_pb2.Plan(**_to_message(values, store_constant)))


def read_plan(data: bytes, load_constant: LoadConstant = lambda name: None) -> dict[str, Any]:
    """Parse a Plan to its fields by name, with tuples for lists. Raises BundleError if the data is invalid."""
    try:
        values: dict[str, Any] = _from_message(xrt_pb2.Plan.FromString(data), load_constant)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised Plan: {error}") from error
    return values


def write_model(function: Function, store_constant: StoreConstant) -> bytes:
    """Serialize a Function as an ONNX message. Large constants are stored by ``store_constant``."""
    return _serialize(_to_message(function, store_constant))


def read_model(data: bytes, load_constant: LoadConstant) -> Function:
    """Parse a Function written by `write_model`. Raises BundleError if the data is invalid."""
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
    """Convert Functions to ONNX messages, also inside dicts and lists, and omit fields that are None."""
    if isinstance(value, Mapping):
        return {name: _to_message(item, store_constant) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_to_message(item, store_constant) for item in value]
    if not isinstance(value, Function):
        return value
    if store_constant is None:
        return to_model(value)
    # Each constant is stored separately, so it begins at offset 0.
    write_constant = partial(write_reference, lambda constant: (store_constant(constant), 0))
    return to_model(value, GraphWriter(write_constant, write_constant))


def _from_message(value: Any, load_constant: LoadConstant) -> Any:
    """Convert a message to a dict of its fields, and ONNX messages in it to Functions. Other values are returned unchanged."""
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
