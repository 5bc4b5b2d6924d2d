"""Tensors of the protocol: JSON or bytes to arrays, and back.

The elements of a binary tensor are little-endian, in row-major order; a text is its length in four bytes and its UTF-8. Floating
point of 16 bits has no JSON form.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
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

PIECE = 1 << 16
"""Bytes of JSON, or elements, that are converted at once: the interpreter is held for about a millisecond."""
_NUMBERS = b"0123456789+-.eE \t\r\ntruefalsnNIniy"
"""The bytes of numbers, truth values, null, NaN and infinities, and white space."""
_NO_BRACKETS = bytes.maketrans(b"[]", b"  ")


def decode_json(
    name: str, datatype: str, shape: tuple[int, ...], text: bytes, parse: Callable[[bytes], Any] = msgspec.json.decode
) -> Array:
    """Convert the JSON of a tensor's elements, flat or nested as its shape is; raises RequestRefusal.

    The number of elements and their nesting are compared with the shape before anything is converted, and numbers are converted
    in pieces, so that a large request costs little more memory than its body and lets other threads run.
    """
    kind = DATATYPES[datatype]
    if not kind.has_json:
        raise RequestRefusal(f"input {name!r} is {datatype}, which JSON cannot hold; send it as a binary tensor")
    if datatype == "BYTES":
        return _decode_text_list(name, shape, text)
    count, skeleton = math.prod(shape), text.translate(None, _NUMBERS)
    if skeleton.translate(None, b"[],"):
        raise _refuse_datatype(name, datatype)
    if not _has_nesting(skeleton, shape) or (not count and _count_elements(text, skeleton)):
        raise _refuse_count(name, shape, _count_elements(text, skeleton), is_nested=b"[[" in skeleton)
    found = np.empty(count, kind.dtype.numpy)
    if not count:
        return found.reshape(shape)
    flat, at, filled = text.translate(_NO_BRACKETS), 0, 0
    while at < len(flat):
        end = flat.find(b",", at + PIECE)
        end = len(flat) if end < 0 else end
        piece = _parse_piece(name, datatype, flat[at:end], parse)
        found[filled : filled + piece.size] = piece[: count - filled]
        at, filled = end + 1, filled + piece.size
    if filled != count:
        raise _refuse_count(name, shape, filled, is_nested=False)
    return found.reshape(shape)


def _has_nesting(skeleton: bytes, shape: tuple[int, ...]) -> bool:
    """Whether brackets and commas are those of a flat list of the shape's elements, or of lists nested as the shape is."""
    count = math.prod(shape)
    if skeleton == b"[" + b"," * (count - 1) + b"]" if len(skeleton) == max(count - 1, 0) + 2 else count == 1 and not skeleton:
        return True
    length = 0
    for extent in reversed(shape):
        length = 2 + extent * length + max(extent - 1, 0)
    if length != len(skeleton):  # before a text of that length is made: a request of a few bytes may name any shape
        return False
    nested = b""
    for extent in reversed(shape):
        nested = b"[" + b",".join([nested] * extent) + b"]"
    return nested == skeleton


def _count_elements(text: bytes, skeleton: bytes) -> int:
    if not text.translate(None, b"[], \t\r\n"):
        return 0
    lists = skeleton.count(b"[") - skeleton.count(b"[[")
    return skeleton.count(b",") - skeleton.count(b"],[") + max(lists, 1)


def _parse_piece(name: str, datatype: str, text: bytes, parse: Callable[[bytes], Any]) -> Array:
    """Convert numbers with commas between them."""
    try:
        data = parse(b"[%b]" % text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the data of input {name!r} are no tensor: {error}") from None
    kind = DATATYPES[datatype]
    try:
        array = np.array(data)
    except OverflowError as error:
        raise RequestRefusal(f"the data of input {name!r} are no tensor: {error}") from None
    if array.dtype.kind == "f" and kind.dtype.bits == 64 and kind.dtype.is_integer:  # NumPy's choice for large and small numbers
        array = _read_integers(data, array)
    if array.size and array.dtype.kind not in kind.kinds:
        raise _refuse_datatype(name, datatype)
    with np.errstate(over="ignore"):
        converted = array.astype(kind.dtype.numpy)
    fits = np.isfinite(converted) == np.isfinite(array) if converted.dtype.kind == "f" else converted == array
    if not np.all(fits):
        raise RequestRefusal(f"the data of input {name!r} have a number that {datatype} cannot hold")
    return converted


def _read_integers(data: Any, array: Array) -> Array:
    """Return the data as unsigned integers where they are such, else the array."""
    exact = np.array(data, dtype=object)
    if all(type(item) is int and 0 <= item < 1 << 64 for item in exact.flat):
        return exact.astype(np.uint64)
    return array


def _decode_text_list(name: str, shape: tuple[int, ...], text: bytes) -> Array:
    count = math.prod(shape)
    quotes = text.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')
    if quotes > 2 * count:
        raise _refuse_count(name, shape, quotes // 2, is_nested=False)
    nested: Any = str
    for _ in shape:
        nested = list[nested]
    for form in (list[str], nested):
        with suppress(msgspec.ValidationError):
            array = np.array(msgspec.json.decode(text, type=form), dtype=object)
            if array.size != count or (count and array.ndim > 1 and array.shape != shape):
                raise _refuse_count(name, shape, array.size, is_nested=array.ndim > 1)
            return array.reshape(shape)
    raise RequestRefusal(f"the data of input {name!r} do not have the datatype BYTES; JSON has its elements as strings")


def _refuse_datatype(name: str, datatype: str) -> RequestRefusal:
    return RequestRefusal(f"the data of input {name!r} do not have the datatype {datatype}")


def _refuse_count(name: str, shape: tuple[int, ...], found: int, *, is_nested: bool) -> RequestRefusal:
    return RequestRefusal(
        f"input {name!r} has shape {list(shape)}, {math.prod(shape)} elements; its data have {found}"
        + ", nested otherwise" * is_nested
    )


def encode_json(array: Array) -> Any:
    """Return the elements in row-major order, as what msgspec writes; NaN and infinities as Python's json spells them."""
    flat = array.reshape(-1)
    if flat.size <= PIECE and not (flat.dtype.kind == "f" and not np.isfinite(flat).all()):
        return flat.tolist()
    pieces = (flat[at : at + PIECE] for at in range(0, flat.size, PIECE))
    return msgspec.Raw(b"[%b]" % b",".join(map(_encode_piece, pieces)))


def _encode_piece(flat: Array) -> bytes:
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return json.dumps(flat.tolist()).encode()[1:-1]
    return msgspec.json.encode(flat.tolist())[1:-1]


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
