"""Requests that were damaged by a seed, or written to do harm: each is refused with a sentence, and none leaves a traceback."""

from __future__ import annotations

import asyncio
import json
import logging
from random import Random
from typing import Any

import numpy as np
import pytest

import xrt
from tests.malformed_inputs.messages import alter_field
from tests.malformed_inputs.mutators import BLIND, TEXTUAL, mutate
from tests.serve.serving import HANGS, ask, identity, running, tensor, total
from xrt.graph import DType
from xrt.serve import app, open_inference_pb2 as messages, start_grpc

COUNT = 1000


def samples() -> list[tuple[str, bytes, int | None]]:
    """Return valid requests: a model, a body, and the bytes of its JSON where tensors follow."""
    both = [tensor("x0", [[1.5, 2]]), tensor("x1", [["a", "\u00e9"]], "BYTES")]
    text = b"\1\0\0\0a\3\0\0\0abc"
    raw = [("x0", "FP32", np.ones((1, 2), np.float32).tobytes()), ("x1", "BYTES", text)]
    heads = [
        {"name": name, "shape": [1, 2], "datatype": kind, "parameters": {"binary_data_size": len(data)}}
        for name, kind, data in raw
    ]
    head = json.dumps({"id": "7", "inputs": heads, "parameters": {"binary_data_output": True}}).encode()
    session = {"inputs": [tensor("x", [1, 2])], "parameters": {"session_id": "a", "session_start": True, "session_end": False}}
    wanted = [{"name": "y0", "parameters": {"binary_data": True}}, {"name": "y1"}]
    return [
        ("pair", json.dumps({"id": "1", "inputs": both, "outputs": wanted}).encode(), None),
        ("pair", head + b"".join(data for _, _, data in raw), len(head)),
        ("total", json.dumps(session).encode(), None),
    ]


def application() -> Any:
    models = {"pair": identity(DType.FLOAT32, DType.STRING), "total": total()}
    return app(
        {name: xrt.XRTModule(function, engine="toy") for name, function in models.items()},
        max_request_bytes=1 << 16,
        max_sessions=10_000,
    )


@pytest.mark.slow
async def test_a_thousand_damaged_bodies(caplog: pytest.LogCaptureFixture) -> None:
    served, chance = application(), Random(20)
    caplog.set_level(logging.ERROR)
    async with running(served):
        seen = dict.fromkeys((200, 400), 0)
        for number in range(COUNT):
            model, body, length = samples()[number % 3]
            damaged = mutate(body, BLIND + TEXTUAL, chance)
            headers = (
                {} if length is None else {"Inference-Header-Content-Length": chance.choice([str(length), "7", "-1", "9" * 50])}
            )
            reply = await ask(served, "POST", f"/v2/models/{model}/infer", damaged, headers)
            assert reply.status in (200, 400, 404, 410, 413), (number, reply)
            assert reply.status == 200 or reply.error
            seen[reply.status] = seen.get(reply.status, 0) + 1
        assert seen[400] > COUNT / 2 and seen[200] > 20  # the damage is not always in what is read
    assert caplog.records == []


@pytest.mark.slow
async def test_damaged_messages_of_grpc(caplog: pytest.LogCaptureFixture) -> None:
    import grpc.aio

    served, chance = application(), Random(20)
    request = messages.ModelInferRequest(model_name="pair", id="1")
    request.inputs.add(name="x0", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    request.inputs.add(name="x1", datatype="BYTES", shape=[1, 2]).contents.bytes_contents.extend([b"a", b"b"])
    raw = messages.ModelInferRequest(model_name="pair", raw_input_contents=[b"\0" * 8, b"\1\0\0\0a\0\0\0\0"])
    raw.inputs.add(name="x0", datatype="FP32", shape=[1, 2])
    raw.inputs.add(name="x1", datatype="BYTES", shape=[1, 2])
    good = [request.SerializeToString(), raw.SerializeToString()]
    caplog.set_level(logging.ERROR)
    async with running(served):
        server, port = await start_grpc(served)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            codes: set[Any] = set()
            for number in range(300):
                try:
                    await asyncio.wait_for(call(mutate(good[number % 2], (alter_field, alter_field, *BLIND), chance)), HANGS)
                    codes.add("OK")
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code().name)
            assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"} and {"OK", "INVALID_ARGUMENT"} <= codes
        await server.stop(None)
    assert caplog.records == []
