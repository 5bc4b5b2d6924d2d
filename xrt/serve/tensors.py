"""Tensors of the protocol: JSON or bytes to arrays, and back.

The elements of a binary tensor are little-endian, in row-major order; a text is its length in four bytes and its UTF-8. Floating
point of 16 bits has no JSON form.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from xrt.graph import DType
from xrt.serve.refusal import RequestRefusal

__all__ = ["DATATYPES", "NAMES", "Array", "check_shape", "decode_binary", "decode_json", "encode_binary", "encode_json"]

Array: TypeAlias = np.ndarray[Any, Any]

MAX_RANK = 32
"""Axes of a tensor; the least that a library of XRT admits is more than any model has."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a datatype of the protocol is."""

    dtype: DType
    kinds: str
    """The kinds of NumPy arrays that JSON data may have."""
    has_json: bool = True


DATATYPES = {
    "BOOL": _Kind(DType.BOOL, "bi"),
    "UINT8": _Kind(DType.UINT8, "iu"),
    "UINT16": _Kind(DType.UINT16, "iu"),
    "UINT32": _Kind(DType.UINT32, "iu"),
    "UINT64": _Kind(DType.UINT64, "iu"),
    "INT8": _Kind(DType.INT8, "iu"),
    "INT16": _Kind(DType.INT16, "iu"),
    "INT32": _Kind(DType.INT32, "iu"),
    "INT64": _Kind(DType.INT64, "iu"),
    "FP16": _Kind(DType.FLOAT16, "", has_json=False),
    "BF16": _Kind(DType.BFLOAT16, "", has_json=False),
    "FP32": _Kind(DType.FLOAT32, "fiu"),
    "FP64": _Kind(DType.FLOAT64, "fiu"),
    "BYTES": _Kind(DType.STRING, "O"),
}
"""The datatypes of the protocol."""
NAMES = {kind.dtype: name for name, kind in DATATYPES.items()}
"""The datatype of each element type that has one."""


def check_shape(name: str, shape: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the shape; raises RequestRefusal for negative extents, and for more than ``limit`` even without the zeros."""
    if len(shape) > MAX_RANK:
        raise RequestRefusal(f"input {name!r} has {len(shape)} axes; at most {MAX_RANK} are served")
    if any(extent < 0 for extent in shape):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}; the extents of a request are 0 or more")
    if math.prod(max(extent, 1) for extent in shape) > limit:
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, which is more than a request may hold")
    return tuple(shape)


# ---------------------------------------------------------------------- JSON


def decode_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """Return the array of a tensor whose elements are JSON, flat or nested as its shape is; raises RequestRefusal."""
    kind = DATATYPES[datatype]
    if not kind.has_json:
        raise RequestRefusal(f"input {name!r} is {datatype}, which JSON cannot hold; send it as a binary tensor")
    try:
        array = np.array(data, dtype=object if datatype == "BYTES" else None)
    except (ValueError, OverflowError, RecursionError) as error:
        raise RequestRefusal(f"the data of input {name!r} are no tensor: {error}") from None
    count = math.prod(shape)
    if array.size != count or (count and array.ndim > 1 and array.shape != shape):
        raise RequestRefusal(
            f"input {name!r} has shape {list(shape)}, {count} elements; its data have {array.size}"
            + (f" in shape {list(array.shape)}" if array.ndim > 1 else "")
        )
    if array.dtype.kind == "f" and kind.dtype.bits == 64 and kind.dtype.is_integer:  # NumPy's choice for large and small numbers
        array = _read_integers(data, array)
    if count and array.dtype.kind not in kind.kinds:
        raise RequestRefusal(f"the data of input {name!r} do not have the datatype {datatype}")
    return _convert(name, datatype, array.reshape(shape))


def _read_integers(data: Any, array: Array) -> Array:
    """Return the data as unsigned integers where they are such, else the array."""
    exact = np.array(data, dtype=object)
    if all(type(item) is int and 0 <= item < 1 << 64 for item in exact.flat):
        return exact.astype(np.uint64)
    return array


def _convert(name: str, datatype: str, array: Array) -> Array:
    """Return the array with the elements of the datatype; raises RequestRefusal where one does not fit."""
    if datatype == "BYTES":
        if not all(isinstance(item, str) for item in array.flat):
            raise RequestRefusal(f"the data of input {name!r} do not have the datatype BYTES; JSON has its elements as strings")
        return array
    target = DATATYPES[datatype].dtype.numpy
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    fits = np.isfinite(converted) == np.isfinite(array) if target.kind == "f" else converted == array
    if not np.all(fits):
        raise RequestRefusal(f"the data of input {name!r} have a number that {datatype} cannot hold")
    return converted


def encode_json(array: Array) -> Any:
    """Return the elements in row-major order, as what msgspec writes; NaN and infinities as Python's json spells them."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return msgspec.Raw(json.dumps(flat.tolist()).encode())
    return flat.tolist()


# ---------------------------------------------------------------------- bytes


def decode_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Return the array of a binary tensor, in place where its bytes are aligned; raises RequestRefusal."""
    if datatype == "BYTES":
        return _decode_texts(name, shape, data)
    dtype = DATATYPES[datatype].dtype.numpy
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise RequestRefusal(f"input {name!r} is {datatype} of shape {list(shape)}, {expected} bytes; got {len(data)}")
    if datatype == "BOOL" and expected and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestRefusal(f"input {name!r} is BOOL; its bytes must be 0 or 1")
    little = dtype.newbyteorder("<") if sys.byteorder == "big" and dtype.itemsize > 1 else dtype
    array = np.frombuffer(data, dtype=little).reshape(shape) if expected else np.empty(shape, dtype)
    return array if array.flags.aligned and little is dtype else array.astype(dtype)


def _decode_texts(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    texts: list[str | None] = []
    at, count = 0, math.prod(shape)
    while at < len(data) and len(texts) < count:
        if at + 4 > len(data):
            break
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if at + size > len(data):
            break
        try:
            texts.append(str(data[at : at + size], "utf-8"))
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"element {len(texts)} of input {name!r} is no UTF-8 text: {error.reason}") from None
        at += size
    if len(texts) != count or at != len(data):
        raise RequestRefusal(
            f"input {name!r} is BYTES of shape {list(shape)}: {count} elements, each with its length in four bytes before it; "
            f"its {len(data)} bytes are not"
        )
    return np.array([*texts, None], dtype=object)[:-1].reshape(shape)


def encode_binary(array: Array) -> bytes | memoryview:
    """Return the bytes of an array: those that it has, where they are in order."""
    if array.dtype == object:
        texts = [str(item).encode() for item in array.flat]
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    if sys.byteorder == "big" and array.dtype.itemsize > 1:
        array = array.astype(array.dtype.newbyteorder("<"))
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # it is a buffer
