"""gRPC on an application without a process of its own: typed and raw contents, errors, and the committed messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

import xrt
from tests.serve.serving import HANGS, TOP, double, identity, running
from xrt.graph import DType
from xrt.serve import app, open_inference_pb2 as messages, start_grpc
from xrt.serve.grpc_service import SERVICE
from xrt.serve.metrics import ACCESS_LOGGER
from xrt.serve.protocol import DATATYPES

PROTO = TOP / "proto" / "open_inference.proto"


async def call(port: int, name: str, /, **fields: Any) -> Any:
    """Return the response to one call with a request of those fields."""
    request, response = getattr(messages, f"{name}Request"), getattr(messages, f"{name}Response")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return await asyncio.wait_for(method(request(**fields)), HANGS)


async def refuse(port: int, name: str, /, status: str, message: str, **fields: Any) -> Any:
    """Assert the status and the message of a call; return the error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(port, name, **fields)
    assert (error.value.code().name, error.value.details()) == (status, message)
    return error.value


@asynccontextmanager
async def serving(application: Any) -> AsyncIterator[int]:
    """Start an application and its gRPC server; return the port."""
    async with running(application):
        server, port = await start_grpc(application)
        try:
            yield port
        finally:
            await server.stop(None)


FIELDS = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT32": ("int_contents", [-(2**31), 5]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [1.5, float("-inf")]),
    "FP64": ("fp64_contents", [0.1, 2.0]),
    "BYTES": ("bytes_contents", ["é".encode(), b""]),
}


async def test_typed_contents_of_each_datatype_come_back() -> None:
    function = identity(*(DATATYPES[name].dtype for name in FIELDS), shape=(2,))
    inputs = [
        {"name": f"x{place}", "datatype": name, "shape": [2], "contents": {field: values}}
        for place, (name, (field, values)) in enumerate(FIELDS.items())
    ]
    async with serving(app({"all": xrt.XRTModule(function, engine="toy")})) as port:
        response = await call(port, "ModelInfer", model_name="all", id="r", inputs=inputs)
        assert (response.id, response.model_version, list(response.raw_output_contents)) == ("r", "1", [])
        for output, (name, (field, values)) in zip(response.outputs, FIELDS.items(), strict=True):
            assert (output.datatype, list(output.shape), list(getattr(output.contents, field))) == (name, [2], values)


async def test_what_has_no_typed_contents_is_raw() -> None:
    half = np.array([[1.5, -2]], np.float16)
    tensor = {"name": "x0", "datatype": "FP16", "shape": [1, 2]}
    async with serving(app({"half": xrt.XRTModule(identity(DType.FLOAT16), engine="toy")})) as port:
        response = await call(port, "ModelInfer", model_name="half", inputs=[tensor], raw_input_contents=[half.tobytes()])
        assert list(response.raw_output_contents) == [half.tobytes()]
        for fields, message in (
            ({"inputs": [tensor]}, "input 'x0' is FP16, which contents cannot hold; send it in raw_input_contents"),
            (
                {"inputs": [tensor], "raw_input_contents": [b"", b""]},
                "the request has 1 inputs and 2 raw contents; give one for each input, or none",
            ),
            ({"inputs": [{**tensor, "datatype": "FP8"}]}, f"input 'x0' has datatype 'FP8'; available: {', '.join(DATATYPES)}"),
            (
                {"inputs": [{"name": "x0", "datatype": "INT8", "shape": [1], "contents": {"int_contents": [200]}}]},
                "input 'x0' has a number that INT8 cannot hold",
            ),
            (
                {"inputs": [{"name": "x0", "datatype": "INT8", "shape": [2], "contents": {"int_contents": [1]}}]},
                "input 'x0' has shape [2], 2 elements; int_contents has 1",
            ),
        ):
            await refuse(port, "ModelInfer", "INVALID_ARGUMENT", message, model_name="half", **fields)


async def test_a_server_that_ends_is_not_ready_and_metrics_count_the_requests_of_each_method() -> None:
    application = app({"double": xrt.XRTModule(double(), engine="toy")})
    async with serving(application) as port:
        assert (await call(port, "ServerReady")).ready
        application.begin_drain()
        assert not (await call(port, "ServerReady")).ready and (await call(port, "ServerLive")).live
        await refuse(port, "ModelMetadata", "NOT_FOUND", "there is no model 'none'; available: double", name="none")
        await refuse(port, "ModelInfer", "NOT_FOUND", "there is no model 'none'; available: double", model_name="none")
    text = application.metrics.write().decode()
    for operation, status, count in (("ServerReady", 200, 2.0), ("ModelMetadata", 404, 1.0), ("ModelInfer", 404, 1.0)):
        assert f'xrt_operations_total{{operation="{operation}",protocol="grpc",status="{status}"}} {count}' in text


async def test_calls_in_memory_are_bounded_and_health_is_still_told() -> None:
    """Calls that send nothing are the ones under way: no message of a further call is read before it is refused."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": [1, 2, 3]}}

    async def ask_until_refused(port: int) -> None:
        while True:  # until both have come
            await call(port, "ModelInfer", model_name="double", inputs=[tensor])

    async with serving(app({"double": xrt.XRTModule(double())}, max_queue=1)) as port:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.stream_unary(f"/{SERVICE}/ModelInfer")
            silent = [method() for _ in range(2)]
            for warning in silent:
                await warning.wait_for_connection()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask_until_refused(port)
            message = "2 calls are under way, and no more are read; try again"
            assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNAVAILABLE, message)
            assert dict(error.value.trailing_metadata() or ())["retry-after"] == "1"
            assert (await call(port, "ServerLive")).live
            for warning in silent:
                warning.cancel()
        response = None
        while response is None:
            with suppress(grpc.aio.AioRpcError):
                response = await call(port, "ModelInfer", model_name="double", inputs=[tensor])
        assert list(response.outputs[0].contents.fp32_contents) == [2, 4, 6]


async def test_a_cancelled_call_is_logged_as_such(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    application = app({"double": xrt.XRTModule(double(), engine="toy")})
    begun = asyncio.Event()

    async def load(name: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(application.models, "load", load)
    with caplog.at_level("INFO", ACCESS_LOGGER):
        async with serving(application) as port:
            loading = asyncio.ensure_future(call(port, "RepositoryModelLoad", model_name="double"))
            await begun.wait()
            loading.cancel()
            while not caplog.messages:  # until the server has been told
                await asyncio.sleep(0)
            (message,) = caplog.messages
            assert " 'RepositoryModelLoad' 499 " in message


async def test_a_message_that_does_not_arrive_is_refused() -> None:
    async with serving(app({"double": xrt.XRTModule(double())}, body_timeout=0.05)) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await channel.stream_unary(f"/{SERVICE}/ModelInfer")()
        expected = ("DEADLINE_EXCEEDED", "the message did not arrive within 0.05 s")
        assert (late.value.code().name, late.value.details()) == expected
        await channel.close()


@pytest.mark.slow
def test_the_committed_messages_are_fresh_and_in_a_pool_of_their_own(tmp_path: Path) -> None:
    result = tmp_path / "made.py"
    script = TOP / "proto" / "write_messages.py"
    subprocess.run([sys.executable, str(script), str(PROTO), str(result)], check=True)

    def read(source: str) -> descriptor_pb2.FileDescriptorProto:
        results: dict[str, Any] = {}
        exec(compile(source, "messages", "exec"), results)  # a module that this test has just made
        file = descriptor_pb2.FileDescriptorProto.FromString(results["SERIALIZED"])
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
        return file

    committed = read(Path(str(messages.__file__)).read_text())
    assert read(result.read_text()) == committed, "proto/open_inference.proto was changed; run `make proto`"
    assert messages.ModelInferRequest.DESCRIPTOR.file.pool is not descriptor_pool.Default()
