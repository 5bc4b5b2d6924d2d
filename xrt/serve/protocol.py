"""Requests, responses, tensors and errors of the Open Inference Protocol, in JSON and with its binary tensor extension."""

from __future__ import annotations

import json
import logging
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np

from xrt.graph import DType

_log = logging.getLogger(__name__)


class Status(IntEnum):
    """The status of a response: HTTP's number, and the name of gRPC's."""

    def __new__(cls, number: int, code: str) -> Self:
        status = int.__new__(cls, number)
        status._value_, status.code = number, code
        return status

    code: str
    OK = 200, "OK"
    MALFORMED = 400, "INVALID_ARGUMENT"
    UNKNOWN = 404, "NOT_FOUND"
    WRONG_METHOD = 405, "UNIMPLEMENTED"
    LATE = 408, "DEADLINE_EXCEEDED"
    CONFLICT = 409, "ABORTED"
    GONE = 410, "FAILED_PRECONDITION"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    CANCELLED = 499, "CANCELLED"
    """nginx's status for a client that closed the connection."""
    FAILED = 500, "INTERNAL"
    BUSY = 503, "UNAVAILABLE"


_MAX_SHOWN = 200
"""Characters of a client's text that a message repeats."""
_LONGEST = 2000
"""Maximum characters of a message, which may repeat several names that the client sent."""


class RequestRefusal(Exception):
    """An error response to the client, over HTTP or gRPC."""

    def __init__(self, message: str, status: Status = Status.MALFORMED, **facts: Any) -> None:
        """``facts`` are fields for the JSON."""
        super().__init__(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}...")
        self.status, self.code, self.facts = status, status.code, facts
        self.retry_after = 1 if status is Status.BUSY else None
        """Seconds after which the client may try again."""


def make_refusal(error: Exception, request: str) -> RequestRefusal:
    """The response to an exception. One that is no RequestRefusal is logged with its traceback, which the client does not get."""
    if isinstance(error, RequestRefusal):
        return error
    _log.error("a request for %r failed", request, exc_info=error)
    return RequestRefusal(f"the server failed: {type(error).__name__}", Status.FAILED)


Array: TypeAlias = np.ndarray[Any, Any]
MAX_RANK = 32
"""Maximum rank of a tensor. Every library that XRT uses supports at least this rank, and no model needs more."""


class _Kind(NamedTuple):
    """The element type of a protocol datatype."""

    dtype: DType
    has_json: bool = True


DATATYPES = {
    "BOOL": _Kind(DType.BOOL),
    **{f"UINT{bits}": _Kind(DType[f"UINT{bits}"]) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": _Kind(DType[f"INT{bits}"]) for bits in (8, 16, 32, 64)},
    "FP16": _Kind(DType.FLOAT16, has_json=False),
    "BF16": _Kind(DType.BFLOAT16, has_json=False),
    "FP32": _Kind(DType.FLOAT32),
    "FP64": _Kind(DType.FLOAT64),
    "BYTES": _Kind(DType.STRING),
}
"""The datatypes of the protocol."""
NAMES = {kind.dtype: name for name, kind in DATATYPES.items()}
"""The protocol's datatype of each element type that has one."""


def check_tensor(name: str, datatype: str, shape: Sequence[int], limit: int) -> tuple[int, ...]:
    """The shape of an input as a tuple, checked before any memory is allocated for it.

    Raises RequestRefusal for an unknown datatype, a negative extent, too many axes, or more than ``limit`` elements. For the
    limit an extent of 0 counts as 1, so that the other extents of an empty tensor are bounded, too.
    """
    if datatype not in DATATYPES:
        raise RequestRefusal(f"input {name!r} has datatype {datatype[:_MAX_SHOWN]!r}; there is: {', '.join(DATATYPES)}")
    if len(shape) > MAX_RANK:
        raise RequestRefusal(f"input {name!r} has {len(shape)} axes; at most {MAX_RANK} are served")
    if any(extent < 0 for extent in shape):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}; the extents of a request are 0 or more")
    if math.prod(max(extent, 1) for extent in shape) > limit:
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, which is more than a request may hold")
    return tuple(shape)


# ---------------------------------------------------------------------- JSON

PIECE = 1 << 16
"""Bytes of JSON, or elements, converted at once: holds the GIL for about a millisecond."""
_NUMBERS = b"0123456789+-.eE \t\r\ntruefalsnNIniy"
"""Characters of numbers, booleans, null, NaN and infinities, and whitespace."""
# Possessive, and the closing quote is optional: a string without an end matches once, up to the end of the text. A pattern that
# failed there would start again at each escaped quote in it, which takes 7 s for 16,000 quotes.
_STRING = re.compile(rb'("(?:[^"\\]++|\\.)*+"?+)', re.DOTALL)
_ELEMENTS: dict[str, Any] = {"b": list[bool | int], "i": list[int], "u": list[int], "f": list[float]}
"""The elements that JSON may have for a tensor, by NumPy's kind of its element type."""


def decode_json(
    name: str, datatype: str, shape: tuple[int, ...], text: bytes, parse: Callable[[bytes], Any] = msgspec.json.decode
) -> Array:
    """Decode a tensor's JSON data, flat or nested like its shape; raises RequestRefusal.

    ``text`` is valid JSON, and ``parse`` decodes numbers. The number of elements and the nesting are checked before anything is
    converted, and numbers are converted in pieces: a large request needs little more memory than its body, and other threads run.
    """
    kind, count = DATATYPES[datatype], math.prod(shape)
    if not kind.has_json:
        raise RequestRefusal(f"input {name!r} is {datatype}, which JSON cannot hold; send it as a binary tensor")
    is_text = datatype == "BYTES"
    # The skeleton has only brackets and commas: it shows the structure without parsing elements.
    skeleton = _STRING.sub(b"", text).translate(None, b" \t\r\n") if is_text else text.translate(None, _NUMBERS)
    if skeleton.translate(None, b"[],"):
        raise _refuse_datatype(name, datatype)
    has_elements = bool(text.translate(None, b"[], \t\r\n"))
    # An empty list and a list of one element have the same skeleton.
    if not _has_nesting(skeleton, shape) or has_elements != bool(count):
        # An element follows each bracket and each comma that no bracket follows; a number alone has neither.
        lists = skeleton.count(b"[]") + skeleton.count(b"[,")
        elements = skeleton.count(b",") - skeleton.count(b",[") + max(lists, 1) if has_elements else 0
        raise _refuse_count(name, shape, elements, is_nested=b"[[" in skeleton)
    if is_text:
        try:
            return np.array(msgspec.json.decode(text), dtype=object).reshape(shape)
        except (msgspec.MsgspecError, ValueError) as error:  # invalid UTF-8, which skipping over a string does not detect
            raise RequestRefusal(f"the data of input {name!r} are no tensor: {error}") from None
    array, offset, filled = np.empty(count, kind.dtype.numpy), 0, 0
    # The nesting was checked: without brackets, any piece between two commas is a list of numbers.
    flat = text.translate(bytes.maketrans(b"[]", b"  "))
    while offset < len(flat) and count:
        end = flat.find(b",", offset + PIECE)
        end = len(flat) if end < 0 else end
        piece = _parse_piece(name, datatype, flat[offset:end], parse)
        array[filled : filled + piece.size] = piece[: count - filled]
        offset, filled = end + 1, filled + piece.size
    if filled != count:
        raise _refuse_count(name, shape, filled, is_nested=False)
    return array.reshape(shape)


def _has_nesting(skeleton: bytes, shape: tuple[int, ...]) -> bool:
    """Whether brackets and commas are those of a flat list, of lists nested like the shape, or of a number without a list."""
    count = math.prod(shape)
    if 0 in shape:  # lists end at the first empty axis
        shape = shape[: shape.index(0) + 1]
    for extents in ((count,), shape, *([()] if count == 1 else [])):
        expected = b""
        for extent in reversed(extents):
            # A small request may declare a huge shape: stop as soon as the text is longer than the data.
            if extent * (len(expected) + 1) > len(skeleton):
                break
            expected = b"[" + b",".join([expected] * extent) + b"]"
        else:
            if expected == skeleton:
                return True
    return False


def _parse_piece(name: str, datatype: str, text: bytes, parse: Callable[[bytes], Any]) -> Array:
    """Parse comma-separated numbers. Floats may round, but must not overflow; integers must be exact."""
    dtype = DATATYPES[datatype].dtype.numpy
    try:
        data = msgspec.convert(parse(b"[%b]" % text), _ELEMENTS[dtype.kind])
        # 2 must not become True, nor 1e39 an infinite FP32: convert to a type that holds these, and compare.
        array = np.array(data, {"b": np.uint8, "f": np.float64}.get(dtype.kind, dtype))  # refuses integers out of range
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        fits = np.isfinite(converted) == np.isfinite(array) if dtype.kind == "f" else converted == array
    except msgspec.ValidationError:
        raise _refuse_datatype(name, datatype) from None
    except OverflowError:
        fits = np.False_
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the data of input {name!r} are no tensor: {error}") from None
    if not np.all(fits):
        raise RequestRefusal(f"the data of input {name!r} have a number that {datatype} cannot hold")
    return converted


def _refuse_datatype(name: str, datatype: str) -> RequestRefusal:
    hint = "; JSON has its elements as strings" if datatype == "BYTES" else ""
    return RequestRefusal(f"the data of input {name!r} do not have the datatype {datatype}{hint}")


def _refuse_count(name: str, shape: tuple[int, ...], count: int, *, is_nested: bool) -> RequestRefusal:
    return RequestRefusal(
        f"input {name!r} has shape {list(shape)}, {math.prod(shape)} elements; its data have {count}"
        + ", nested otherwise" * is_nested
    )


def encode_json(array: Array) -> Any:
    """The elements in row-major order, as a list or encoded, for `encode_document`; NaN and infinities as in Python's json.

    Large tensors are encoded in pieces, so that other threads get the GIL meanwhile.
    """
    flat = array.reshape(-1)
    pieces = [flat[offset : offset + PIECE] for offset in range(0, flat.size, PIECE)]
    special = [flat.dtype.kind == "f" and not np.isfinite(piece).all() for piece in pieces]
    # A small list is encoded together with the rest of the response; msgspec would write null for NaN.
    if len(pieces) <= 1 and not any(special):
        return flat.tolist()
    texts = (
        json.dumps(piece.tolist()).encode() if is_special else msgspec.json.encode(piece.tolist())
        for piece, is_special in zip(pieces, special, strict=True)
    )
    return msgspec.Raw(b"[%b]" % b",".join(text[1:-1] for text in texts))


# ---------------------------------------------------------------------- bytes


def decode_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """The array of a binary tensor, which shares the memory of ``data`` if that is aligned; raises RequestRefusal."""
    if datatype == "BYTES":
        return _decode_texts(name, shape, data)
    dtype = DATATYPES[datatype].dtype.numpy
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise RequestRefusal(f"input {name!r} is {datatype} of shape {list(shape)}, {expected} bytes; got {len(data)}")
    # NumPy would keep other bytes as invalid booleans.
    if datatype == "BOOL" and expected and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestRefusal(f"input {name!r} is BOOL; its bytes must be 0 or 1")
    if not expected:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype, copy=False)
    return array if array.flags.aligned else array.copy()


def _decode_texts(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """The strings of a binary tensor: each is its length, in four bytes, and its bytes in UTF-8. Raises RequestRefusal."""
    texts: list[str] = []
    offset, count = 0, math.prod(shape)
    while len(texts) < count:
        # At the end of the data there are fewer than four bytes, and the check below fails.
        size, offset = int.from_bytes(data[offset : offset + 4], "little"), offset + 4
        if offset + size > len(data):
            break
        try:
            texts.append(str(data[offset : offset + size], "utf-8"))
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"element {len(texts)} of input {name!r} is no UTF-8 text: {error.reason}") from None
        offset += size
    if len(texts) != count or offset != len(data):
        raise RequestRefusal(
            f"input {name!r} is BYTES of shape {list(shape)}: {count} elements, each with its length in four bytes before it; "
            f"its {len(data)} bytes are not"
        )
    return np.array(texts, dtype=object).reshape(shape)


def encode_binary(array: Array) -> bytes | memoryview:
    """The bytes of an array in row-major order and little-endian, without a copy if it has this form."""
    if array.dtype == object:
        texts = [str(item).encode() for item in array.flat]
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return memoryview(little.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # it is a buffer


BINARY = b"inference-header-content-length"
"""The header with the size of the JSON before the binary tensors."""


class _Input(msgspec.Struct):
    """A tensor in a JSON request."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()
    """Empty if absent."""


class _Output(msgspec.Struct):
    """A requested output in a JSON request."""

    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


_DECODER = msgspec.json.Decoder(_Request)
encode_document = msgspec.json.Encoder().encode
"""Encode JSON."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request, independent of the transport."""

    inputs: Mapping[str, Array]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, bool] = field(default_factory=dict)
    """Requested outputs, and whether each is sent as a binary tensor; empty for all outputs."""
    is_binary: bool = False
    """Whether outputs are sent as binary tensors unless `outputs` says otherwise."""


@dataclass(frozen=True, slots=True)
class InferResponse:
    """An inference response, independent of the transport."""

    model: str
    version: str
    outputs: Mapping[str, Array]
    datatypes: Mapping[str, str]
    """The protocol's datatype of each output."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------------- requests


def read_request(body: bytes, json_bytes: bytes | None, limit: int) -> InferRequest:
    """Parse the body of a request; ``json_bytes`` is the value of the header `BINARY`. Raises RequestRefusal."""
    length = len(body) if json_bytes is None else _read_length(json_bytes, len(body))
    content = memoryview(body)
    document, parse = _decode(content[:length])
    rest, inputs = content[length:], {}
    # Binary tensors follow the JSON in the order of the inputs.
    for tensor in document.inputs:
        size = tensor.parameters.get("binary_data_size", 0)
        inputs[tensor.name] = _read_input(tensor, rest, limit, parse)  # checks the size
        rest = rest[size:]
    if len(inputs) != len(document.inputs):
        raise RequestRefusal("the request gives an input more than once")
    if rest:
        raise RequestRefusal(f"{len(rest)} bytes follow the last tensor of the request")
    default = _read_flag(document.parameters, "binary_data_output", "the request", False)
    outputs = {out.name: _read_flag(out.parameters, "binary_data", f"output {out.name!r}", default) for out in document.outputs}
    return InferRequest(inputs, document.id, document.parameters, outputs, default)


def _read_length(text: bytes, most: int) -> int:
    """The size of the JSON from the header, at most ``most``; raises RequestRefusal."""
    length = int(text) if text.isdigit() and len(text) < len(str(most)) + 1 else -1
    if not 0 < length <= most:
        shown = text[:_MAX_SHOWN].decode("latin-1")
        raise RequestRefusal(f"Inference-Header-Content-Length is {shown!r}; it is the bytes of the JSON in a body of {most}")
    return length


def _decode(text: memoryview) -> tuple[_Request, Callable[[bytes], Any]]:
    """Decode the JSON of a request, except the data of tensors; also return the parser for their numbers."""
    try:
        try:
            return _DECODER.decode(text), msgspec.json.decode
        except msgspec.ValidationError:  # the JSON is valid, and the request is not
            raise
        except msgspec.DecodeError:  # NaN and infinities are not JSON, but Python clients send them
            return _DECODER.decode(_replace_special(bytes(text))), _load_special
    except RecursionError:
        raise RequestRefusal("the request's JSON is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_SHOWN]) from None


# In this order: "Infinity" is a part of "-Infinity".
_SPECIAL = {b"-Infinity": b"-2e99999", b"Infinity": b"2e99999", b"NaN": b"1e99999"}
"""NaN and infinities, with a number that replaces each in the JSON parser. It overflows, so that no valid tensor has it."""


def _replace_special(text: bytes) -> bytes:
    """Replace NaN and infinities outside of strings, which makes Python's JSON standard JSON."""
    parts = _STRING.split(text)
    for word, number in _SPECIAL.items():
        parts[::2] = [part.replace(word, number) for part in parts[::2]]  # the strings are at the odd places
    return b"".join(parts)


def _load_special(text: bytes) -> Any:
    """Parse JSON in which `_replace_special` replaced NaN and infinities, and restore them."""
    for word, number in _SPECIAL.items():
        text = text.replace(number, word)
    return json.loads(text)


def _read_flag(parameters: Mapping[str, Any], name: str, where: str, default: bool) -> bool:
    """The value of a boolean parameter; raises RequestRefusal if it is another type."""
    flag = parameters.get(name, default)
    if not isinstance(flag, bool):
        raise RequestRefusal(f"parameter {name!r} of {where} is true or false")
    return flag


def _read_input(tensor: _Input, rest: memoryview, limit: int, parse: Callable[[bytes], Any]) -> Array:
    """Read a tensor from its JSON data, or from the beginning of ``rest``, the binary tensors; raises RequestRefusal."""
    shape = check_tensor(tensor.name, tensor.datatype, tensor.shape, limit)
    size, data = tensor.parameters.get("binary_data_size"), bytes(tensor.data)
    if size is None:
        if not data:
            raise RequestRefusal(f"input {tensor.name!r} has neither data nor the parameter binary_data_size")
        return decode_json(tensor.name, tensor.datatype, shape, data, parse)
    if data:
        raise RequestRefusal(f"input {tensor.name!r} has both data and the parameter binary_data_size")
    if type(size) is not int or not 0 <= size <= len(rest):
        shown = str(size)[:_MAX_SHOWN]
        raise RequestRefusal(f"binary_data_size of input {tensor.name!r} is {shown}, and {len(rest)} bytes are left")
    return decode_binary(tensor.name, tensor.datatype, shape, rest[:size])


class ControlRequest(msgspec.Struct):
    """The JSON of a request of Triton's model repository extension."""

    ready: bool = False
    parameters: dict[str, Any] = {}


def decode_control(body: bytes) -> ControlRequest:
    """Decode a request of Triton's model repository extension, whose body may be empty; raises RequestRefusal."""
    try:
        return msgspec.json.decode(body or b"{}", type=ControlRequest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_SHOWN]) from None


def check_no_files(parameters: Mapping[str, Any]) -> None:
    """Raise RequestRefusal if a load request has parameters: Triton's clients can send files and a configuration in them."""
    if name := next(iter(parameters), None):
        raise RequestRefusal(
            f"parameter {name[:_MAX_SHOWN]!r}: a model is loaded from the files that the operator named, as it was"
        )


# ---------------------------------------------------------------------- responses


def refuse_json_output(name: str, datatype: str) -> RequestRefusal:
    """The refusal of an output that is requested as JSON and has a datatype that JSON cannot hold."""
    return RequestRefusal(f"output {name!r} is {datatype}, which JSON cannot hold; ask for it with binary_data")


def write_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[bytes | memoryview]]:
    """The size of the JSON, None without binary tensors, and the parts of the response body: the JSON, then these tensors.

    Raises RequestRefusal for an output that JSON cannot hold.
    """
    outputs, tails = [], []
    for name, array in response.outputs.items():
        tensor = {"name": name, "datatype": response.datatypes[name], "shape": array.shape}
        if request.outputs.get(name, request.is_binary):
            tails.append(encode_binary(array))
            tensor["parameters"] = {"binary_data_size": len(tails[-1])}
        elif DATATYPES[response.datatypes[name]].has_json:
            tensor["data"] = encode_json(array)
        else:
            raise refuse_json_output(name, response.datatypes[name])
        outputs.append(tensor)
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    document |= ({"id": request.id} if request.id else {}) | ({"parameters": response.parameters} if response.parameters else {})
    head = encode_document({**document, "outputs": outputs})
    return (len(head) if tails else None), [head, *tails]
