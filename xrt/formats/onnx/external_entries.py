"""The entries that say where the data of a model's initializers lie, as pairs of texts: what another runtime writes there too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from onnx import ModelProto, TensorProto

__all__ = ["Entries", "read_entries", "write_entries"]

Entries: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and values; ``location``, ``offset`` and ``length`` are ONNX's own. A key may occur twice."""


def read_entries(model: bytes) -> dict[str, Entries]:
    """Return the entries of a model's external initializers by name, bodies excepted."""
    return {
        tensor.name: tuple((entry.key, entry.value) for entry in tensor.external_data)
        for tensor in ModelProto.FromString(model).graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def write_entries(model: bytes, entries: Mapping[str, Iterable[tuple[str, str]]]) -> bytes:
    """Return the model with these entries in place of those of the named initializers."""
    message = ModelProto.FromString(model)
    for tensor in message.graph.initializer:
        if tensor.name in entries:
            del tensor.external_data[:]
            for key, value in entries[tensor.name]:
                tensor.external_data.add(key=key, value=value)
    written: bytes = message.SerializeToString()
    return written
