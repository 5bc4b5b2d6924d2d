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
"""Stores a constant elsewhere and returns a name for `Lookup`."""
Lookup: TypeAlias = Callable[[str], memoryview | None]
"""Returns the bytes of a stored constant in ONNX's encoding; None for an unknown name."""


def write_plan(values: Mapping[str, Any], store: StoreConstant | None = None) -> bytes:
    """Serialize a Plan deterministically; fields that are models in the message are Functions in ``values``.

    Large constants are written as references to the names that ``store`` returns, or inline without it. Raises ModelError for a
    Function that ONNX cannot express, and BundleError if the message exceeds protobuf's limit of 2 GB.
    """
    return _serialize(xrt_pb2.Plan(**_to_message(values, store)))


def read_plan(data: bytes, lookup: Lookup = lambda name: None) -> dict[str, Any]:
    """Parse a Plan written by `write_plan`; lists become tuples. ``lookup`` returns the constants stored by ``store``.

    Raises BundleError if the data is not such a message, or contains an invalid model.
    """
    try:
        values: dict[str, Any] = _from_message(xrt_pb2.Plan.FromString(data), lookup)
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised Plan: {error}") from error
    return values


def write_model(function: Function, store: StoreConstant) -> bytes:
    """Serialize a Function as an ONNX message, storing large constants with ``store``."""
    return _serialize(_to_message(function, store))


def read_model(data: bytes, lookup: Lookup) -> Function:
    """Parse a Function written by `write_model`; raises BundleError for anything else."""
    try:
        return read_function(ModelProto.FromString(data), ExternalData(None, lookup))
    except (DecodeError, ModelError) as error:
        raise BundleError(f"these {len(data)} bytes are not a serialised model: {error}") from error


def _serialize(message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise BundleError(f"the plan or model does not fit into one message, which holds at most 2 GB: {error}") from error


def _to_message(value: Any, store: StoreConstant | None) -> Any:
    """Convert Functions inside the values to ONNX messages, and omit values that are None."""
    if isinstance(value, Mapping):
        return {name: _to_message(item, store) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_to_message(item, store) for item in value]
    if not isinstance(value, Function):
        return value
    if store is None:
        return to_model(value)
    # One section per constant, which starts at its first byte.
    tensor = partial(write_reference, lambda constant: (store(constant), 0))
    return to_model(value, GraphWriter(tensor, tensor))


def _from_message(value: Any, lookup: Lookup) -> Any:
    if isinstance(value, ModelProto):
        return read_function(value, ExternalData(None, lookup))
    if not hasattr(value, "DESCRIPTOR"):
        return value
    values: dict[str, Any] = {}
    for field in value.DESCRIPTOR.fields:
        item = getattr(value, field.name)
        if field.is_repeated:
            values[field.name] = tuple(_from_message(element, lookup) for element in item)
        else:
            # proto3 has no null: a missing message or optional field was None when it was written.
            is_absent = field.has_presence and not value.HasField(field.name)
            values[field.name] = None if is_absent else _from_message(item, lookup)
    return values
