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
    """The status of a response. Its value is the HTTP status, and `code` the name of the gRPC status."""

    def __new__(cls, http_status: int, code: str) -> Self:
        status = int.__new__(cls, http_status)
        status._value_, status.code = http_status, code
        return status

    code: str
    OK = 200, "OK"
    BAD_REQUEST = 400, "INVALID_ARGUMENT"
    NOT_FOUND = 404, "NOT_FOUND"
    WRONG_METHOD = 405, "UNIMPLEMENTED"
    TIMEOUT = 408, "DEADLINE_EXCEEDED"
    CONFLICT = 409, "ABORTED"
    GONE = 410, "FAILED_PRECONDITION"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    CANCELLED = 499, "CANCELLED"
    """The client closed the connection. HTTP has no such status; 499 is nginx's."""
    FAILED = 500, "INTERNAL"
    BUSY = 503, "UNAVAILABLE"


_MAX_QUOTED_CHARS = 200
"""A string that the client sent is cut to this length where an error message quotes it."""
_MAX_MESSAGE_CHARS = 2000
"""Maximum length of an error message, which may quote several strings that the client sent."""


class RequestRefusal(Exception):
    """An error response to the client, over HTTP or gRPC."""

    def __init__(self, message: str, status: Status = Status.BAD_REQUEST, **fields: Any) -> None:
        """``fields`` are fields of the JSON response in addition to ``error``."""
        super().__init__(message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}...")
        self.status, self.code, self.fields = status, status.code, fields
        self.retry_after = 1 if status is Status.BUSY else None
        """Seconds after which the client may try again; None if a retry would not help."""


def convert_exception(error: Exception, request: str) -> RequestRefusal:
    """Convert an exception to an error response. Log an unexpected exception with its traceback; clients see only its type."""
    if isinstance(error, RequestRefusal):
        return error
    _log.error("a request for %r failed", request, exc_info=error)
    return RequestRefusal(f"the server failed: {type(error).__name__}", Status.FAILED)


Array: TypeAlias = np.ndarray[Any, Any]
MAX_RANK = 32
"""Maximum rank of a tensor. Every library that XRT uses supports at least this rank, and no model needs more."""


class _Datatype(NamedTuple):
    dtype: DType
    has_json: bool = True
    """Whether the elements can be sent as JSON. If not, the tensor must be binary."""


DATATYPES = {
    "BOOL": _Datatype(DType.BOOL),
    **{f"UINT{bits}": _Datatype(DType[f"UINT{bits}"]) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": _Datatype(DType[f"INT{bits}"]) for bits in (8, 16, 32, 64)},
    "FP16": _Datatype(DType.FLOAT16, has_json=False),
    "BF16": _Datatype(DType.BFLOAT16, has_json=False),
    "FP32": _Datatype(DType.FLOAT32),
    "FP64": _Datatype(DType.FLOAT64),
    "BYTES": _Datatype(DType.STRING),
}
"""The datatypes of the protocol by name."""
DATATYPE_NAMES = {datatype.dtype: name for name, datatype in DATATYPES.items()}


def check_tensor(name: str, datatype: str, shape: Sequence[int], limit: int) -> tuple[int, ...]:
    """Validate the datatype and shape of input ``name`` before memory is allocated for it; return the shape as a tuple.

    Raises RequestRefusal for an unknown datatype, a negative dimension, too many axes, or more than ``limit`` elements. A
    dimension of 0 counts as 1, so that the limit also bounds the other dimensions of an empty tensor.
    """
    if datatype not in DATATYPES:
        raise RequestRefusal(f"input {name!r} has datatype {datatype[:_MAX_QUOTED_CHARS]!r}; available: {', '.join(DATATYPES)}")
    if len(shape) > MAX_RANK:
        raise RequestRefusal(f"input {name!r} has {len(shape)} axes; at most {MAX_RANK} are served")
    if any(dim < 0 for dim in shape):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}; dimensions must be 0 or more")
    if math.prod(max(dim, 1) for dim in shape) > limit:
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, which exceeds the size limit of a request")
    return tuple(shape)


PIECE_SIZE = 1 << 16
"""Bytes of JSON, or elements of a tensor, that are converted in one step, which holds the GIL for about a millisecond."""
_NUMBER_CHARS = b"0123456789+-.eE \t\r\ntruefalsnNIniy"
"""The characters of numbers, booleans, null, NaN, infinities and whitespace."""
# The quantifiers are possessive and the closing quote is optional, so that an unterminated string matches once, up to the end of
# the text. Otherwise the match would fail and start again at each escaped quote, which takes 7 s for 16,000 quotes.
_JSON_STRING = re.compile(rb'("(?:[^"\\]++|\\.)*+"?+)', re.DOTALL)
_JSON_ELEMENT_TYPES: dict[str, Any] = {"b": list[bool | int], "i": list[int], "u": list[int], "f": list[float]}
"""The type to which msgspec converts a list of elements, by the `numpy.dtype.kind` of the tensor."""


def decode_json(
    name: str, datatype: str, shape: tuple[int, ...], text: bytes, parse: Callable[[bytes], Any] = msgspec.json.decode
) -> Array:
    """Decode the JSON data of input ``name``: a list that is flat or nested like ``shape``. Raises RequestRefusal.

    ``text`` is valid JSON, and ``parse`` decodes a JSON list of numbers. The number of elements and the nesting are checked
    before anything is converted. Numbers are converted in pieces, so that a large request needs little more memory than its
    body, and other threads can run meanwhile.
    """
    count = math.prod(shape)
    if not DATATYPES[datatype].has_json:
        raise RequestRefusal(f"input {name!r} is {datatype}, which JSON cannot hold; send it as a binary tensor")
    has_strings = datatype == "BYTES"
    # The skeleton is the JSON without its elements: brackets and commas show the structure.
    skeleton = _JSON_STRING.sub(b"", text).translate(None, b" \t\r\n") if has_strings else text.translate(None, _NUMBER_CHARS)
    if skeleton.translate(None, b"[],"):
        raise _make_datatype_error(name, datatype)
    # Checked apart from the skeleton, which is the same for an empty list and a list of one element.
    has_elements = bool(text.translate(None, b"[], \t\r\n"))
    if not _has_valid_nesting(skeleton, shape) or has_elements != bool(count):
        # Each innermost list has one element more than commas.
        lists = skeleton.count(b"[]") + skeleton.count(b"[,")
        elements = skeleton.count(b",") - skeleton.count(b",[") + max(lists, 1) if has_elements else 0
        raise _make_count_error(name, shape, elements, is_nested=b"[[" in skeleton)
    if has_strings:
        try:
            return np.array(msgspec.json.decode(text), dtype=object).reshape(shape)
        except (msgspec.MsgspecError, ValueError) as error:  # invalid UTF-8, which skipping over a string does not detect
            raise RequestRefusal(f"the data of input {name!r} are invalid: {error}") from None
    array = np.empty(count, DATATYPES[datatype].dtype.numpy)
    offset = filled = 0
    # The nesting was checked, so the brackets are not needed: the text between any two commas is then a list of numbers.
    flat = text.translate(bytes.maketrans(b"[]", b"  "))
    while offset < len(flat) and count:
        end = flat.find(b",", offset + PIECE_SIZE)
        end = len(flat) if end < 0 else end
        piece = _parse_piece(name, datatype, flat[offset:end], parse)
        array[filled : filled + piece.size] = piece[: count - filled]
        offset = end + 1  # after the comma
        filled += piece.size
    if filled != count:
        raise _make_count_error(name, shape, filled, is_nested=False)
    return array.reshape(shape)


def _has_valid_nesting(skeleton: bytes, shape: tuple[int, ...]) -> bool:
    """Whether JSON without its elements is a flat list or nested like ``shape``. A single element needs no list."""
    count = math.prod(shape)
    if 0 in shape:  # an empty list has no inner lists
        shape = shape[: shape.index(0) + 1]
    for dims in ((count,), shape, *([()] if count == 1 else [])):
        expected = b""
        for dim in reversed(dims):
            # A small request may declare a huge shape: stop as soon as `expected` would be longer than the data.
            if dim * (len(expected) + 1) > len(skeleton):
                break
            expected = b"[" + b",".join([expected] * dim) + b"]"
        else:
            if expected == skeleton:
                return True
    return False


def _parse_piece(name: str, datatype: str, text: bytes, parse: Callable[[bytes], Any]) -> Array:
    """Parse comma-separated numbers; raises RequestRefusal if a float overflows or the datatype cannot represent an integer."""
    dtype = DATATYPES[datatype].dtype.numpy
    try:
        data = msgspec.convert(parse(b"[%b]" % text), _JSON_ELEMENT_TYPES[dtype.kind])
        # Convert to a wider type first: 2 must not become True, nor 1e39 an infinite FP32. An integer that does not fit raises
        # OverflowError.
        wide_types: dict[str, Any] = {"b": np.uint8, "f": np.float64}
        array: Array = np.array(data, wide_types.get(dtype.kind, dtype))
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        fits = np.isfinite(converted) == np.isfinite(array) if dtype.kind == "f" else converted == array
    except msgspec.ValidationError:
        raise _make_datatype_error(name, datatype) from None
    except OverflowError:
        fits = np.False_
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the data of input {name!r} are invalid: {error}") from None
    if not np.all(fits):
        raise RequestRefusal(f"the data of input {name!r} have a number that {datatype} cannot hold")
    return converted


def _make_datatype_error(name: str, datatype: str) -> RequestRefusal:
    hint = "; in JSON its elements are strings" if datatype == "BYTES" else ""
    return RequestRefusal(f"the data of input {name!r} do not have the datatype {datatype}{hint}")


def _make_count_error(name: str, shape: tuple[int, ...], count: int, *, is_nested: bool) -> RequestRefusal:
    hint = ", with another nesting" if is_nested else ""
    return RequestRefusal(f"input {name!r} has shape {list(shape)}, {math.prod(shape)} elements; its data have {count}{hint}")


def encode_json(array: Array) -> Any:
    """Convert an array to a list of its elements in row-major order, or to the JSON of the list; `encode_document` accepts both.

    NaN and infinities are written as in Python's json. Large tensors are encoded in pieces, so that other threads get the GIL.
    """
    flat = array.reshape(-1)
    is_float = flat.dtype.kind == "f"
    if flat.size <= PIECE_SIZE and not (is_float and not np.isfinite(flat).all()):
        return flat.tolist()  # encoded together with the other fields of the response
    lists = []
    for offset in range(0, flat.size, PIECE_SIZE):
        piece = flat[offset : offset + PIECE_SIZE]
        # msgspec is faster, but writes null for NaN and infinities.
        is_plain = not is_float or np.isfinite(piece).all()
        text = msgspec.json.encode(piece.tolist()) if is_plain else json.dumps(piece.tolist()).encode()
        lists.append(text[1:-1])  # without the brackets of the piece
    return msgspec.Raw(b"[%b]" % b",".join(lists))


def decode_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Decode the binary tensor of input ``name``, without a copy if ``data`` is aligned. Raises RequestRefusal."""
    if datatype == "BYTES":
        return _decode_strings(name, shape, data)
    dtype = DATATYPES[datatype].dtype.numpy
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise RequestRefusal(f"input {name!r} is {datatype} of shape {list(shape)}, {expected} bytes; got {len(data)}")
    # NumPy would make invalid booleans from other bytes.
    if datatype == "BOOL" and expected and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestRefusal(f"input {name!r} is BOOL; its bytes must be 0 or 1")
    if not expected:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype, copy=False)
    return array if array.flags.aligned else array.copy()


def _decode_strings(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Decode a binary tensor of strings. Each string is its length, in four bytes, followed by its bytes in UTF-8."""
    strings: list[str] = []
    offset = 0
    count = math.prod(shape)
    while len(strings) < count:
        size = int.from_bytes(data[offset : offset + 4], "little")
        offset += 4
        if offset + size > len(data):  # also if fewer than four bytes were left for the length
            break
        try:
            strings.append(str(data[offset : offset + size], "utf-8"))
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"element {len(strings)} of input {name!r} is not valid UTF-8: {error.reason}") from None
        offset += size
    if len(strings) != count or offset != len(data):
        raise RequestRefusal(
            f"input {name!r} is BYTES of shape {list(shape)}: {count} elements, each after its length in four bytes; "
            f"its {len(data)} bytes have another format"
        )
    return np.array(strings, dtype=object).reshape(shape)


def encode_binary(array: Array) -> bytes | memoryview:
    """Encode an array as a binary tensor, which is row-major and little-endian; copy the array only if it has another layout."""
    if array.dtype == object:
        strings = [str(item).encode() for item in array.flat]
        return b"".join(part for text in strings for part in (struct.pack("<I", len(text)), text))
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return memoryview(little.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # it is a buffer


JSON_SIZE_HEADER = b"inference-header-content-length"
"""The HTTP header with the size of the JSON in bytes, which is sent if binary tensors follow the JSON."""


class _InputTensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()
    """The undecoded JSON of the elements; empty if the tensor is binary."""


class _RequestedOutput(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _RequestDocument(msgspec.Struct):
    inputs: list[_InputTensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_RequestedOutput] = []


_DECODER = msgspec.json.Decoder(_RequestDocument)
encode_document = msgspec.json.Encoder().encode
"""Encode an object as JSON bytes."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    inputs: Mapping[str, Array]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, bool] = field(default_factory=dict)
    """Maps each requested output to whether it is sent as a binary tensor. Empty if all outputs are requested."""
    is_binary: bool = False
    """Whether outputs that are not in `outputs` are sent as binary tensors."""


@dataclass(frozen=True, slots=True)
class InferResponse:
    model: str
    version: str
    outputs: Mapping[str, Array]
    datatypes: Mapping[str, str]
    """The name of the protocol's datatype of each output."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def decode_request(body: bytes, json_size: bytes | None, limit: int) -> InferRequest:
    """Decode the body of an inference request: JSON, followed by the binary tensors if there are any.

    ``json_size`` is the value of `JSON_SIZE_HEADER`; None means that the whole body is JSON. Raises RequestRefusal for an invalid
    request, and for a tensor of more than ``limit`` elements.
    """
    length = len(body) if json_size is None else _parse_json_size(json_size, len(body))
    content = memoryview(body)
    document, parse = _decode_document(content[:length])
    rest = content[length:]
    inputs = {}
    # Binary tensors follow the JSON in the order of the inputs.
    for tensor in document.inputs:
        size = tensor.parameters.get("binary_data_size", 0)
        inputs[tensor.name] = _decode_input(tensor, rest, limit, parse)  # checks the size
        rest = rest[size:]
    if len(inputs) != len(document.inputs):
        raise RequestRefusal("the request gives an input more than once")
    if rest:
        raise RequestRefusal(f"{len(rest)} bytes follow the last tensor of the request")
    default = _read_flag(document.parameters, "binary_data_output", "the request", False)
    outputs = {out.name: _read_flag(out.parameters, "binary_data", f"output {out.name!r}", default) for out in document.outputs}
    return InferRequest(inputs, document.id, document.parameters, outputs, default)


def _parse_json_size(header: bytes, body_size: int) -> int:
    """Parse the value of `JSON_SIZE_HEADER`; raises RequestRefusal unless it is from 1 to ``body_size``."""
    # A number with more digits than the body size is too large, and int() raises ValueError for thousands of digits.
    length = int(header) if header.isdigit() and len(header) <= len(str(body_size)) else -1
    if not 0 < length <= body_size:
        quoted = header[:_MAX_QUOTED_CHARS].decode("latin-1")
        raise RequestRefusal(f"Inference-Header-Content-Length is {quoted!r}; it must be the size of the JSON, 1 to {body_size}")
    return length


def _decode_document(text: memoryview) -> tuple[_RequestDocument, Callable[[bytes], Any]]:
    """Decode the JSON of a request except the tensors' ``data``; return the document and the function that parses ``data``."""
    try:
        try:
            return _DECODER.decode(text), msgspec.json.decode
        except msgspec.ValidationError:  # a subclass of DecodeError: the JSON is valid, but not a request
            raise
        except msgspec.DecodeError:  # Python clients send NaN and infinities, which are not JSON
            return _DECODER.decode(_replace_non_finite(bytes(text))), _load_non_finite
    except RecursionError:
        raise RequestRefusal("the request's JSON is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_QUOTED_CHARS]) from None


# In this order: "Infinity" is a part of "-Infinity".
_NON_FINITE = {b"-Infinity": b"-2e99999", b"Infinity": b"2e99999", b"NaN": b"1e99999"}
"""The literals of NaN and infinities in Python's JSON, and the number that replaces each while the JSON is parsed. These numbers
overflow a float, so no valid tensor contains them."""


def _replace_non_finite(text: bytes) -> bytes:
    """Convert Python's JSON to standard JSON: replace NaN and infinities, except in strings, by the numbers of `_NON_FINITE`."""
    parts = _JSON_STRING.split(text)
    for literal, number in _NON_FINITE.items():
        parts[::2] = [part.replace(literal, number) for part in parts[::2]]  # the strings are at the odd indices
    return b"".join(parts)


def _load_non_finite(text: bytes) -> Any:
    """Parse JSON that `_replace_non_finite` returned, with NaN and infinities restored."""
    for literal, number in _NON_FINITE.items():
        text = text.replace(number, literal)
    return json.loads(text)


def _read_flag(parameters: Mapping[str, Any], name: str, owner: str, default: bool) -> bool:
    """Get a boolean parameter; raises RequestRefusal for another type. ``owner`` describes its owner in the message."""
    flag = parameters.get(name, default)
    if not isinstance(flag, bool):
        raise RequestRefusal(f"parameter {name!r} of {owner} must be true or false")
    return flag


def _decode_input(tensor: _InputTensor, rest: memoryview, limit: int, parse: Callable[[bytes], Any]) -> Array:
    """Decode an input from its JSON data, or from the beginning of ``rest``, the remaining binary tensors."""
    shape = check_tensor(tensor.name, tensor.datatype, tensor.shape, limit)
    size = tensor.parameters.get("binary_data_size")
    data = bytes(tensor.data)
    if size is None:
        if not data:
            raise RequestRefusal(f"input {tensor.name!r} has neither data nor the parameter binary_data_size")
        return decode_json(tensor.name, tensor.datatype, shape, data, parse)
    if data:
        raise RequestRefusal(f"input {tensor.name!r} has both data and the parameter binary_data_size")
    if type(size) is not int or not 0 <= size <= len(rest):
        quoted = str(size)[:_MAX_QUOTED_CHARS]
        raise RequestRefusal(f"binary_data_size of input {tensor.name!r} is {quoted}, and {len(rest)} bytes are left")
    return decode_binary(tensor.name, tensor.datatype, shape, rest[:size])


class ControlRequest(msgspec.Struct):
    """A request to list, load or unload models, as defined by Triton's model repository extension."""

    ready: bool = False
    """Whether to list only the models that are ready."""
    parameters: dict[str, Any] = {}


def decode_control(body: bytes) -> ControlRequest:
    """Decode a `ControlRequest`; an empty body is a request without fields. Raises RequestRefusal."""
    try:
        return msgspec.json.decode(body or b"{}", type=ControlRequest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_QUOTED_CHARS]) from None


def check_no_files(parameters: Mapping[str, Any]) -> None:
    """Raise RequestRefusal if a load request has parameters, in which Triton's clients can send files and a configuration."""
    if name := next(iter(parameters), None):
        raise RequestRefusal(
            f"parameter {name[:_MAX_QUOTED_CHARS]!r} is not supported: a model is loaded from the files that the operator named"
        )


def make_json_output_error(name: str, datatype: str) -> RequestRefusal:
    """Make the error for an output that is requested as JSON, though JSON cannot represent its datatype."""
    return RequestRefusal(f"output {name!r} is {datatype}, which JSON cannot hold; request it with binary_data")


def encode_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[bytes | memoryview]]:
    """Encode a response. Return the size of its JSON, or None if no tensor is binary, and the parts of the body.

    The first part is the JSON, and each binary tensor is another part. Raises RequestRefusal if an output is requested as JSON,
    though JSON cannot represent its datatype.
    """
    outputs = []
    binary_parts = []
    for name, array in response.outputs.items():
        tensor = {"name": name, "datatype": response.datatypes[name], "shape": array.shape}
        if request.outputs.get(name, request.is_binary):
            binary_parts.append(encode_binary(array))
            tensor["parameters"] = {"binary_data_size": len(binary_parts[-1])}
        elif DATATYPES[response.datatypes[name]].has_json:
            tensor["data"] = encode_json(array)
        else:
            raise make_json_output_error(name, response.datatypes[name])
        outputs.append(tensor)
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if request.id:
        document["id"] = request.id
    if response.parameters:
        document["parameters"] = response.parameters
    head = encode_document({**document, "outputs": outputs})
    return (len(head) if binary_parts else None), [head, *binary_parts]
