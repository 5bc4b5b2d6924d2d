"""Arrays by name as one run of bytes, read without any other library: the example that a bundle has with its outputs.

8 bytes    length of the header
header     JSON: name, dtype, shape, offset and size of each input and output
arrays     each at a multiple of 64 bytes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import BundleError
from xrt.graph import DType

__all__ = ["Example", "decode_example", "encode_example", "is_encodable"]

ALIGNMENT = 64

Array: TypeAlias = np.ndarray[Any, Any]
Named: TypeAlias = tuple[tuple[str, Array], ...]


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs of a model, and the outputs that were computed of them."""

    inputs: Named
    outputs: Named

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in (*self.inputs, *self.outputs))


def is_encodable(value: Any) -> bool:
    """Whether a value is an array of numbers or truth values."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.kind not in "SU"


def encode_example(example: Example) -> bytes:
    """Return an example as `decode_example` reads it; all its values are encodable."""
    parts: list[bytes] = []
    at = 0

    def place(values: Named) -> list[dict[str, Any]]:
        nonlocal at
        entries = []
        for name, array in values:
            content = array.tobytes()
            dtype = str(DType.of(array))
            entries.append({"name": name, "dtype": dtype, "shape": array.shape, "at": at, "size": len(content)})
            parts.append(content + bytes(-len(content) % ALIGNMENT))
            at += len(parts[-1])
        return entries

    text = json.dumps({"inputs": place(example.inputs), "outputs": place(example.outputs)}).encode()
    start = len(text).to_bytes(8, "little") + text
    return b"".join([start, bytes(-len(start) % ALIGNMENT), *parts])


def decode_example(data: memoryview) -> Example:
    """Return the example; raises BundleError for bytes that are none."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:start]))
        content = data[start + -start % ALIGNMENT :]
        return Example(_read(header["inputs"], content), _read(header["outputs"], content))
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, OverflowError) as error:
        raise BundleError(f"its example cannot be read: {error}") from error


def _read(entries: Sequence[dict[str, Any]], data: memoryview) -> Named:
    return tuple((str(entry["name"]), _read_array(entry, data)) for entry in entries)


def _read_array(entry: dict[str, Any], data: memoryview) -> Array:
    content = np.frombuffer(data[entry["at"] : entry["at"] + entry["size"]], np.uint8)
    array: Array = content.view(DType.parse(entry["dtype"]).numpy).reshape(entry["shape"])
    return array
