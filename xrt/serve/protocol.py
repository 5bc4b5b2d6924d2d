"""Inference requests and responses of the Open Inference Protocol over HTTP: JSON, and the binary tensor extension."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from xrt.serve.refusal import RequestRefusal
from xrt.serve.tensors import DATATYPES, Array, check_shape, decode_binary, decode_json, encode_binary, encode_json

__all__ = [
    "BINARY",
    "InferRequest",
    "InferResponse",
    "check_no_files",
    "decode_control",
    "encode_document",
    "read_request",
    "write_response",
]

BINARY = b"inference-header-content-length"
"""The header that gives the bytes of the JSON before the binary tensors."""

_MAX_SHOWN = 200


class _Input(msgspec.Struct):
    """A tensor of a request, as JSON has it."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()
    """Empty where there are none."""


class _Output(msgspec.Struct):
    """An output that a request names."""

    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


_DECODER = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()
encode_document = _ENCODER.encode
"""Write JSON."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What both transports make of a request."""

    inputs: Mapping[str, Array]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, bool] = field(default_factory=dict)
    """The outputs by name, and whether each is sent in binary form; all outputs where it is empty."""
    is_binary: bool = False
    """The form of outputs that the request does not name."""


@dataclass(frozen=True, slots=True)
class InferResponse:
    """What both transports send."""

    model: str
    version: str
    outputs: Mapping[str, Array]
    datatypes: Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of the outputs."""
        return sum(array.nbytes for array in self.outputs.values())


# ---------------------------------------------------------------------- requests


def read_request(body: bytes, json_bytes: bytes | None, limit: int) -> InferRequest:
    """Return the request in a body; ``json_bytes`` is the value of the header `BINARY`. Raises RequestRefusal."""
    length = len(body) if json_bytes is None else _read_length(json_bytes, len(body))
    whole = memoryview(body)
    asked, parse = _decode(whole[:length])
    rest = _Tail(whole[length:])
    inputs = {one.name: _read_input(one, rest, limit, parse) for one in asked.inputs}
    if len(inputs) != len(asked.inputs):
        raise RequestRefusal("the request gives an input more than once")
    rest.check_end()
    default = _flag(asked.parameters, "binary_data_output", "the request", False)
    outputs = {one.name: _flag(one.parameters, "binary_data", f"output {one.name!r}", default) for one in asked.outputs}
    return InferRequest(inputs, asked.id, asked.parameters, outputs, default)


def _read_length(text: bytes, most: int) -> int:
    length = int(text) if text.isdigit() and len(text) < len(str(most)) + 1 else -1
    if not 0 < length <= most:
        shown = text[:_MAX_SHOWN].decode("latin-1")
        raise RequestRefusal(f"Inference-Header-Content-Length is {shown!r}; it is the bytes of the JSON in a body of {most}")
    return length


def _decode(text: memoryview) -> tuple[_Request, Callable[[bytes], Any]]:
    """Decode the JSON but for the elements of tensors; also return what decodes those."""
    try:
        try:
            return _DECODER.decode(text), msgspec.json.decode
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # NaN and infinities: no JSON, but what Python's clients send
            return _DECODER.decode(_replace_special(bytes(text))), _load_special
    except RecursionError:
        raise RequestRefusal("the request's JSON is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_SHOWN]) from None


_STRING = re.compile(rb'("(?:[^"\\]|\\.)*")')
_SPECIAL = {b"-Infinity": b"-2e99999", b"Infinity": b"2e99999", b"NaN": b"1e99999"}
"""NaN and infinities, and the numbers that stand for them while the rest is read as JSON; as numbers these would be refused."""


def _replace_special(text: bytes) -> bytes:
    parts = _STRING.split(text)
    for word, number in _SPECIAL.items():
        parts[::2] = [part.replace(word, number) for part in parts[::2]]  # between the strings
    return b"".join(parts)


def _load_special(text: bytes) -> Any:
    for word, number in _SPECIAL.items():
        text = text.replace(number, word)
    return json.loads(text)


def _flag(parameters: Mapping[str, Any], name: str, where: str, default: bool) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise RequestRefusal(f"parameter {name!r} of {where} is true or false")
    return found


class _Tail:
    """The bytes after the JSON, which the binary tensors take in their order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: Any) -> memoryview:
        left = len(self._data) - self._at
        if type(size) is not int or not 0 <= size <= left:
            raise RequestRefusal(f"binary_data_size of input {name!r} is {str(size)[:_MAX_SHOWN]}, and {left} bytes are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise RequestRefusal(f"{len(self._data) - self._at} bytes follow the last tensor of the request")


def _read_input(given: _Input, rest: _Tail, limit: int, parse: Callable[[bytes], Any]) -> Array:
    if given.datatype not in DATATYPES:
        raise RequestRefusal(
            f"input {given.name!r} has datatype {given.datatype[:_MAX_SHOWN]!r}; there is: {', '.join(DATATYPES)}"
        )
    shape = check_shape(given.name, given.shape, limit)
    size, data = given.parameters.get("binary_data_size"), bytes(given.data)
    if size is None:
        if not data:
            raise RequestRefusal(f"input {given.name!r} has neither data nor the parameter binary_data_size")
        return decode_json(given.name, given.datatype, shape, data, parse)
    if data:
        raise RequestRefusal(f"input {given.name!r} has both data and the parameter binary_data_size")
    return decode_binary(given.name, given.datatype, shape, rest.take(given.name, size))


class ControlRequest(msgspec.Struct):
    """A request of the extension of model repositories."""

    ready: bool = False
    parameters: dict[str, Any] = {}


def decode_control(body: bytes) -> ControlRequest:
    """Decode a request of the extension of model repositories, which may be empty; raises RequestRefusal."""
    try:
        return msgspec.json.decode(body or b"{}", type=ControlRequest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RequestRefusal(f"the request is not the protocol's JSON: {error}"[:_MAX_SHOWN]) from None


def check_no_files(parameters: Mapping[str, Any]) -> None:
    """Raise RequestRefusal where a request to load a model brings files or a configuration."""
    if name := next(iter(parameters), None):
        raise RequestRefusal(
            f"parameter {name[:_MAX_SHOWN]!r}: a model is loaded from the files that the operator named, as it was"
        )


# ---------------------------------------------------------------------- responses


def write_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[bytes | memoryview]]:
    """Return the parts of a response's body, and the bytes of the JSON where binary tensors follow it."""
    outputs, tails = [], []
    for name, array in response.outputs.items():
        described = {"name": name, "datatype": response.datatypes[name], "shape": array.shape}
        if request.outputs.get(name, request.is_binary):
            tails.append(encode_binary(array))
            described["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            described["data"] = _encode_data(name, response.datatypes[name], array)
        outputs.append(described)
    head = encode_document(_describe(request, response, outputs))
    return (len(head) if tails else None), [head, *tails]


def _encode_data(name: str, datatype: str, array: Array) -> Any:
    if not DATATYPES[datatype].has_json:
        raise RequestRefusal(f"output {name!r} is {datatype}, which JSON cannot hold; ask for it with binary_data")
    return encode_json(array)


def _describe(request: InferRequest, response: InferResponse, outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if request.id:
        found["id"] = request.id
    if response.parameters:
        found["parameters"] = response.parameters
    return {**found, "outputs": outputs}
