"""The connections of HTTP, with bounds on what a client may make them hold: uvicorn's protocol has none before a request is read.

A request's line and headers have a largest size and a longest time. A client that stops reading is left after the same time.
One that has sent all it has, and closed its side, still gets its answers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from xrt.serve.protocol import encode_document
from xrt.serve.refusal import HEAD_TOO_LARGE, LATE, MALFORMED

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
else:
    HttpToolsProtocol = object  # `make_http_protocol` adds uvicorn's, which is not loaded before there is a server

__all__ = ["HEAD_BYTES", "BoundedHttpProtocol", "make_http_protocol"]

HEAD_BYTES = 1 << 16
"""Bytes of a request's line and headers, beyond those that came with its beginning."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection, on top of uvicorn's class. `make_http_protocol` joins the two, and gives it its time limit."""

    patience = 30.0
    """Seconds in which the line and the headers of a request must arrive, and in which a client must read something."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._whole_app, self.app = self.app, self._run
        self._is_in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; a client that has gone meanwhile is no error of the application."""
        try:
            await self._whole_app(scope, receive, send)
        except RuntimeError:  # uvloop's, of a connection that is closed and not yet reported lost
            if not self.transport.is_closing():
                raise
            send.__self__.disconnected = True

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # ------------------------------------------------------------------ what arrives

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes = self._head_bytes + len(data) if was_in_head else 0
            if self._head_bytes > HEAD_BYTES:
                self._refuse(HEAD_TOO_LARGE, f"the request's headers are larger than {HEAD_BYTES} bytes")
                return
        if self._is_in_head or not self._is_answering:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio has it so, and uvicorn returns None alone
        """Keep the connection for the answers to what was sent in whole; close it where nothing is to be answered."""
        if not self._is_answering:
            return None
        if self.cycle.more_body:  # it never comes
            self.cycle.disconnected = True
            return None
        self.cycle.keep_alive = False  # of the last request; those before it are answered first
        self._stop_waiting()
        return True

    # ------------------------------------------------------------------ time limits

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.patience, self._end_of_patience)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_of_patience(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._is_answering:
            self._wait_for_head()
        elif self._is_in_head:
            self._refuse(LATE, f"the request's headers did not arrive within {self.patience:g} s")
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _expect_reading(self, size: int) -> None:
        self._write_timer = self.loop.call_later(self.patience, self._check_reading, size)

    def _check_reading(self, before: int) -> None:
        """End a connection whose client has read nothing since the last look."""
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._expect_reading(size)
        else:
            self._write_timer = None
            self.transport.abort()

    # ------------------------------------------------------------------ refusals

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of all errors."""
        self._refuse(MALFORMED, f"the request is not HTTP/1.1: {msg}")

    def _refuse(self, status: int, reason: str) -> None:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE

        self._stop_waiting()
        body = encode_document({"error": reason})
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def make_http_protocol(patience: float) -> type[BoundedHttpProtocol]:
    """Return the protocol of connections with that time limit in seconds."""
    from uvicorn.protocols.http import httptools_impl

    return type("TimedHttpProtocol", (BoundedHttpProtocol, httptools_impl.HttpToolsProtocol), {"patience": patience})
