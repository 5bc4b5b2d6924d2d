"""Run uvicorn and gRPC for one application on one event loop, with signals and graceful shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.errors import OptionError

if TYPE_CHECKING:
    from xrt.serve.application import Application

__all__ = ["Addresses", "run_server"]

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open; longer than typical proxies keep theirs, so that the proxy closes first."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens."""

    host: str
    http: int
    """HTTP port."""
    grpc: int | None = None
    """gRPC port; None if not served."""


def run_server(
    application: Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grpc_port: int | None = None,
    drain: float = 30.0,
    on_start: Callable[[Addresses], None] = lambda addresses: None,
    on_ready: Callable[[str], None] = lambda reason: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish accepted requests within ``drain`` seconds. SIGHUP reloads the models.

    Port 0 chooses a free port. ``on_start`` is called with the addresses; ``on_ready``, once the models are prepared, with the
    reason why the server is not ready, usually empty. A second signal exits at once. Raises OptionError if uvicorn is missing or
    a port cannot be used.
    """
    try:
        import uvicorn
        import uvloop
    except ModuleNotFoundError as error:
        raise OptionError(
            f"a server needs the package {error.name}, which is missing: pip install 'xrt-engine[serve]'"
        ) from error
    with closing(_listen(host, port)) as listener:
        config = uvicorn.Config(
            application,
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(drain)),
            server_header=False,
        )
        answering = uvicorn.Server(config)
        answering.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # signals concern both transports
        server = _Server(application, answering, drain, on_start, on_ready)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(listener, host, grpc_port))


def _listen(host: str, port: int) -> socket.socket:
    with ExitStack() as stack:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = stack.enter_context(socket.socket(family))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            raise OptionError(f"cannot listen on {host}, port {port}: {error}; choose another host or port") from error
        stack.pop_all()
    return listener


class _Server:
    """Both transports and their shutdown."""

    def __init__(
        self,
        application: Application,
        server: Any,
        drain: float,
        on_start: Callable[[Addresses], None],
        on_ready: Callable[[str], None],
    ) -> None:
        self._application, self._server, self._drain = application, server, drain
        self._on_start, self._on_ready = on_start, on_ready
        self._ending = asyncio.Event()
        self._reloading: set[asyncio.Future[None]] = set()

    async def serve(self, listener: socket.socket, host: str, grpc_port: int | None) -> None:
        """Listen until a signal."""
        loop = asyncio.get_running_loop()
        grpc_server, grpc_bound = None, None
        with ExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._end)
                stack.callback(loop.remove_signal_handler, number)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            stack.callback(loop.remove_signal_handler, signal.SIGHUP)
            if grpc_port is not None:
                from xrt.serve.grpc_service import start_grpc

                grpc_server, grpc_bound = await start_grpc(self._application, host, grpc_port)
            answering = asyncio.ensure_future(self._server.serve(sockets=[listener]))
            watching = asyncio.ensure_future(self._watch(Addresses(host, listener.getsockname()[1], grpc_bound)))
            stack.callback(watching.cancel)
            await asyncio.wait([answering, asyncio.ensure_future(self._ending.wait())], return_when=asyncio.FIRST_COMPLETED)
            if grpc_server is not None:
                await grpc_server.stop(self._drain)
            await answering

    def _reload(self) -> None:
        """Reload all models one after another; failures are logged."""
        task = asyncio.ensure_future(self._application.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _end(self) -> None:
        """Shut down gracefully; the second call shuts down at once."""
        self._application.begin_drain()
        # The second signal finds `should_exit` set already.
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
        self._ending.set()

    async def _watch(self, addresses: Addresses) -> None:
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._on_start(addresses)
        await self._application.start()
        self._on_ready(self._application.explain_not_ready())
