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
from xrt.serve.protocol import DATATYPES, PIECE, Array, InferRequest, InferResponse, RequestRefusal, Status
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
"""The field of InferTensorContents with the elements of each datatype; FP16 and BF16 have none."""


async def start_grpc(application: Application, host: str = "127.0.0.1", port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Start a gRPC server; return it with its port, which the system chooses if 0.

    Stop it with ``await server.stop(seconds)``. Raises OptionError if the address cannot be used.
    """
    limit = application.options.max_request_bytes
    # No SO_REUSEPORT: a second server on the same port must fail instead of getting half of the requests.
    options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _Service(application).make_handlers()),))
    try:
        bound = server.add_insecure_port(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}")
    except RuntimeError as error:
        reason = str(error).partition(";")[0]  # without gRPC's advice on its log
        raise OptionError(f"gRPC cannot listen on {host}, port {port}: {reason}; choose another port") from error
    await server.start()
    return server, bound


class _Service:
    """The methods of the gRPC service."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._reading = Limit("calls are under way, and no more are read")

    def make_handlers(self) -> dict[str, Any]:
        """The handler of each method by name."""
        # These handlers read the message themselves, so that they can reject a request before its message is in memory. On the
        # wire a stream of one message equals a single message.
        make, serialize = grpc.stream_unary_rpc_method_handler, methodcaller("SerializeToString")
        return {name: make(partial(self._answer, name), response_serializer=serialize) for name in _DESCRIPTOR.methods_by_name}

    async def _answer(self, name: str, stream: Any, context: Any) -> Message:
        """Answer a call, or abort it with the reason."""
        application = self._application
        application.start()
        try:
            with time_request(partial(application.log.note_request, "grpc", name, context.peer(), name)):
                if name == "ModelInfer":
                    # Before its message is read, which bounds the messages in memory. Admit one call even if no model is in
                    # service, so that its client gets the reason.
                    with self._reading.admit(max(1, sum(model.most_requests for model in application.models))):
                        return await self._infer(context)
                request, _ = await self._read(name, context)
                # Loads and unloads have the field model_name, queries of a model have the field name.
                model = getattr(request, "name", "") or getattr(request, "model_name", "")
                document = await application.answer(name, model, getattr(request, "version", ""), request)
                # The fields are those of HTTP, which has some more: the reason why a model is not ready, the list of models.
                return json_format.ParseDict(document, getattr(messages, f"{name}Response")(), ignore_unknown_fields=True)
        except Exception as error:  # noqa: BLE001  # no client gets a traceback
            refusal = protocol.make_refusal(error, name)
        if refusal.retry_after is not None:
            context.set_trailing_metadata((("retry-after", str(refusal.retry_after)),))
        return await context.abort(grpc.StatusCode[refusal.code], str(refusal))  # always raises

    async def _read(self, name: str, context: Any) -> tuple[Any, int]:
        """Read a request; return it with its size in bytes. Raises RequestRefusal if it is late, missing or malformed.

        It is parsed here and not by gRPC, which would answer a malformed one with a traceback.
        """
        limit = self._application.options.body_timeout
        try:
            async with asyncio.timeout(limit):
                data = await context.read()
        except TimeoutError:
            raise RequestRefusal(f"the message did not arrive within {limit:g} s", Status.LATE) from None
        if not isinstance(data, bytes):
            raise RequestRefusal("the call has no message")
        kind = getattr(messages, f"{name}Request")
        try:
            return await self._application.run_if_large(len(data), kind.FromString, data), len(data)
        except DecodeError:
            raise RequestRefusal(f"the request is not a {kind.__name__} of the protocol") from None

    async def _infer(self, context: Any) -> Any:
        """Answer a call of ModelInfer with its response message."""
        application = self._application
        request, size = await self._read("ModelInfer", context)
        name, version = request.model_name, request.model_version
        key, metadata = application.session_header, context.invocation_metadata() or ()
        session = next((str(value) for header, value in metadata if header == key), "")
        with time_request(partial(application.models.find(name, version).metrics.note_request, "grpc")):
            read = partial(read_message, request, application.options.max_request_bytes)
            return await application.infer(name, version, session, size, read, write_message)


# ---------------------------------------------------------------------- messages


def read_message(request: Any, limit: int) -> InferRequest:
    """Convert a ModelInferRequest with at most ``limit`` elements per tensor; raises RequestRefusal."""
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestRefusal(
            f"the request has {len(request.inputs)} inputs and {len(raw)} raw contents; each input has one, or none has"
        )
    contents: Sequence[bytes | None] = raw or [None] * len(request.inputs)
    inputs = {tensor.name: _read_tensor(tensor, data, limit) for tensor, data in zip(request.inputs, contents, strict=True)}
    if len(inputs) != len(request.inputs):
        raise RequestRefusal("the request gives an input more than once")
    outputs = dict.fromkeys((output.name for output in request.outputs), True)
    parameters = {name: value for name, choice in request.parameters.items() for _, value in choice.ListFields()}
    return InferRequest(inputs, request.id, parameters, outputs, bool(raw))


def _read_tensor(tensor: Any, raw: bytes | None, limit: int) -> Array:
    """The array of an input, from its raw contents or its typed contents; raises RequestRefusal."""
    name, datatype = tensor.name, tensor.datatype
    shape = protocol.check_tensor(name, datatype, tensor.shape, limit)
    if raw is not None:
        if tensor.HasField("contents"):
            raise RequestRefusal(f"input {name!r} has both contents and raw contents")
        return protocol.decode_binary(name, datatype, shape, memoryview(raw))
    if datatype not in _FIELDS:
        raise RequestRefusal(f"input {name!r} is {datatype}, which contents cannot hold; send it in raw_input_contents")
    return _read_contents(name, datatype, shape, getattr(tensor.contents, _FIELDS[datatype]))


def _read_contents(name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]) -> Array:
    """The array of typed contents; raises RequestRefusal for another number of elements, or one that the datatype cannot hold."""
    if len(elements) != (count := math.prod(shape)):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, {count} elements; {_FIELDS[datatype]} has {len(elements)}")
    if datatype == "BYTES":
        try:
            texts = [item.decode() for item in elements]
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"input {name!r} has an element that is no UTF-8 text: {error.reason}") from None
        return np.array(texts, dtype=object).reshape(shape)
    array = np.empty(count, DATATYPES[datatype].dtype.numpy)
    try:
        # In pieces, so that other threads get the GIL.
        for offset in range(0, count, PIECE):
            array[offset : offset + PIECE] = np.array(elements[offset : offset + PIECE], dtype=array.dtype)
        return array.reshape(shape)
    except OverflowError:
        raise RequestRefusal(f"input {name!r} has a number that {datatype} cannot hold") from None


def write_message(request: InferRequest, response: InferResponse) -> Any:
    """Build the ModelInferResponse, with raw contents if the request has them or no inputs, or if a datatype requires them."""
    answer = messages.ModelInferResponse(model_name=response.model, model_version=response.version, id=request.id)
    for name, value in response.parameters.items():
        answer.parameters[name].string_param = value
    # A response must use one form for all outputs.
    is_raw = request.is_binary or not request.inputs or any(response.datatypes[name] not in _FIELDS for name in response.outputs)
    for name, array in response.outputs.items():
        tensor = answer.outputs.add(name=name, datatype=response.datatypes[name], shape=array.shape)
        if is_raw:
            answer.raw_output_contents.append(bytes(protocol.encode_binary(array)))
        else:
            elements, flat = getattr(tensor.contents, _FIELDS[tensor.datatype]), array.reshape(-1)
            for offset in range(0, flat.size, PIECE):
                piece = flat[offset : offset + PIECE]
                elements.extend([str(item).encode() for item in piece] if flat.dtype == object else piece.tolist())
    return answer
