"""Connections of clients that are slow, stop half way, send too much or do not read. No test waits for a time limit to pass:
the limits are an hour, and what happens at their end is called."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

import xrt
from tests.serve.schema import check_reply
from tests.serve.serving import HANGS, double, tensor
from xrt.serve import app
from xrt.serve.http_protocol import HEAD_BYTES, BoundedHttpProtocol, make_http_protocol

BODY = json.dumps({"inputs": [tensor("x", [[1, 2, 3]])]}).encode()
LINE = b"POST /v2/models/double/infer HTTP/1.1\r\n"
REQUEST = LINE + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


class Listener:
    """A server on loopback in this loop, and its connections."""

    def __init__(self, application: Any) -> None:
        self.config = uvicorn.Config(application, http=make_http_protocol(3600.0), ws="none", lifespan="off", log_config=None)
        self.config.load()
        self.state = ServerState()
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> asyncio.Server:
        made = self.config.http_protocol_class
        server = await asyncio.get_running_loop().create_server(
            lambda: made(config=self.config, server_state=self.state, app_state={}), "127.0.0.1", 0
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """Close what clients have left open."""
        for one in self._writers:
            one.close()
            with suppress(ConnectionError):
                await one.wait_closed()

    async def find(self, is_so: Callable[[BoundedHttpProtocol], Any]) -> BoundedHttpProtocol:
        """Return the one connection, as soon as that is so."""
        while True:
            for one in self.state.connections:
                if is_so(one):  # type: ignore[arg-type]  # all are of this class
                    return one  # type: ignore[return-value]
            await asyncio.sleep(0.001)

    async def wait_until_empty(self) -> None:
        while self.state.connections:
            await asyncio.sleep(0.001)


def run(test: Callable[[Listener], Awaitable[None]], application: Any = None) -> None:
    async def whole() -> None:
        served = application or app({"double": xrt.XRTModule(double(), engine="toy")})
        if application is None:
            await served.start()
        listener = Listener(served)
        server = await listener.start()
        try:
            await asyncio.wait_for(test(listener), HANGS)
        finally:
            await listener.close()
            server.close()
            if application is None:
                await served.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(one.lower().split(": ", 1) for one in rest)
    body = await reader.readexactly(int(headers["content-length"]))
    status = int(line.split()[1])
    check_reply("POST", "/v2/models/double/infer", status, headers, body)
    return status, headers, json.loads(body)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", None),
        (b"\r\n\r\n", None),
        (b"POST", "the request's headers did not arrive within 3600 s"),
        (LINE + b"content-length: 5\r\nx-a", "the request's headers did not arrive within 3600 s"),
    ],
    ids=["nothing", "empty lines", "a method", "a part of the headers"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_headers_that_do_not_arrive_end_the_connection(sent: bytes, answer: str | None, is_first: bool) -> None:
    """In the first request, and in one after another: uvicorn alone waits for ever where anything has come."""
    if not (sent or is_first):
        return  # a connection that is idle after a request has uvicorn's own limit

    async def test(listener: Listener) -> None:
        reader, writer = await listener.connect(b"" if is_first else REQUEST)
        if not is_first:
            assert (await read_reply(reader))[0] == 200
        for at in range(len(sent)):
            writer.write(sent[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        one = await listener.find(lambda one: one._head_timer and one._is_in_head == bool(answer))
        one._end_of_patience()
        if answer is not None:
            status, headers, document = await read_reply(reader)
            assert (status, headers["connection"], document) == (408, "close", {"error": answer})
        assert await reader.read() == b""
        await listener.wait_until_empty()

    run(test)


def test_headers_that_are_too_large_are_refused() -> None:
    async def test(listener: Listener) -> None:
        for piece in (b"a" * 4096, b"b\r\nx-a: " * 512):
            reader, writer = await listener.connect(LINE + b"x-a: ")
            with suppress(ConnectionError):
                for _ in range(100_000):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            await listener.wait_until_empty()
        reader, writer = await listener.connect(LINE)
        await listener.find(lambda one: one._is_in_head)
        writer.write(b"x-a: " + b"a" * HEAD_BYTES)
        status, _, document = await read_reply(reader)
        assert (status, document) == (431, {"error": "the request's headers are larger than 65536 bytes"})
        large = b"x-a: " + b"a" * (HEAD_BYTES // 2) + b"\r\ncontent-length: %d\r\n\r\n" % len(BODY)
        reader, writer = await listener.connect(LINE + large + BODY)
        assert (await read_reply(reader))[0] == 200

    run(test)


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_closes_its_side_gets_its_answers(count: int) -> None:
    async def test(listener: Listener) -> None:
        reader, writer = await listener.connect(REQUEST * count)
        writer.write_eof()
        for number in range(count):
            status, headers, _ = await read_reply(reader)
            assert (status, headers.get("connection")) == (200, "close" if number == count - 1 else None)
        assert await reader.read() == b""
        await listener.wait_until_empty()

    run(test)


@pytest.mark.parametrize("sent", [REQUEST[:-1], REQUEST[:30]], ids=["body", "headers"])
def test_a_request_that_ends_half_way_is_left(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(listener: Listener) -> None:
        reader, writer = await listener.connect(sent)
        await listener.find(lambda one: one._is_answering or one._is_in_head)
        writer.write_eof()
        assert await reader.read() == b""
        await listener.wait_until_empty()
        while listener.state.tasks:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        run(test)
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        LINE + b"content-length: 99999999999999999999999\r\n\r\n",
        LINE + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        LINE + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
    ],
    ids=["TLS", "a length without end", "two lengths", "a chunk without end"],
)
def test_what_is_not_http_is_an_error_like_others(sent: bytes) -> None:
    async def test(listener: Listener) -> None:
        reader, _ = await listener.connect(sent)
        status, _, document = await read_reply(reader)
        assert status == 400
        assert document == {"error": "the request is not HTTP/1.1: Invalid HTTP request received."}
        assert await reader.read() == b""

    run(test)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_left() -> None:
    size = 1 << 25

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def test(listener: Listener) -> None:
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            client.setblocking(False)
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            one = await listener.find(lambda one: one._write_timer)
            left = one.transport.get_write_buffer_size()
            assert left > size // 4
            one._check_reading(left + 1)  # something was read
            assert one._write_timer is not None
            assert not one.transport.is_closing()
            one._check_reading(one.transport.get_write_buffer_size())
            await listener.wait_until_empty()
        reader, _ = await listener.connect(b"GET / HTTP/1.1\r\n\r\n")
        assert len(await reader.readuntil(b"\r\n\r\n")) and len(await reader.readexactly(size)) == size
        one = await listener.find(lambda one: one._write_timer is None)

    run(test, answer)


def test_a_client_that_is_gone_when_it_is_answered_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        (one,) = found[0].state.connections
        one.transport.abort()
        found.append(1)
        raise RuntimeError("what a write to a handle of uvloop raises that is closed")

    async def test(listener: Listener) -> None:
        found.append(listener)
        reader, _ = await listener.connect(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        while listener.state.tasks or len(found) < 2:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        run(test, answer)
    assert caplog.records == []


def test_an_error_of_the_application_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a fault")

    async def test(listener: Listener) -> None:
        reader, _ = await listener.connect(b"GET / HTTP/1.1\r\n\r\n")
        assert b"500" in await reader.readline()

    run(test, answer)
    assert "a fault" in caplog.text


@pytest.mark.slow
def test_connections_stay_open_and_are_served() -> None:
    async def test(listener: Listener) -> None:
        several = [await listener.connect() for _ in range(200)]
        for _ in range(2):
            for reader, writer in several:
                writer.write(REQUEST)
                status, _, document = await read_reply(reader)
                assert (status, document["outputs"][0]["data"]) == (200, [2, 4, 6])
        assert len(listener.state.connections) == len(several)

    run(test)
