"""The Open Inference Protocol over gRPC: the service in `open_inference.proto`, for the models of an application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from xrt import __version__
from xrt.errors import OptionError
from xrt.serve import open_inference_pb2 as messages
from xrt.serve.application import EXTENSIONS, SERVER, Application
from xrt.serve.protocol import (
    BUSY,
    CANCELLED,
    DATATYPES,
    FAILED,
    LATE,
    OK,
    PIECE,
    Array,
    InferRequest,
    InferResponse,
    RequestRefusal,
    check_no_files,
    check_shape,
    decode_binary,
    encode_binary,
)
from xrt.serve.triton_repository import make_config

if TYPE_CHECKING:
    from grpc.aio import Server


_log = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"

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
"""The contents field of each datatype; FP16 and BF16 have none."""


async def start_grpc(application: Application, host: str = "127.0.0.1", port: int = 0) -> tuple[Server, int]:
    """Start a gRPC server; return it with its port, which the system chooses if 0.

    Stop it with ``await server.stop(seconds)``. Raises OptionError if grpcio is missing or the address cannot be used.
    """
    try:
        import grpc
        import grpc.aio
    except ModuleNotFoundError as error:
        raise OptionError("gRPC needs the package grpcio, which is missing: pip install 'xrt-engine[serve]'") from error
    limit = application.options.max_request_bytes
    # No SO_REUSEPORT: a second server on the same port must fail.
    options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    service = _Service(application, grpc.StatusCode)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, service.make_handlers(grpc)),))
    try:
        bound = server.add_insecure_port(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}")
    except RuntimeError as error:
        raise OptionError(f"gRPC cannot listen on {host}, port {port}: {error}; choose another port") from error
    await server.start()
    return server, bound


class _Service:
    """The methods of the service."""

    def __init__(self, application: Application, codes: Any) -> None:
        self._application, self._codes = application, codes
        self._reading = 0

    def make_handlers(self, grpc: Any) -> dict[str, Any]:
        answers: dict[str, Callable[..., Awaitable[Any]]] = {
            "ServerLive": self._answer_live,
            "ServerReady": self._answer_ready,
            "ModelReady": self._answer_model_ready,
            "ServerMetadata": self._describe_server,
            "ModelMetadata": self._describe_model,
            "ModelInfer": self._infer,  # called with the size of the request
            "ModelConfig": self._describe_config,
            "ModelStatistics": self._list_statistics,
            "RepositoryIndex": self._list_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        # These handlers read the message themselves, so that they can reject a request before its message is in memory. On the
        # wire a stream of one message equals a single message.
        return {
            name: grpc.stream_unary_rpc_method_handler(
                self._guard(getattr(messages, f"{name}Request"), answer),
                response_serializer=getattr(messages, f"{name}Response").SerializeToString,
            )
            for name, answer in answers.items()
        }

    def _guard(self, kind: Any, answer: Callable[..., Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """The handler of a method: parses the request, which gRPC would answer with a traceback if malformed."""
        name = kind.__name__.removesuffix("Request")

        async def answer_or_abort(stream: Any, context: Any) -> Any:
            self._application.start()
            began, refusal, status = time.perf_counter(), None, OK
            try:
                if name != "ModelInfer":
                    return await answer((await self._read(kind, context))[0], context)
                with self._admit():
                    return await self._infer(*await self._read(kind, context), context)
            except asyncio.CancelledError:
                status = CANCELLED
                raise
            except RequestRefusal as refused:
                refusal, status = refused, refused.status
            except Exception as error:  # noqa: BLE001  # no client gets a traceback
                _log.exception("a request for %s failed", name)
                refusal, status = RequestRefusal(f"the server failed: {type(error).__name__}", FAILED), FAILED
            finally:
                self._application.log.note_request(context.peer(), name, status, time.perf_counter() - began, refusal)
            if refusal.retry_after is not None:
                context.set_trailing_metadata((("retry-after", str(refusal.retry_after)),))
            return await context.abort(self._codes[refusal.code], str(refusal))  # always raises

        return answer_or_abort

    @contextmanager
    def _admit(self) -> Iterator[None]:
        """Count a call before its message is read, which bounds the messages in memory; raises RequestRefusal."""
        # Admit one call even if no model is in service, so that its client gets the reason.
        if self._reading >= max(1, sum(model.most_requests for model in self._application.models)):
            raise RequestRefusal(f"{self._reading} calls are under way, and no more are read; try again", BUSY, retry_after=1)
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    async def _read(self, kind: Any, context: Any) -> tuple[Any, int]:
        """Read the request and its size in bytes."""
        limit = self._application.options.body_timeout
        try:
            async with asyncio.timeout(limit):
                data = await context.read()
        except TimeoutError:
            raise RequestRefusal(f"the message did not arrive within {limit:g} s", LATE) from None
        if not isinstance(data, bytes):
            raise RequestRefusal("the call has no message")
        return await self._application.run_if_large(len(data), _parse, kind, data), len(data)

    async def _answer_live(self, request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def _answer_ready(self, request: Any, context: Any) -> Any:
        return messages.ServerReadyResponse(ready=not self._application.explain_not_ready())

    async def _answer_model_ready(self, request: Any, context: Any) -> Any:
        why_not = self._application.models.explain_not_ready(request.name, request.version)
        return messages.ModelReadyResponse(ready=not why_not)

    async def _describe_server(self, request: Any, context: Any) -> Any:
        return messages.ServerMetadataResponse(name=SERVER, version=__version__, extensions=EXTENSIONS)

    async def _describe_model(self, request: Any, context: Any) -> Any:
        models = self._application.models
        model = models.find(request.name, request.version)
        return messages.ModelMetadataResponse(**model.describe(models.list_versions(model.name)))

    async def _describe_config(self, request: Any, context: Any) -> Any:
        config = make_config(self._application.models.find(request.name, request.version))
        return json_format.ParseDict({"config": config}, messages.ModelConfigResponse())

    async def _list_statistics(self, request: Any, context: Any) -> Any:
        return messages.ModelStatisticsResponse(**self._application.list_statistics(request.name, request.version))

    async def _list_index(self, request: Any, context: Any) -> Any:
        return messages.RepositoryIndexResponse(models=self._application.models.list_index(ready=request.ready))

    async def _load(self, request: Any, context: Any) -> Any:
        check_no_files(request.parameters)
        await self._application.load(request.model_name)
        return messages.RepositoryModelLoadResponse()

    async def _unload(self, request: Any, context: Any) -> Any:
        await self._application.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()

    async def _infer(self, request: Any, size: int, context: Any) -> Any:
        began, status = time.perf_counter(), FAILED
        model = self._application.models.find(request.model_name, request.model_version)
        try:
            limit = self._application.options.max_request_bytes
            inference = await self._application.run_if_large(size, read_message, request, limit)
            model = self._application.models.find(request.model_name, request.model_version)  # it may have been reloaded
            response = await model.infer(inference, self._find_session(context))
            answer = await self._application.run_if_large(response.bytes, write_message, inference, response)
            status = OK
        except asyncio.CancelledError:
            status = CANCELLED
            raise
        except RequestRefusal as refusal:
            status = refusal.status
            raise
        finally:
            model.metrics.note_request("grpc", status, time.perf_counter() - began)
        return answer

    def _find_session(self, context: Any) -> str:
        key = self._application.session_header
        return next((str(value) for name, value in context.invocation_metadata() or () if name == key), "")


# ---------------------------------------------------------------------- messages


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestRefusal(f"the request is not a {kind.__name__} of the protocol") from None


def read_message(request: Any, limit: int) -> InferRequest:
    """Convert a ModelInferRequest; raises RequestRefusal."""
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestRefusal(
            f"the request has {len(request.inputs)} inputs and {len(raw)} raw contents; each input has one, or none has"
        )
    inputs = {one.name: _read_tensor(one, raw[place] if raw else None, limit) for place, one in enumerate(request.inputs)}
    if len(inputs) != len(request.inputs):
        raise RequestRefusal("the request gives an input more than once")
    outputs = dict.fromkeys((one.name for one in request.outputs), True)
    return InferRequest(inputs, request.id, _read_parameters(request.parameters), outputs, bool(raw))


def _read_tensor(tensor: Any, raw: bytes | None, limit: int) -> Array:
    name, datatype = tensor.name, tensor.datatype
    if datatype not in DATATYPES:
        raise RequestRefusal(f"input {name!r} has datatype {datatype[:200]!r}; there is: {', '.join(DATATYPES)}")
    shape = check_shape(name, tensor.shape, limit)
    if raw is not None:
        if tensor.HasField("contents"):
            raise RequestRefusal(f"input {name!r} has both contents and raw contents")
        return decode_binary(name, datatype, shape, memoryview(raw))
    if datatype not in _FIELDS:
        raise RequestRefusal(f"input {name!r} is {datatype}, which contents cannot hold; send it in raw_input_contents")
    return _read_contents(name, datatype, shape, getattr(tensor.contents, _FIELDS[datatype]))


def _read_contents(name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]) -> Array:
    if len(elements) != (count := int(np.prod(shape, dtype=object))):
        raise RequestRefusal(f"input {name!r} has shape {list(shape)}, {count} elements; {_FIELDS[datatype]} has {len(elements)}")
    if datatype == "BYTES":
        try:
            texts = [item.decode() for item in elements]
        except UnicodeDecodeError as error:
            raise RequestRefusal(f"input {name!r} has an element that is no UTF-8 text: {error.reason}") from None
        return np.array([*texts, None], dtype=object)[:-1].reshape(shape)
    array = np.empty(count, DATATYPES[datatype].dtype.numpy)
    try:
        for at in range(0, count, PIECE):
            array[at : at + PIECE] = np.array(elements[at : at + PIECE], dtype=array.dtype)
        return array.reshape(shape)
    except OverflowError:
        raise RequestRefusal(f"input {name!r} has a number that {datatype} cannot hold") from None


def _read_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in chosen.items() if kind is not None}


def write_message(request: InferRequest, response: InferResponse) -> Any:
    """Build the ModelInferResponse, with raw contents if the request has them or a datatype requires them."""
    answer = messages.ModelInferResponse(model_name=response.model, model_version=response.version, id=request.id)
    for name, value in response.parameters.items():
        answer.parameters[name].string_param = value
    # A response must use one form for all outputs.
    is_raw = request.is_binary or not request.inputs or any(response.datatypes[name] not in _FIELDS for name in response.outputs)
    for name, array in response.outputs.items():
        tensor = answer.outputs.add(name=name, datatype=response.datatypes[name], shape=array.shape)
        if is_raw:
            answer.raw_output_contents.append(bytes(encode_binary(array)))
        else:
            elements, flat = getattr(tensor.contents, _FIELDS[tensor.datatype]), array.reshape(-1)
            for at in range(0, flat.size, PIECE):
                elements.extend(_list_elements(flat[at : at + PIECE]))
    return answer


def _list_elements(flat: Array) -> list[Any]:
    return [str(item).encode() for item in flat] if flat.dtype == object else flat.tolist()
