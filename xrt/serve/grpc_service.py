"""The Open Inference Protocol over gRPC, as in `open_inference.proto`: serves the models of an `Application`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from xrt.errors import OptionError
from xrt.serve import open_inference_pb2 as messages, protocol
from xrt.serve.application import Application
from xrt.serve.metrics import time_request
from xrt.serve.protocol import DATATYPES, PIECE_SIZE, Array, InferRequest, InferResponse, RequestRefusal, Status
from xrt.serve.scheduler import Limit

try:
    import grpc
    import grpc.aio
except ModuleNotFoundError as error:
    raise OptionError("gRPC needs the package grpcio, which is missing: pip install 'xrt-engine[serve]'") from error

_DESCRIPTOR = messages.ModelInferRequest.DESCRIPTOR.file.services_by_name["GRPCInferenceService"]
SERVICE = _DESCRIPTOR.full_name

_FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of InferTensorContents for the elements of each datatype. FP16 and BF16 have no field: they are sent as raw
contents."""


async def start_grpc(application: Application, host: str = "127.0.0.1", port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Start a gRPC server; return the server and its port. For ``port=0`` the system chooses a free port.

    Stop it with ``await server.stop(seconds)``. Raises OptionError if the address cannot be used.
    """
    limit = application.options.max_request_bytes
    # No SO_REUSEPORT: a second server on the same port must fail instead of getting half of the requests.
    options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _Service(application).make_handlers()),))
    try:
        bound_port = server.add_insecure_port(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}")
    except RuntimeError as error:
        reason = str(error).partition(";")[0]  # without gRPC's advice on its log
        raise OptionError(f"gRPC cannot listen on {host}, port {port}: {reason}; choose another port") from error
    await server.start()
    return server, bound_port


class _Service:
    """Implements the methods of the gRPC service by the operations of an `Application`."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._reading = Limit("calls are under way, and no more are read")

    def make_handlers(self) -> dict[str, Any]:
        """Create a gRPC handler for each method, by the name of the method."""
        # A handler of a stream reads the message itself, so it can reject a request before the message is in memory. A stream of
        # one message has the same encoding as a single message.
        make, serialize = grpc.stream_unary_rpc_method_handler, methodcaller("SerializeToString")
        return {name: make(partial(self._handle, name), response_serializer=serialize) for name in _DESCRIPTOR.methods_by_name}

    async def _handle(self, name: str, stream: Any, context: Any) -> Message:
        """Handle a call of the method ``name``: return its response message, or abort the call with the reason."""
        application = self._application
        application.start()
        try:
            with time_request(partial(application.log.note_request, "grpc", name, context.peer(), name)):
                if name == "ModelInfer":
                    # Before the message is read, to limit the messages in memory. Admit one call even if no model is in
                    # service, so that its client gets the reason.
                    with self._reading.admit(max(1, sum(model.max_requests for model in application.models))):
                        return await self._infer(context)
                request, _ = await self._read(name, context)
                # Requests to load or unload have the field model_name, other requests the field name.
                model = getattr(request, "name", "") or getattr(request, "model_name", "")
                document = await application.handle(name, model, getattr(request, "version", ""), request)
                # Some fields exist over HTTP only: the reason why a model is not ready, and the list of models.
                return json_format.ParseDict(document, getattr(messages, f"{name}Response")(), ignore_unknown_fields=True)
        except Exception as error:  # noqa: BLE001  # no client gets a traceback
            refusal = protocol.convert_exception(error, name)
        if refusal.retry_after is not None:
            context.set_trailing_metadata((("retry-after", str(refusal.retry_after)),))
        return await context.abort(grpc.StatusCode[refusal.code], str(refusal))  # always raises

    async def _read(self, name: str, context: Any) -> tuple[Any, int]:
        """Read the request message of the method ``name``; return it and its size in bytes.

        It is parsed here because gRPC would answer a malformed message with a traceback. Raises RequestRefusal if it is
        malformed or missing, or does not arrive in time.
        """
        seconds = self._application.options.body_timeout
        try:
            async with asyncio.timeout(seconds):
                data = await context.read()
        except TimeoutError:
            raise RequestRefusal(f"the message did not arrive within {seconds:g} s", Status.TIMEOUT) from None
        if not isinstance(data, bytes):
            raise RequestRefusal("the call has no message")
        message_type = getattr(messages, f"{name}Request")
        try:
            return await self._application.run_if_large(len(data), message_type.FromString, data), len(data)
        except DecodeError:
            raise RequestRefusal(f"the request is not a {message_type.__name__} of the protocol") from None

    async def _infer(self, context: Any) -> Any:
        application = self._application
        request, size = await self._read("ModelInfer", context)
        name, version = request.model_name, request.model_version
        metadata = context.invocation_metadata() or ()
        session = next((str(value) for header, value in metadata if header == application.session_header), "")
        with time_request(partial(application.models.find(name, version).metrics.note_request, "grpc")):
            decode = partial(decode_request, request, application.options.max_request_bytes)
            return await application.infer(name, version, session, size, decode, encode_response)


def decode_request(request: Any, limit: int) -> InferRequest:
    """Convert the message ModelInferRequest; raises RequestRefusal if it is invalid or a tensor has over ``limit`` elements."""
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestRefusal(
            f"the request has {len(request.inputs)} inputs and {len(raw)} raw contents; give one for each input, or none"
        )
    contents: Sequence[bytes | None] = raw or [None] * len(request.inputs)
    inputs = {tensor.name: _decode_tensor(tensor, data, limit) for tensor, data in zip(request.inputs, contents, strict=True)}
    if len(inputs) != len(request.inputs):
        raise RequestRefusal("the request gives an input more than once")
    outputs = dict.fromkeys((output.name for output in request.outputs), True)
    parameters = {name: value for name, choice in request.parameters.items() for _, value in choice.ListFields()}
    return InferRequest(inputs, request.id, parameters, outputs, bool(raw))


def _decode_tensor(tensor: Any, raw: bytes | None, limit: int) -> Array:
    """Decode an input from its raw contents, or, if ``raw`` is None, from its typed contents; raises RequestRefusal."""
    name, datatype = tensor.name, tensor.datatype
    shape = protocol.check_tensor(name, datatype, tensor.shape, limit)
    if raw is not None:
        if tensor.HasField("contents"):
            raise RequestRefusal(f"input {name!r} has both contents and raw contents")
        return protocol.decode_binary(name, datatype, shape, memoryview(raw))
    if datatype not in _FIELDS:
        raise RequestRefusal(f"input {name!r} is {datatype}, which contents cannot hold; send it in raw_input_contents")
    return _decode_contents(name, datatype, shape, getattr(tensor.contents, _FIELDS[datatype]))


def _decode_contents(name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]) -> Array:
    """Decode typed contents; raises RequestRefusal for a wrong number of elements, or one that the datatype cannot represent."""
    if len(elements) != (count := math.prod(shape)):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, {count} elements; {_FIELDS[datatype]} has {len(elements)}")
    if datatype == "BYTES":
        try:
            strings = [item.decode() for item in elements]
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"input {name!r} has an element that is not valid UTF-8: {error.reason}") from None
        return np.array(strings, dtype=object).reshape(shape)
    array = np.empty(count, DATATYPES[datatype].dtype.numpy)
    try:
        # In pieces, so that other threads get the GIL.
        for offset in range(0, count, PIECE_SIZE):
            array[offset : offset + PIECE_SIZE] = np.array(elements[offset : offset + PIECE_SIZE], dtype=array.dtype)
        return array.reshape(shape)
    except OverflowError:
        raise RequestRefusal(f"input {name!r} has a number that {datatype} cannot hold") from None


def encode_response(request: InferRequest, response: InferResponse) -> Any:
    """Encode a ModelInferResponse. It has raw contents if the request has raw contents or no inputs, or a datatype needs them."""
    message = messages.ModelInferResponse(model_name=response.model, model_version=response.version, id=request.id)
    for name, value in response.parameters.items():
        message.parameters[name].string_param = value
    # The protocol does not allow both raw and typed contents in one response.
    is_raw = request.is_binary or not request.inputs or any(response.datatypes[name] not in _FIELDS for name in response.outputs)
    for name, array in response.outputs.items():
        tensor = message.outputs.add(name=name, datatype=response.datatypes[name], shape=array.shape)
        if is_raw:
            message.raw_output_contents.append(bytes(protocol.encode_binary(array)))
        else:
            elements, flat = getattr(tensor.contents, _FIELDS[tensor.datatype]), array.reshape(-1)
            for offset in range(0, flat.size, PIECE_SIZE):
                piece = flat[offset : offset + PIECE_SIZE]
                elements.extend([str(item).encode() for item in piece] if flat.dtype == object else piece.tolist())
    return message
